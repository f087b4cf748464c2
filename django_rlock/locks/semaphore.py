"""Redisson's semaphore, wire for wire, without its lost permits and lost wake-ups."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from django_rlock import keys, scripts
from django_rlock.drivers.base import Argument, Driver, ScriptCall, run_sync
from django_rlock.exceptions import LockTimeoutError
from django_rlock.locks.counters import (
    MOST,
    REMEMBERED,
    REMEMBERED_MS,
    Counter,
    Request,
    checked_number,
    granted,
    hidden_behind,
    new_request,
    undone_on_error,
)
from django_rlock.locks.durations import UNSET, Duration, lease_seconds, milliseconds
from django_rlock.locks.faces import awaited_driver, blocking_driver, faces
from django_rlock.settings import DEFAULT_ALIAS

NO_PERMIT_LEFT = "others, who have all its permits"
"""Who holds a semaphore, for errors."""


class BaseSemaphore(Counter):
    """What both semaphores do with the number of their permits."""

    __slots__ = ()

    async def _try_set_permits(self, driver: Driver, permits: int, ttl: Duration | None = None) -> bool:
        """Give it its permits, unless it exists; answers whether it did not.

        After ``ttl`` seconds the semaphore is gone; None keeps it.
        """
        life = lease_seconds(ttl)
        number = checked_number("permits", permits)
        return bool(await self._tell(driver, scripts.SEMAPHORE_SET, number, 0 if life is None else milliseconds(life)))

    async def _add_permits(self, driver: Driver, permits: int) -> None:
        """Change how many are left by ``permits``, which may be below 0, as may what is then left.

        ValueError when more than 2147483647 would be left, or fewer than minus that.
        """
        if await self._tell(driver, scripts.SEMAPHORE_ADD, checked_number("permits", permits, -MOST)) == -1:
            raise self._too_many()

    async def _delete(self, driver: Driver) -> bool:
        """Delete it; answers whether it existed. Its waiters go on waiting."""
        call = self._call(scripts.SEMAPHORE_DELETE, (self.key, keys.permits_key(self.key)), "")
        return bool(await self._change(driver, call))

    try_set_permits, atry_set_permits = faces(_try_set_permits)
    add_permits, aadd_permits = faces(_add_permits)
    delete, adelete = faces(_delete)

    async def _tell(self, driver: Driver, script: scripts.Script, permits: int, *rest: Argument) -> int:
        answer: int = await self._change(driver, self._request_call(script, permits, *rest))
        return answer

    def _request_call(self, script: scripts.Script, permits: int, *rest: Argument) -> ScriptCall:
        key = self.key
        all_keys = key, keys.semaphore_channel(key), keys.requests_key(key)
        return self._call(script, all_keys, new_request(), permits, REMEMBERED_MS, *rest)

    def _too_many(self) -> ValueError:
        return ValueError(f"Semaphore {self.name!r} cannot have more than {MOST} permits; nothing was changed.")


class Semaphore(BaseSemaphore):
    """A number of permits that all processes share, and a Java service through Redisson's ``getSemaphore``.

    ``name`` is what it limits, ``using`` the RLOCK alias, ``wait_time`` how long to wait for permits, in seconds
    (0 tries once, None waits for ever). It has no permits until ``try_set_permits()`` or a release gives it some::

        printers = Semaphore("printers", wait_time=10)
        printers.try_set_permits(3)

        with printers:
            ...

    Permits have no owners: whoever likes may give back, and nobody does it for a process that dies. Where that must
    be, take ``PermitExpirableSemaphore`` with ``renewed=True``.

    A change is applied once even when its reply is lost and it is sent again; an acquire that is interrupted is undone
    in the background. LockUnavailableError when Redis cannot be asked, for 30 s if the wait is longer, or keeps
    something else under the name.

    State in Redis: an integer at the semaphore's key, the channel ``redisson_sc:{key}``, and for two minutes the
    requests that were obeyed in ``rlock_requests:{key}``.
    """

    __slots__ = ()

    kind = "semaphore"

    def __init__(self, name: str, *, wait_time: Duration | None = None, using: str = DEFAULT_ALIAS) -> None:
        super().__init__(name, wait_time=wait_time, using=using)

    async def _acquire(
        self, driver: Driver, permits: int = 1, blocking: bool = True, *, wait_time: Duration | None = UNSET
    ) -> bool:
        """Take permits, all or none; False when there are not as many until the wait ends.

        ``wait_time`` is in seconds and defaults to the semaphore's own. Tries once with ``blocking=False`` or
        ``wait_time=0``. No permits are always there. Who asks for many may wait long while others take few.
        """
        wait = self._wait_seconds(blocking, wait_time)
        if checked_number("permits", permits) == 0:
            return True
        request = _Acquire(self, permits)
        with undone_on_error(request):
            return await granted(request, driver, REMEMBERED, wait) is not None

    async def _release(self, driver: Driver, permits: int = 1) -> None:
        """Give permits back, or more than there were; creates the semaphore where it does not exist.

        ValueError when it would have more than 2147483647. LockUnavailableError when Redis cannot be asked: the
        background thread then goes on trying for a minute, so do not give back again.
        """
        await self._give(driver, permits, 0)

    async def _release_if_exists(self, driver: Driver, permits: int = 1) -> bool:
        """The same, but answers False where the semaphore does not exist, and does not create it."""
        return await self._give(driver, permits, 1)

    async def _available_permits(self, driver: Driver) -> int:
        """How many are left, asked of Redis; below 0 when ``add_permits`` took away more than there were."""
        left: int = (await self._ask(driver, self._call(scripts.COUNTER_READ, (self.key,), "")))[0]
        return left

    async def _drain_permits(self, driver: Driver) -> int:
        """Take all that are left, and answer how many; below 0 where it was short of some, which are forgiven."""
        drain_keys = self.key, keys.drained_key(self.key, new_request())
        taken: int = await self._change(driver, self._call(scripts.SEMAPHORE_DRAIN, drain_keys, REMEMBERED_MS))
        return taken

    acquire, aacquire = faces(_acquire)
    release, arelease = faces(_release)
    release_if_exists, arelease_if_exists = faces(_release_if_exists)
    available_permits, aavailable_permits = faces(_available_permits)
    drain_permits, adrain_permits = faces(_drain_permits)

    def __enter__(self) -> Self:
        """Take one permit. LockTimeoutError when there is none until the wait ends."""
        run_sync(self._enter(blocking_driver(self)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run_sync(self._exit(blocking_driver(self), error))

    async def __aenter__(self) -> Self:
        await self._enter(awaited_driver(self))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exit(awaited_driver(self), error)

    async def _enter(self, driver: Driver) -> None:
        started = driver.now()
        if not await self._acquire(driver):
            raise LockTimeoutError(self.name, waited=driver.now() - started, holder=NO_PERMIT_LEFT)

    async def _exit(self, driver: Driver, error: BaseException | None) -> None:
        with hidden_behind(error, self.name):
            await self._release(driver)

    async def _give(self, driver: Driver, permits: int, only_if_exists: int) -> bool:
        if checked_number("permits", permits) == 0:
            return True
        answer = await self._surely(driver, self._request_call(scripts.SEMAPHORE_RELEASE, permits, only_if_exists))
        if answer == -1:
            raise self._too_many()
        return bool(answer)


class _Acquire(Request):
    """Permits without ids."""

    __slots__ = ()

    kind = Semaphore.kind

    def acquire_call(self, owner: str, count: int, lease: float, waiting: bool) -> ScriptCall:
        all_keys = self.key, keys.requests_key(self.key)
        return self._call(scripts.SEMAPHORE_ACQUIRE, all_keys, owner, self.permits, milliseconds(lease))

    def leave_call(self, owner: str) -> ScriptCall:
        key = self.key
        all_keys = key, keys.semaphore_channel(key), keys.requests_key(key)
        return self._call(scripts.SEMAPHORE_LEAVE, all_keys, owner, self.permits, REMEMBERED_MS)
