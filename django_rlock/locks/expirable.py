"""Redisson's expirable semaphore, wire for wire; permits can also be renewed, so that a dead process's come back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from django_rlock import scripts
from django_rlock.drivers import background
from django_rlock.drivers.base import Driver, ScriptCall
from django_rlock.exceptions import PermitNotHeldError
from django_rlock.locks.attempt import Attempt
from django_rlock.locks.counters import checked_number, granted, undone_on_error
from django_rlock.locks.durations import UNSET, Duration, lease_seconds, milliseconds
from django_rlock.locks.faces import faces
from django_rlock.locks.holds import HOLDS, Hold
from django_rlock.locks.permits import (
    Permit,
    PermitBlock,
    PermitHold,
    PermitRequest,
    checked_amount,
    checked_ids,
    leave_call,
    packed,
    permit_keys,
    single_id,
)
from django_rlock.locks.semaphore import BaseSemaphore
from django_rlock.settings import DEFAULT_ALIAS


class PermitExpirableSemaphore(BaseSemaphore):
    """A semaphore whose permits have ids and leases; Redisson's ``getPermitExpirableSemaphore``.

    ``name`` is what it limits, ``using`` the RLOCK alias, ``wait_time`` how long to wait for permits, in seconds
    (0 tries once, None waits for ever). A permit comes back when its lease ends, at the next call of anybody::

        licences = PermitExpirableSemaphore("licences", wait_time=10)
        licences.try_set_permits(5)

        with licences.permit(renewed=True) as permit:
            ...

    ``lease_time`` is in seconds; None has no end, as Redisson's. With ``renewed=True`` the lease is WATCHDOG_TIMEOUT,
    and the background thread renews it until it is given back, as long as this process lives and keeps the Permit: so
    the permits of a process that dies come back, and those of a thread that does. ``on_lost(semaphore)`` is called in
    the background thread when a renewed permit is lost.

    Whoever is paused past the lease goes on without a permit, as with locks: ``permit.lost`` tells.
    LockUnavailableError when Redis cannot be asked, or keeps something else under the name.

    State in Redis: the number that is left at the semaphore's key, the sorted set ``{key}:timeout`` (raw id → epoch ms
    of the server's clock), and the channel ``redisson_sc:{key}``.
    """

    __slots__ = ()

    kind = "permit"
    scope = "permit"

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

    async def _acquire(
        self,
        driver: Driver,
        permits: int = 1,
        blocking: bool = True,
        *,
        wait_time: Duration | None = UNSET,
        lease_time: Duration | None = None,
        renewed: bool = False,
    ) -> Permit | None:
        """Take permits, all or none; None when there are not as many until the wait ends.

        ``wait_time`` and ``lease_time`` are in seconds; the wait defaults to the semaphore's own, and a lease of None
        has no end, unless it is ``renewed``. Tries once with ``blocking=False`` or ``wait_time=0``.
        """
        wait = self._wait_seconds(blocking, wait_time)
        lease = self._lease(lease_time, renewed)
        request = PermitRequest(self, checked_amount(permits), lease)
        with undone_on_error(request):
            attempt = await granted(request, driver, 0.0, wait)
            return None if attempt is None else self._permit(attempt, request, renewed)

    def permit(
        self,
        permits: int = 1,
        *,
        wait_time: Duration | None = UNSET,
        lease_time: Duration | None = None,
        renewed: bool = False,
    ) -> PermitBlock:
        """For ``with`` and ``async with``: the same, given back at the end of the block, which gets the Permit.

        LockTimeoutError when there are not as many until the wait ends; LockLostError at the end when the lease ended
        inside, PermitNotHeldError when the block has given it back already, unless the block raised.
        """
        return PermitBlock(self, permits, {"wait_time": wait_time, "lease_time": lease_time, "renewed": renewed})

    def _lease(self, lease_time: Duration | None, renewed: bool) -> float | None:
        lease = lease_seconds(lease_time)
        if not renewed:
            return lease
        if lease is not None:
            raise ValueError("With renewed=True the lease is WATCHDOG_TIMEOUT; it takes no lease_time.")
        return self.settings.watchdog_timeout

    def _permit(self, attempt: Attempt, request: PermitRequest, renewed: bool) -> Permit:
        lease = request.lease
        if lease is None or not renewed:
            return Permit(self, request.ids, attempt.sent_at + (math.inf if lease is None else lease), [])
        holds = [PermitHold(self, each, attempt.sent_at) for each in request.ids]
        permit = Permit(self, request.ids, attempt.sent_at + lease, holds)
        for hold in holds:
            hold.lease_from(attempt.sent_at, lease, renewed=True)
            hold.belongs_to(permit)
            HOLDS.put(hold)
        background.wake_by(holds[0].renew_at)
        return permit

    # --- give back ---------------------------------------------------------------------------------------------------

    async def _try_release(self, driver: Driver, permits: Permit | str | Iterable[str]) -> int:
        """Give permits back by their ids, all or none; answers how many.

        0 when one of them is not taken, was given back before, or its lease has ended. LockUnavailableError when Redis
        cannot be asked: the background thread then goes on trying for a minute.
        """
        ids = checked_ids(permits)
        if not ids:
            return 0
        holds = [hold for hold in (HOLDS.get(self, each) for each in ids) if hold is not None]
        for hold in holds:
            HOLDS.remove(hold)  # before the command, so that the watchdog does not take it for lost
        call = self._call(scripts.PERMIT_RELEASE, self._keys(), packed(ids))
        if not await self._surely(driver, call) and call.sends == 1:
            for hold in holds:
                HOLDS.put(hold)
            return 0
        if isinstance(permits, Permit):
            permits.given_back = True
        return len(ids)  # also where none were left for a second command: the first one's reply was lost

    async def _release(self, driver: Driver, permits: Permit | str | Iterable[str]) -> None:
        """The same, but PermitNotHeldError instead of 0."""
        ids = checked_ids(permits)
        if ids and not await self._try_release(driver, permits if isinstance(permits, Permit) else ids):
            raise PermitNotHeldError(self.name, ids)

    # --- leases ------------------------------------------------------------------------------------------------------

    async def _update_lease_time(self, driver: Driver, permit: Permit | str, lease_time: Duration | None) -> bool:
        """Let a permit's lease end ``lease_time`` seconds from now (None: never); False when it is not taken any more.

        The watchdog stops renewing it.
        """
        lease = lease_seconds(lease_time)
        each = single_id(permit)
        hold = HOLDS.get(self, each)
        renewed = hold is not None and hold.pause_renewal()
        call = self._renew(each, lease, 0)
        try:
            changed = await self._change(driver, call)
        except BaseException:
            if hold is not None:
                hold.renewed = renewed
            raise
        if changed:
            _note_lease(hold, permit, call.sent_at, lease)
        return bool(changed)

    async def _lease_time(self, driver: Driver, permit: Permit | str) -> float | None:
        """Seconds until a permit's lease ends, None when it has no end. PermitNotHeldError when it is not taken."""
        each = single_id(permit)
        left: int = (await self._state(driver, each))[2]
        if left == _NOT_TAKEN:
            raise PermitNotHeldError(self.name, (each,))
        return None if left == _NO_END else left / 1000

    # --- numbers -----------------------------------------------------------------------------------------------------

    async def _available_permits(self, driver: Driver) -> int:
        """How many are left; below 0 when there are fewer in all than taken."""
        return (await self._state(driver))[0]

    async def _acquired_permits(self, driver: Driver) -> int:
        """How many are taken."""
        return (await self._state(driver))[1]

    async def _total_permits(self, driver: Driver) -> int:
        """How many there are, left and taken; Redisson's ``getPermits``."""
        left, taken, _ = await self._state(driver)
        return left + taken

    async def _set_permits(self, driver: Driver, permits: int) -> None:
        """Have so many in all, left and taken. What is taken stays so; what is left may go below 0."""
        call = self._call(scripts.PERMIT_SET, self._keys(), checked_number("permits", permits))
        await self._change(driver, call)

    acquire, aacquire = faces(_acquire)
    try_release, atry_release = faces(_try_release)
    release, arelease = faces(_release)
    update_lease_time, aupdate_lease_time = faces(_update_lease_time)
    lease_time, alease_time = faces(_lease_time)
    available_permits, aavailable_permits = faces(_available_permits)
    acquired_permits, aacquired_permits = faces(_acquired_permits)
    total_permits, atotal_permits = faces(_total_permits)
    set_permits, aset_permits = faces(_set_permits)

    # --- what the watchdog asks, by the id of a permit ---------------------------------------------------------------

    def renew_call(self, owner: str, lease: float) -> ScriptCall:
        return self._renew(owner, lease, 1)

    def leave_call(self, owner: str) -> ScriptCall:
        return leave_call(self, (owner,))

    def _renew(self, each: str, lease: float | None, keep_longer: int) -> ScriptCall:
        lease_ms = 0 if lease is None else milliseconds(lease)
        return self._call(scripts.PERMIT_RENEW, self._keys(), packed((each,)), lease_ms, keep_longer)

    async def _state(self, driver: Driver, each: str = "") -> list[int]:
        return await self._ask(driver, self._call(scripts.PERMIT_STATE, self._keys(), bytes.fromhex(each)))

    def _keys(self) -> tuple[str, str, str]:
        return permit_keys(self.key)


_NO_END, _NOT_TAKEN = -1, -2


def _note_lease(hold: Hold | None, permit: Permit | str, sent_at: float, lease: float | None) -> None:
    """What this process knows of a permit's lease, after its change."""
    if isinstance(permit, Permit):
        permit.deadline = sent_at + (math.inf if lease is None else lease)
    if hold is not None:
        hold.lease_from(sent_at, math.inf if lease is None else lease, renewed=False)
        if lease is None:
            HOLDS.remove(hold)  # nothing is left to be watched
