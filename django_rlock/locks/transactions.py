"""Locks and database transactions: work done under a lock must be committed before the next owner gets the lock.

If a lock is taken inside a transaction and released before its end, the next owner reads the old rows. So ``atomic()``
opens the transaction inside the lock, and ``until_commit`` keeps the lock until the end of a transaction that is open
already. Django reports only COMMIT; but after a rollback it drops the functions registered for COMMIT, and Python calls
their guards.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ContextDecorator, contextmanager
from copy import copy
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType, NoneType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from django.db import DEFAULT_DB_ALIAS, connections, transaction

from django_rlock._core.callbacks import log, post
from django_rlock._core.foreign import AnyGeneratorContext, is_of_test_case, running_loop
from django_rlock._core.interruptions import disarm, guard, run_when_dropped
from django_rlock._transport.calls import Driver, run_flow
from django_rlock._transport.identity import Owner, thread_owner
from django_rlock._transport.registry import sync_driver
from django_rlock.exceptions import LockLostError, LockUnavailableError, RLockError
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.kinds import AbstractLock, SomeLock
from django_rlock.locks.options import RELEASE_PATIENCE
from django_rlock.locks.records import PACKAGE, Hold, Key, key_of
from django_rlock.locks.release import release_later, released_when_dropped
from django_rlock.locks.watchdog import FREED, check_sure, lose

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper


F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

logger = logging.getLogger("django_rlock.locks")

# --- work that is not undone ------------------------------------------------------------------------------------------

# The lock around a piece of work that is not undone if only the release fails.


class Section(Generic[SomeLock]):
    """A block under a lock. ``is_entered`` and ``is_committed`` say how far its work has got.

    ``left`` is the lock to release at its end; a part of the lock if a response keeps the rest.
    """

    __slots__ = ("is_committed", "is_entered", "left", "lock")

    def __init__(self, lock: SomeLock) -> None:
        self.lock = lock
        self.is_entered = False
        self.is_committed = False
        self.left: SomeLock | None = lock

    def __enter__(self) -> Self:
        self.lock.enter()
        self.is_entered = True
        return self

    @released_when_dropped
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        *,
        owner: Owner | None = None,
    ) -> None:
        if self.left is not None:
            try:
                self.left._exit_block(kind, error, trace, owner=owner, warns=False)
            except RLockError as failure:
                self._note(failure)

    async def __aenter__(self) -> Self:
        await self.lock.__aenter__()
        self.is_entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.left is not None:
            try:
                await self.left.__aexit__(kind, error, trace)
            except RLockError as failure:
                self._note(failure)

    def _note(self, failure: RLockError) -> None:
        """Log a failure that comes too late to undo the work; raise other failures."""
        if isinstance(failure, LockUnavailableError) or (self.is_committed and isinstance(failure, LockLostError)):
            log(logger, logging.ERROR, "The work under lock %r is done, but: %s", self.lock.name, failure)
        else:
            raise failure


# --- values -----------------------------------------------------------------------------------------------------------

# A decorated function returns a value. A promise of work would do the work after the release.

_PROMISES = CoroutineType, GeneratorType, AsyncGeneratorType, AnyGeneratorContext, Future, map, filter

_USUAL = frozenset((NoneType, bool, int, str, list, dict))


def value(result: T) -> T:
    """The result of a decorated function. Raises TypeError if it is a promise of work, and cancels the work."""
    if type(result) in _USUAL:
        return result  # at once
    if isinstance(result, _PROMISES) or hasattr(type(result), "__await__"):
        cancel = getattr(result, "close", None) or getattr(result, "cancel", None)
        if cancel is not None:
            cancel()
        raise TypeError(
            f"A function under a lock returned {type(result).__name__}, whose work would run without the lock. Finish "
            f"the work inside the function, and return its result: await or consume it there; make the function "
            f"'async def' if it is to be awaited; or take the lock by 'with' inside the generator or context manager."
        )
    return result


def returns_generator(func: Any) -> bool:
    """Whether a function returns a generator, or a context manager that ``contextlib`` makes from a generator."""
    if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
        return True
    below = getattr(func, "__wrapped__", None)
    if inspect.isgeneratorfunction(below) or inspect.isasyncgenfunction(below):
        # Other decorators may consume the generator.
        return bool(getattr(func, "__globals__", {}).get("__name__") == contextlib.__name__)
    return below is not None and returns_generator(below)


# --- lock, BEGIN, body, COMMIT, release ------------------------------------------------------------------------------


class AtomicBlock(ContextDecorator, Generic[SomeLock]):
    """The return value of a lock's ``atomic()``: a context manager that can be used again, and a decorator."""

    def __init__(self, lock: SomeLock, using: str, nested: bool) -> None:
        self._lock, self._using, self._nested = lock, using, nested
        self._block: Any = None

    def _recreate_cm(self) -> AtomicBlock[SomeLock]:
        return AtomicBlock(self._lock, self._using, self._nested)

    def __call__(self, func: F) -> F:
        """A function that runs inside the block; each call enters it separately."""
        if inspect.iscoroutinefunction(func) or returns_generator(func):
            raise TypeError("A lock's atomic() decorates plain functions: others would run outside the transaction.")

        @functools.wraps(func)
        def in_block(*args: Any, **kwargs: Any) -> Any:
            with self._recreate_cm():
                return value(func(*args, **kwargs))

        return in_block  # type: ignore[return-value]

    @property
    def is_entered(self) -> bool:
        """Whether its transaction is open."""
        return self._block is not None and self._block.gen.gi_frame is not None

    def __enter__(self) -> SomeLock:
        if self.is_entered:
            raise RuntimeError("A lock's atomic() was entered twice at once; make one for each 'with'.")
        self._block = _atomic(self._lock, self._using, self._nested)
        lock: SomeLock = self._block.__enter__()
        return lock

    @run_when_dropped
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        ended: bool | None = self._block.__exit__(kind, error, trace) if self.is_entered else None
        return ended


@contextmanager
def _atomic(lock: SomeLock, using: str, nested: bool) -> Iterator[SomeLock]:
    connection = transaction.get_connection(using)
    around = is_open(connection)
    if around:
        if not nested:
            advice = "Call it outside that transaction"
            if connection.settings_dict["ATOMIC_REQUESTS"]:
                advice = (
                    "ATOMIC_REQUESTS opens a transaction around each view: put @distributed_lock above the view, which "
                    "opens that transaction inside the lock"
                )
            raise RuntimeError(
                f"Lock {lock.name!r} would be released before the COMMIT of the transaction of database {using!r} "
                f"that is already open. {advice}, or use atomic(nested=True), which keeps the lock until the end of "
                f"the outer transaction."
            )
        lock = copy(lock)
        lock.until_commit = using
    section = Section(lock)
    with section:
        with transaction.atomic(using=using):
            yield lock
            ensure_owned([lock])
        section.is_committed = not around


# --- a release before COMMIT ------------------------------------------------------------------------------------------

_warned_lines: set[tuple[str, str]] = set()
"""The lines, with the lines that called them, for which a warning was logged."""
_HELPERS = PACKAGE, contextlib.__file__
"""Files whose frames are neither a helper nor its caller."""


def warn_before_commit(lock: AbstractLock, frames: int) -> None:
    """Log, once for each line and its caller, that a lock is released before COMMIT. ``frames`` is the number of frames
    of this package below the line."""
    frame = _outside(sys._getframe(frames))
    place = _line(frame), _line(frame if frame.f_back is None else _outside(frame.f_back))
    found = [] if place in _warned_lines else open_databases()
    # An outer hold is released later.
    if found and any(hold.count == 1 for hold in HOLDS.of_lock(lock, lock._named_owner or thread_owner())):
        _warned_lines.add(place)
        log(
            logger,
            logging.WARNING,
            "%s, called at %s, releases lock %r inside an open transaction of database %r, before COMMIT: the next "
            "owner reads the old rows. Write 'with rlock(...).atomic():' outside the transaction, or rlock(..., "
            "until_commit=True). To accept that, write until_commit=False.",
            *place,
            lock.name,
            found[0].alias,
        )


def _outside(frame: FrameType) -> FrameType:
    """The frame, or the first one around it that is the project's: a helper's, or its caller's."""
    while frame.f_code.co_filename.startswith(_HELPERS) and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _line(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def open_databases() -> list[BaseDatabaseWrapper]:
    """The connections of this thread with an open transaction, apart from the one around a test case."""
    used = connections.all(initialized_only=True)
    return [connection for connection in used if connection.in_atomic_block and is_open(connection)]


def is_open(connection: BaseDatabaseWrapper) -> bool:
    of_tests = [is_of_test_case(block) for block in connection.atomic_blocks]
    return not all(of_tests)


# --- the check before COMMIT ----------------------------------------------------------------------------------------

_MILLISECOND = 0.001


def ensure_owned(locks: Iterable[AbstractLock]) -> None:
    """Ask Redis whether the caller still holds all of these locks: one round trip for each alias.

    Raises LockLostError when one was lost, which is also reported like any loss; LockNotOwnedError when there is no
    hold; LockUnavailableError, within a second or two, when a server is unreachable or no majority confirms a RedLock,
    so that the state is unknown. A loss after the reply goes unnoticed.
    """
    locks = list(locks)
    by_alias: dict[str, list[Hold]] = {}
    for hold in _present_holds(locks):
        by_alias.setdefault(hold.lock.using, []).append(hold)
    for using, holds in by_alias.items():
        run_flow(_ask, (sync_driver(using), holds))
    # A lease may have ended, or a clock may have jumped, while a reply was on its way.
    check_sure(_present_holds(locks))


def _present_holds(locks: Iterable[AbstractLock]) -> list[Hold]:
    """The caller's hold of each lock. Raises as ``check()`` does."""
    return [HOLDS.owned(part, lock._named_owner or thread_owner()) for lock in locks for part in lock.parts]


async def _ask(driver: Driver, holds: Sequence[Hold]) -> None:
    now = driver.now()
    calls = []
    for hold in holds:
        # For each kind, a renewal shows who owns the lock, and leaves time for COMMIT. A lease chosen by the caller
        # stays.
        lease = hold.lease if hold.renewed else max(hold.deadline - now - _MILLISECOND, _MILLISECOND)
        calls.append(hold.renew_call(lease))
    # A single call is retried until it has a reply; of many calls, only those without a reply are sent again.
    replies: Sequence[Any] = [None] if len(calls) == 1 else await driver.run_all(calls)
    for hold, call, reply in zip(holds, calls, replies, strict=True):
        known = reply is not None and not isinstance(reply, LockUnavailableError)
        owned = reply if known else await driver.run(call, now + RELEASE_PATIENCE)
        if owned[1] != 1:
            lose(hold, FREED)
            raise hold.lost_error()


# --- until the transaction's end -------------------------------------------------------------------------------------


def checked_database(until_commit: bool | str | None) -> str | None:
    """The database whose transaction a lock outlasts; empty for none, None if ``until_commit`` was not given."""
    if until_commit is None or isinstance(until_commit, str):
        return until_commit
    if not isinstance(until_commit, bool):
        raise TypeError(f"until_commit must be True, False or a database's alias, not {until_commit!r}.")
    return DEFAULT_DB_ALIAS if until_commit else ""


def check_until_commit(lock: AbstractLock, driver: Driver) -> None:
    """Raise RuntimeError if the end of the transaction cannot be observed."""
    if running_loop() is not None and driver is not sync_driver(lock.using):
        raise RuntimeError(
            f"Lock {lock.name!r} has until_commit, but Django has no transactions in async code. Take it in the sync "
            f"function that you call with sync_to_async."
        )
    connection = transaction.get_connection(lock.until_commit)
    if not connection.in_atomic_block and not connection.get_autocommit():
        raise RuntimeError(
            f"Lock {lock.name!r} has until_commit, but database {connection.alias!r} has autocommit turned off, where "
            f"Django does not report the end of a transaction. Use transaction.atomic()."
        )


def release_at_end(lock: AbstractLock, owner: Owner) -> None:
    """Release the lock that was just acquired at the end of the open transaction, if there is one."""
    keep_until_commit(lock, owner, unasked=True)


def is_released_at_end(lock: AbstractLock, owner: Owner) -> bool:
    """Whether the end of the transaction releases a hold anyway, which nobody has asked for yet."""
    keys = {key_of(part, owner) for part in lock.parts}
    for release in reversed(_waiting(transaction.get_connection(lock.until_commit))):
        if release.unasked and release.keys == keys:
            release.unasked = False
            return True
    return False


def keep_until_commit(lock: AbstractLock, owner: Owner, unasked: bool = False) -> bool:
    """Release a hold at the end of the open transaction; returns False if there is none, or no hold.

    ``unasked`` says that the next release by hand means the same hold.
    """
    connection = transaction.get_connection(lock.until_commit)
    if not is_open(connection) or not HOLDS.of_lock(lock, owner):
        return False
    registered = _Registered(_ReleaseAtEnd(lock, owner, unasked))
    try:
        transaction.on_commit(registered, using=connection.alias)
    except BaseException:  # from a signal handler, before or after it was registered
        if registered.release not in _waiting(connection):
            transaction.on_commit(registered, using=connection.alias)
        raise
    finally:
        registered.release.is_registered = True
    return True


def released_at_end(key: Key) -> int:
    """How many releases of a hold wait for the end of a transaction."""
    used = connections.all(initialized_only=True)
    return sum(key in release.keys for connection in used for release in _waiting(connection))


def _waiting(connection: BaseDatabaseWrapper) -> list[_ReleaseAtEnd]:
    """The releases that wait for the end of a connection's transaction."""
    found = [function.release for _, function, *_ in connection.run_on_commit if isinstance(function, _Registered)]
    return [release for release in found if not release.has_begun]


def release_after_tests_commits() -> None:
    """Release what this thread's transactions keep, if none but that of a test case is still open: inside it, Django
    reports no COMMIT before the test ends."""
    for connection in connections.all(initialized_only=True):
        for release in [] if is_open(connection) else _waiting(connection):
            release.begin()


class _Registered:
    """The function that Django calls after COMMIT, and drops after ROLLBACK."""

    def __init__(self, release: _ReleaseAtEnd) -> None:
        self.release = release
        self._guard = guard(self, release.complete)

    def __call__(self) -> None:
        self.release.begin()
        disarm(self._guard)


class _ReleaseAtEnd:
    """Releases a hold once, at the end of a transaction; ``unasked`` is whether no release has asked for it."""

    is_registered = False
    _before: Mapping[Hold, int] | None = None
    """How often each lock was held when the release began."""

    def __init__(self, lock: AbstractLock, owner: Owner, unasked: bool) -> None:
        self._lock, self._owner = lock, owner
        self.unasked = unasked
        self.keys = {key_of(part, owner) for part in lock.parts}

    @property
    def has_begun(self) -> bool:
        return self._before is not None

    def begin(self) -> None:
        """After COMMIT."""
        if self._before is None:
            self._before = {hold: hold.count for hold in HOLDS.of_lock(self._lock, self._owner)}
            _release(self._lock, self._owner)

    def complete(self) -> None:
        """After ROLLBACK, or where the release was interrupted."""
        if not self.is_registered:
            return
        if self._before is None:
            self.begin()
            return
        # It was interrupted perhaps before it had begun: from then on that handles interruptions itself.
        untouched = [hold for hold, count in self._before.items() if hold in HOLDS and hold.count == count]
        if self._owner.is_named and len(untouched) == len(self._before):
            post(_release, self._lock, self._owner)  # after the earlier calls of the name
            return
        for hold in untouched:
            release_later(hold)


def _release(lock: AbstractLock, owner: Owner) -> None:
    if not owner.is_named and owner is not thread_owner():
        # The connection was dropped with its thread, or by another thread.
        for hold in HOLDS.of_lock(lock, owner):
            release_later(hold)
        return
    try:
        run_flow(lock._engine.release, (lock, sync_driver(lock.using), owner))
    except RLockError as failure:
        log(logger, logging.ERROR, "The transaction under lock %r has ended, but: %s", lock.name, failure)
