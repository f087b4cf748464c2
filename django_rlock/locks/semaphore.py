"""Redisson's semaphore, wire for wire, without its lost permits and lost wake-ups; and what both semaphores share."""

from __future__ import annotations

import math
import os
from types import TracebackType
from typing import Any, Never, Self

from django_rlock._core.clock import monotonic
from django_rlock._redis import keys, scripts
from django_rlock._transport.calls import PATIENCE, REMEMBERED, Argument, Driver, ScriptCall, run_flow
from django_rlock._transport.identity import must_not_block, new_request
from django_rlock._transport.registry import awaited_driver, blocking_driver
from django_rlock._transport.worker import clean_up
from django_rlock.exceptions import LockTimeoutError
from django_rlock.locks.attempt import pause_for_replicas
from django_rlock.locks.counters import (
    REMEMBERED_MS,
    RESENT_FOR,
    Counter,
    Request,
    Requests,
    granted,
    hidden_behind,
    note_answered,
    retire_copies,
    undo,
    with_answered,
)
from django_rlock.locks.kinds import Kind, call_for, retire_call, settled_keys
from django_rlock.locks.options import (
    MILLISECOND,
    MOST_PERMITS,
    RELEASE_PATIENCE,
    UNSET,
    Duration,
    checked_number,
    duration,
    milliseconds,
)
from django_rlock.settings import DEFAULT_ALIAS

_life_seconds = duration("ttl", "None keeps it", MILLISECOND)


class BaseSemaphore(Counter):
    """The common part of both kinds of semaphore: the number of permits."""

    __slots__ = ()

    noun = Request.noun
    _kind: Kind[Any] = Requests()

    def try_set_permits(self, permits: int, ttl: Duration | None = None) -> bool:
        """Set the number of permits unless the semaphore exists; returns whether it was set.

        The semaphore expires after ``ttl`` seconds; None keeps it.
        """
        return run_flow(self._try_set_permits, (blocking_driver(self), permits, ttl))

    async def atry_set_permits(self, permits: int, ttl: Duration | None = None) -> bool:
        """As ``try_set_permits``, in asyncio."""
        return await self._try_set_permits(awaited_driver(self), permits, ttl)

    async def _try_set_permits(self, driver: Driver, permits: int, ttl: Duration | None) -> bool:
        life = _life_seconds(ttl)
        number = checked_number("permits", permits)
        return bool(
            await self._change_number(driver, scripts.SEMAPHORE_SET, number, 0 if life is None else milliseconds(life))
        )

    def add_permits(self, permits: int) -> None:
        """Change the number of free permits by ``permits``, which may be negative; so may the result.

        Raises ValueError if the result would be above 2147483647 or below minus that.
        """
        run_flow(self._add_permits, (blocking_driver(self), permits))

    async def aadd_permits(self, permits: int) -> None:
        """As ``add_permits``, in asyncio."""
        await self._add_permits(awaited_driver(self), permits)

    async def _add_permits(self, driver: Driver, permits: int) -> None:
        more = checked_number("permits", permits, -MOST_PERMITS)
        if await self._change_number(driver, scripts.SEMAPHORE_ADD, more) == -1:
            raise self._too_many()

    def available_permits(self) -> int:
        """Ask Redis how many permits are free; below 0 if more are taken than there are in all."""
        return run_flow(self._number, (blocking_driver(self),))

    async def aavailable_permits(self) -> int:
        """As ``available_permits``, in asyncio."""
        return await self._number(awaited_driver(self))

    def delete(self) -> bool:
        """Delete the semaphore; returns whether it existed. Its waiters keep waiting."""
        return run_flow(self._delete, (blocking_driver(self),))

    async def adelete(self) -> bool:
        """As ``delete``, in asyncio."""
        return await self._delete(awaited_driver(self))

    async def _delete(self, driver: Driver) -> bool:
        key = self.key
        all_keys = key, keys.permits_key(key), keys.requests_key(key)
        request = with_answered(self, new_request())
        return bool(await self._reply(driver, self._call(scripts.SEMAPHORE_DELETE, all_keys, request, REMEMBERED_MS)))

    async def _change_number(self, driver: Driver, script: scripts.Script, permits: int, *rest: Argument) -> int:
        return await self._reply(driver, self._request_call(script, permits, *rest))

    async def _reply(self, driver: Driver, call: ScriptCall) -> int:
        answer: int = await self._change_once(driver, call)
        note_answered(self, call)
        return answer

    def _request_call(self, script: scripts.Script, permits: int, *rest: Argument) -> ScriptCall:
        key = self.key
        all_keys = key, keys.semaphore_channel(key), keys.requests_key(key)
        request = with_answered(self, new_request())
        return self._call(script, all_keys, request, permits, REMEMBERED_MS, *rest)

    def _too_many(self) -> ValueError:
        return ValueError(f"Semaphore {self.name!r} cannot have more than {MOST_PERMITS} permits; nothing was changed.")


class Semaphore(BaseSemaphore):
    """A number of permits shared by all processes, and by Java services through Redisson's ``getSemaphore``.

    ``name`` says what it limits, ``using`` is the RLOCK alias, ``wait_time`` how long to wait for permits, in seconds
    (0 tries once, None waits forever; by default WAIT_TIME). It has no permits until ``try_set_permits()`` or a release
    creates some::

        printers = Semaphore("printers", wait_time=10)
        printers.try_set_permits(3)

        with printers:
            ...

    Permits have no owners: any client may release them, and the permits of a dead process are not released. If that
    matters, use ``PermitExpirableSemaphore`` with ``renewed=True``.

    A change is applied once, even if its reply is lost and it is sent again; an interrupted acquire is undone in the
    background. Calls raise LockUnavailableError when Redis is unreachable (for 30 s, if the wait is longer), or when
    the name's key holds another type of value.
    """

    __slots__ = ()

    kind = "semaphore"

    def __init__(self, name: str, *, wait_time: Duration | None = UNSET, using: str = DEFAULT_ALIAS) -> None:
        super().__init__(name, wait_time=wait_time, using=using)

    def acquire(
        self, permits: int = 1, blocking: bool = True, *, wait_time: Duration | None = UNSET, **unknown: Never
    ) -> bool:
        """Take permits, all or none; returns False if not enough become free within the wait.

        ``wait_time`` is in seconds and defaults to the semaphore's own. With ``blocking=False`` or ``wait_time=0`` it
        tries once. Zero permits are always granted. A caller that needs many permits may wait long while others take
        few.
        """
        return run_flow(self._acquire, (blocking_driver(self), permits, blocking, wait_time, unknown))

    async def aacquire(
        self, permits: int = 1, blocking: bool = True, *, wait_time: Duration | None = UNSET, **unknown: Never
    ) -> bool:
        """As ``acquire``, in asyncio."""
        return await self._acquire(awaited_driver(self), permits, blocking, wait_time, unknown)

    async def _acquire(
        self, driver: Driver, permits: int, blocking: bool, wait_time: Duration | None, unknown: dict[str, Any]
    ) -> bool:
        wait = self._wait_seconds(blocking, wait_time, unknown)
        until = give_up_at = None if wait is None else driver.now() + wait
        request = _AcquirePermits(self, checked_number("permits", permits))  # refuses an alias with NODES
        while permits:
            try:
                attempt = await granted(request, driver, REMEMBERED, wait)
                if attempt is not None:
                    request.note_taken(attempt.in_doubt)
            except BaseException as error:
                undo(request, error)
                give_up_at = give_up_at or driver.now() + PATIENCE
                if not await pause_for_replicas(error, driver, give_up_at):
                    raise
                wait = None if until is None else max(until - driver.now(), 0.0)
                request = _AcquirePermits(self, permits)
                continue
            return attempt is not None
        return True

    def release(self, permits: int = 1) -> None:
        """Release permits, even more than were taken; creates the semaphore if it does not exist.

        Raises ValueError if there would be more than 2147483647. Raises LockUnavailableError when Redis is unreachable:
        the background thread then retries for a minute, so do not release again.
        """
        run_flow(self._give, (blocking_driver(self), permits))

    async def arelease(self, permits: int = 1) -> None:
        """As ``release``, in asyncio."""
        await self._give(awaited_driver(self), permits)

    def release_if_exists(self, permits: int = 1) -> bool:
        """Like ``release``, but returns False if the semaphore does not exist, and does not create it."""
        return run_flow(self._give, (blocking_driver(self), permits, 1))

    async def arelease_if_exists(self, permits: int = 1) -> bool:
        """As ``release_if_exists``, in asyncio."""
        return await self._give(awaited_driver(self), permits, 1)

    def drain_permits(self) -> int:
        """Take all free permits and return their number; a negative number is returned and reset to 0."""
        return run_flow(self._drain_permits, (blocking_driver(self),))

    async def adrain_permits(self) -> int:
        """As ``drain_permits``, in asyncio."""
        return await self._drain_permits(awaited_driver(self))

    async def _drain_permits(self, driver: Driver) -> int:
        key, request = self.key, new_request()
        drain_keys = key, keys.drained_key(key, request), keys.requests_key(key)
        call = self._call(scripts.SEMAPHORE_DRAIN, drain_keys, request, REMEMBERED_MS)
        taken: int = await self._change_once(driver, call)
        return taken

    def __enter__(self) -> Self:
        """Take one permit. Raises LockTimeoutError if none becomes free within the wait."""
        run_flow(self._enter, (blocking_driver(self),))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if must_not_block():  # a generator that other code entered is dropped here
            call = self._request_call(scripts.SEMAPHORE_RELEASE, 1, 0)
            clean_up(self.using, call, monotonic() + RESENT_FOR)
        else:
            run_flow(self._exit, (blocking_driver(self), error))

    async def __aenter__(self) -> Self:
        await self._enter(awaited_driver(self))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exit(awaited_driver(self), error)

    async def _enter(self, driver: Driver) -> None:
        started = driver.now()
        if not await self._acquire(driver, 1, True, UNSET, {}):
            raise timed_out(self, driver.now() - started)

    async def _exit(self, driver: Driver, error: BaseException | None) -> None:
        with hidden_behind(error, self.name):
            await self._give(driver, 1)

    async def _give(self, driver: Driver, permits: int, only_if_exists: int = 0) -> bool:
        self._check_alias()
        if checked_number("permits", permits) == 0:
            return True
        call = self._request_call(scripts.SEMAPHORE_RELEASE, permits, only_if_exists)
        answer = await self._surely(driver, call)
        retire_copies(self, call)
        note_answered(self, call)
        if answer == -1:
            raise self._too_many()
        return bool(answer)


def timed_out(semaphore: BaseSemaphore, waited: float) -> LockTimeoutError:
    """The error for a block that got no permit."""
    holder = "others, who have all its permits"
    return LockTimeoutError(semaphore.name, waited=waited, holder=holder, noun=semaphore.noun)


class _PlainPermits(Requests):
    def acquire(
        self, lock: Any, asker: str, count: int, lease: float, waiting: bool = False, beside: str = ""
    ) -> ScriptCall:
        all_keys = lock.key, keys.requests_key(lock.key)
        request = with_answered(lock, asker)
        args = request, lock.permits, milliseconds(lease)
        call = call_for(lock, scripts.SEMAPHORE_ACQUIRE, *args, all_keys=all_keys)
        lock.tried = call
        return call

    def leave(self, lock: Any, asker: str) -> ScriptCall:
        key = lock.key
        all_keys = key, keys.semaphore_channel(key), keys.requests_key(key)
        # The server may have forgotten the request of a permit that was taken, but must release it all the same.
        taken = int(lock.taken)
        return call_for(lock, scripts.SEMAPHORE_LEAVE, asker, lock.permits, REMEMBERED_MS, taken, all_keys=all_keys)


class _AcquirePermits(Request):
    """A request for permits without ids."""

    __slots__ = ("taken", "tried")

    kind = Semaphore.kind
    _kind = _PlainPermits()

    def __init__(self, semaphore: Counter, permits: int) -> None:
        super().__init__(semaphore, permits)
        self.tried: ScriptCall | None = None
        self.taken = False

    def note_taken(self, copies: bool) -> None:
        """Record the grant. Let the server forget the request early, unless ``copies`` of its tries may come late."""
        self.taken = True
        if self.tried is not None and not copies:
            note_answered(self, self.tried)


# --- permits with leases ----------------------------------------------------------------------------------------------

MOST_AT_ONCE = 10_000
"""How many permits with ids one acquire may take; writing them blocks the server."""


def packed(ids: tuple[str, ...]) -> bytes:
    return bytes.fromhex("".join(ids))


class Permits(Requests):
    """Permits with leases. A held permit is identified by an id instead of an owner's name."""

    scope = "permit"
    hears_forced = False  # nothing frees a permit by force: any client may release it by its id

    def acquire(
        self, lock: Any, asker: str, count: int, lease: float, waiting: bool = False, beside: str = ""
    ) -> ScriptCall:
        lease_ms = 0 if lock.lease is None else milliseconds(lock.lease)
        all_keys = *permit_keys(lock.key), keys.requests_key(lock.key)
        return call_for(lock, scripts.PERMIT_ACQUIRE, packed(lock.ids), lease_ms, all_keys=all_keys)

    def leave(self, lock: Any, asker: str) -> ScriptCall:
        """A request's permits; or, for the watchdog, the one permit with this id."""
        all_keys = *permit_keys(lock.key), keys.requests_key(lock.key)
        ids = lock.ids if isinstance(lock, PermitRequest) else (asker,)
        return call_for(lock, scripts.PERMIT_LEAVE, packed(ids), REMEMBERED_MS, all_keys=all_keys)

    def lease(self, lock: Any, owner_id: str, lease: float, mode: int) -> ScriptCall:
        lease_ms = 0 if lease == math.inf else milliseconds(lease)
        all_keys = *permit_keys(lock.key), *settled_keys(lock, owner_id, mode)
        return call_for(lock, scripts.PERMIT_RENEW, packed((owner_id,)), lease_ms, mode, all_keys=all_keys)

    def state(self, lock: Any, owner_id: str) -> ScriptCall:
        """Returns how many permits are free, how many are taken, and the remaining lease of this one in ms."""
        return call_for(lock, scripts.PERMIT_STATE, packed((owner_id,)), all_keys=permit_keys(lock.key))

    def lease_left(self, reply: list[Any]) -> int:
        left: int = reply[3]
        return left


PERMITS = Permits()


class PermitRequest(Request):
    """A request for permits with ids; the ids identify the request."""

    __slots__ = ("ids", "lease")

    kind = "permit"
    _kind = PERMITS

    def __init__(self, semaphore: PermitSemaphore, permits: int, lease: float | None) -> None:
        if checked_number("permits", permits, 1) > MOST_AT_ONCE:
            raise ValueError(f"permits must be at most {MOST_AT_ONCE} in one call, not {permits}.")
        super().__init__(semaphore, permits)
        self.ids = tuple(os.urandom(16).hex() for _ in range(permits))
        self.lease = lease

    async def retire_copies(self, driver: Driver, taken: bool) -> None:
        await super().retire_copies(driver, taken)
        if taken:  # before the permit can be released: a copy that comes after the release would take it again
            await driver.run(retire_call(self, bytes.fromhex(self.ids[0])), driver.now() + RELEASE_PATIENCE)


class PermitSemaphore(BaseSemaphore):
    """The numbers of permits with leases; ``PermitExpirableSemaphore`` takes them."""

    __slots__ = ()

    kind = "permit"
    _kind = PERMITS

    async def _number(self, driver: Driver) -> int:
        return (await self._state(driver))[0]  # PERMIT_STATE also reclaims permits whose lease has ended

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
        all_keys = *permit_keys(self.key), keys.requests_key(self.key)
        request = with_answered(self, new_request())
        await self._reply(driver, self._call(scripts.PERMIT_SET, all_keys, request, number, REMEMBERED_MS))

    async def _state(self, driver: Driver, each: str = "") -> list[int]:
        return await self._ask(driver, self._call(scripts.PERMIT_STATE, permit_keys(self.key), bytes.fromhex(each)))


def permit_keys(key: str) -> tuple[str, str, str]:
    return key, keys.permits_key(key), keys.semaphore_channel(key)
