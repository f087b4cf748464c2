"""What defines a kind of lock: a few pure functions from the lock's state to script calls, names and durations.

The flows in ``attempt`` and ``flows`` are the same for all kinds; a kind writes no loop and does no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

from django_rlock import keys, scripts
from django_rlock.connections import is_cluster
from django_rlock.drivers.calls import REMEMBERED, Argument, ScriptCall, prepare
from django_rlock.drivers.identity import Owner, client_id
from django_rlock.exceptions import RLockError
from django_rlock.locks.durations import milliseconds
from django_rlock.settings import AliasSettings, settings_of

REPOLL = 30.0
"""The longest sleep of a waiter before it tries again unwoken, in seconds, in case a message was lost."""
RENEW, EXTEND, SETTLE = 1, 0, 2
"""What to do with a lease: prolong it, replace it, or disable replacements that may come late."""


class Named:
    """An object with a name, a kind and an alias ``using``."""

    __slots__ = ("name", "using")

    kind: ClassVar[str]
    noun: ClassVar[str] = "lock"
    """Its name in errors and log records."""

    name: str
    using: str
    template: str = ""
    """The key template from which a decorator or a task made the name; "" if there is none."""

    @property
    def key(self) -> str:
        """The key in Redis: the name with the alias's prefix."""
        return settings_of(self.using).key_prefix + self.name

    @property
    def _settings(self) -> AliasSettings:
        return settings_of(self.using)

    def _retire_call(self, request: str | bytes) -> ScriptCall:
        """Makes a request do nothing from now on."""
        all_keys = (keys.requests_key(self.key),)
        return self._call(scripts.REQUEST_RETIRE, all_keys, request, milliseconds(REMEMBERED))

    def _call(self, script: scripts.Script, all_keys: tuple[str, ...], first: Argument, *args: Argument) -> ScriptCall:
        return ScriptCall(self.name, prepare(script, all_keys, args), first, self.noun)


class Waitable(Named):
    """An object that can be acquired and waited for, with the hooks that a kind fills in. Durations are seconds."""

    __slots__ = ()

    _takes: ClassVar[bool] = True
    """Whether an acquire writes to the server, so that replicas may have to confirm it."""
    _scope: ClassVar[str] = ""
    """Separates holds of the same owner and name: the two sides of a read-write lock."""
    _patience: ClassVar[float] = math.inf
    """How long an acquire is retried at most, in seconds, even if the wait is longer: the server must still know it."""
    _fresh_names: ClassVar[bool] = False
    """Whether each try needs a wire name of its own, because the clean-up of an earlier try may arrive later."""
    _beats_together: ClassVar[int] = 1
    """How many locks of the same place one beat may serve."""

    def _acquire_call(self, wire_name: str, count: int, lease: float, waiting: bool) -> ScriptCall:
        """Returns OK, perhaps with a token; or LOST (a re-entry whose hold is gone); or the holder's remaining lease in
        ms. A kind with a queue adds whether the holder does not know the queue, and the ticket that was drawn, if
        any."""
        raise NotImplementedError

    def _refusal(self, reply: list[Any]) -> RLockError:
        """The error for a textual reply of ``_acquire_call`` with the kind's own meaning; no wait can change it."""
        raise NotImplementedError

    def _leave_call(self, wire_name: str) -> ScriptCall:
        """Undoes an attempt whose outcome is not wanted: it leaves no hold and no place in a queue."""
        raise NotImplementedError

    def _withdraw_call(self, wire_name: str) -> ScriptCall | None:
        """Undoes what a named owner left in the queue while it waited, but no hold: that may belong to another process
        or a later call. None for a kind that does not remember waiters.
        """
        return None

    def _undo_call(self, owner: Owner, wire_name: str) -> ScriptCall | None:
        """Undoes what an unwanted acquire may have taken, as far as it can be distinguished from wanted ones."""
        return self._withdraw_call(wire_name) if owner.is_named else self._leave_call(wire_name)

    def _for_one_attempt(self) -> Self:
        """The lock to use for one attempt of a named owner. For kinds that remember waiters, it ensures that late
        commands of an earlier attempt do not affect this one.
        """
        return self

    def _channel(self) -> str | None:
        """The channel whose messages wake a waiter; None if it only sleeps."""
        raise NotImplementedError

    def _token(self, wire_name: str) -> str | None:
        """Which messages of the channel wake a waiter; see ``Driver.listen``."""
        return None

    def _outside_channel(self) -> str:
        """The channel of releases by owners that do not know the kind's queue; see ``Attempt``."""
        raise NotImplementedError

    def _pauses(self, left_ms: int, tries: int) -> tuple[float, float]:
        """How long a waiter sleeps at most after these tries, and in how long its process beats for it (inf: never)."""
        # In its last millisecond a lease is returned as 0, but still runs.
        return min(REPOLL, (left_ms + 1) / 1000) if left_ms >= 0 else REPOLL, math.inf

    def _beat_call(self, waiting: Sequence[tuple[Waitable, str]], alive: float) -> ScriptCall:
        """Beats for locks of this kind and alias. Each comes with its process's longest waiting owner, which then
        counts as alive for ``alive`` seconds.

        Returns for each lock a state (see ``beats``) and the remaining lease in ms.
        """
        raise NotImplementedError

    def _field(self, wire_name: str) -> str:
        """The field of an owner in the lock's hash."""
        return wire_name


class Renewable(Waitable):
    """An object that can be held: its hold has a lease, which can be renewed, and can be released."""

    __slots__ = ()

    _forces: ClassVar[tuple[str, ...]] = "", "read", "write"
    """The scopes in which force_release ends holds of the name: all scopes, unless the lock is one side only."""
    _joins: ClassVar[bool] = False
    """Whether MultiLock's scripts may take and free it: its state is that of Redisson's plain lock, without a token."""
    _hears_forced: ClassVar[bool] = True
    """Whether a process that holds it for long listens to forced releases."""

    on_lost: Callable[[Any], object] | None
    max_hold_time: float | None

    def _release_call(self, wire_name: str, left: int, lease: float) -> ScriptCall:
        """Returns 1, or 0 when the owner does not hold it."""
        raise NotImplementedError

    def _renew_call(self, wire_name: str, lease: float) -> ScriptCall:
        """Returns 1, or 0 when the owner does not hold it. A longer existing lease stays."""
        return self._lease_call(wire_name, lease, RENEW)

    def _extend_call(self, wire_name: str, lease: float, keep_longer: bool = False) -> ScriptCall:
        """Like ``_renew_call``, but may shorten the lease, unless ``keep_longer`` is set because others share it."""
        return self._lease_call(wire_name, lease, RENEW if keep_longer else EXTEND)

    def _settle_call(self, wire_name: str, lease: float) -> ScriptCall:
        """Makes earlier calls of ``_extend_call`` do nothing if they arrive after it."""
        return self._lease_call(wire_name, lease, SETTLE)

    def _lease_call(self, wire_name: str, lease: float, mode: int) -> ScriptCall:
        if mode == RENEW:
            return self._call(scripts.LOCK_RENEW, (self.key,), milliseconds(lease), wire_name)
        all_keys = self.key, *self._order(wire_name, mode)
        return self._call(scripts.LOCK_EXTEND, all_keys, wire_name, milliseconds(lease), mode)

    def _order(self, wire_name: str, mode: int) -> tuple[str, ...]:
        """The key that records which extensions must not be executed any more, for the calls that need it."""
        return () if mode == RENEW else (keys.settled_key(self.key, client_id(), wire_name),)

    def _state_call(self, wire_name: str) -> ScriptCall:
        """Returns the owner's holds, and the remaining lease in ms (-2 free, -1 without end)."""
        return self._call(scripts.LOCK_STATE, (self.key,), wire_name)

    def _holders_call(self) -> ScriptCall:
        """Returns the fields of the lock's hash for the owners that hold it."""
        return self._call(scripts.LOCK_HOLDERS, (self.key,), "")

    def _force_release_call(self, wire_name: str | None, request: str) -> ScriptCall:
        """Returns 1, or 0 when the lock, or that owner's hold, does not exist."""
        claim = milliseconds(self._settings.claim_time)
        field = self._field(wire_name) if wire_name else ""
        all_keys = keys.force_release_keys(self.key, self._forced_channel())
        return self._call(scripts.LOCK_FORCE_RELEASE, all_keys, field, claim, self._scope, request)

    def _forced_channel(self) -> str:
        """The channel that notifies holders of forced releases; they then ask the server about their hold."""
        return keys.forced_channel(self.key if is_cluster(self.using) else None)

    def _drift(self, lease: float) -> float:
        """By how many seconds a holder counts its lease shorter than the servers do."""
        return 0.0


def wire_name_in(field: str, lock: Waitable) -> str:
    """The owner's wire name in a field of a lock's hash."""
    return field.removesuffix(lock._field(""))
