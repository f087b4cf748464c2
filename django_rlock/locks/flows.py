"""The flows that all kinds share: take, release, extend, force; each a coroutine over a driver.

An unknown outcome never leaves a lock without renewal, or one renewed for ever. Only what a flow returns as held is
renewed; anything else that may have been granted is undone in the background, under a wire name that is not used again.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Coroutine
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, TypeVar

from django_rlock import signals
from django_rlock.callbacks import log
from django_rlock.drivers.base import Driver
from django_rlock.drivers.calls import REMEMBERED, ScriptCall
from django_rlock.drivers.cleaning import clean_up
from django_rlock.drivers.identity import Owner, new_request
from django_rlock.exceptions import LockNotOwnedError, LockUnavailableError
from django_rlock.locks.attempt import Attempt, Claim
from django_rlock.locks.durations import Duration, lease_seconds
from django_rlock.locks.hold import Terms
from django_rlock.locks.holds import HOLDS, NEWCOMERS, GroupHold, Hold, key_of
from django_rlock.locks.hooks import Renewable
from django_rlock.locks.tallies import LONG_WAIT, count_given_up, count_hold, count_wait, note_freed
from django_rlock.locks.turns import TURNS
from django_rlock.locks.watchdog import FREED, free_behind, lose, note_loss, watch
from django_rlock.scripts import OK
from django_rlock.settings import settings_of

logger = logging.getLogger("django_rlock.locks")

RELEASE_PATIENCE = 1.0
"""How long a release retries an unreachable server before the background thread takes over, in seconds."""


S = TypeVar("S", bound="LockFlows")
P = ParamSpec("P")
T = TypeVar("T")


def in_turn(
    flow: Callable[Concatenate[S, Driver, Owner, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, Driver, Owner, P], Coroutine[Any, Any, T]]:
    """Make calls of a flow wait for each other if they come from a named owner that several threads or tasks share.

    A call does not wait for one that waits for the lock itself: in that case nothing is held here.
    """

    run: Any = flow

    async def one_after_another(lock: S, driver: Driver, owner: Owner, args: tuple[Any, ...]) -> T:
        with TURNS.join(key_of(lock, owner)) as turn:
            await turn.comes(driver, driver.now())
            return await made(lock, driver, owner, args)

    def made(lock: S, driver: Driver, owner: Owner, args: tuple[Any, ...]) -> Coroutine[Any, Any, T]:
        # A call with a star runs pending signal handlers in Python 3.11, before the coroutine is awaited.
        if not args:
            return run(lock, driver, owner)  # type: ignore[no-any-return]
        if len(args) == 1:
            return run(lock, driver, owner, args[0])  # type: ignore[no-any-return]
        first, second = args
        return run(lock, driver, owner, first, second)  # type: ignore[no-any-return]

    def call(lock: S, driver: Driver, owner: Owner, /, *args: P.args, **_: P.kwargs) -> Coroutine[Any, Any, T]:
        if owner.is_named:
            return one_after_another(lock, driver, owner, args)
        return made(lock, driver, owner, args) if args else run(lock, driver, owner)

    update_wrapper(call, flow)
    return call


class LockFlows(Renewable):
    """Takes and releases a lock for an owner, over any driver. Durations are seconds."""

    __slots__ = ()

    async def _ask_for(self, driver: Driver, claim: Claim) -> bool:
        """Take the lock, and report a failure once, however often a MultiLock tries its members."""
        started = driver.now()
        try:
            taken = await (self._take_in_turn(driver, claim) if claim.owner.is_named else self._take(driver, claim))
        except LockUnavailableError as error:
            signals.lock_unavailable.tell(self._part(error), waited=driver.now() - started, reason=error.reason)
            raise
        if not taken:
            _tell_timed_out(claim.failed, driver.now() - started)
        return taken

    def _part(self, error: LockUnavailableError) -> LockFlows:
        """The lock that an error is about: this one, or one of several."""
        return self

    async def _take_in_turn(self, driver: Driver, claim: Claim) -> bool:
        """Take the lock for a named owner, after the running calls of those that share the name."""
        until = claim.until(driver.now())
        lock = self._for_one_attempt()
        taken = False
        try:
            with TURNS.join(key_of(self, claim.owner)) as turn:
                if not await turn.comes(driver, until):
                    lease = claim.lease_under(self._settings)
                    claim.failed = Attempt(self, driver, claim.owner, claim.owner.wire_name, lease, until)
                    return False
                if until is not None:
                    claim.wait = max(until - driver.now(), 0.0)
                taken = await lock._take(driver, claim)
        except BaseException:
            if taken and (hold := HOLDS.get(self, claim.owner)):  # the end of the turn was interrupted
                hold.scoped -= claim.scoped
                hold.count -= 1
                self._release_later(hold, claim.owner)
            raise
        if not taken and lock is not self:
            claim.failed.lock = self
        return taken

    async def _take(self, driver: Driver, claim: Claim) -> bool:
        """Take the lock; returns False if it was still taken at the end of the wait."""
        options = settings_of(self.using)
        options.check_kind(self.kind)
        owner, started, lease = claim.owner, driver.now(), claim.lease_under(options)
        key = key_of(self, owner)
        outer = HOLDS.at(key)
        if outer is not None and not note_loss(outer, started):
            await self._enter_again(driver, outer, claim, lease)
            return True
        # After a loss the owner has a new wire name, so late clean-up of the old hold cannot touch the new one.
        attempt = Attempt(self, driver, owner, owner.wire_name, lease, claim.until(started))
        attempt.renewed, attempt.hasty = claim.lease is None, claim.hasty
        try:
            if await (attempt.once() if claim.once else attempt.wait()):
                hold = Hold(key, self, owner, attempt.wire_name, attempt.sent_at, attempt.token)
                if outer is not None:
                    hold.outlives(outer)
                if attempt.in_doubt:
                    expect_copies(hold, lease)
                self._put_hold(hold, claim, lease, attempt.granted_until)
                waited = attempt.sent_at - started
                if waited >= LONG_WAIT:
                    count_wait(self, hold.key, hold.place, waited)
                self._tell_acquired(hold.wire_name, 1, waited)
                return True
            if attempt.in_doubt:
                self._abandon(driver, owner, self._undo_call(owner, attempt.wire_name), attempt.lease)
        except BaseException:
            HOLDS.restore(key, outer)
            undo = self._undo_call(owner, attempt.wire_name)
            self._abandon(driver, owner, undo, attempt.lease, attempt.in_doubt)
            raise
        claim.failed = attempt
        return False

    def _put_hold(self, hold: Hold, claim: Claim, lease: float, granted_until: float | None = None) -> None:
        hold.lease_from(hold.since, lease, renewed=claim.lease is None)
        if granted_until is not None:
            hold.granted_until(granted_until)
        hold.scoped += claim.scoped
        if hold.context is not None and not claim.scoped:
            hold.line = _caller()
        HOLDS.put(hold)
        watch(hold)

    async def _enter_again(self, driver: Driver, hold: Hold, claim: Claim, lease: float) -> None:
        now = driver.now()
        # A nested hold never shortens the lease, nor stops the renewal that the outer one relies on.
        lease = max(lease, hold.deadline - now)
        until = claim.until(now)
        call = self._acquire_call(hold.wire_name, hold.count + 1, lease, False)
        try:
            reply = await driver.run(call, hold.deadline if until is None else min(until, hold.deadline))
        except BaseException:
            hold.owner.renew_name()
            raise
        if call.sends > 1:
            hold.owner.renew_name()
        if hold not in HOLDS:
            # Under a name that threads or tasks share: a release waited for this call, but not as long as it took.
            raise LockUnavailableError(
                self.name,
                reason="it was given back under the same owner's name while it was entered again",
                advice="Try again; if the server does not count it as free, it frees itself when its lease ends.",
            )
        if reply[1] != OK:
            lose(hold, "it was gone when its owner took it again")
            raise hold.lost_error()
        count, scoped = hold.count, hold.scoped
        try:
            hold.lease_from(call.sent_at, lease, renewed=claim.lease is None or hold.renewed)
            hold.count += 1
            hold.scoped += claim.scoped
            watch(hold)
            self._tell_acquired(hold.wire_name, hold.count, 0.0)
        except BaseException:  # from a signal handler; for the caller the lock was not re-entered
            hold.count, hold.scoped = count, scoped
            watch(hold)
            raise

    def _abandon(
        self, driver: Driver, owner: Owner, undo: ScriptCall | None, lease: float, in_doubt: bool = True
    ) -> None:
        """Clean up after an attempt that was given up: the server may have granted the lock, or may still grant it.

        It is undone in the background, at any time, because the owner never uses that wire name again. A name chosen by
        the caller cannot be changed: only its place in the queue is given up, if the kind has one, and a lock that was
        granted to it ends with its lease.
        """
        if undo is None:
            return
        owner.renew_name()
        # Repeat this if the acquire, or a copy of it, may arrive after the first clean-up.
        clean_up(self.using, undo, driver.now() + lease, again=in_doubt)

    @in_turn
    async def _give_back(self, driver: Driver, owner: Owner, begun: set[object] | None = None) -> None:
        """Release one hold. It adds itself to ``begun`` when it has: from then on it handles interruptions itself."""
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
            if begun is not None:
                begun.add(self)
            if hold.count == 0:
                HOLDS.remove(hold)  # before the command, so that no renewal starts
            call = self._release_call(hold.wire_name, hold.count, hold.lease)
            reply = await driver.run(call, min(hold.deadline, now + RELEASE_PATIENCE))
        except BaseException as error:
            self._release_later(hold, owner)
            if isinstance(error, LockUnavailableError):
                raise self._release_failed(error, hold.deadline - driver.now()) from error
            raise
        finally:
            if hold.lost_below:
                self._uncover_lost(hold)
        self._note_released(hold, call, reply[1] == 1, driver.now())
        if hold.count:
            hold.lease_from(call.sent_at, hold.lease, hold.renewed)
            watch(hold)

    def _note_released(self, hold: Hold, call: ScriptCall, owned: bool, now: float) -> None:
        """Handle the server's reply to a release."""
        if hold.renewing or call.sends > 1:
            hold.owner.renew_name()  # late commands must not affect its next hold
        # "Not yours", to a last release that was sent twice: the first copy did it. After an inner one it is held.
        was_obeyed = hold.count == 0 and call.sends > 1 and now < hold.deadline
        if not owned and not was_obeyed:
            lose(hold, FREED)
            raise hold.lost_error()
        if hold.count == 0:
            if hold.late_lease:
                free_behind(hold, now)
            count_hold(hold, now)
            self._tell_released(hold, now)

    async def _give_back_unknown(self, driver: Driver, owner: Owner) -> None:
        """Release a lock that this process has no hold of: it may be that of a named owner, else none is held."""
        if owner.is_named:
            lease = self._settings.watchdog_timeout
            reply = await driver.run(self._release_call(owner.wire_name, 0, lease), driver.now() + RELEASE_PATIENCE)
            if reply[1] == 1:
                return
        raise self._not_owned(owner)

    def _release_later(self, hold: Hold, owner: Owner) -> None:
        owner.renew_name()
        if hold.count == 0:
            HOLDS.remove(hold)
        # A name chosen by the caller cannot be changed, and a late release would free its next hold: the lease ends it.
        if hold.count == 0 and not owner.is_named:
            clean_up(self.using, self._release_call(hold.wire_name, 0, hold.lease), hold.deadline)
            free_behind(hold, hold.deadline)
        self._uncover_lost(hold)

    def _release_failed(self, error: LockUnavailableError, left: float) -> LockUnavailableError:
        return LockUnavailableError(
            self.name,
            reason=f"it could not be released: {error.reason}",
            advice=f"It was held until now; it frees itself in {max(left, 0):.1f} s, if not before.",
        )

    def _drop_lost(self, hold: Hold) -> None:
        """End one level of a lost hold, after its error was raised there."""
        hold.count -= 1
        if hold.count <= 0:
            HOLDS.remove(hold)
            self._uncover_lost(hold)

    def _uncover_lost(self, hold: Hold) -> None:
        """A hold may have been taken after lost ones of the same owner, which must still be reported when released."""
        if hold.count == 0 and hold.lost_below:
            hold.count, hold.lost_below = hold.lost_below, 0
            hold.lost = "its lease ended"
            HOLDS.put(hold)

    @in_turn
    async def _prolong(self, driver: Driver, owner: Owner, lease_time: Duration) -> None:
        lease = lease_seconds(lease_time)
        if lease is None:
            raise ValueError("extend() needs a lease_time in seconds.")
        hold = HOLDS.get(self, owner)
        if hold is not None:
            await self._extend_hold(driver, hold, lease)
        elif not owner.is_named or not await self._extend_unknown(driver, owner.wire_name, lease):
            raise self._not_owned(owner)

    async def _extend_hold(self, driver: Driver, hold: Hold, lease: float) -> None:
        if note_loss(hold, driver.now()):
            raise hold.lost_error()
        call = self._extend_call(hold.wire_name, lease, keep_longer=hold.owner.is_named)
        terms, started = hold.terms, driver.now()
        try:
            hold.renewed = False  # or the watchdog would shorten the new lease
            reply = await self._run_extension(driver, call, hold, lease)
            if reply[1] != 0:
                hold.lease_from(call.sent_at, lease, renewed=False)
                watch(hold)
        except BaseException:
            self._doubt_extension(hold, terms, started + lease - self._drift(lease))
            watch(hold)
            raise
        if reply[1] == 0:
            lose(hold, "it was gone when its lease was to be extended")
            raise hold.lost_error()

    async def _run_extension(self, driver: Driver, call: ScriptCall, hold: Hold, lease: float) -> list[Any]:
        """Send an extension and return its reply; no copy of it may shorten a lease chosen later."""
        until = driver.now() + RELEASE_PATIENCE
        reply = await driver.run(call, until)
        if call.sends > 1 and not hold.owner.is_named:
            await driver.run(self._settle_call(hold.wire_name, lease), until)
        return reply

    def _doubt_extension(self, hold: Hold, terms: Terms, ends: float) -> None:
        """Handle an extension that may have been executed, or may be late. Under a name chosen by the caller it only
        prolongs the lease."""
        hold.restore(terms)
        if not hold.owner.is_named:
            hold.owner.renew_name()
            hold.deadline = min(hold.deadline, ends)
            clean_up(self.using, self._settle_call(hold.wire_name, hold.lease), hold.deadline)

    async def _extend_unknown(self, driver: Driver, wire_name: str, lease: float) -> bool:
        """Extend the hold of a named owner that another process took."""
        call = self._extend_call(wire_name, lease, keep_longer=True)
        reply = await driver.run(call, driver.now() + RELEASE_PATIENCE)
        return bool(reply[1])

    @in_turn
    async def _free_by_force(self, driver: Driver, caller: Owner, owner: str | None, reason: str) -> bool:
        own = self._forced_holds(caller, owner, driver.now())
        renewed = [hold.renewed for hold in own]
        freed = False
        try:
            _expect_the_end(own)
            call = self._force_release_call(owner, new_request())
            reply = await self._run_forced(driver, call)
            freed = bool(reply[1] == 1)
        finally:
            for hold, was_renewed in zip(own, renewed, strict=True):
                self._note_forced(hold, freed, was_renewed)
        if freed:
            log(
                logger, logging.WARNING, "Lock %r (%r) was freed by force: %r",
                self.name, self.key, reason or "no reason given",
            )  # fmt: skip
            note_freed(self, owner, reason, caller.place)
            NEWCOMERS.counted(True)
            signals.lock_force_released.tell(self, owner=owner, reason=reason)
        return freed

    async def _run_forced(self, driver: Driver, call: ScriptCall) -> list[Any]:
        """Send a forced release and return its reply; no copy of it may free the next holder."""
        retire = self._retire_call(str(call.args[-1]))
        until = driver.now() + RELEASE_PATIENCE
        try:
            reply = await driver.run(call, until)
            if call.sends > 1:
                await driver.run(retire, until)
        except BaseException:
            clean_up(self.using, retire, driver.now() + REMEMBERED)
            raise
        return reply

    def _forced_holds(self, caller: Owner, owner: str | None, now: float) -> list[Hold]:
        """The caller's own holds that the call frees: all, or those of a wire name. Holds that were lost before are
        left out, because their loss must still be reported.
        """
        holds = [hold for scope in self._forces if (hold := HOLDS.get(self, caller, scope)) is not None]
        if owner:
            holds = [hold for hold in holds if hold.lock._field(hold.wire_name) == self._field(owner)]
        return [hold for hold in holds if not note_loss(hold, now)]

    def _note_forced(self, hold: Hold, freed: bool, renewed: bool) -> None:
        if freed:
            hold.count = 0
            HOLDS.remove(hold)
            hold.owner.renew_name()
            free_behind(hold, hold.deadline)
            self._uncover_lost(hold)
        else:
            hold.renewed, hold.ending = renewed, False
            watch(hold)

    async def _ask_state(self, driver: Driver, owner: Owner) -> tuple[int, int]:
        reply = await driver.run(self._state_call(self._wire_name(owner)), driver.now())
        count, left_ms = reply[1], reply[2]
        hold = HOLDS.get(self, owner)
        if count and hold is not None:
            count = hold.count  # a late copy of a re-entry or an inner release may have rewritten the server's
        return count, left_ms

    async def _ask_holders(self, driver: Driver) -> list[str]:
        reply = await driver.run(self._holders_call(), driver.now())
        ending = self._field("")
        return [field.decode(errors="backslashreplace").removesuffix(ending) for field in reply[1]]

    def _not_owned(self, owner: Owner) -> LockNotOwnedError:
        """The error for an owner that does not hold the lock."""
        return LockNotOwnedError(self.name, owner=self._wire_name(owner), left_by=HOLDS.left_by(self))

    def _wire_name(self, owner: Owner) -> str:
        hold = HOLDS.get(self, owner)
        if hold is not None:
            return hold.wire_name
        return owner.wire_name

    def _tell_acquired(self, wire_name: str, count: int, waited: float) -> None:
        log(logger, logging.DEBUG, "Acquired %r as %s (%d), after %.3f s.", self.name, wire_name, count, waited)
        if signals.lock_acquired.receivers:
            outcome = signals.lock_acquired.outcome if count == 1 else "reentered"
            signals.lock_acquired.tell(self, owner=wire_name, count=count, waited=waited, outcome=outcome)

    def _tell_released(self, hold: Hold, now: float) -> None:
        held = now - hold.since
        log(logger, self._release_level(held), "Released %r as %s, after %.3f s.", self.name, hold.wire_name, held)
        if signals.lock_released.receivers:
            signals.lock_released.tell(self, owner=hold.wire_name, held=held)

    def _release_level(self, held: float) -> int:
        return logging.DEBUG if held < settings_of(self.using).slow_hold else logging.WARNING


def _caller() -> str | None:
    """The line of the project's code that acquires a lock now."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("django_rlock."):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def expect_copies(hold: Hold | GroupHold, lease: float) -> None:
    """Record that a hold's acquire was sent more than once: a copy that arrives after its end would take the lock."""
    hold.late_lease = lease
    hold.owner.renew_name()


def _expect_the_end(holds: list[Hold]) -> None:
    """A caller or a renewal that finds the lock gone, while its own owner frees it by force, must report no loss."""
    for hold in holds:
        hold.ending = True
        hold.renewed = False


def _tell_timed_out(failed: Attempt, waited: float) -> None:
    lock = failed.lock
    count_given_up(lock)
    count_wait(lock, key_of(lock, failed.owner), failed.owner.place, waited)
    log(logger, logging.INFO, "Lock %r is taken; %s gave up after %.3f s.", lock.name, failed.wire_name, waited)
    signals.lock_timed_out.tell(lock, owner=failed.wire_name, waited=waited)
