"""Redisson's expirable semaphore, wire for wire; permits can also be renewed, so that a dead process loses its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Never

from django_rlock._core.clock import monotonic
from django_rlock._redis import keys, scripts
from django_rlock._redis.scripts import ABSENT, ENDLESS
from django_rlock._transport.calls import PATIENCE, Driver, ScriptCall, run_flow
from django_rlock._transport.identity import NamedOwner, new_request
from django_rlock._transport.worker import clean_up
from django_rlock.exceptions import PermitNotHeldError
from django_rlock.locks.attempt import Attempt
from django_rlock.locks.callers import awaited_driver, blocking_driver, calling_line
from django_rlock.locks.counters import (
    REMEMBERED_MS,
    SENT_AGAIN,
    checked_number,
    give_back,
    granted,
    is_refusal,
    undo,
    with_answered,
)
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.kinds import EXTEND, SETTLE
from django_rlock.locks.options import UNSET, Duration, lease_seconds, unknown_argument
from django_rlock.locks.permits import (
    PERMITS,
    Permit,
    PermitBlock,
    PermitHold,
    PermitRequest,
    PermitSemaphore,
    checked_amount,
    checked_ids,
    packed,
    permit_keys,
    single_id,
)
from django_rlock.locks.records import Hold
from django_rlock.locks.watchdog import watch
from django_rlock.settings import DEFAULT_ALIAS


class PermitExpirableSemaphore(PermitSemaphore):
    """A semaphore whose permits have ids and leases; Redisson's ``getPermitExpirableSemaphore``.

    ``name`` says what it limits, ``using`` is the RLOCK alias, ``wait_time`` how long to wait for permits, in seconds
    (0 tries once, None waits forever). When a permit's lease ends, the next call of any client reclaims it::

        licences = PermitExpirableSemaphore("licences", wait_time=10)
        licences.try_set_permits(5)

        with licences.permit(renewed=True) as permit:
            ...

    ``lease_time`` is in seconds; None has no end, as in Redisson. With ``renewed=True`` the lease is WATCHDOG_TIMEOUT,
    and the background thread renews it until the permit is released, as long as this process lives and keeps the Permit
    object. So permits come back when their process or thread dies. ``on_lost(semaphore)`` is called in the thread for
    callbacks when a renewed permit is lost.

    A process that is paused past the lease continues without a permit, as with locks; ``permit.lost`` is then True.
    Calls raise LockUnavailableError when Redis is unreachable, or when the name's key holds another type of value.

    State in Redis: the number of free permits at the semaphore's key, the sorted set ``{key}:timeout`` (raw id → epoch
    ms of the server's clock), and the channel ``redisson_sc:{key}``.
    """

    __slots__ = ("on_lost",)

    kind = "permit"
    _kind = PERMITS
    max_hold_time = None

    def __init__(
        self,
        name: str,
        *,
        wait_time: Duration | None = None,
        using: str = DEFAULT_ALIAS,
        on_lost: Callable[[Any], object] | None = None,
    ) -> None:
        super().__init__(name, wait_time=wait_time, using=using)
        self.on_lost = on_lost

    # --- take --------------------------------------------------------------------------------------------------------

    def acquire(
        self,
        permits: int = 1,
        blocking: bool = True,
        *,
        wait_time: Duration | None = UNSET,
        lease_time: Duration | None = None,
        renewed: bool = False,
        **unknown: Never,
    ) -> Permit | None:
        """Take permits, all or none; returns None if not enough become free within the wait.

        ``wait_time`` and ``lease_time`` are in seconds. The wait defaults to the semaphore's own; a lease of None has
        no end, unless it is ``renewed``. With ``blocking=False`` or ``wait_time=0`` it tries once.
        """
        options = permits, blocking, wait_time, lease_time, renewed, unknown
        return run_flow(self._acquire, (blocking_driver(self), *options))

    async def aacquire(
        self,
        permits: int = 1,
        blocking: bool = True,
        *,
        wait_time: Duration | None = UNSET,
        lease_time: Duration | None = None,
        renewed: bool = False,
        **unknown: Never,
    ) -> Permit | None:
        """As ``acquire``, in asyncio."""
        return await self._acquire(awaited_driver(self), permits, blocking, wait_time, lease_time, renewed, unknown)

    async def _acquire(
        self,
        driver: Driver,
        permits: int,
        blocking: bool,
        wait_time: Duration | None,
        lease_time: Duration | None,
        renewed: bool,
        unknown: dict[str, Any],
    ) -> Permit | None:
        wait = self._wait_seconds(blocking, wait_time, unknown)
        lease = self._lease(lease_time, renewed)
        until = None if wait is None else driver.now() + wait
        give_up_at = until
        while True:
            request = PermitRequest(self, checked_amount(permits), lease)
            attempt, permit = await self._take(driver, request, wait, renewed)
            if permit is not None or attempt is None:
                return permit
            now = driver.now()
            if give_up_at is None:
                give_up_at = now + PATIENCE  # as with a server that does not reply
            if now >= give_up_at:
                attempt.check_speed()
                return None
            wait = None if until is None else until - now

    async def _take(
        self, driver: Driver, request: PermitRequest, wait: float | None, renewed: bool
    ) -> tuple[Attempt | None, Permit | None]:
        """The attempt if it was granted, and its permit unless its lease is over: then it was released."""
        try:
            attempt = await granted(request, driver, 0.0, wait)
            if attempt is None:
                return None, None
            attempt.lease = math.inf if request.lease is None else request.lease
            if attempt.granted_at < attempt.sent_at + attempt.lease:
                permit = self._permit(attempt, request, renewed)
                if not permit.lost:
                    return attempt, permit
        except BaseException as error:
            _forget(self._holds_of(request.ids))
            undo(request, error)
            raise
        _forget(self._holds_of(request.ids))
        give_back(request)
        return attempt, None

    def permit(
        self,
        permits: int = 1,
        *,
        wait_time: Duration | None = UNSET,
        lease_time: Duration | None = None,
        renewed: bool = False,
        **unknown: Never,
    ) -> PermitBlock:
        """Take permits for a ``with`` or ``async with`` block, which gets the Permit and releases it at its end.

        Raises LockTimeoutError if not enough permits become free within the wait. At the end of the block, unless the
        block itself raised, raises LockLostError if the lease ended inside it, and PermitNotHeldError if the block has
        released the permit already.
        """
        if unknown:
            raise unknown_argument("permit", unknown)
        return PermitBlock(self, permits, {"wait_time": wait_time, "lease_time": lease_time, "renewed": renewed})

    def _lease(self, lease_time: Duration | None, renewed: bool) -> float | None:
        lease = lease_seconds(lease_time)
        if not renewed:
            return lease
        if lease is not None:
            raise ValueError("With renewed=True the lease is WATCHDOG_TIMEOUT; it takes no lease_time.")
        return self._settings.watchdog_timeout

    def _permit(self, attempt: Attempt, request: PermitRequest, renewed: bool) -> Permit:
        lease = request.lease
        if lease is None or not renewed:
            return Permit(self, request.ids, attempt.sent_at + (math.inf if lease is None else lease), [])
        holds = [PermitHold(self, each, attempt.sent_at) for each in request.ids]
        permit = Permit(self, request.ids, attempt.sent_at + lease, holds)
        for hold in holds:
            hold.lease_from(attempt.sent_at, lease, renewed=True)
            hold.belongs_to(permit)
            hold.line = calling_line()
            HOLDS.put(hold)
            watch(hold)
        return permit

    def _holds_of(self, ids: Iterable[str]) -> list[Hold]:
        """The holds, among these permits, that this process renews."""
        return [hold for hold in (HOLDS.get(self, NamedOwner(each)) for each in ids) if hold is not None]

    # --- release -----------------------------------------------------------------------------------------------------

    def try_release(self, permits: Permit | str | Iterable[str]) -> int:
        """Release permits by their ids, all or none; returns how many.

        Returns 0 if one of them is not taken, was released before, or has outlived its lease. Raises
        LockUnavailableError when Redis is unreachable: the background thread then retries for a minute.
        """
        return run_flow(self._try_release, (blocking_driver(self), permits))

    async def atry_release(self, permits: Permit | str | Iterable[str]) -> int:
        """As ``try_release``, in asyncio."""
        return await self._try_release(awaited_driver(self), permits)

    async def _try_release(self, driver: Driver, permits: Permit | str | Iterable[str]) -> int:
        self._check_alias()
        ids = checked_ids(permits)
        if not ids:
            return 0
        holds, call = self._holds_of(ids), self._release_call(ids)
        # The holds are removed before the command is sent, so that the watchdog does not report them as lost.
        if not await self._surely(driver, call, partial(_forget, holds)) and call.sends == 1:
            for hold in holds:
                HOLDS.put(hold)
                watch(hold)  # the watchdog may have dropped it meanwhile
            return 0
        if isinstance(permits, Permit):
            permits.given_back = True
        return len(ids)  # 0 for a repeated command: the first one released them, and its reply was lost

    def _release_later(self, permit: Permit) -> None:
        """Let the background thread release a permit."""
        _forget(self._holds_of(permit.ids))
        clean_up(self.using, self._release_call(permit.ids), monotonic() + SENT_AGAIN)
        permit.given_back = True

    def _release_call(self, ids: tuple[str, ...]) -> ScriptCall:
        return self._call(scripts.PERMIT_RELEASE, self._keys(), packed(ids))

    def release(self, permits: Permit | str | Iterable[str]) -> None:
        """Like ``try_release``, but raises PermitNotHeldError instead of returning 0."""
        run_flow(self._release, (blocking_driver(self), permits))

    async def arelease(self, permits: Permit | str | Iterable[str]) -> None:
        """As ``release``, in asyncio."""
        await self._release(awaited_driver(self), permits)

    async def _release(self, driver: Driver, permits: Permit | str | Iterable[str]) -> None:
        ids = checked_ids(permits)
        if await self._try_release(driver, permits if isinstance(permits, Permit) else ids) < len(ids):
            raise PermitNotHeldError(self.name, ids)

    # --- leases ------------------------------------------------------------------------------------------------------

    def update_lease_time(self, permit: Permit | str, lease_time: Duration | None) -> bool:
        """Let a permit's lease end ``lease_time`` seconds from now (None: never); returns False if it is no longer
        taken.

        The watchdog stops renewing it.
        """
        return run_flow(self._update_lease_time, (blocking_driver(self), permit, lease_time))

    async def aupdate_lease_time(self, permit: Permit | str, lease_time: Duration | None) -> bool:
        """As ``update_lease_time``, in asyncio."""
        return await self._update_lease_time(awaited_driver(self), permit, lease_time)

    async def _update_lease_time(self, driver: Driver, permit: Permit | str, lease_time: Duration | None) -> bool:
        lease = lease_seconds(lease_time)
        self._check_alias()
        each = single_id(permit)
        hold = HOLDS.get(self, NamedOwner(each))
        lasts = math.inf if lease is None else lease
        call, settle = [PERMITS.lease(self, each, lasts, mode) for mode in (EXTEND, SETTLE)]
        terms = None if hold is None else hold.terms
        started = driver.now()
        try:
            if hold is not None:
                hold.renewed = False
            changed = await self._change(driver, call)
            if call.sends > 1:
                await self._change(driver, settle)
            if changed:
                _note_lease(hold, permit, call.sent_at, lease)
        except BaseException as error:
            if not is_refusal(error):
                clean_up(self.using, settle, driver.now() + SENT_AGAIN)
            if hold is not None and terms is not None:
                hold.restore(terms)
                hold.deadline = min(hold.deadline, started + (math.inf if lease is None else lease))
                watch(hold)
            raise
        return bool(changed)

    def lease_time(self, permit: Permit | str) -> float | None:
        """Seconds until a permit's lease ends; None if it has no end. Raises PermitNotHeldError if it is not taken."""
        return run_flow(self._lease_time, (blocking_driver(self), permit))

    async def alease_time(self, permit: Permit | str) -> float | None:
        """As ``lease_time``, in asyncio."""
        return await self._lease_time(awaited_driver(self), permit)

    async def _lease_time(self, driver: Driver, permit: Permit | str) -> float | None:
        each = single_id(permit)
        left: int = (await self._state(driver, each))[2]
        if left == ABSENT:
            raise PermitNotHeldError(self.name, (each,))
        return None if left == ENDLESS else left / 1000

    # --- numbers -----------------------------------------------------------------------------------------------------

    def available_permits(self) -> int:
        """How many permits are free; below 0 if more are taken than there are in all."""
        return run_flow(self._available_permits, (blocking_driver(self),))

    async def aavailable_permits(self) -> int:
        """As ``available_permits``, in asyncio."""
        return await self._available_permits(awaited_driver(self))

    async def _available_permits(self, driver: Driver) -> int:
        return (await self._state(driver))[0]

    def acquired_permits(self) -> int:
        """How many permits are taken."""
        return run_flow(self._acquired_permits, (blocking_driver(self),))

    async def aacquired_permits(self) -> int:
        """As ``acquired_permits``, in asyncio."""
        return await self._acquired_permits(awaited_driver(self))

    async def _acquired_permits(self, driver: Driver) -> int:
        return (await self._state(driver))[1]

    def total_permits(self) -> int:
        """How many permits there are, free and taken; Redisson's ``getPermits``."""
        return run_flow(self._total_permits, (blocking_driver(self),))

    async def atotal_permits(self) -> int:
        """As ``total_permits``, in asyncio."""
        return await self._total_permits(awaited_driver(self))

    async def _total_permits(self, driver: Driver) -> int:
        left, taken, _ = await self._state(driver)
        return left + taken

    def set_permits(self, permits: int) -> None:
        """Set the number of all permits, free and taken. Taken permits stay taken; the free ones may go below 0."""
        run_flow(self._set_permits, (blocking_driver(self), permits))

    async def aset_permits(self, permits: int) -> None:
        """As ``set_permits``, in asyncio."""
        await self._set_permits(awaited_driver(self), permits)

    async def _set_permits(self, driver: Driver, permits: int) -> None:
        number = checked_number("permits", permits)
        all_keys = *self._keys(), keys.requests_key(self.key)
        request = with_answered(self, new_request())
        await self._reply(driver, self._call(scripts.PERMIT_SET, all_keys, request, number, REMEMBERED_MS))

    async def _state(self, driver: Driver, each: str = "") -> list[int]:
        return await self._ask(driver, self._call(scripts.PERMIT_STATE, self._keys(), bytes.fromhex(each)))

    def _keys(self) -> tuple[str, str, str]:
        return permit_keys(self.key)


def _forget(holds: Iterable[Hold]) -> None:
    for hold in holds:
        HOLDS.remove(hold)


def _note_lease(hold: Hold | None, permit: Permit | str, sent_at: float, lease: float | None) -> None:
    """Update this process's record of a permit's lease after a change."""
    if hold is not None:
        hold.lease_from(sent_at, math.inf if lease is None else lease, renewed=False)
        if lease is None:
            HOLDS.remove(hold)  # nothing is left for the watchdog to do
        else:
            watch(hold)
    if isinstance(permit, Permit):
        permit.deadline = sent_at + (math.inf if lease is None else lease)
