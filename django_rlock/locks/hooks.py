"""What makes a kind of lock: a few pure functions from the lock's state to script calls, names and durations.

The flows of ``attempt`` and ``base`` are the same for all kinds; a kind writes no loop and does no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

from django_rlock import keys, scripts
from django_rlock.drivers.base import ScriptCall
from django_rlock.locks.durations import milliseconds
from django_rlock.settings import AliasSettings, get_settings

REPOLL = 30.0
"""The longest sleep of a waiter before it asks again unasked, in seconds: no lost message can stop it for good."""


class LockHooks:
    """The name of a lock, and the hooks that a kind fills in. Durations are seconds."""

    __slots__ = ("max_hold_time", "name", "on_lost", "using")

    kind: ClassVar[str]

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
        """Answers OK, LOST (a re-entry whose hold is gone), or the holder's remaining lease in ms."""
        raise NotImplementedError

    def release_call(self, owner: str, left: int, lease: float) -> ScriptCall:
        """Answers 1, or 0 when the owner does not hold it."""
        raise NotImplementedError

    def leave_call(self, owner: str) -> ScriptCall:
        """Undoes an attempt whose outcome nobody wants: no hold and no place in a queue is left."""
        raise NotImplementedError

    def wake_up(self, owner: str) -> tuple[str, str | None]:
        """Channel and token (see Driver.listen) by which a waiter is woken."""
        raise NotImplementedError

    def pauses(self, left_ms: int) -> tuple[float, float]:
        """How long a waiter sleeps at most, and when its process beats for it (math.inf: never)."""
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
        return self._call(scripts.LOCK_FORCE_RELEASE, keys.fair_keys(self.key), owner or "", claim)

    def _call(self, script: scripts.Script, all_keys: tuple[str, ...], *args: str | int) -> ScriptCall:
        return ScriptCall(self.name, script, all_keys, args)
