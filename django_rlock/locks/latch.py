"""Redisson's count-down latch, wire for wire; deleting it releases its waiters."""

from __future__ import annotations

import math

from django_rlock._redis import keys, scripts
from django_rlock._transport.calls import ScriptCall, run_flow
from django_rlock._transport.driver import EVERYBODY, Driver
from django_rlock._transport.identity import new_request
from django_rlock.locks.attempt import Attempt
from django_rlock.locks.callers import awaited_driver, blocking_driver
from django_rlock.locks.counters import REMEMBERED_MS, Counter, checked_number, retire_copies
from django_rlock.locks.kinds import REPOLL, Kind, call_for
from django_rlock.locks.options import UNSET, Duration
from django_rlock.settings import DEFAULT_ALIAS

UNHEARD_REPOLL = 1.0
"""How often waiters poll in a cluster when Redisson's channel is in another slot than the count, in seconds."""


class Latch(Kind["CountDownLatch"]):
    """Passing the latch is an acquire that takes nothing."""

    writes = False

    def acquire(
        self, lock: CountDownLatch, asker: str, count: int, lease: float, waiting: bool = False, beside: str = ""
    ) -> ScriptCall:
        return call_for(lock, scripts.LATCH_PASS, (lock.key,), "")

    def channel(self, lock: CountDownLatch) -> str:
        return keys.latch_channel(lock.key)

    def token(self, lock: CountDownLatch, asker: str) -> str:
        return EVERYBODY

    def pauses(self, lock: CountDownLatch, left_ms: int, tries: int) -> tuple[float, float]:
        return UNHEARD_REPOLL if "{" in lock.key else REPOLL, math.inf


class CountDownLatch(Counter):
    """Keeps waiters waiting until it has been counted down to 0; Redisson's ``getCountDownLatch``.

    ``name`` says what is waited for, ``using`` is the RLOCK alias, ``wait_time`` how long to wait, in seconds (0 checks
    once, None waits forever). A latch that was never set is open, and so is a deleted one::

        done = CountDownLatch("import:42")
        done.try_set_count(3)        # then, in each of three tasks: done.count_down()
        done.wait(wait_time=60)      # in asyncio: await done.await_(wait_time=60)

    A count-down is applied once, even if its reply is lost and the command is sent again. A latch never expires: if a
    task dies before it counts down, the latch stays closed until it is deleted. Calls raise LockUnavailableError when
    Redis is unreachable, or when the name's key holds another type of value.

    A name that contains a hash tag (``{``) also works in a cluster, but Redisson's channel for it is in another slot,
    so its waiters poll every second instead of being notified. Java clients cannot use such a name there.

    State in Redis: an integer at the latch's key, the channel ``redisson_countdownlatch__channel__{key}``, and for two
    minutes the executed requests in ``rlock_requests:{key}``.
    """

    __slots__ = ()

    kind = noun = "latch"
    _kind = Latch()

    def __init__(self, name: str, *, wait_time: Duration | None = None, using: str = DEFAULT_ALIAS) -> None:
        super().__init__(name, wait_time=wait_time, using=using)

    def try_set_count(self, count: int) -> bool:
        """Close it until it is counted down ``count`` times. Returns False if it was closed. 0 leaves it open."""
        return run_flow(self._try_set_count, (blocking_driver(self), count))

    async def atry_set_count(self, count: int) -> bool:
        """As ``try_set_count``, in asyncio."""
        return await self._try_set_count(awaited_driver(self), count)

    async def _try_set_count(self, driver: Driver, count: int) -> bool:
        channel = keys.latch_channel(self.key)
        number = checked_number("count", count)
        call = self._request_call(scripts.LATCH_SET, channel, number, REMEMBERED_MS)
        return bool(await self._change_once(driver, call))

    def count_down(self) -> None:
        """Count down by one; at 0 the latch opens and releases all waiters. An open latch does not change.

        Raises LockUnavailableError when Redis is unreachable: the background thread then retries for a minute, so do
        not count down again.
        """
        run_flow(self._count_down, (blocking_driver(self),))

    async def acount_down(self) -> None:
        """As ``count_down``, in asyncio."""
        await self._count_down(awaited_driver(self))

    async def _count_down(self, driver: Driver) -> None:
        call = self._request_call(scripts.LATCH_COUNT_DOWN, keys.latch_channel(self.key), REMEMBERED_MS)
        await self._surely(driver, call)
        retire_copies(self, call)

    def wait(self, wait_time: Duration | None = UNSET) -> bool:
        """Wait until the latch is open; returns False if it is still closed after ``wait_time`` seconds.

        0 checks once, None waits forever; the default is the latch's own. The coroutine is ``await_()``, because with
        the prefix ``a`` alone it would be a keyword.
        """
        return run_flow(self._wait, (blocking_driver(self), wait_time))

    async def await_(self, wait_time: Duration | None = UNSET) -> bool:
        """As ``wait``, in asyncio."""
        return await self._wait(awaited_driver(self), wait_time)

    async def _wait(self, driver: Driver, wait_time: Duration | None) -> bool:
        self._check_alias()
        wait = self._wait_seconds(True, wait_time, {})
        until = None if wait is None else driver.now() + wait
        attempt = Attempt(self, driver, driver.owner(), new_request(), 0.0, until)
        return await (attempt.once() if wait == 0 else attempt.wait())

    def count(self) -> int:
        """The remaining count; 0 when the latch is open."""
        return run_flow(self._count, (blocking_driver(self),))

    async def acount(self) -> int:
        """As ``count``, in asyncio."""
        return await self._count(awaited_driver(self))

    async def _count(self, driver: Driver) -> int:
        left: int = (await self._ask(driver, self._call(scripts.COUNTER_READ, (self.key,), "")))[0]
        return left

    def delete(self) -> bool:
        """Delete the latch and release its waiters; returns whether it was closed."""
        return run_flow(self._delete, (blocking_driver(self),))

    async def adelete(self) -> bool:
        """As ``delete``, in asyncio."""
        return await self._delete(awaited_driver(self))

    async def _delete(self, driver: Driver) -> bool:
        call = self._request_call(scripts.LATCH_DELETE, keys.latch_channel(self.key), REMEMBERED_MS)
        return bool(await self._change_once(driver, call))

    def _request_call(self, script: scripts.Script, *args: str | int) -> ScriptCall:
        return self._call(script, (self.key, keys.requests_key(self.key)), new_request(), *args)
