"""A lock held by one owner of this process, as far as the client knows."""

from __future__ import annotations

import math
from contextvars import ContextVar
from typing import TYPE_CHECKING

from django_rlock.drivers.identity import Owner
from django_rlock.exceptions import LockLostError
from django_rlock.exits import run_when_dropped

if TYPE_CHECKING:
    from django_rlock.locks.hooks import Renewable, Waitable

context: ContextVar[dict[str, str] | None] = ContextVar("rlock_context", default=None)
"""What the process is working on, for reports: route and user of a request, name and id of a task."""


class WorkingOn:
    """A block in which the process works on something. A generator would take twice as long, in each request."""

    __slots__ = ("_about", "_outer")

    def __init__(self, about: dict[str, str]) -> None:
        self._about = about
        self._outer = context.get()

    def __enter__(self) -> dict[str, str]:
        context.set(self._about)
        return self._about

    @property
    def is_entered(self) -> bool:
        return context.get() is self._about

    @run_when_dropped
    def __exit__(self, *_: object) -> None:
        if self.is_entered:
            context.set(self._outer)


Key = tuple[str, str, str, int | str]
"""Alias, name, scope and owner."""
Terms = tuple[float, float, bool, float]
"""A hold's lease, what it runs for, whether it is renewed, and its deadline."""


def key_of(lock: Waitable, owner: Owner, scope: str | None = None) -> Key:
    return lock.using, lock.name, lock._scope if scope is None else scope, owner.serial


class Hold:
    """A lock held by one owner of this process. Times are monotonic seconds.

    ``deadline`` is a time at which the lease certainly still runs, counted from before its command was sent; after it
    the lock counts as lost in any case. ``lease`` is what renewals request. ``runs_for`` is the duration behind the
    deadline, which is shorter while the server keeps a granted lock only for the claim time. ``lost`` is the reason of
    a loss. ``lost_below`` counts enclosing holds of the same owner that were lost before this one was taken, and whose
    releases still have to report that. ``token`` is the fencing token, for kinds that have one. ``late_lease`` is how
    long a late copy of its acquire could hold the lock, in seconds; 0 if there is no copy. ``suspect`` is set while its
    renewal fails, and ``renewing`` while one is under way. ``planned`` is when the watchdog checks it next, and
    ``told`` whether the loss was reported; only the watchdog writes these. ``ear`` listens to forced releases while the
    hold is kept. ``ending`` is set while its own owner frees it by force, which is no loss. ``line`` is where it was
    acquired; it is recorded only in a request or a task, and not for blocks.
    """

    __slots__ = (
        "context",
        "count",
        "deadline",
        "ear",
        "ending",
        "key",
        "late_lease",
        "lease",
        "line",
        "lock",
        "lost",
        "lost_below",
        "max_until",
        "owner",
        "place",
        "planned",
        "renewed",
        "renewing",
        "runs_for",
        "scoped",
        "since",
        "suspect",
        "token",
        "told",
        "wire_name",
    )

    def __init__(
        self, key: Key, lock: Renewable, owner: Owner, wire_name: str, now: float, token: int | None = None
    ) -> None:
        self.key = key
        self.token = token
        self.lock = lock
        self.owner = owner
        self.wire_name = wire_name
        self.place = owner.place
        self.context = context.get()
        self.since = now
        self.planned = math.nan
        self.told = False
        self.max_until = math.inf if lock.max_hold_time is None else now + lock.max_hold_time
        self.count = 1
        self.scoped = 0
        self.suspect = False
        self.renewing = False
        self.ending = False
        self.ear: object = None
        self.line: str | None = None
        self.late_lease = 0.0
        self.lost: str | None = None
        self.lost_below = 0

    def outlives(self, outer: Hold) -> None:
        """Replace a lost hold of the same owner, whose enclosing blocks still have to be notified."""
        self.scoped = outer.scoped
        self.lost_below = outer.lost_below + outer.count

    def lease_from(self, sent_at: float, lease: float, renewed: bool) -> None:
        """Record a lease that the server has confirmed."""
        self.lease = self.runs_for = lease
        self.renewed = renewed
        self.deadline = sent_at + lease - self.lock._drift(lease)

    @property
    def terms(self) -> Terms:
        return self.lease, self.runs_for, self.renewed, self.deadline

    def restore(self, terms: Terms) -> None:
        """Go back to an earlier lease: it is not known whether another one has replaced it."""
        self.lease, self.runs_for, self.renewed, self.deadline = terms

    def granted_until(self, deadline: float) -> None:
        """Record that the server keeps the lock only until ``deadline``, unless it is renewed."""
        self.deadline = deadline
        self.runs_for = deadline - self.since

    def confirmed_at(self) -> float:
        """When the command was sent that took it or last set its lease; for a believed grant, when it was believed."""
        return self.deadline - self.runs_for

    @property
    def is_unconfirmed(self) -> bool:
        """Whether the grant is known by a message only, and not yet confirmed by a reply."""
        return self.runs_for < self.lease

    @property
    def hash_field(self) -> str:
        """The owner's field in the lock's hash."""
        return self.lock._field(self.wire_name)

    @property
    def noun(self) -> str:
        """Its name in errors and log records."""
        return self.lock.noun

    def is_lost(self, now: float) -> bool:
        """Whether it was lost, or has outlived its lease."""
        return self.lost is not None or now >= self.deadline

    def lost_error(self) -> LockLostError:
        return LockLostError(self.lock.name, self.lost or self.lease_ended(), self.noun)

    def lease_ended(self) -> str:
        late = ", because it could not be renewed in time" if self.renewed else ""
        return f"its lease of {self.runs_for:.1f} s ended{late}"

    def renew_at(self) -> float:
        """When the watchdog should renew it: after a third of ``runs_for``."""
        return self.deadline - self.runs_for * 2 / 3

    @property
    def owner_ended(self) -> bool:
        """Whether the thread or task that holds it has ended, so that it can never be released."""
        return self.owner.ended
