"""The map of a cluster's slots."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import redis
from redis.crc import key_slot

from django_rlock.clock import monotonic
from django_rlock.cluster.addresses import Address

if TYPE_CHECKING:
    from django_rlock.cluster.client import ClusterClient

Ask = Callable[[Address], Sequence[Any]]
"""Sends ``CLUSTER SLOTS`` to a node and returns its reply, within ASK_WITHIN seconds. Raises RedisError or OSError
when there is none."""

SLOTS = 16384
ASK_WITHIN = 1.0
"""How long one node may take to return the map of slots, in seconds."""


@lru_cache(maxsize=4096)
def slot_of(key: str) -> int:
    """The hash slot of a key or a sharded channel."""
    return key_slot(key.encode())


class SlotMap:
    """Which node serves which slot. Each alias of a process has one map, filled from the nodes' replies and
    redirections.

    An exception raised by a signal handler may interrupt a caller anywhere in here, and must not block others. So the
    class uses no mutex: shared state is replaced by single assignments, and every wait has a limit.
    """

    def __init__(self, client: ClusterClient, ask: Ask | None = None) -> None:
        self._client = client
        self._ask = ask or client.ask_slots
        self._owners: list[Address | None] = [None] * SLOTS
        self._nodes = client.start
        self._round = _Round(0)
        self.rounds = 0
        self.stale = True

    def owner(self, slot: int) -> Address:
        """The node that serves a slot, or any node if that is not known yet."""
        return self._owners[slot] or self._nodes[0]

    def redirected(self, host: bytes | str | None, port: int, asked: Address) -> Address:
        """The address for a host and port in a redirection or in CLUSTER SLOTS, as sent by the node ``asked``."""
        return self._client.reached(host, port, asked)

    def moved(self, slot: int, address: Address) -> None:
        """Record the target of a redirection."""
        self._owners[slot] = address

    def doubt(self, address: Address) -> None:
        """Mark the map as stale because a node did not reply; that node is asked last."""
        self._nodes = [*(node for node in self._nodes if node != address), address]
        self.stale = True

    def refresh(self, rounds: int | None = None, within: float = 2 * ASK_WITHIN) -> None:
        """Fetch the map, or wait while another thread fetches it. It stays unchanged if no node replies.

        ``rounds`` is the value of ``self.rounds`` when the caller decided to refresh (None: now). ``within`` is how
        many seconds the caller has: no further node is asked after that, but the last one may take ASK_WITHIN longer.
        """
        before = self.rounds if rounds is None else rounds
        # Callers that waited for a round without a reply would learn nothing by asking once more, one after the other.
        if not self.stale or self.rounds != before:
            return
        asking = self._round
        if asking.goes_on():
            asking.wait(within)
        else:  # two callers at once may both ask, which does no harm
            self._ask_in_a_round(within)

    def _ask_in_a_round(self, within: float) -> None:
        mine = self._round = _Round(2 * ASK_WITHIN)
        try:
            self._ask_all(monotonic() + min(within, 2 * ASK_WITHIN))
            self.rounds += 1
        finally:
            mine.end()

    def _ask_all(self, give_up_at: float) -> None:
        for node in list(self._nodes):
            if ranges := self._ranges(node):
                self._learn(ranges)
                return
            if monotonic() >= give_up_at:
                return

    def _ranges(self, node: Address) -> list[tuple[int, int, Address]]:
        try:
            return self._ranges_in(self._ask(node), node)
        except (redis.RedisError, OSError, TypeError, ValueError):  # the last two if it is malformed
            return []

    def _ranges_in(self, reply: Any, node: Address) -> list[tuple[int, int, Address]]:
        return [
            (start, end, self.redirected(host, port, node))
            for start, end, (host, port, *_), *_ in reply
            if 0 <= start <= end < SLOTS
        ]

    def _learn(self, ranges: Sequence[tuple[int, int, Address]]) -> None:
        owners: list[Address | None] = [None] * SLOTS
        for start, end, address in ranges:
            owners[start : end + 1] = [address] * (end + 1 - start)
        self._owners = owners
        self._nodes = list(dict.fromkeys([*(address for _, _, address in ranges), *self._client.start]))
        self.stale = False


class _Round:
    """One round of asking the nodes, and the threads that wait for its end.

    It ends by itself after some seconds, in case its thread was interrupted before it could end it.
    """

    def __init__(self, seconds: float) -> None:
        self._over_at = monotonic() + seconds
        self._ended = False
        self._waiting: deque[threading.Lock] = deque()

    def goes_on(self) -> bool:
        """Whether its thread is still asking."""
        return not self._ended and monotonic() < self._over_at

    def wait(self, seconds: float) -> None:
        """Wait for its end, at most for a number of seconds."""
        event = threading.Lock()  # only this thread waits for it
        event.acquire()
        self._waiting.append(event)
        if self.goes_on():  # otherwise the bell might never ring
            event.acquire(timeout=max(min(seconds, self._over_at - monotonic()), 0))

    def end(self) -> None:
        """End the round, and wake the threads that wait for it."""
        self._ended = True
        while self._waiting:
            self._waiting.popleft().release()
