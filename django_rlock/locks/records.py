"""This process's records of the locks that it holds (``Hold``) or waits for (``Wait``).

The tables of these records are in ``holds``.
"""

from __future__ import annotations

import math
import os
import sys
import weakref
from collections.abc import Mapping
from contextvars import ContextVar, copy_context
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Self

from django_rlock._core.clock import monotonic
from django_rlock._core.interruptions import run_when_dropped
from django_rlock._transport.calls import ScriptCall
from django_rlock._transport.identity import LoopCall, Owner
from django_rlock.exceptions import LockLostError
from django_rlock.locks.kinds import RENEW, Named
from django_rlock.locks.places import PLACES

if TYPE_CHECKING:
    from django_rlock._transport.calls import QueueWaiter

context: ContextVar[Work | None] = ContextVar("rlock_context", default=None)
"""The current work, for reports: route and user of a request, name and id of a task."""

_SHORTEST = 0.001
"""For how long a released lock is kept at least, in seconds: servers count whole milliseconds."""


class Route(str):
    """A request in reports: its method, and the pattern that its URL was resolved to. ``path`` has the path instead of
    the pattern; it may contain secrets."""

    __slots__ = ("path",)

    path: str


class Work(dict[str, str]):
    """The description of a request or a task, and a block in which reports name it. A generator would take twice as
    long, in each request. ``holds`` are the holds that were taken for it, and perhaps some that have ended."""

    __slots__ = ("_outer", "holds")

    def __init__(self, about: Mapping[str, str]) -> None:
        super().__init__(about)
        self.holds: dict[Hold, None] = {}

    @property
    def is_entered(self) -> bool:
        return context.get() is self

    def __enter__(self) -> Self:
        self._outer = context.get()
        context.set(self)
        return self

    @run_when_dropped
    def __exit__(self, *_: object) -> None:
        if context.get() is self:
            context.set(self._outer)


Spot = tuple[str, str]
"""Place and name: the same for all aliases, sides and owners of a lock."""
Key = tuple[str, str, str, int | str]
"""Place, name, scope and owner. A spot within it would cost each hold a tuple more."""
CodeLine = tuple[CodeType, int]
"""A place in the project's code: its code object, and the index of an instruction in it."""
PACKAGE = str(Path(__file__).parent.parent) + os.sep
_LEAST_FRAMES = 5
"""The smallest number of frames between ``calling_line`` and the project's code: reading a frame takes time."""
Terms = tuple[float, float, bool, float]
"""A hold's lease, what it runs for, whether it is renewed, and its deadline."""


def calling_line() -> CodeLine:
    """The line of the project's code that takes a lock now. Called by the flow that takes it."""
    frame = sys._getframe(_LEAST_FRAMES)
    while (code := frame.f_code).co_filename.startswith(PACKAGE) and (outer := frame.f_back) is not None:
        frame = outer
    return code, frame.f_lasti


def key_of(lock: Named, owner: Owner, scope: str | None = None) -> Key:
    return PLACES.value[lock.using], lock.name, lock._kind.scope if scope is None else scope, owner.serial


def spot_of(lock: Named) -> Spot:
    return PLACES.value[lock.using], lock.name


class Hold:
    """A lock held by one owner of this process. Times are monotonic seconds.

    ``deadline`` is the earliest end of the lease, counted from before the command was sent. Past it, the lock is lost.
    ``lease`` is the lease that renewals request. ``runs_for`` is the duration behind the deadline, which is shorter
    while the server keeps a granted lock only for the claim time. ``lost`` is the reason of a loss. ``lost_below`` is
    how many enclosing levels were lost before; their releases still raise LockLostError. ``token`` is the fencing
    token, for kinds that have one. ``late_lease`` is how long a late copy of its acquire could hold the lock, in
    seconds; it is 0 without such a copy. ``asker`` is the owner id in that copy if it is another one. ``suspect`` is
    set while its renewal fails. ``planned`` is when the watchdog checks it next, and ``reported`` whether the loss was
    reported; only the watchdog writes these. ``subscription`` receives forced releases while the hold is kept.
    ``ending`` is set while its own owner frees it by force, which is not a loss. ``line`` is where it was acquired.
    ``overdue`` is set once the watchdog has warned of a hold that lasts too long. ``variables`` are the context
    variables of the code that acquired it, for the reports of the background thread. ``kept_until`` is until when the
    lock stays taken after its release; 0 if it becomes free. ``job`` is the job that took it, in a thread to which a
    library gives one after another. ``handed_over`` is set once it is left to other processes. ``ended`` is set once it
    is counted.
    """

    # Most holds are released as they were taken. So they have these in common, and few attributes are set for each.
    asker = ""
    count = 1
    ending = False
    handed_over = False
    job: LoopCall | None = None
    kept_until = 0.0
    late_lease = 0.0
    lost: str | None = None
    lost_below = 0
    overdue = False
    planned = math.nan
    reported = False
    subscription: object = None
    suspect = False
    ended: float

    def __init__(  # noqa: PLR0913, PLR0917 - one call with all of them is cheap
        self,
        key: Key,
        lock: Named,
        owner: Owner,
        owner_id: str,
        now: float,
        token: int | None = None,
        lease: float = 0.0,
        renewed: bool = False,
        scoped: int = 0,
        line: CodeLine | None = None,
    ) -> None:
        self.key = key
        self.lock = lock
        self.kind = kind = lock._kind
        self.owner = owner
        self.owner_id = owner_id
        self.since = now
        self.token = token
        self.scoped = scoped
        self.line = line
        self.caller_name = owner.caller_name
        self.context = context.get()
        self.variables = copy_context()
        # As lease_from(), without a call.
        self.lease = self.runs_for = lease
        self.renewed = renewed
        self.deadline = now + (self.runs(lease) if kind.drifts else lease)

    def outlives(self, outer: Hold) -> None:
        """Replace a lost hold of the same owner, whose enclosing blocks still have to be notified."""
        self.scoped += outer.scoped
        self.lost_below = outer.lost_below + outer.count

    def lease_from(self, sent_at: float, lease: float, renewed: bool) -> None:
        """Record a lease that the server has confirmed."""
        self.lease = self.runs_for = lease
        self.renewed = renewed
        # The server's lease begins after the command was sent, so it ends no sooner than this (rule 7).
        self.deadline = sent_at + (self.runs(lease) if self.kind.drifts else lease)

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

    def runs(self, lease: float) -> float:
        """For how long a lease that was requested certainly runs, in seconds."""
        return lease - self.kind.drift(self.lock, lease) if self.kind.drifts else lease

    def leave_call(self) -> ScriptCall:
        """Undoes it on the server, in any state."""
        return self.kind.leave(self.lock, self.owner_id)

    def keep_for(self, seconds: float, now: float) -> None:
        """Keep the lock taken after the release, until ``seconds`` from now have passed."""
        self.kept_until = max(self.kept_until, now + seconds)

    def keep_call(self) -> ScriptCall | None:
        """Releases it, but keeps the lock taken; None if it is not to be kept any longer."""
        left = self.kept_until - monotonic()
        return self.lock._kind.keep(self.lock, self.owner_id, left) if left >= _SHORTEST else None

    def renew_call(self, lease: float) -> ScriptCall:
        """Prolongs its lease on the server to ``lease`` seconds from then on, if it is shorter."""
        return self.lease_call(lease, RENEW)

    def lease_call(self, lease: float, mode: int) -> ScriptCall:
        """Changes its lease on the server; see ``Kind.lease``."""
        return self.kind.lease(self.lock, self.owner_id, lease, mode)

    @property
    def hash_field(self) -> str:
        """The owner's field in the lock's hash."""
        return self.kind.field(self.owner_id)

    @property
    def noun(self) -> str:
        """Its name in errors and log records."""
        return self.lock.noun

    def is_lost(self, now: float) -> bool:
        """Whether it was lost, or has outlived its lease."""
        return self.lost is not None or now >= self.deadline

    def lost_error(self) -> LockLostError:
        return LockLostError(self.lock.name, self.lost or self.lease_ended(), self.noun)

    @property
    def max_hold_time(self) -> float | None:
        """After how many seconds it is no longer renewed; None sets no limit."""
        own = self.lock.max_hold_time
        return self.lock._settings.max_hold_time if own is None else own

    @property
    def taken_at(self) -> str:
        """Where the project's code acquired it, as in ``shop/views.py:42``."""
        if self.line is None:
            return "a line that is not known"
        code, place = self.line
        return f"{code.co_filename}:{next(n for start, end, n in code.co_lines() if start <= place < end)}"

    def lease_ended(self) -> str:
        if self.overdue and not self.renewed and self.max_hold_time is not None:
            return f"it was held for longer than its max_hold_time of {self.max_hold_time:g} s, since {self.taken_at}"
        late = ", because it could not be renewed in time" if self.renewed else ""
        return f"its lease of {self.runs_for:.1f} s ended{late}"

    def renew_at(self) -> float:
        """When the watchdog should renew it: after a third of ``runs_for``."""
        return self.deadline - self.runs_for * 2 / 3

    @property
    def is_left(self) -> bool:
        """Whether the job that took it has ended, and no block keeps it."""
        return self.job is not None and self.scoped <= 0 and self.job.is_over

    @property
    def owner_ended(self) -> bool:
        """Whether the thread or task that holds it has ended, so that it can never be released."""
        return self.owner.ended


# Objects have room for the attributes that the first object of their class had. Without this one, a hold that lasts
# would get a separate dict as soon as the watchdog sets one of these attributes.
_first = object.__new__(Hold)
_first.count, _first.planned, _first.subscription, _first.suspect, _first.ended = 1, math.nan, None, False, 0.0


class Wait:
    """A wait of an owner of this process for a lock. Times are monotonic seconds; ``heartbeat_at`` is when its next
    heartbeat is due, and ``asked_at`` when its last try was sent.

    ``expected`` is whether the background thread knows of it, ``outside`` whether the holder does not know the queue in
    which it waits. Only the attempt keeps its waiter alive: if an interrupted attempt could not leave, the waiter is
    collected, and the wait is over.
    """

    __slots__ = (
        "_left",
        "_waiter",
        "asked_at",
        "asker",
        "caller_name",
        "context",
        "expected",
        "heartbeat_at",
        "key",
        "lock",
        "outside",
        "owner_id",
        "since",
    )

    def __init__(self, lock: Named, owner: Owner, owner_id: str, now: float, waiter: QueueWaiter, asker: str) -> None:
        self.key = key_of(lock, owner)
        self.lock = lock
        self.owner_id = owner_id
        self.asker = asker
        self.caller_name = owner.caller_name
        self.context = context.get()
        self.since = now
        self._waiter = weakref.ref(waiter)
        self._left = False
        self.asked_at, self.heartbeat_at = 0.0, math.inf  # set before it sleeps
        self.expected = self.outside = False

    @property
    def over(self) -> bool:
        """Whether the wait has ended."""
        return self._left or self._waiter() is None

    @property
    def hash_field(self) -> str:
        """The field that the owner would have in the lock's hash."""
        return self.lock._kind.field(self.owner_id)

    def end(self) -> None:
        self._left = True

    def wake(self) -> None:
        """Wake the owner, so that it tries again."""
        if waiter := self._waiter():
            waiter.wake()
