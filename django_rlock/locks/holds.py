"""What this process holds and waits for: the truth on the client's side, which the watchdog and the reports read."""

from __future__ import annotations

import logging
import math
import os
import threading
import weakref
from contextvars import ContextVar
from typing import TYPE_CHECKING

from django_rlock.drivers.identity import Owner
from django_rlock.drivers.sync import defer
from django_rlock.exceptions import LockLostError
from django_rlock.signals import lock_lost

if TYPE_CHECKING:
    from django_rlock.drivers.base import Waiter
    from django_rlock.locks.hooks import LockHooks

logger = logging.getLogger("django_rlock.holds")

context: ContextVar[dict[str, str] | None] = ContextVar("rlock_context", default=None)
"""What the process is doing now, for reports: route and user of a request, name and id of a task."""

Key = tuple[str, str, str, int | str]


class Hold:
    """A lock held by one owner of this process. Times are monotonic seconds.

    ``deadline`` is when the lease surely still runs, counted from before its command was sent; after it the lock counts
    as lost whatever else happens. ``lost`` is the reason, once it is lost. ``lost_below`` counts enclosing holds of
    the same owner that were lost before this one was taken; they still have to be told when they are released.
    ``token`` is the fencing token, of kinds that have one. ``suspect`` is set while its renewal fails.
    """

    __slots__ = (
        "context",
        "count",
        "deadline",
        "key",
        "lease",
        "lock",
        "lost",
        "lost_below",
        "max_until",
        "owner",
        "owner_ref",
        "place",
        "renewed",
        "scoped",
        "since",
        "suspect",
        "token",
    )

    def __init__(self, lock: LockHooks, owner: Owner | str, name: str, now: float, token: int | None = None) -> None:
        self.key = key_of(lock, owner)
        self.token = token
        self.lock = lock
        self.owner = name
        self.owner_ref = None if isinstance(owner, str) else weakref.ref(owner)
        self.place = "" if isinstance(owner, str) else owner.place
        self.context = context.get()
        self.since = now
        self.max_until = math.inf if lock.max_hold_time is None else now + lock.max_hold_time
        self.count = 1
        self.scoped = 0
        self.suspect = False
        self.lost: str | None = None
        self.lost_below = 0

    def outlives(self, outer: Hold) -> None:
        """Take over from a lost hold of the same owner, whose enclosing blocks have yet to be told."""
        self.scoped = outer.scoped
        self.lost_below = outer.lost_below + outer.count

    def lease_from(self, sent_at: float, lease: float, renewed: bool) -> None:
        """Note a lease that the server has confirmed."""
        self.lease = lease
        self.renewed = renewed
        self.deadline = sent_at + lease - self.lock.drift(lease)

    def is_lost(self, now: float) -> bool:
        """Whether it was lost, or has outlived its lease."""
        return self.lost is not None or now >= self.deadline

    def lost_error(self) -> LockLostError:
        return LockLostError(self.lock.name, reason=self.lost or self.lease_ended())

    def lease_ended(self) -> str:
        late = ", because it could not be renewed in time" if self.renewed else ""
        return f"its lease of {self.lease:.1f} s ended{late}"

    def pause_renewal(self) -> bool:
        """Keep the watchdog away while the owner changes the lease; answers whether it was renewed until now."""
        renewed, self.renewed = self.renewed, False
        return renewed

    @property
    def renew_at(self) -> float:
        """When the watchdog should renew it: after a third of its lease."""
        return self.deadline - self.lease * 2 / 3

    @property
    def owner_ended(self) -> bool:
        """Whether the thread or task that holds it is gone, so that nobody can release it."""
        return self.owner_ref is not None and ((owner := self.owner_ref()) is None or not owner.is_alive())


class Wait:
    """An owner of this process that waits for a lock. Times are monotonic seconds; ``beat_at`` is the next beat's."""

    __slots__ = ("__weakref__", "beat_at", "context", "lock", "owner", "place", "since", "waiter")

    def __init__(self, lock: LockHooks, owner: Owner | str, name: str, now: float, waiter: Waiter) -> None:
        self.lock = lock
        self.owner = name
        self.place = "" if isinstance(owner, str) else owner.place
        self.context = context.get()
        self.since = now
        self.waiter = waiter
        self.beat_at = math.inf  # until it sleeps


class Holds:
    """Holds by alias, name, scope and owner.

    Each entry is written by its owner only, and dict operations are atomic.
    """

    def __init__(self) -> None:
        self._table: dict[Key, Hold] = {}

    def get(self, lock: LockHooks, owner: Owner | str, scope: str | None = None) -> Hold | None:
        """The owner's hold of this lock, or of the same name in another scope."""
        return self._table.get(key_of(lock, owner, scope))

    def put(self, hold: Hold) -> None:
        self._table[hold.key] = hold

    def remove(self, hold: Hold) -> None:
        if self._table.get(hold.key) is hold:
            self._table.pop(hold.key, None)

    def restore(self, lock: LockHooks, owner: Owner | str, hold: Hold | None) -> None:
        """Have it as it was before an attempt that came to nothing."""
        if hold is None:
            self._table.pop(key_of(lock, owner), None)
        else:
            self.put(hold)

    def __contains__(self, hold: Hold) -> bool:
        return self._table.get(hold.key) is hold

    def snapshot(self) -> list[Hold]:
        return list(self._table.values())

    def of(self, owner: Owner) -> list[Hold]:
        """What one thread or task holds."""
        return [hold for hold in self.snapshot() if hold.owner_ref is not None and hold.owner_ref() is owner]

    def clear(self) -> None:
        self._table.clear()


class Waits:
    """Waits of this process, in the order in which they began.

    It holds them weakly: one whose attempt was interrupted before it could leave is gone, and nobody beats for it.
    """

    def __init__(self) -> None:
        self._table: dict[int, weakref.ref[Wait]] = {}

    def add(self, wait: Wait) -> None:
        number = id(wait)
        self._table[number] = weakref.ref(wait, lambda _: self._table.pop(number, None))

    def remove(self, wait: Wait) -> None:
        self._table.pop(id(wait), None)

    def snapshot(self) -> list[Wait]:
        return [wait for wait in (place() for place in list(self._table.values())) if wait is not None]

    def clear(self) -> None:
        self._table.clear()


def key_of(lock: LockHooks, owner: Owner | str, scope: str | None = None) -> Key:
    whose = owner if isinstance(owner, str) else owner.serial
    return lock.using, lock.name, lock.scope if scope is None else scope, whose


HOLDS = Holds()
WAITS = Waits()
_telling = threading.RLock()


def note_loss(hold: Hold, now: float) -> bool:
    """Whether the hold is lost; if its lease has just ended, everybody is told."""
    first = hold.lost is None and now >= hold.deadline and lose(hold, hold.lease_ended())
    if first and hold.renewed and hold.owner_ref is not None:
        # Renewals may have reached the server though their replies did not reach us.
        defer(hold.lock.using, hold.lock.leave_call(hold.owner), hold.deadline + hold.lease)
    return hold.lost is not None


def lose(hold: Hold, reason: str) -> bool:
    """Mark a hold as lost and tell everybody: the log, the receivers of ``lock_lost``, its own callback.

    Answers whether this was the first to notice; the background thread and the owner may do so at once.
    """
    with _telling:
        if hold.lost is not None:
            return False
        # First of all: whoever sees the loss and takes the lock again then does so under a new wire name, which
        # the clean-up of this hold cannot touch.
        if hold.owner_ref is not None and (owner := hold.owner_ref()) is not None:
            owner.renew_name()
        hold.lost = reason
    lock = hold.lock
    for wait in WAITS.snapshot():
        if wait.beat_at < math.inf and (wait.lock.using, wait.lock.key) == (lock.using, lock.key):
            wait.beat_at = 0.0  # it may have fallen free, and its waiters may have been told of a longer lease
    logger.warning("Lock %r (%r) was lost while held by %s: %s.", lock.name, lock.key, hold.owner, reason)
    lock_lost.send_robust(sender=type(lock), lock=lock, owner=hold.owner, reason=reason)
    if lock.on_lost is not None:
        try:
            lock.on_lost(lock)
        except Exception:
            logger.exception("The on_lost callback of lock %r failed.", lock.name)
    return True


def _after_fork() -> None:
    global _telling  # noqa: PLW0603 - another thread of the parent may hold it
    _telling = threading.RLock()
    HOLDS.clear()
    WAITS.clear()


os.register_at_fork(after_in_child=_after_fork)
