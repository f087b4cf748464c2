"""What makes a kind of lock: a few pure functions from the lock's state to script calls, names and durations.

The flows of ``attempt`` and ``base`` are the same for all kinds; a kind writes no loop and does no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

from django_rlock import keys, scripts
from django_rlock.drivers.base import Argument, ScriptCall
from django_rlock.exceptions import RLockError
from django_rlock.locks.durations import milliseconds
from django_rlock.settings import AliasSettings, get_settings

REPOLL = 30.0
"""The longest sleep of a waiter before it asks again unasked, in seconds: no lost message can stop it for good."""


class LockHooks:
    """The name of a lock, and the hooks that a kind fills in. Durations are seconds."""

    __slots__ = ("max_hold_time", "name", "on_lost", "using")

    kind: ClassVar[str]
    takes: ClassVar[bool] = True
    """Whether an acquire leaves something on the server, which replicas may have to confirm."""
    scope: ClassVar[str] = ""
    """Keeps holds of the same owner and name apart: the two sides of a read-write lock."""
    patience: ClassVar[float] = math.inf
    """How long an acquire is sent again at most, in seconds, however long the wait: the server must still know it."""
    fresh_names: ClassVar[bool] = False
    """Whether each try needs a wire name of its own, because the clean-up of an earlier one may come later."""
    joins: ClassVar[bool] = False
    """Whether MultiLock's scripts may take and free it: its state is Redisson's plain lock, and it has no token."""

    name: str
    using: str
    on_lost: Callable[[LockHooks], object] | None
    max_hold_time: float | None

    @property
    def settings(self) -> AliasSettings:
        return get_settings(self.using)

    @property
    def key(self) -> str:
        """The name in Redis, prefix included."""
        return self.settings.key_prefix + self.name

    def acquire_call(self, owner: str, count: int, lease: float, waiting: bool) -> ScriptCall:
        """Answers OK, perhaps with a token; LOST (a re-entry, but its hold is gone); or the holder's lease left, ms."""
        raise NotImplementedError

    def refusal(self, reply: list[Any]) -> RLockError:
        """The error for an answer of ``acquire_call`` in words of the kind's own, which no wait can change."""
        raise NotImplementedError

    def release_call(self, owner: str, left: int, lease: float) -> ScriptCall:
        """Answers 1, or 0 when the owner does not hold it."""
        raise NotImplementedError

    def leave_call(self, owner: str) -> ScriptCall:
        """Undoes an attempt whose outcome nobody wants: no hold and no place in a queue is left."""
        raise NotImplementedError

    def wake_up(self, owner: str) -> tuple[str, str | None] | None:
        """Channel and token (see Driver.listen) by which a waiter is woken; None where it only sleeps."""
        raise NotImplementedError

    def pauses(self, left_ms: int, tries: int) -> tuple[float, float]:
        """How long a waiter sleeps at most after so many tries, and when its process beats for it (inf: never)."""
        # Within the last millisecond, where it answers 0, the server still counts the lease as running.
        return min(REPOLL, (left_ms + 1) / 1000) if left_ms >= 0 else REPOLL, math.inf

    def beat_call(self, owner: str) -> ScriptCall:
        """Asked for a process's longest waiting owner; see ``fair_beat.lua``."""
        raise NotImplementedError

    def renew_call(self, owner: str, lease: float) -> ScriptCall:
        """Answers 1, or 0 when the owner does not hold it. A longer lease stays."""
        return self._call(scripts.LOCK_RENEW, (self.key,), owner, milliseconds(lease), 1)

    def extend_call(self, owner: str, lease: float) -> ScriptCall:
        """The same, but may shorten the lease."""
        return self._call(scripts.LOCK_RENEW, (self.key,), owner, milliseconds(lease), 0)

    def state_call(self, owner: str) -> ScriptCall:
        """Answers the owner's holds, and the remaining lease in ms (-2 free, -1 without end)."""
        return self._call(scripts.LOCK_STATE, (self.key,), owner)

    def force_release_call(self, owner: str | None) -> ScriptCall:
        """Answers 1, or 0 when nobody holds it (or not that owner)."""
        claim = milliseconds(self.settings.claim_time)
        field = self.field(owner) if owner else ""
        all_keys = keys.force_release_keys(self.key)
        return self._call(scripts.LOCK_FORCE_RELEASE, all_keys, field, claim, self.scope)

    def field(self, owner: str) -> str:
        """How an owner stands in the lock's hash."""
        return owner

    def drift(self, lease: float) -> float:
        """By how much a holder counts its lease shorter than the servers do."""
        return 0.0

    def _call(self, script: scripts.Script, all_keys: tuple[str, ...], *args: Argument) -> ScriptCall:
        return ScriptCall(self.name, script, all_keys, args)
