"""Redisson's expirable semaphore, wire for wire; permits can also be renewed, so that a dead process loses its own."""

from __future__ import annotations

import math
import re
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Never

from django_rlock._core import threads
from django_rlock._core.clock import has_jumped, monotonic, wall_offset
from django_rlock._redis import scripts
from django_rlock._redis.scripts import ABSENT, ENDLESS
from django_rlock._transport.calls import PATIENCE, Driver, ScriptCall, run_flow
from django_rlock._transport.identity import NamedOwner, must_not_block
from django_rlock._transport.registry import awaited_driver, blocking_driver
from django_rlock._transport.worker import clean_up
from django_rlock.exceptions import LockLostError, LockTimeoutError, LockUnavailableError, PermitNotHeldError
from django_rlock.locks.attempt import Attempt, pause_before_retry, pause_for_replicas
from django_rlock.locks.counters import RESENT_FOR, granted, hidden_behind, is_refusal, release_later, undo
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.kinds import EXTEND, SETTLE
from django_rlock.locks.options import MILLISECOND, UNSET, Duration, duration, unknown_argument
from django_rlock.locks.ownership import run_extension
from django_rlock.locks.records import Hold, calling_line, key_of
from django_rlock.locks.semaphore import PERMITS, PermitRequest, PermitSemaphore, packed, permit_keys, timed_out
from django_rlock.locks.watchdog import SURE_WITHIN, sure_of, watch
from django_rlock.settings import DEFAULT_ALIAS

_ID = re.compile(r"[0-9a-f]{32}")
_permit_lease_seconds = duration("lease_time", "None has no end", MILLISECOND)


class Permit:
    """One or more permits that one ``acquire`` of a ``PermitExpirableSemaphore`` took.

    ``ids`` are the permits' ids, 32 hexadecimal digits each; any process may release them by id. ``deadline`` is when
    the lease ends that they were taken with, in monotonic seconds. ``given_back`` is whether this object was released.

    It can be pickled for another process of this machine, which then sees the lease as it is now; this process
    continues to renew it. Send the ids to other machines, whose monotonic clocks differ.
    """

    __slots__ = ("__weakref__", "_clocks", "_holds", "deadline", "given_back", "ids", "semaphore")

    def __init__(
        self, semaphore: PermitExpirableSemaphore, ids: tuple[str, ...], deadline: float, holds: Sequence[Hold]
    ) -> None:
        self.semaphore = semaphore
        self.ids = ids
        self.deadline = deadline
        self.given_back = False
        self._holds = holds
        self._clocks = wall_offset()

    def __getstate__(self) -> tuple[None, dict[str, object]]:
        state = {name: getattr(self, name) for name in ("semaphore", "ids", "given_back", "_clocks")}
        deadline = min((hold.deadline for hold in self._holds), default=self.deadline)
        return None, {**state, "deadline": deadline, "_holds": ()}

    def __repr__(self) -> str:
        return f"<Permit {', '.join(self.ids)} of {self.semaphore!r}>"

    @property
    def id(self) -> str:
        """The id of a single permit. Raises ValueError if there are several."""
        return single_id(self)

    @property
    def lost(self) -> bool:
        """Whether its lease has ended or its renewal failed, so that others may have it.

        It considers the lease that it was taken with, or to which this process renewed it. Sends no command, unless a
        clock has jumped: then Redis is asked, and it counts as lost if it does not reply within a second.
        """
        if self._holds:
            return not sure_of(self._holds) or any(hold.is_lost(monotonic()) for hold in self._holds)
        return monotonic() >= self.deadline or (has_jumped(self._clocks) and not self._is_confirmed())

    def _is_confirmed(self) -> bool:
        """Whether the server says that its lease, which is not renewed, still runs."""
        try:
            return threads.within(SURE_WITHIN, self._ask) is True and monotonic() < self.deadline
        except PermitNotHeldError:
            self.deadline = -math.inf
        except LockUnavailableError:
            pass
        return False

    def _ask(self) -> bool:
        clocks, asked_at = wall_offset(), monotonic()
        leases = [self.semaphore.lease_time(each) for each in self.ids]
        left = min((lease for lease in leases if lease is not None), default=math.inf)
        self.deadline, self._clocks = min(self.deadline, asked_at + left), clocks
        return True

    def check(self) -> None:
        """Raise LockLostError when it is lost; commands as for ``lost``."""
        if self.lost:
            raise self.lost_error()

    def lost_error(self) -> LockLostError:
        reasons = (hold.lost or hold.lease_ended() for hold in self._holds if hold.is_lost(monotonic()))
        return LockLostError(self.semaphore.name, next(reasons, "its lease ended"), PermitHold.noun)

    def release(self) -> None:
        """Release it. Raises PermitNotHeldError if it was released before, or its lease has ended."""
        self.semaphore.release(self)

    async def arelease(self) -> None:
        await self.semaphore.arelease(self)


class PermitHold(Hold):
    """A permit that is renewed while its Permit object exists: without that object it cannot be released."""

    noun = "permit of semaphore"

    def __init__(self, semaphore: PermitExpirableSemaphore, each: str, now: float) -> None:
        owner = NamedOwner(each)
        super().__init__(key_of(semaphore, owner), semaphore, owner, each, now)
        self.caller_name = "a Permit"

    def belongs_to(self, permit: Permit) -> None:
        # The watchdog must not keep the object alive by which it decides.
        self._permit = weakref.ref(permit)

    @property
    def owner_ended(self) -> bool:
        return self._permit() is None


class PermitBlock:
    """Takes permits for one ``with`` or ``async with`` block."""

    __slots__ = ("_options", "_permit", "_permits", "_semaphore")

    _permit: Permit

    def __init__(self, semaphore: PermitExpirableSemaphore, permits: int, options: dict[str, Any]) -> None:
        self._semaphore = semaphore
        self._permits = permits
        self._options = options

    def __enter__(self) -> Permit:
        started = monotonic()
        permit = self._semaphore.acquire(self._permits, **self._options)
        if permit is None:
            raise self._timed_out(started)
        self._permit = permit  # a plain assignment: a call could be interrupted, and leave it taken
        return permit

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if must_not_block():  # a generator that other code entered is dropped here
            self._semaphore._release_later(self._permit)
            return
        with hidden_behind(error, self._semaphore.name):
            self._left(self._semaphore.try_release(self._permit))

    async def __aenter__(self) -> Permit:
        started = monotonic()
        permit = await self._semaphore.aacquire(self._permits, **self._options)
        if permit is None:
            raise self._timed_out(started)
        self._permit = permit
        return permit

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with hidden_behind(error, self._semaphore.name):
            self._left(await self._semaphore.atry_release(self._permit))

    def _timed_out(self, started: float) -> LockTimeoutError:
        return timed_out(self._semaphore, monotonic() - started)

    def _left(self, released: int) -> None:
        if not released:
            permit = self._permit
            raise PermitNotHeldError(self._semaphore.name, permit.ids) if permit.given_back else permit.lost_error()


class PermitExpirableSemaphore(PermitSemaphore):
    """A semaphore whose permits have ids and leases; Redisson's ``getPermitExpirableSemaphore``.

    ``name`` says what it limits, ``using`` is the RLOCK alias, ``wait_time`` how long to wait for permits, in seconds
    (0 tries once, None waits forever; by default WAIT_TIME). When a permit's lease ends, the next call of any client
    reclaims it::

        licences = PermitExpirableSemaphore("licences", wait_time=10)
        licences.try_set_permits(5)

        with licences.permit(renewed=True) as permit:
            ...

    ``lease_time`` is in seconds; None has no end, as in Redisson. With ``renewed=True`` the lease is WATCHDOG_TIMEOUT,
    and the background thread renews it until the permit is released, as long as this process lives and keeps the Permit
    object. ``on_lost(semaphore)`` is called in the thread for callbacks when a renewed permit is lost. Calls raise
    LockUnavailableError when Redis is unreachable, or when the name's key holds another type of value.
    """

    __slots__ = ("on_lost",)

    max_hold_time = None

    def __init__(
        self,
        name: str,
        *,
        wait_time: Duration | None = UNSET,
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
        until = give_up_at = None if wait is None else driver.now() + wait
        late = 0
        while True:
            request = PermitRequest(self, permits, lease)
            try:
                attempt, permit = await self._take(driver, request, wait, renewed)
            except LockUnavailableError as error:
                give_up_at = give_up_at or driver.now() + PATIENCE
                if not await pause_for_replicas(error, driver, give_up_at):
                    raise
            else:
                if permit is not None or attempt is None:
                    return permit
                give_up_at = give_up_at or driver.now() + PATIENCE  # as with a server that does not reply
                if driver.now() >= give_up_at:
                    attempt.check_speed()
                    return None
                late += 1
                await pause_before_retry(driver, late, give_up_at)
            wait = None if until is None else max(until - driver.now(), 0.0)

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
        release_later(request)
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
        lease = _permit_lease_seconds(lease_time)
        if not renewed:
            return lease
        if lease is not None:
            raise ValueError("With renewed=True the lease is WATCHDOG_TIMEOUT; it takes no lease_time.")
        return self._settings.watchdog_timeout

    def _permit(self, attempt: Attempt, request: PermitRequest, renewed: bool) -> Permit:
        holds = [PermitHold(self, each, attempt.sent_at) for each in request.ids if renewed]
        permit = Permit(self, request.ids, attempt.sent_at + attempt.lease, holds)
        for hold in holds:
            hold.lease_from(attempt.sent_at, attempt.lease, renewed=True)
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
        clean_up(self.using, self._release_call(permit.ids), monotonic() + RESENT_FOR)
        permit.given_back = True

    def _release_call(self, ids: tuple[str, ...]) -> ScriptCall:
        return self._call(scripts.PERMIT_RELEASE, permit_keys(self.key), packed(ids))

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
        lease = _permit_lease_seconds(lease_time)
        self._check_alias()
        each = single_id(permit)
        hold = HOLDS.get(self, NamedOwner(each))
        lasts = math.inf if lease is None else lease
        call, settle = PERMITS.lease(self, each, lasts, EXTEND), partial(PERMITS.lease, self, each, lasts, SETTLE)
        terms = None if hold is None else hold.terms
        started = driver.now()
        try:
            if hold is not None:
                hold.renewed = False  # or a renewal would replace the new lease
            changed = (await run_extension(self, driver, each, call, settle))[1]
            if changed:
                _note_lease(hold, permit, call.sent_at, lasts)
        except BaseException as error:
            if not is_refusal(error):
                clean_up(self.using, settle(), driver.now() + RESENT_FOR)
            if hold is not None and terms is not None:
                hold.restore(terms)
                hold.deadline = min(hold.deadline, started + lasts)
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


def _forget(holds: Iterable[Hold]) -> None:
    for hold in holds:
        HOLDS.remove(hold)


def _note_lease(hold: Hold | None, permit: Permit | str, sent_at: float, lease: float) -> None:
    """Update this process's record of a permit's lease after a change."""
    if hold is not None:
        hold.lease_from(sent_at, lease, renewed=False)
        if lease == math.inf:
            HOLDS.remove(hold)  # nothing is left for the watchdog to do
        else:
            watch(hold)
    if isinstance(permit, Permit):
        permit.deadline = sent_at + lease


def checked_ids(permits: Permit | str | Iterable[str]) -> tuple[str, ...]:
    """The ids, without duplicates."""
    if isinstance(permits, Permit):
        return permits.ids
    ids = dict.fromkeys([permits] if isinstance(permits, str) else permits)
    for each in ids:
        if not _ID.fullmatch(str(each)):
            raise ValueError(f"A permit's id is 32 lower-case hexadecimal digits, not {each!r}.")
    return tuple(ids)


def single_id(permit: Permit | str) -> str:
    """The id of a single permit. Raises ValueError for none or several."""
    ids = checked_ids(permit)
    if len(ids) != 1:
        raise ValueError(f"Expected one permit, not {len(ids)}; give one of their ids.")
    return ids[0]
