"""One node as the Lua scripts make it: ``test_model.py`` compares the two on random sequences."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from django_rlock._redis import scripts
from django_rlock._redis.scripts import Script
from django_rlock._transport.quorum.votes import AHEAD
from django_rlock.locks.kinds import EXTEND, RENEW

Reply = list[Any]


class Node:
    """A server with one lock on it. Its clock is the caller's business: ``clock()`` answers seconds.

    ``run_id`` and ``replication`` change with every restart; ``durable`` nodes keep their data through it.
    """

    def __init__(self, clock: Callable[[], float], durable: bool = False) -> None:
        self.clock = clock
        self.durable = durable
        self.generation = 0
        self.replication = 0
        self.forget()
        self.start()
        self._scripts: dict[Script, Callable[..., Any]] = {
            scripts.REDLOCK_ACQUIRE: self.acquire,
            scripts.REDLOCK_BUMP: self.bump,
            scripts.REDLOCK_RELEASE: self.release,
            scripts.REDLOCK_RENEW: self.renew,
            scripts.REDLOCK_SEED: self.seed,
            scripts.REDLOCK_VOUCH: self.vouch,
            scripts.LOCK_STATE: self.state,
        }

    def forget(self) -> None:
        self.holds: dict[str, int] = {}
        self.expires = math.inf
        self.counter = 0
        self.tombstones: dict[str, int] = {}
        self.mark = b""
        self.marked: int | None = None
        self.former_mark = b""
        self.known = b""
        self.kept = self.longest = 0
        self.lists: list[str] = []

    def start(self) -> None:
        self.generation += 1
        self.replication += 1

    def fail_over_and_back(self) -> None:
        """Come back with data that lack the last writes; the process and its connections stay."""
        marks = self.marks
        self.forget()
        self.marks = marks
        self.replication += 1

    @property
    def marks(self) -> tuple[bytes, int | None, bytes, int, int]:
        """What the node knows of its data."""
        return self.mark, self.marked, self.known, self.kept, self.longest

    @marks.setter
    def marks(self, marks: tuple[bytes, int | None, bytes, int, int]) -> None:
        self.mark, self.marked, self.known, self.kept, self.longest = marks

    def give_vote(self) -> None:
        """Let its data have been known for longer than any lease."""
        self.marks = b"?", self.replication, self.run_id.encode(), 10**9, 0

    def restart(self) -> None:
        if not self.durable:
            self.forget()
        self.start()

    @property
    def run_id(self) -> str:
        return f"{id(self)}-{self.generation}"

    def run(self, script: Script, args: tuple[Any, ...]) -> Reply:
        """The script's reply, without the nonce."""
        if self._ms() > self.expires:
            self._delete()
        reply = self._scripts[script](*args)
        return reply if isinstance(reply, list) else [reply]

    def _ms(self) -> int:
        return math.floor(self.clock() * 1000)

    def _delete(self) -> None:
        self.holds = {}
        self.expires = math.inf

    def _pttl(self) -> int:
        return -2 if not self.holds else -1 if self.expires == math.inf else max(int(self.expires - self._ms()), 0)

    def _is_refused(self, owner: str) -> bool:
        return self.tombstones.get(owner, 0) > self._ms()

    def _now_us(self) -> int:
        return math.floor(self.clock() * 1e6)

    def _next_token(self, proposal: int = 0) -> int:
        now = self._now_us()
        self.counter = max(now, self.counter + 1)
        if self.counter < proposal <= now + AHEAD:
            self.counter = proposal
        return self.counter

    def _hold(self, owner: str, count: int, lease_ms: int) -> None:
        held_for = self._pttl() if owner in self.holds else 0
        self.holds[owner] = count
        self.expires = self._ms() + max(held_for, lease_ms)

    def acquire(
        self, owner: str, count: int, lease_ms: int, _fence_ttl: int, quarantine: int, list_: str, proposal: int
    ) -> Any:
        if owner in self.holds:
            self._hold(owner, count, lease_ms)
            return [b"OK", self.counter or self._next_token(), self._now_us(), *self._mark(owner, quarantine, list_)]
        if count != 1:
            return b"LOST"
        if self.holds:
            return self._pttl()
        if self._is_refused(owner):
            return 0
        token = self._next_token(proposal)
        self._hold(owner, 1, lease_ms)
        return [b"OK", token, self._now_us(), *self._mark(owner, quarantine, list_)]

    def _mark(self, owner: str, quarantine: int, list_: str) -> tuple[bytes, int, bytes]:
        others = [each for each in self.lists if each != list_]
        self.lists = [*others, list_]
        self.longest = max(self.longest, quarantine)
        if self.marked != self.replication:
            self.mark = f"?{owner}".encode()
            self.known, self.kept = (self.former_mark, quarantine) if self.marked is None else (b"", 0)
            if self.marked is not None:
                self.former_mark = b""
            self.marked = self.replication
        is_known = self.known and self.kept >= quarantine
        return self.known if is_known else self.mark, self.longest, " ".join(others).encode()

    def vouch(self, mark: bytes, run_id: str, kept: int) -> int:
        if mark not in {self.mark, self.known}:
            return 0
        self.known, self.kept = run_id.encode(), kept
        return 1

    def bump(self, owner: str, token: int, _fence_ttl: int) -> int:
        if owner not in self.holds:
            return 0
        self.counter = max(self.counter, token)
        return 1

    def release(self, owner: str, left: int, lease_ms: int, refused_ms: int) -> int:
        held = int(owner in self.holds)
        if left:
            if held:
                self._hold(owner, left, lease_ms)
            return held
        if held:
            self._delete()
        self.tombstones = {each: until for each, until in self.tombstones.items() if until > self._ms()}
        self.tombstones[owner] = max(self.tombstones.get(owner, 0), self._ms() + refused_ms)
        return held

    def renew(self, owner: str, lease_ms: int, mode: int, quarantine: int, list_: str) -> Any:
        """In the order in which such calls were sent."""
        if owner not in self.holds:
            return 0 if self.holds else -1
        if mode == EXTEND or (mode == RENEW and self._pttl() < lease_ms):
            self.expires = self._ms() + lease_ms
        return [self.holds[owner], *self._mark(owner, quarantine, list_)]

    def seed(self, owner: str, count: int, lease_ms: int) -> int:
        if self.holds or self._is_refused(owner):
            return 0
        self._hold(owner, count, lease_ms)
        return 1

    def state(self, owner: str) -> Reply:
        return [self.holds.get(owner, 0), self._pttl()]
