"""The locks' public methods: each flow as a blocking method, and as a coroutine method with Django's ``a`` prefix.

A lock object is a stateless handle: a name, an alias and durations. State is in Redis and in ``holds``. So one object,
even one made at import time, serves all threads, tasks and forked children.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from copy import copy
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Never, Self

from django.core.exceptions import SynchronousOnlyOperation
from django.db import DEFAULT_DB_ALIAS

from django_rlock._core.callbacks import log
from django_rlock._redis.keys import MAX_NAME
from django_rlock._redis.scripts import ABSENT, ENDLESS
from django_rlock._transport.calls import Driver, run_flow
from django_rlock._transport.identity import NamedOwner, Owner, for_its_owner, in_transaction, thread_owner
from django_rlock._transport.registry import awaited_driver, blocking_driver
from django_rlock.exceptions import RLockError
from django_rlock.locks import ownership
from django_rlock.locks.acquire import AcquireRequest, acquire, take
from django_rlock.locks.forced import free_by_force
from django_rlock.locks.holds import HOLDS, INSPECTOR
from django_rlock.locks.kinds import Engine
from django_rlock.locks.options import (
    UNSET,
    Duration,
    checked_owner,
    checked_text,
    hold_seconds,
    keep_seconds,
    lease_seconds,
    unknown_argument,
    unknown_option,
    wait_seconds,
    wrong_blocking,
)
from django_rlock.locks.ownership import HeldLock, hand_over, kept_after_release
from django_rlock.locks.records import Key
from django_rlock.locks.release import (
    exit_later,
    exited_by_its_owner,
    release,
    released_when_dropped,
    uncount_block,
)
from django_rlock.locks.transactions import (
    AtomicBlock,
    check_until_commit,
    checked_database,
    is_released_at_end,
    keep_until_commit,
    release_at_end,
    released_at_end,
    warn_before_commit,
)
from django_rlock.settings import DEFAULT_ALIAS, settings_of, unknown_alias

if TYPE_CHECKING:
    from django_rlock.locks.infos import LockInfo

logger = logging.getLogger("django_rlock.locks")


class _Flows:
    """The engine of all locks but the MultiLock."""

    take = staticmethod(take)
    release = staticmethod(release)
    uncount_block = staticmethod(uncount_block)
    extend = staticmethod(ownership.extend)
    free_by_force = staticmethod(free_by_force)
    ask_state = staticmethod(ownership.ask_state)
    ask_holders = staticmethod(ownership.ask_holders)


class BaseLock(HeldLock):
    """A re-entrant distributed lock.

    ``name`` says what the lock protects; ``using`` is the RLOCK alias. ``wait_time`` is how long to wait for the lock,
    in seconds (0 tries once, None waits forever; by default it is WAIT_TIME). ``lease_time`` is how long it may be
    held, in seconds; with None the watchdog renews the lease while this process lives. Both can also be given to
    ``acquire``. Raises ValueError for a name or an owner that is empty or longer than 1,024 bytes in UTF-8.

    The owner is the running thread or asyncio task, unless ``owner`` names one:
    https://github.com/django-rlock/django-rlock/blob/main/docs/owners.md says what the users of one name share.
    ``on_lost(lock)`` is called in the thread for callbacks when a hold is lost. After ``max_hold_time`` seconds (None:
    MAX_HOLD_TIME) the watchdog stops renewing the lock, and the hold is lost when the lease ends. A lock that is
    released earlier than ``at_least`` seconds after it was acquired stays held until then: its former owner cannot take
    it, either.

    With ``until_commit``, True or the alias of a database, a release takes effect when the surrounding transaction has
    been committed or rolled back (sync code only), or at once if none is open. A lock that ``acquire()`` takes inside a
    transaction then needs no release. Without ``until_commit`` a release before COMMIT logs a warning; False accepts
    that.

    No two owners hold the lock at once while leases last and the server keeps its data;
    https://github.com/django-rlock/django-rlock/blob/main/docs/guarantees.md describes the limits. A holder learns of a
    lost lock through ``lost``, ``check()``, the signal, ``on_lost``, and LockLostError at the end of its ``with``
    block.
    """

    __slots__ = (
        "_named_owner",
        "at_least",
        "lease_time",
        "template",
        "until_commit",
        "wait_time",
    )

    _engine: ClassVar[Engine] = _Flows()
    # Few locks have these, and no usual call reads them, so each lock needs no room for them.
    max_hold_time = None
    on_lost = None

    def __init__(  # noqa: PLR0913 - each is given by its name
        self,
        name: str,
        *,
        wait_time: Duration | None = UNSET,
        lease_time: Duration | None = None,
        using: str = DEFAULT_ALIAS,
        owner: str | None = None,
        on_lost: Callable[[Any], object] | None = None,
        max_hold_time: Duration | None = None,
        at_least: Duration | None = None,
        until_commit: bool | str | None = None,
        **unknown: Never,
    ) -> None:
        if unknown:
            raise unknown_option(type(self).__name__, unknown)
        # Blocks make their own locks: check only the arguments that were given, and a usual name without a call.
        if not (type(name) is str and name.isascii() and 0 < len(name) <= MAX_NAME):
            checked_text("lock's name", name)
        self.name = name
        self.template = ""
        self.wait_time = wait_time if wait_time is UNSET else wait_seconds(wait_time)
        self.lease_time = None if lease_time is None else lease_seconds(lease_time)
        if not isinstance(using, str):
            raise unknown_alias(using)
        self.using = using
        self._named_owner = None if owner is None else NamedOwner(checked_owner(owner))
        if on_lost is not None:
            self.on_lost = on_lost
        if max_hold_time is not None:
            self.max_hold_time = hold_seconds(max_hold_time)
        self.at_least = None if at_least is None else keep_seconds(at_least) or None
        self.until_commit = None if until_commit is None else checked_database(until_commit)

    @property
    def parts(self) -> tuple[BaseLock, ...]:
        """The locks that this lock consists of: itself, unless it is a MultiLock."""
        return (self,)

    def _under_name(self, owner: str) -> Self:
        """The same lock for the owner with this owner id."""
        named = copy(self)
        named._named_owner = NamedOwner(owner)
        return named

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, using={self.using!r})"

    def _owner(self, driver: Driver) -> Owner:
        return self._named_owner or driver.owner()

    # --- acquire -----------------------------------------------------------------------------------------------------

    def acquire(
        self,
        blocking: bool = True,
        *,
        wait_time: Duration | None = UNSET,
        lease_time: Duration | None = UNSET,
        **unknown: Never,
    ) -> bool:
        """Take the lock; returns False if another owner still has it after the wait.

        Durations are seconds and default to the lock's own. With ``blocking=False`` or ``wait_time=0`` it tries once.
        Acquiring again in the same thread or task succeeds at once, and needs as many releases.

        Raises TypeError for a ``blocking`` that is not a bool, such as the wait time of other libraries;
        LockUnavailableError, within the wait time plus a second (including connecting), when Redis is
        unreachable, or so slow that the lease is over when the reply comes; LockLostError when the owner's existing
        hold turns out to be lost; RuntimeError when ``aacquire()`` runs as a separate task, which would own the lock
        and end with the call.
        """
        driver = blocking_driver(self)
        request = self._request(driver, blocking, wait_time, lease_time, unknown)
        taken: bool = run_flow(acquire, (self, driver, request))
        # No call comes between here and the caller: an interruption there would leave a lock that nobody knows of.
        if taken and self.until_commit:
            release_at_end(self, request.owner)
        return taken

    @for_its_owner
    async def aacquire(
        self,
        blocking: bool = True,
        *,
        wait_time: Duration | None = UNSET,
        lease_time: Duration | None = UNSET,
        **unknown: Never,
    ) -> bool:
        """As ``acquire``, in asyncio."""
        driver = awaited_driver(self)
        request = self._request(driver, blocking, wait_time, lease_time, unknown)
        taken = await acquire(self, driver, request)
        if taken and self.until_commit:
            release_at_end(self, request.owner)
        return taken

    def _request(
        self, driver: Driver, blocking: bool, wait: Any, lease: Any, unknown: dict[str, Any]
    ) -> AcquireRequest:
        if unknown:
            raise unknown_argument("acquire", unknown)
        if self.until_commit:
            check_until_commit(self, driver)
        if blocking is not True:
            if blocking is not False:
                raise wrong_blocking(blocking)
            if wait is not UNSET and wait != 0:
                raise ValueError("acquire(blocking=False) tries once; it takes no wait_time.")
            wait = 0
        wait = self.wait_time if wait is UNSET else wait_seconds(wait)
        if wait is UNSET:
            wait = settings_of(self.using).wait_time
        lease = self.lease_time if lease is UNSET else lease_seconds(lease)
        return AcquireRequest(self._named_owner or driver.owner(), driver.now(), wait, lease)

    # --- release -----------------------------------------------------------------------------------------------------

    def release(self) -> None:
        """Release one hold; the last one frees the lock and wakes a waiter.

        Raises LockNotOwnedError when the owner does not hold it; LockLostError when the hold was lost meanwhile;
        LockUnavailableError when Redis is unreachable: then the background thread retries until the lease ends.
        """
        if self.until_commit is None and in_transaction():
            warn_before_commit(self, 2)
        driver = blocking_driver(self)
        owner = self._named_owner or driver.owner()
        if not (self.until_commit and self._is_kept(owner)):
            run_flow(self._engine.release, (self, driver, owner))

    @for_its_owner
    async def arelease(self) -> None:
        """As ``release``, in asyncio."""
        driver = awaited_driver(self)
        await self._release_for(driver, self._named_owner or driver.owner())

    async def _release_for(self, driver: Driver, owner: Owner) -> None:
        """Release one hold of an owner, which may have ended."""
        if not (self.until_commit and self._is_kept(owner)):
            await self._engine.release(self, driver, owner)

    def _is_kept(self, owner: Owner) -> bool:
        """Whether the end of the transaction releases the hold that is released now."""
        return is_released_at_end(self, owner) or keep_until_commit(self, owner)

    def leave(self, seconds: Duration) -> None:
        """Release one hold as ``release`` does; after the last hold, the lock stays taken for ``seconds`` from now: no
        owner can take it meanwhile, not even this one. A block releases its lock itself: use ``at_least=`` there.

        If Redis is unreachable, the lock is free when its lease ends.
        """
        kept_after_release(self, self._owner(blocking_driver(self)), seconds).release()

    @for_its_owner
    async def aleave(self, seconds: Duration) -> None:
        """As ``leave``, in asyncio."""
        await kept_after_release(self, self._owner(awaited_driver(self)), seconds).arelease()

    # --- with --------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        driver = blocking_driver(self)
        run_flow(acquire, (self, driver, self._block_request(driver)))
        return self

    def atomic(self, using: str = DEFAULT_DB_ALIAS, *, nested: bool = False) -> AtomicBlock[Self]:
        """Combine the lock with a database transaction, as context manager or decorator: acquire, BEGIN, body, COMMIT,
        release::

            with rlock("stock:42").atomic():
                ...

        ``using`` is the database. Before COMMIT, one command checks that the lock is still held. If not, LockLostError
        is raised; if Redis is unreachable, LockUnavailableError; both roll back. If the release after COMMIT fails,
        that is logged. Inside another transaction of that database it raises RuntimeError; with ``nested`` it makes a
        savepoint instead, and the lock is released when the outer transaction ends.
        """
        return AtomicBlock(self, using, nested)

    def enter(self, *, describe: bool = True) -> None:
        """Enter a block, as ``with`` does; ``__exit__`` leaves it. Without ``describe``, LockTimeoutError does not name
        the holder, which saves a command, and the caller logs it."""
        driver = blocking_driver(self)
        run_flow(acquire, (self, driver, self._block_request(driver, describe)))

    def _exit_block(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        *,
        owner: Owner | None = None,
        warns: bool = True,
    ) -> None:
        """Exit a block; for a block whose own ``__exit__`` is guarded. ``warns`` is whether to warn if a transaction
        is open."""
        if warns and self.until_commit is None and in_transaction():
            warn_before_commit(self, 3)
        owner = self._named_owner or owner or thread_owner()
        try:
            driver = blocking_driver(self)
        except SynchronousOnlyOperation:
            # A generator that other code entered is dropped here.
            exit_later(self, owner)
        else:
            run_flow(self._exit, (driver, owner, error))

    __exit__ = released_when_dropped(_exit_block)

    @for_its_owner
    async def __aenter__(self) -> Self:
        driver = awaited_driver(self)
        await acquire(self, driver, self._block_request(driver))
        return self

    @exited_by_its_owner
    @for_its_owner
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        *,
        owner: Owner | None = None,
    ) -> None:
        driver = awaited_driver(self)
        await self._exit(driver, self._named_owner or owner or driver.owner(), error)

    def _block_request(self, driver: Driver, describe: bool = True) -> AcquireRequest:
        if self.until_commit:
            check_until_commit(self, driver)
        owner = self._named_owner or driver.owner()
        wait = settings_of(self.using).wait_time if self.wait_time is UNSET else self.wait_time
        return AcquireRequest(owner, driver.now(), wait, self.lease_time, 1, False, describe)

    def _depth(self, key: Key) -> tuple[int, int]:
        """The count of a part, without the holds that the end of a transaction releases, and its number of blocks."""
        count, blocks = HOLDS.depth(key)
        return (count - released_at_end(key) if self.until_commit else count), blocks

    async def _exit(self, driver: Driver, owner: Owner, error: BaseException | None) -> None:
        blocks = 1
        try:
            if self.until_commit:
                self._engine.uncount_block(self, owner)
                if keep_until_commit(self, owner):
                    return
                blocks = 0
            await self._engine.release(self, driver, owner, blocks)
        except RLockError as failure:
            if error is None:
                raise
            # The block's own error must not be replaced by this one.
            log(logger, logging.WARNING, "While leaving the block of lock %r after an error: %s", self.name, failure)

    # --- questions ---------------------------------------------------------------------------------------------------

    def locked(self) -> bool:
        """Ask Redis whether any owner holds the lock."""
        return run_flow(self._locked, (blocking_driver(self),))

    async def alocked(self) -> bool:
        """As ``locked``, in asyncio."""
        return await self._locked(awaited_driver(self))

    async def _locked(self, driver: Driver) -> bool:
        return (await self._engine.ask_state(self, driver, self._owner(driver)))[1] != ABSENT

    def owned(self) -> bool:
        """Ask Redis whether the running thread or task holds the lock."""
        return run_flow(self._hold_count, (blocking_driver(self),)) > 0

    @for_its_owner
    async def aowned(self) -> bool:
        """As ``owned``, in asyncio."""
        return await self._hold_count(awaited_driver(self)) > 0

    def hold_count(self) -> int:
        """Ask Redis how often the running thread or task holds the lock."""
        return run_flow(self._hold_count, (blocking_driver(self),))

    @for_its_owner
    async def ahold_count(self) -> int:
        """As ``hold_count``, in asyncio."""
        return await self._hold_count(awaited_driver(self))

    async def _hold_count(self, driver: Driver) -> int:
        return (await self._engine.ask_state(self, driver, self._owner(driver)))[0]

    def remaining_lease(self) -> float | None:
        """Ask Redis for the seconds until the lease ends: 0.0 when the lock is free, None when the lease has no end."""
        return run_flow(self._remaining_lease, (blocking_driver(self),))

    async def aremaining_lease(self) -> float | None:
        """As ``remaining_lease``, in asyncio."""
        return await self._remaining_lease(awaited_driver(self))

    async def _remaining_lease(self, driver: Driver) -> float | None:
        left_ms = (await self._engine.ask_state(self, driver, self._owner(driver)))[1]
        return None if left_ms == ENDLESS else max(left_ms, 0) / 1000

    def info(self) -> LockInfo | None:
        """The holders of the lock, since when and for which work they hold it, and the waiters; None if it is free."""
        return run_flow(self._info, (blocking_driver(self),))

    async def ainfo(self) -> LockInfo | None:
        """As ``info``, in asyncio."""
        return await self._info(awaited_driver(self))

    async def _info(self, driver: Driver) -> LockInfo | None:
        info: LockInfo | None = await driver.call(INSPECTOR.describe, self)
        return info

    def holders(self) -> list[str]:
        """The owner ids of the holders, by a single command; ``info()`` returns more, but needs several commands."""
        return run_flow(self._engine.ask_holders, (self, blocking_driver(self)))

    async def aholders(self) -> list[str]:
        """As ``holders``, in asyncio."""
        return await self._engine.ask_holders(self, awaited_driver(self))

    # --- changes -----------------------------------------------------------------------------------------------------

    def extend(self, lease_time: Duration, **unknown: Never) -> None:
        """Replace the lease of the hold: it ends ``lease_time`` seconds from now, and is no longer renewed. Under
        ``owner=`` it only prolongs the lease: a longer lease, on which another process may rely, stays as it is.

        Raises LockNotOwnedError when the owner does not hold the lock; LockLostError when the hold was lost meanwhile.
        """
        run_flow(self._extend, (blocking_driver(self), lease_time, unknown))

    @for_its_owner
    async def aextend(self, lease_time: Duration, **unknown: Never) -> None:
        """As ``extend``, in asyncio."""
        await self._extend(awaited_driver(self), lease_time, unknown)

    async def _extend(self, driver: Driver, lease_time: Duration, unknown: dict[str, Any]) -> None:
        if unknown:
            raise unknown_argument("extend", unknown)
        await self._engine.extend(self, driver, self._owner(driver), lease_time)

    def hand_over(self) -> None:
        """Leave a hold under ``owner=`` to the other processes that use the name. This process forgets the hold, no
        longer renews it, and is not notified if it is lost.

        The hold lasts until its lease ends; call ``extend()`` before to give the others more time. A process that
        acquires the lock under the name renews the lease from then on; its last release frees the lock. Until then
        ``info()`` names the request for which this process took it, while this process lives. Sends no command, so
        async code may use it too.

        Raises LockNotOwnedError when this process does not hold the lock; LockLostError when the hold was lost;
        RuntimeError without ``owner=``, and inside a ``with`` block of the lock, whose end would release it.
        """
        if self._named_owner is None:
            raise RuntimeError(f"Lock {self.name!r} belongs to this thread or task; give it an owner= to hand it over.")
        hand_over(self, self._named_owner)

    def force_release(self, owner: str | None = None, *, reason: str = "") -> bool:
        """Free the lock from any holder, and let the next waiter take it; returns whether it was held.

        With ``owner``, an owner id as in ``info()``, the lock is freed only if that owner holds it. ``reason`` goes to
        the log and the signal. An owner that has held the lock for more than a second is notified within milliseconds.
        Some holders notice only at the next renewal: holders of a SpinLock, processes without the right to subscribe,
        and in a cluster processes that hold more than a thousand other names.

        If the caller itself holds the lock, all its own holds end, which is not reported as a loss. It may acquire the
        lock again; releasing it instead raises LockNotOwnedError, also at the end of a ``with`` block.
        """
        return run_flow(self._force_release, (blocking_driver(self), owner, reason))

    async def aforce_release(self, owner: str | None = None, *, reason: str = "") -> bool:
        """As ``force_release``, in asyncio."""
        return await self._force_release(awaited_driver(self), owner, reason)

    async def _force_release(self, driver: Driver, owner: str | None, reason: str) -> bool:
        return await self._engine.free_by_force(self, driver, self._owner(driver), owner, reason)
