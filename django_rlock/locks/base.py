"""The flows that all kinds share, and their two faces: blocking calls, and coroutines with Django's ``a`` prefix.

A lock object is a stateless handle: a name, an alias and durations. State is in Redis and in ``holds``. So one object,
made at import time even, serves all threads, tasks and forked children.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from django_rlock import signals
from django_rlock.drivers import background
from django_rlock.drivers.aio import async_driver
from django_rlock.drivers.base import Driver, ScriptCall, monotonic, run_sync
from django_rlock.drivers.identity import Owner, current_owner
from django_rlock.drivers.sync import defer, sync_driver
from django_rlock.exceptions import (
    LockLostError,
    LockNotOwnedError,
    LockTimeoutError,
    LockUnavailableError,
    RLockError,
)
from django_rlock.locks.attempt import Attempt
from django_rlock.locks.durations import Duration, lease_seconds, wait_seconds
from django_rlock.locks.holds import HOLDS, Hold, lose
from django_rlock.locks.hooks import LockHooks
from django_rlock.settings import DEFAULT_ALIAS

if TYPE_CHECKING:
    from django_rlock.inspection import LockInfo

logger = logging.getLogger("django_rlock.locks")

CLEAN_UP_AGAIN = 1.0
"""When an abandoned attempt is undone for the second time, in seconds."""
RELEASE_PATIENCE = 1.0
"""How long a release outlasts an unreachable server before it is left to the background thread, in seconds."""


class _Unset:
    def __repr__(self) -> str:
        return "the lock's own"


_UNSET: Any = _Unset()


class BaseLock(LockHooks):
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
        self.name = _checked_text("name", name)
        self.wait_time = wait_seconds(wait_time)
        self.lease_time = lease_seconds(lease_time)
        self.using = using
        self.owner = None if owner is None else _checked_text("owner", owner)
        self.on_lost = on_lost
        self.max_hold_time = lease_seconds(max_hold_time)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, using={self.using!r})"

    # --- acquire -----------------------------------------------------------------------------------------------------

    def acquire(
        self,
        blocking: bool = True,
        *,
        wait_time: Duration | None = _UNSET,
        lease_time: Duration | None = _UNSET,
    ) -> bool:
        """Take the lock; False when it is still taken after the wait.

        Durations are seconds; they default to the lock's own. Tries once with ``blocking=False`` or ``wait_time=0``.
        Taking it again in the same thread succeeds at once, and needs as many releases.

        LockUnavailableError, within the wait time plus about a second, when Redis cannot be asked.
        LockLostError when this thread holds it and that hold turns out to be lost.
        """
        driver = sync_driver(self.using)
        return run_sync(self._acquire(driver, self._owner(driver), *self._times(blocking, wait_time, lease_time)))

    def aacquire(
        self,
        blocking: bool = True,
        *,
        wait_time: Duration | None = _UNSET,
        lease_time: Duration | None = _UNSET,
    ) -> Coroutine[Any, Any, bool]:
        """The same for asyncio; the owner is the task that makes the call, also where another one awaits it."""
        driver = async_driver(self.using)
        return self._acquire(driver, self._owner(driver), *self._times(blocking, wait_time, lease_time))

    def _times(self, blocking: bool, wait: Any, lease: Any) -> tuple[float | None, float | None]:
        if not blocking:
            if wait is not _UNSET and wait != 0:
                raise ValueError("acquire(blocking=False) tries once; it takes no wait_time.")
            wait = 0
        return (
            self.wait_time if wait is _UNSET else wait_seconds(wait),
            self.lease_time if lease is _UNSET else lease_seconds(lease),
        )

    async def _acquire(self, driver: Driver, owner: Owner | str, wait: float | None, lease: float | None) -> bool:
        return await self._take(driver, owner, wait, lease) is None

    async def _take(
        self, driver: Driver, owner: Owner | str, wait: float | None, lease: float | None
    ) -> Attempt | None:
        """Take the lock; answers the attempt when it failed."""
        seconds = self.settings.watchdog_timeout if lease is None else lease
        outer = HOLDS.get(self, owner)
        if outer is not None and not _note_loss(outer, driver.now()):
            await self._enter_again(driver, outer, seconds, lease is None)
            return None
        # After a loss the wire name is a new one, so late clean-up of the old hold cannot touch the new one.
        name = owner if isinstance(owner, str) else owner.name
        started = driver.now()
        attempt = Attempt(self, driver, owner, name, seconds, None if wait is None else started + wait)
        try:
            if await (attempt.once() if wait == 0 else attempt.wait()):
                hold = Hold(self, owner, name, attempt.sent_at)
                hold.lease_from(attempt.sent_at, seconds, lease is None)
                if outer is not None:
                    hold.outlives(outer)
                HOLDS.put(hold)
                background.wake_by(hold.renew_at)
                self._tell_acquired(name, 1, attempt.sent_at - started)
                return None
        except BaseException:
            self._abandon(driver, owner, name, seconds)
            raise
        self._tell_timed_out(name, driver.now() - started)
        return attempt

    async def _enter_again(self, driver: Driver, hold: Hold, seconds: float, renewed: bool) -> None:
        # A nested hold never shortens the lease, nor stops the renewal that the outer one counts on.
        lease = max(seconds, hold.deadline - driver.now())
        call = self.acquire_call(hold.owner, hold.count + 1, lease, False)
        reply = await driver.run(call, hold.deadline)
        if reply[1] != b"OK":
            lose(hold, "it was gone when its owner took it again")
            raise _lost_error(hold)
        hold.count += 1
        hold.lease_from(call.sent_at, lease, renewed or hold.renewed)
        self._tell_acquired(hold.owner, hold.count, 0.0)

    def _abandon(self, driver: Driver, owner: Owner | str, name: str, lease: float) -> None:
        """Clean up after an attempt whose outcome is unknown: the server may have granted the lock, or still do so.

        It is undone in the background, and the owner never uses that wire name again, so it does not matter when. A
        name chosen by the caller cannot be changed: what was granted to it then ends by its lease.
        """
        if isinstance(owner, str):
            return
        owner.renew_name()
        until = driver.now() + lease
        defer(self.using, self.leave_call(name), until)
        # Once more: the acquire may still lie in a closed connection's buffer, behind the first clean-up.
        defer(self.using, self.leave_call(name), until, after=CLEAN_UP_AGAIN)

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

    async def _give_back(self, driver: Driver, owner: Owner | str) -> None:
        hold = HOLDS.get(self, owner)
        if hold is None:
            await self._give_back_unknown(driver, owner)
            return
        now = driver.now()
        if _note_loss(hold, now):
            self._drop_lost(hold)
            raise _lost_error(hold)
        hold.count -= 1
        if hold.count == 0:
            HOLDS.remove(hold)  # before the command, so that no renewal starts
        call = self.release_call(hold.owner, hold.count, hold.lease)
        try:
            reply = await driver.run(call, min(hold.deadline, now + RELEASE_PATIENCE))
        except BaseException as error:
            self._release_later(hold, owner)
            if isinstance(error, LockUnavailableError):
                raise self._release_failed(error, hold.deadline - driver.now()) from error
            raise
        finally:
            self._uncover_lost(hold)
        # "Not yours" to a release that was sent twice: the first one did it.
        if reply[1] == 0 and not (call.sends > 1 and driver.now() < hold.deadline):
            lose(hold, "another owner or an operator freed it, or the server lost it")
            raise _lost_error(hold)
        if hold.count:
            hold.lease_from(call.sent_at, hold.lease, hold.renewed)
        else:
            self._tell_released(hold, driver.now())

    async def _give_back_unknown(self, driver: Driver, owner: Owner | str) -> None:
        """Release what this process does not know of: the hold of an owner named by the caller, or nobody's."""
        if isinstance(owner, str):
            lease = self.settings.watchdog_timeout
            reply = await driver.run(self.release_call(owner, 0, lease), driver.now() + RELEASE_PATIENCE)
            if reply[1] == 1:
                return
        raise LockNotOwnedError(self.name, owner=owner if isinstance(owner, str) else owner.name)

    def _release_later(self, hold: Hold, owner: Owner | str) -> None:
        if hold.count == 0:
            if isinstance(owner, Owner):
                owner.renew_name()
            defer(self.using, self.release_call(hold.owner, 0, hold.lease), hold.deadline)

    def _release_failed(self, error: LockUnavailableError, left: float) -> LockUnavailableError:
        return LockUnavailableError(
            self.name,
            reason=f"it could not be released: {error.reason}",
            advice=f"It was held until now; the background thread frees it, or its lease in {max(left, 0):.1f} s.",
        )

    def _drop_lost(self, hold: Hold) -> None:
        """One enclosing block of a lost hold has been told."""
        hold.count -= 1
        if hold.count <= 0:
            HOLDS.remove(hold)

    def _uncover_lost(self, hold: Hold) -> None:
        """Behind a hold that ended may stand earlier ones of its owner, which were lost and must be told so."""
        if hold.count == 0 and hold.lost_below:
            hold.count, hold.lost_below = hold.lost_below, 0
            hold.lost = "its lease ended"
            HOLDS.put(hold)

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
        failed = await self._take(driver, owner, self.wait_time, self.lease_time)
        if failed is not None:
            raise LockTimeoutError(
                self.name,
                waited=driver.now() - started,
                holder=await driver.call(_inspector.holder, self),
                retry_after=failed.left_ms / 1000 if failed.left_ms >= 0 else None,
            )
        hold = HOLDS.get(self, owner)
        if hold is not None:
            hold.scoped += 1

    async def _exit(self, driver: Driver, owner: Owner | str, error: BaseException | None) -> None:
        hold = HOLDS.get(self, owner)
        if hold is not None:
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

    async def _ask_state(self, driver: Driver, owner: Owner | str) -> tuple[int, int]:
        reply = await driver.run(self.state_call(self._wire_name(owner)), driver.now())
        return reply[1], reply[2]

    @property
    def lost(self) -> bool:
        """Whether the running thread's or task's hold has been lost or outlived its lease; asks nobody."""
        hold = HOLDS.get(self, self.owner or current_owner())
        return hold is not None and _is_lost(hold, monotonic())

    def check(self) -> None:
        """LockLostError when the hold was lost, LockNotOwnedError when there is none; asks nobody."""
        owner = self.owner or current_owner()
        hold = HOLDS.get(self, owner)
        if hold is None:
            raise LockNotOwnedError(self.name, owner=self._wire_name(owner))
        if _is_lost(hold, monotonic()):
            raise _lost_error(hold)

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

    async def _extend(self, driver: Driver, owner: Owner | str, lease_time: Duration) -> None:
        lease = lease_seconds(lease_time)
        if lease is None:
            raise ValueError("extend() needs a lease_time in seconds.")
        hold = HOLDS.get(self, owner)
        if hold is not None and _note_loss(hold, driver.now()):
            raise _lost_error(hold)
        if hold is None and isinstance(owner, Owner):
            raise LockNotOwnedError(self.name, owner=owner.name)
        call = self.renew_call(self._wire_name(owner), lease)
        renewed = hold is not None and hold.pause_renewal()
        try:
            reply = await driver.run(call, driver.now() + RELEASE_PATIENCE)
        except BaseException:
            if hold is not None:
                hold.renewed = renewed
            raise
        self._note_extension(hold, call, lease, bool(reply[1]))

    def _note_extension(self, hold: Hold | None, call: ScriptCall, lease: float, is_owner: bool) -> None:
        if hold is None:
            if not is_owner:
                raise LockNotOwnedError(self.name, owner=self.owner)
        elif is_owner:
            hold.lease_from(call.sent_at, lease, renewed=False)
            background.wake_by(hold.deadline)
        else:
            lose(hold, "it was gone when its lease was to be extended")
            raise _lost_error(hold)

    def force_release(self, owner: str | None = None, *, reason: str = "") -> bool:
        """Free the lock whoever holds it, and let the next one in; answers whether it was held.

        With ``owner``, a wire name as in ``info()``, only if that one holds it. The holder learns of it when its lease
        would be renewed. ``reason`` goes to the log and the signal.
        """
        return run_sync(self._force_release(sync_driver(self.using), owner, reason))

    def aforce_release(self, owner: str | None = None, *, reason: str = "") -> Coroutine[Any, Any, bool]:
        return self._force_release(async_driver(self.using), owner, reason)

    async def _force_release(self, driver: Driver, owner: str | None, reason: str) -> bool:
        reply = await driver.run(self.force_release_call(owner), driver.now() + RELEASE_PATIENCE)
        if reply[1] == 1:
            logger.warning("Lock %r (%s) was freed by force: %s", self.name, self.key, reason or "no reason given")
            signals.lock_force_released.send_robust(sender=type(self), lock=self, owner=owner, reason=reason)
        return bool(reply[1])

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _owner(self, driver: Driver) -> Owner | str:
        return self.owner or driver.owner()

    def _wire_name(self, owner: Owner | str) -> str:
        hold = HOLDS.get(self, owner)
        if hold is not None:
            return hold.owner
        return owner if isinstance(owner, str) else owner.name

    def _tell_acquired(self, name: str, count: int, waited: float) -> None:
        logger.debug("Acquired %r as %s (%d), after %.3f s.", self.name, name, count, waited)
        if signals.lock_acquired.receivers:
            signals.lock_acquired.send_robust(sender=type(self), lock=self, owner=name, count=count, waited=waited)

    def _tell_timed_out(self, name: str, waited: float) -> None:
        logger.info("Lock %r is taken; %s gave up after %.3f s.", self.name, name, waited)
        signals.lock_timed_out.send_robust(sender=type(self), lock=self, owner=name, waited=waited)

    def _tell_released(self, hold: Hold, now: float) -> None:
        logger.debug("Released %r as %s, after %.3f s.", self.name, hold.owner, now - hold.since)
        if signals.lock_released.receivers:
            held = now - hold.since
            signals.lock_released.send_robust(sender=type(self), lock=self, owner=hold.owner, held=held)


_FREE = -2


class _Inspector:
    """Set by the inspection layer above: what to tell about a lock, and about its holder in one line."""

    describe: Callable[[BaseLock], Any] = staticmethod(lambda _lock: None)
    holder: Callable[[BaseLock], str | None] = staticmethod(lambda _lock: None)


_inspector = _Inspector()


def set_inspector(describe: Callable[[BaseLock], Any], holder: Callable[[BaseLock], str | None]) -> None:
    """Register who answers ``info()`` and names the holder in LockTimeoutError."""
    _inspector.describe = describe
    _inspector.holder = holder


def _is_lost(hold: Hold, now: float) -> bool:
    return hold.lost is not None or now >= hold.deadline


def _note_loss(hold: Hold, now: float) -> bool:
    """Whether the hold is lost; if its lease just ended, everybody is told."""
    if _is_lost(hold, now):
        lose(hold, f"its lease of {hold.lease:.1f} s ended")
    return hold.lost is not None


def _lost_error(hold: Hold) -> LockLostError:
    return LockLostError(hold.lock.name, reason=hold.lost or f"its lease of {hold.lease:.1f} s ended")


def _lease_left(left_ms: int) -> float | None:
    return None if left_ms == -1 else max(left_ms, 0) / 1000


def _checked_text(argument: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"A lock's {argument} must be a string, not {value!r}.")
    if not value:
        raise ValueError(f"A lock's {argument} must not be empty; give it a name such as 'stock:42'.")
    return value
