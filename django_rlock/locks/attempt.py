"""One acquisition: try, wait to be woken, try again, until the lock is taken or the time is up.

The waiter stands in its line before the command that queues it is sent: a grant may overtake the reply, and one that
nobody expects is repaired by a beat only.
"""

from __future__ import annotations

from django_rlock.drivers import background
from django_rlock.drivers.base import Driver, ScriptCall, Waiter
from django_rlock.drivers.identity import Owner
from django_rlock.locks.holds import WAITS, Wait
from django_rlock.locks.hooks import REPOLL, LockHooks


class Attempt:
    """One owner's attempt at one lock. Times are monotonic seconds.

    ``until`` is when the wait ends (None: never). After a try either ``sent_at`` is the time before the command that
    took the lock was sent and ``token`` the fencing token of a kind that has one, or ``left_ms`` is the holder's
    remaining lease (-1: it has no end).
    """

    __slots__ = ("driver", "lease", "left_ms", "lock", "name", "owner", "sent_at", "token", "tries", "until")

    def __init__(
        self,
        lock: LockHooks,
        driver: Driver,
        owner: Owner | str,
        name: str,
        lease: float,
        until: float | None,
    ) -> None:
        self.lock = lock
        self.driver = driver
        self.owner = owner
        self.name = name
        self.lease = lease
        self.until = until
        self.sent_at = 0.0
        self.token: int | None = None
        self.left_ms = 0
        self.tries = 0

    async def once(self, waiting: bool = False) -> bool:
        """Try to take the lock. ``waiting`` keeps a place in the queue of a kind that has one."""
        if self.lock.fresh_names and isinstance(self.owner, Owner):
            self.owner.renew_name()
            self.name = self.owner.name
        call = self.lock.acquire_call(self.name, 1, self.lease, waiting)
        until = None if self.until is None else min(self.until, self.driver.now() + self.lock.patience)
        if self.lock.takes:
            reply = await self.driver.take(call, until, self._undo_call)
        else:
            reply = await self.driver.run(call, until)
        self.tries += 1
        if reply[1] == b"OK":
            self.sent_at = call.sent_at
            if len(reply) > 2:
                self.token = reply[2]
            return True
        if isinstance(reply[1], bytes):
            raise self.lock.refusal(reply)
        self.left_ms = reply[1]
        return False

    def _undo_call(self) -> ScriptCall:
        return self.lock.leave_call(self.name)

    async def wait(self) -> bool:
        """Take the lock, if need be after a wait."""
        wake_up = self.lock.wake_up(self.name)
        if wake_up is None:
            return await self.once() or await self._wait_turn(_Sleeper(self.driver), tried=True)
        channel, token = wake_up
        waiter = self.driver.overhear(channel, token)
        try:
            # Where the process listens already, the first try queues; else it may well succeed without listening.
            if await self.once(waiting=waiter is not None):
                return True
            tried = waiter is not None
            if waiter is None:
                waiter = await self.driver.listen(channel, token)
            return await self._wait_turn(waiter, tried)
        finally:
            if waiter is not None:
                waiter.close()

    async def _wait_turn(self, waiter: Waiter, tried: bool) -> bool:
        wait = Wait(self.lock, self.owner, self.name, self.driver.now(), waiter)
        try:
            WAITS.add(wait)
            while tried or not await self.once(waiting=True):
                tried = False
                pause = self._pause(wait)
                if pause <= 0:
                    # The last try gives up the place in the queue, or takes what was granted meanwhile.
                    return await self.once()
                await waiter.wait(pause)
            return True
        finally:
            WAITS.remove(wait)

    def _pause(self, wait: Wait) -> float:
        """How long to sleep until woken; not above 0 when the time is up."""
        now = self.driver.now()
        poll, beat = self.lock.pauses(self.left_ms, self.tries)
        wait.beat_at = now + beat
        # By a second at the latest, since waits are reported as well.
        background.wake_by(min(wait.beat_at, now + background.SLOWEST_TICK))
        return poll if self.until is None else min(poll, self.until - now)


class _Sleeper:
    """The waiter of a kind whose waiters nobody wakes."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def wait(self, timeout: float | None) -> bool:  # noqa: ASYNC109 - the protocol's
        await self._driver.sleep(REPOLL if timeout is None else timeout)
        return False

    def wake(self) -> None:
        """It wakes by itself soon."""

    def close(self) -> None:
        """It stands in no line."""
