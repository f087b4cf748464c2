"""Redisson's count-down latch, wire for wire; deleting it lets its waiters go."""

from __future__ import annotations

import math

from django_rlock import keys, scripts
from django_rlock.drivers.base import EVERYBODY, Driver, ScriptCall
from django_rlock.locks.attempt import Attempt
from django_rlock.locks.counters import REMEMBERED_MS, Counter, checked_number, new_request
from django_rlock.locks.durations import UNSET, Duration
from django_rlock.locks.faces import faces
from django_rlock.locks.hooks import REPOLL
from django_rlock.settings import DEFAULT_ALIAS

UNHEARD_REPOLL = 1.0
"""How often waiters ask in a cluster where Redisson's channel belongs to another slot than the count, in seconds."""


class CountDownLatch(Counter):
    """Keeps waiters back until others have counted it down to 0; Redisson's ``getCountDownLatch``.

    ``name`` is what is waited for, ``using`` the RLOCK alias, ``wait_time`` how long to wait, in seconds (0 asks once,
    None waits for ever). A latch that was never set is open, and so is one that was deleted::

        done = CountDownLatch("import:42")
        done.try_set_count(3)        # then, in each of three tasks: done.count_down()
        done.wait(wait_time=60)      # in asyncio: await done.await_(wait_time=60)

    Counting down is applied once even when the reply is lost and the command is sent again. A latch has no time to
    live: a task that dies before it counts down leaves it closed until somebody deletes it.
    LockUnavailableError when Redis cannot be asked, or keeps something else under the name.

    A name with a hash tag of its own (``{``) works in a cluster too, but Redisson's channel for it is in another slot,
    so its waiters ask every second instead of being told.

    State in Redis: an integer at the latch's key, the channel ``redisson_countdownlatch__channel__{key}``, and for two
    minutes the requests that were obeyed in ``rlock_requests:{key}``.
    """

    __slots__ = ()

    kind = "latch"
    takes = False

    def __init__(self, name: str, *, wait_time: Duration | None = None, using: str = DEFAULT_ALIAS) -> None:
        super().__init__(name, wait_time=wait_time, using=using)

    async def _try_set_count(self, driver: Driver, count: int) -> bool:
        """Close it until it is counted down so often; False when it is closed already. 0 leaves it open."""
        channel = keys.latch_channel(self.key)
        number = checked_number("count", count)
        return bool(await self._change(driver, self._request_call(scripts.LATCH_SET, channel, number, REMEMBERED_MS)))

    async def _count_down(self, driver: Driver) -> None:
        """Count down by one; at 0 it opens and lets all waiters go. An open latch stays as it is.

        LockUnavailableError when Redis cannot be asked: the background thread then goes on trying for a minute, so do
        not count down again.
        """
        call = self._request_call(scripts.LATCH_COUNT_DOWN, keys.latch_channel(self.key), REMEMBERED_MS)
        await self._surely(driver, call)

    async def _wait(self, driver: Driver, wait_time: Duration | None = UNSET) -> bool:
        """Wait until it is open; False when it is still closed after ``wait_time`` seconds.

        0 asks once, None waits for ever; not given, it is the latch's own. The coroutine is ``await_()``: the prefix
        ``a`` makes it a keyword.
        """
        wait = self._wait_seconds(True, wait_time)
        until = None if wait is None else driver.now() + wait
        attempt = Attempt(self, driver, driver.owner(), new_request(), 0.0, until)
        return await (attempt.once() if wait == 0 else attempt.wait())

    async def _count(self, driver: Driver) -> int:
        """How far it still has to be counted down; 0 when it is open."""
        left: int = (await self._ask(driver, self._call(scripts.COUNTER_READ, (self.key,), "")))[0]
        return left

    async def _delete(self, driver: Driver) -> bool:
        """Delete it and let its waiters go; answers whether it was closed."""
        call = self._call(scripts.LATCH_DELETE, (self.key,), keys.latch_channel(self.key))
        return bool(await self._change(driver, call))

    try_set_count, atry_set_count = faces(_try_set_count)
    count_down, acount_down = faces(_count_down)
    wait, await_ = faces(_wait)
    count, acount = faces(_count)
    delete, adelete = faces(_delete)

    # --- as Attempt asks it: to pass is to acquire -------------------------------------------------------------------

    def acquire_call(self, owner: str, count: int, lease: float, waiting: bool) -> ScriptCall:
        return self._call(scripts.LATCH_PASS, (self.key,), "")

    def wake_up(self, owner: str) -> tuple[str, str | None]:
        return keys.latch_channel(self.key), EVERYBODY

    def pauses(self, left_ms: int, tries: int) -> tuple[float, float]:
        return UNHEARD_REPOLL if "{" in self.key else REPOLL, math.inf

    def _request_call(self, script: scripts.Script, *args: str | int) -> ScriptCall:
        return self._call(script, (self.key, keys.requests_key(self.key)), new_request(), *args)
