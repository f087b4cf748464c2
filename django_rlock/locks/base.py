"""What users call: every flow with two faces, blocking calls and coroutines with Django's ``a`` prefix.

A lock object is a stateless handle: a name, an alias and durations. State is in Redis and in ``holds``. So one object,
made at import time even, serves all threads, tasks and forked children.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from django_rlock import keys
from django_rlock.drivers.aio import async_driver
from django_rlock.drivers.base import Driver, monotonic, run_sync
from django_rlock.drivers.identity import Owner, current_owner
from django_rlock.drivers.sync import sync_driver
from django_rlock.exceptions import (
    LockTimeoutError,
    RLockError,
)
from django_rlock.locks.durations import UNSET, Duration, hold_seconds, lease_seconds, wait_seconds
from django_rlock.locks.flows import LockFlows
from django_rlock.locks.holds import HOLDS, Hold
from django_rlock.locks.hooks import LockHooks
from django_rlock.settings import DEFAULT_ALIAS

if TYPE_CHECKING:
    from django_rlock.inspection import LockInfo

logger = logging.getLogger("django_rlock.locks")


class BaseLock(LockFlows):
    """A re-entrant distributed lock.

    ``name`` is what the lock protects; ``using`` the RLOCK alias. ``wait_time`` is how long to wait for it, in seconds
    (0 tries once, None waits for ever). ``lease_time`` is how long it may be held, in seconds; None means as long as
    this process lives: the watchdog renews it. Both can be given to ``acquire`` as well.

    The owner is the running thread or asyncio task, unless ``owner`` names one; a named owner moves a hold between
    processes, and counts as one hold in each. ``on_lost(lock)`` is called in the background thread when a hold is lost.
    After ``max_hold_time`` seconds the watchdog stops renewing.

    What holds: no two owners are inside at once while leases last and the server keeps its data; a holder learns of a
    lost lock by ``lost``, ``check()``, the signal, ``on_lost``, and LockLostError at the end of its ``with`` block.
    What does not: a process that is paused past its lease, or a failover that loses writes, lets a second owner in;
    only a check by the protected resource itself can stop the first one then.
    """

    __slots__ = ("lease_time", "owner", "wait_time")

    def __init__(
        self,
        name: str,
        *,
        wait_time: Duration | None = None,
        lease_time: Duration | None = None,
        using: str = DEFAULT_ALIAS,
        owner: str | None = None,
        on_lost: Callable[[Any], object] | None = None,
        max_hold_time: Duration | None = None,
    ) -> None:
        self.name = checked_text("name", name)
        self.wait_time = wait_seconds(wait_time)
        self.lease_time = lease_seconds(lease_time)
        self.using = using
        self.owner = None if owner is None else _checked_owner(owner)
        self.on_lost = on_lost
        self.max_hold_time = hold_seconds(max_hold_time)

    @property
    def parts(self) -> tuple[BaseLock, ...]:
        """The locks that it consists of: itself, unless it is a MultiLock."""
        return (self,)

    def holds_of(self, owner: Owner | str) -> list[Hold]:
        """What an owner of this process holds of it."""
        return [hold for part in self.parts if (hold := HOLDS.get(part, owner)) is not None]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, using={self.using!r})"

    # --- acquire -----------------------------------------------------------------------------------------------------

    def acquire(
        self,
        blocking: bool = True,
        *,
        wait_time: Duration | None = UNSET,
        lease_time: Duration | None = UNSET,
    ) -> bool:
        """Take the lock; False when it is still taken after the wait.

        Durations are seconds; they default to the lock's own. Tries once with ``blocking=False`` or ``wait_time=0``.
        Taking it again in the same thread succeeds at once, and needs as many releases.

        LockUnavailableError, within the wait time plus about a second, when Redis cannot be asked; connecting to a
        machine that does not answer at all takes as long as the cache's SOCKET_CONNECT_TIMEOUT and SOCKET_TIMEOUT.
        LockLostError when this thread holds it and that hold turns out to be lost.
        """
        driver = sync_driver(self.using)
        return run_sync(self._acquire(driver, self._owner(driver), *self._times(blocking, wait_time, lease_time)))

    def aacquire(
        self,
        blocking: bool = True,
        *,
        wait_time: Duration | None = UNSET,
        lease_time: Duration | None = UNSET,
    ) -> Coroutine[Any, Any, bool]:
        """The same for asyncio; the owner is the task that makes the call, also where another one awaits it."""
        driver = async_driver(self.using)
        return self._acquire(driver, self._owner(driver), *self._times(blocking, wait_time, lease_time))

    def _times(self, blocking: bool, wait: Any, lease: Any) -> tuple[float | None, float | None]:
        if not blocking:
            if wait is not UNSET and wait != 0:
                raise ValueError("acquire(blocking=False) tries once; it takes no wait_time.")
            wait = 0
        return (
            self.wait_time if wait is UNSET else wait_seconds(wait),
            self.lease_time if lease is UNSET else lease_seconds(lease),
        )

    async def _acquire(self, driver: Driver, owner: Owner | str, wait: float | None, lease: float | None) -> bool:
        return await self._ask_for(driver, owner, wait, lease) is None

    # --- release -----------------------------------------------------------------------------------------------------

    def release(self) -> None:
        """Give back one hold; the last one frees the lock and wakes a waiter.

        LockNotOwnedError when the owner does not hold it; LockLostError when the hold was lost meanwhile.
        LockUnavailableError when Redis cannot be asked: the background thread goes on trying, and the lease ends it.
        """
        driver = sync_driver(self.using)
        run_sync(self._give_back(driver, self._owner(driver)))

    def arelease(self) -> Coroutine[Any, Any, None]:
        """The same for asyncio."""
        driver = async_driver(self.using)
        return self._give_back(driver, self._owner(driver))

    # --- with --------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        driver = sync_driver(self.using)
        run_sync(self._enter(driver, self._owner(driver)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        driver = sync_driver(self.using)
        run_sync(self._exit(driver, self._owner(driver), error))

    async def __aenter__(self) -> Self:
        driver = async_driver(self.using)
        await self._enter(driver, self._owner(driver))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        driver = async_driver(self.using)
        await self._exit(driver, self._owner(driver), error)

    async def _enter(self, driver: Driver, owner: Owner | str) -> None:
        started = driver.now()
        failed = await self._ask_for(driver, owner, self.wait_time, self.lease_time, scoped=1)
        if failed is not None:
            raise LockTimeoutError(
                failed.lock.name,
                waited=driver.now() - started,
                holder=await driver.call(_inspector.holder, failed.lock),
                retry_after=failed.left_ms / 1000 if failed.left_ms >= 0 else None,
            )

    async def _exit(self, driver: Driver, owner: Owner | str, error: BaseException | None) -> None:
        for hold in self.holds_of(owner):
            hold.scoped -= 1
        try:
            await self._give_back(driver, owner)
        except RLockError as failure:
            if error is None:
                raise
            # The block's own error must not be hidden by this one.
            logger.warning("While leaving the block of lock %r after an error: %s", self.name, failure)

    # --- questions ---------------------------------------------------------------------------------------------------

    def locked(self) -> bool:
        """Whether anybody holds it, asked of Redis."""
        return self._state()[1] != _FREE

    async def alocked(self) -> bool:
        return (await self._astate())[1] != _FREE

    def owned(self) -> bool:
        """Whether the running thread or task holds it, asked of Redis."""
        return self._state()[0] > 0

    async def aowned(self) -> bool:
        return (await self._astate())[0] > 0

    def hold_count(self) -> int:
        """How often the running thread or task holds it, asked of Redis."""
        return self._state()[0]

    async def ahold_count(self) -> int:
        return (await self._astate())[0]

    def remaining_lease(self) -> float | None:
        """Seconds until the lease ends, asked of Redis: 0.0 when it is free, None when it has no end."""
        return _lease_left(self._state()[1])

    async def aremaining_lease(self) -> float | None:
        return _lease_left((await self._astate())[1])

    def _state(self) -> tuple[int, int]:
        driver = sync_driver(self.using)
        return run_sync(self._ask_state(driver, self._owner(driver)))

    def _astate(self) -> Coroutine[Any, Any, tuple[int, int]]:
        driver = async_driver(self.using)
        return self._ask_state(driver, self._owner(driver))

    @property
    def lost(self) -> bool:
        """Whether the running thread's or task's hold has been lost or outlived its lease; asks nobody."""
        owner = self.owner or current_owner()
        return any(hold.is_lost(monotonic()) for hold in self.holds_of(owner))

    @property
    def suspect(self) -> bool:
        """Whether the hold could not be renewed when that was last tried; it runs until its lease ends. Asks nobody."""
        owner = self.owner or current_owner()
        return any(hold.suspect for hold in self.holds_of(owner))

    def check(self) -> None:
        """LockLostError when the hold was lost, LockNotOwnedError when there is none; asks nobody."""
        owner = self.owner or current_owner()
        for part in self.parts:
            part._hold_of(owner)  # noqa: SLF001 - of the same class

    def _hold_of(self, owner: Owner | str) -> Hold:
        hold = HOLDS.get(self, owner)
        if hold is None:
            raise self.not_owned(owner)
        if hold.is_lost(monotonic()):
            raise hold.lost_error()
        return hold

    def info(self) -> LockInfo | None:
        """Who holds it, since when and doing what, and who waits; None when it is free."""
        return _inspector.describe(self)  # type: ignore[no-any-return]

    async def ainfo(self) -> LockInfo | None:
        return await async_driver(self.using).call(_inspector.describe, self)  # type: ignore[no-any-return]

    # --- changes -----------------------------------------------------------------------------------------------------

    def extend(self, lease_time: Duration) -> None:
        """Replace the lease of the hold: it ends ``lease_time`` seconds from now, and the watchdog lets it.

        LockNotOwnedError when the owner does not hold it; LockLostError when the hold was lost meanwhile.
        """
        driver = sync_driver(self.using)
        run_sync(self._extend(driver, self._owner(driver), lease_time))

    def aextend(self, lease_time: Duration) -> Coroutine[Any, Any, None]:
        driver = async_driver(self.using)
        return self._extend(driver, self._owner(driver), lease_time)

    def force_release(self, owner: str | None = None, *, reason: str = "") -> bool:
        """Free the lock whoever holds it, and let the next one in; answers whether it was held.

        With ``owner``, a wire name as in ``info()``, only if that one holds it. The holder learns of it when its lease
        would be renewed. ``reason`` goes to the log and the signal.
        """
        driver = sync_driver(self.using)
        driver.check_caller()
        return run_sync(self._force_release(driver, owner, reason))

    def aforce_release(self, owner: str | None = None, *, reason: str = "") -> Coroutine[Any, Any, bool]:
        return self._force_release(async_driver(self.using), owner, reason)

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _owner(self, driver: Driver) -> Owner | str:
        driver.check_caller()
        return self.owner or driver.owner()


_FREE = -2


class _Inspector:
    """Set by the inspection layer above: what to tell about a lock, and about its holder in one line."""

    describe: Callable[[BaseLock], Any] = staticmethod(lambda _lock: None)
    holder: Callable[[LockHooks], str | None] = staticmethod(lambda _lock: None)


_inspector = _Inspector()


def set_inspector(describe: Callable[[BaseLock], Any], holder: Callable[[LockHooks], str | None]) -> None:
    """Register who answers ``info()`` and names the holder in LockTimeoutError."""
    _inspector.describe = describe
    _inspector.holder = holder


def _lease_left(left_ms: int) -> float | None:
    return None if left_ms == -1 else max(left_ms, 0) / 1000


def _checked_owner(value: object) -> str:
    owner = checked_text("owner", value)
    if owner == keys.MODE:
        raise ValueError(f"A lock's owner must not be {owner!r}: that field of its hash has a meaning of its own.")
    return owner


def checked_text(argument: str, value: object) -> str:
    """A name or an owner, if it is text that keys can carry."""
    if not isinstance(value, str):
        raise TypeError(f"A lock's {argument} must be a string, not {value!r}.")
    if not value:
        raise ValueError(f"A lock's {argument} must not be empty; give it a name such as 'stock:42'.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"A lock's {argument} must be text that UTF-8 can carry, not {value!r}.") from None
    return value
