"""The flows that all kinds share: take, give back, extend, force; each a coroutine over a driver.

An outcome that is unknown never leaves a lock that is renewed by nobody, or renewed for ever: only what a flow returns
as held is renewed, and what may have been granted besides is undone in the background, under a name that is not used
again.
"""

from __future__ import annotations

import logging

from django_rlock import signals
from django_rlock.drivers import background
from django_rlock.drivers.base import Driver, ScriptCall
from django_rlock.drivers.identity import Owner
from django_rlock.drivers.sync import defer
from django_rlock.exceptions import LockNotOwnedError, LockUnavailableError
from django_rlock.locks.attempt import Attempt
from django_rlock.locks.durations import Duration, lease_seconds
from django_rlock.locks.holds import HOLDS, Hold, lose, note_loss
from django_rlock.locks.hooks import LockHooks

logger = logging.getLogger("django_rlock.locks")

CLEAN_UP_AGAIN = 1.0
"""When an abandoned attempt is undone for the second time, in seconds."""
RELEASE_PATIENCE = 1.0
"""How long a release outlasts an unreachable server before it is left to the background thread, in seconds."""


class LockFlows(LockHooks):
    """Takes and gives back a lock for an owner, over any driver. Durations are seconds."""

    __slots__ = ()

    async def _ask_for(
        self, driver: Driver, owner: Owner | str, wait: float | None, lease: float | None, scoped: int = 0
    ) -> Attempt | None:
        """Take the lock for its caller, and tell when that failed: once, however often a MultiLock tries a member."""
        started = driver.now()
        failed = await self._take(driver, owner, wait, lease, scoped)
        if failed is not None:
            _tell_timed_out(failed, driver.now() - started)
        return failed

    async def _take(
        self, driver: Driver, owner: Owner | str, wait: float | None, lease: float | None, scoped: int = 0
    ) -> Attempt | None:
        """Take the lock, ``scoped`` (1) where a block encloses the hold; answers the attempt when it failed."""
        self.settings.check_kind(self.kind)
        seconds = self.settings.watchdog_timeout if lease is None else lease
        started = driver.now()
        until = None if wait is None else started + wait
        outer = HOLDS.get(self, owner)
        if outer is not None and not note_loss(outer, started):
            await self._enter_again(driver, outer, seconds, lease is None, scoped, until)
            return None
        # After a loss the wire name is a new one, so late clean-up of the old hold cannot touch the new one.
        name = owner if isinstance(owner, str) else owner.name
        attempt = Attempt(self, driver, owner, name, seconds, until)
        try:
            if await (attempt.once() if wait == 0 else attempt.wait()):
                name = attempt.name
                hold = Hold(self, owner, name, attempt.sent_at, attempt.token)
                if outer is not None:
                    hold.outlives(outer)
                self._put_hold(hold, seconds, lease is None, scoped)
                self._tell_acquired(name, 1, attempt.sent_at - started)
                return None
        except BaseException:
            HOLDS.restore(self, owner, outer)
            name = attempt.name
            self._abandon(driver, owner, self.leave_call(name), seconds)
            raise
        return attempt

    def _put_hold(self, hold: Hold, lease: float, renewed: bool, scoped: int) -> None:
        hold.lease_from(hold.since, lease, renewed)
        hold.scoped += scoped
        HOLDS.put(hold)
        background.wake_by(hold.renew_at)

    async def _enter_again(
        self, driver: Driver, hold: Hold, seconds: float, renewed: bool, scoped: int, until: float | None
    ) -> None:
        # A nested hold never shortens the lease, nor stops the renewal that the outer one counts on.
        lease = max(seconds, hold.deadline - driver.now())
        call = self.acquire_call(hold.owner, hold.count + 1, lease, False)
        reply = await driver.run(call, hold.deadline if until is None else min(until, hold.deadline))
        if reply[1] != b"OK":
            lose(hold, "it was gone when its owner took it again")
            raise hold.lost_error()
        hold.lease_from(call.sent_at, lease, renewed or hold.renewed)
        hold.count += 1
        hold.scoped += scoped
        try:
            self._tell_acquired(hold.owner, hold.count, 0.0)
        except BaseException:  # a signal's; the caller takes the lock as not entered again
            hold.count -= 1
            hold.scoped -= scoped
            raise

    def _abandon(self, driver: Driver, owner: Owner | str, undo: ScriptCall, lease: float) -> None:
        """Clean up after an attempt whose outcome is unknown: the server may have granted the lock, or still do so.

        It is undone in the background, and the owner never uses that wire name again, so it does not matter when. A
        name chosen by the caller cannot be changed: what was granted to it then ends by its lease.
        """
        if isinstance(owner, str):
            return
        owner.renew_name()
        until = driver.now() + lease
        defer(self.using, undo, until)
        # Once more: the acquire may still lie in a closed connection's buffer, behind the first clean-up.
        defer(self.using, undo, until, after=CLEAN_UP_AGAIN)

    async def _give_back(self, driver: Driver, owner: Owner | str) -> None:
        hold = HOLDS.get(self, owner)
        if hold is None:
            await self._give_back_unknown(driver, owner)
            return
        now = driver.now()
        if note_loss(hold, now):
            self._drop_lost(hold)
            raise hold.lost_error()
        try:
            hold.count -= 1
            if hold.count == 0:
                HOLDS.remove(hold)  # before the command, so that no renewal starts
            call = self.release_call(hold.owner, hold.count, hold.lease)
            reply = await driver.run(call, min(hold.deadline, now + RELEASE_PATIENCE))
        except BaseException as error:
            self._release_later(hold, owner)
            if isinstance(error, LockUnavailableError):
                raise self._release_failed(error, hold.deadline - driver.now()) from error
            raise
        finally:
            self._uncover_lost(hold)
        self._note_released(hold, call, reply[1] == 1, driver.now())
        if hold.count:
            hold.lease_from(call.sent_at, hold.lease, hold.renewed)

    def _note_released(self, hold: Hold, call: ScriptCall, owned: bool, now: float) -> None:
        """What the server's answer to a release means."""
        # "Not yours" to a release that was sent twice: the first one did it.
        if not owned and not (call.sends > 1 and now < hold.deadline):
            lose(hold, "another owner or an operator freed it, or the server lost it")
            raise hold.lost_error()
        if hold.count == 0:
            self._tell_released(hold, now)

    async def _give_back_unknown(self, driver: Driver, owner: Owner | str) -> None:
        """Release what this process does not know of: the hold of an owner named by the caller, or nobody's."""
        if isinstance(owner, str):
            lease = self.settings.watchdog_timeout
            reply = await driver.run(self.release_call(owner, 0, lease), driver.now() + RELEASE_PATIENCE)
            if reply[1] == 1:
                return
        raise self.not_owned(owner)

    def _release_later(self, hold: Hold, owner: Owner | str) -> None:
        if hold.count == 0:
            HOLDS.remove(hold)
        # A name chosen by the caller cannot be changed: a late release would free its next hold, so the lease ends it.
        if hold.count == 0 and isinstance(owner, Owner):
            owner.renew_name()
            defer(self.using, self.release_call(hold.owner, 0, hold.lease), hold.deadline)

    def _release_failed(self, error: LockUnavailableError, left: float) -> LockUnavailableError:
        return LockUnavailableError(
            self.name,
            reason=f"it could not be released: {error.reason}",
            advice=f"It was held until now; it frees itself in {max(left, 0):.1f} s, if not before.",
        )

    def _drop_lost(self, hold: Hold) -> None:
        """One enclosing block of a lost hold has been told."""
        hold.count -= 1
        if hold.count <= 0:
            HOLDS.remove(hold)
            self._uncover_lost(hold)

    def _uncover_lost(self, hold: Hold) -> None:
        """Behind a hold that ended may stand earlier ones of its owner, which were lost and must be told so."""
        if hold.count == 0 and hold.lost_below:
            hold.count, hold.lost_below = hold.lost_below, 0
            hold.lost = "its lease ended"
            HOLDS.put(hold)

    async def _extend(self, driver: Driver, owner: Owner | str, lease_time: Duration) -> None:
        lease = lease_seconds(lease_time)
        if lease is None:
            raise ValueError("extend() needs a lease_time in seconds.")
        hold = HOLDS.get(self, owner)
        if hold is not None:
            await self._extend_hold(driver, hold, lease)
        elif isinstance(owner, Owner) or not await self._extend_unknown(driver, owner, lease):
            raise self.not_owned(owner)

    async def _extend_hold(self, driver: Driver, hold: Hold, lease: float) -> None:
        if note_loss(hold, driver.now()):
            raise hold.lost_error()
        call = self.extend_call(hold.owner, lease)
        renewed = hold.pause_renewal()
        try:
            reply = await driver.run(call, driver.now() + RELEASE_PATIENCE)
        except BaseException:
            hold.renewed = renewed
            raise
        if reply[1] == 0:
            lose(hold, "it was gone when its lease was to be extended")
            raise hold.lost_error()
        hold.lease_from(call.sent_at, lease, renewed=False)
        background.wake_by(hold.deadline)

    async def _extend_unknown(self, driver: Driver, owner: str, lease: float) -> bool:
        """Extend the hold of an owner named by the caller, which another process took."""
        reply = await driver.run(self.extend_call(owner, lease), driver.now() + RELEASE_PATIENCE)
        return bool(reply[1])

    async def _force_release(self, driver: Driver, owner: str | None, reason: str) -> bool:
        reply = await driver.run(self.force_release_call(owner), driver.now() + RELEASE_PATIENCE)
        if reply[1] == 1:
            logger.warning("Lock %r (%r) was freed by force: %r", self.name, self.key, reason or "no reason given")
            signals.lock_force_released.send_robust(sender=type(self), lock=self, owner=owner, reason=reason)
        return bool(reply[1])

    async def _ask_state(self, driver: Driver, owner: Owner | str) -> tuple[int, int]:
        reply = await driver.run(self.state_call(self._wire_name(owner)), driver.now())
        return reply[1], reply[2]

    def not_owned(self, owner: Owner | str) -> LockNotOwnedError:
        """The error for an owner who does not hold it."""
        return LockNotOwnedError(self.name, owner=self._wire_name(owner))

    def _wire_name(self, owner: Owner | str) -> str:
        hold = HOLDS.get(self, owner)
        if hold is not None:
            return hold.owner
        return owner if isinstance(owner, str) else owner.name

    def _tell_acquired(self, name: str, count: int, waited: float) -> None:
        logger.debug("Acquired %r as %s (%d), after %.3f s.", self.name, name, count, waited)
        if signals.lock_acquired.receivers:
            signals.lock_acquired.send_robust(sender=type(self), lock=self, owner=name, count=count, waited=waited)

    def _tell_released(self, hold: Hold, now: float) -> None:
        held = now - hold.since
        level = logging.DEBUG if held < self.settings.slow_hold else logging.WARNING
        logger.log(level, "Released %r as %s, after %.3f s.", self.name, hold.owner, held)
        if signals.lock_released.receivers:
            signals.lock_released.send_robust(sender=type(self), lock=self, owner=hold.owner, held=held)


def _tell_timed_out(failed: Attempt, waited: float) -> None:
    lock = failed.lock
    logger.info("Lock %r is taken; %s gave up after %.3f s.", lock.name, failed.name, waited)
    signals.lock_timed_out.send_robust(sender=type(lock), lock=lock, owner=failed.name, waited=waited)
