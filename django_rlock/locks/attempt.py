"""One acquisition: try, wait to be woken, try again, until the lock is taken or the time is up.

The waiter joins its channel's queue before the command that queues its owner is sent, because a grant may arrive before
the reply. A grant that no waiter receives is only found by the next beat.
"""

from __future__ import annotations

import math

from django_rlock.drivers.base import Driver, Waiter
from django_rlock.drivers.calls import ScriptCall
from django_rlock.drivers.identity import Owner
from django_rlock.locks.beats import beat_after_grant, expect
from django_rlock.locks.holds import WAITS, Wait
from django_rlock.locks.hooks import REPOLL, Waitable
from django_rlock.scripts import ENDLESS, OK
from django_rlock.settings import AliasSettings

LEAST_LEFT = 1.0
"""How much of a claim must be left, in seconds, to accept a grant from its message, without asking the server."""


class Claim:
    """The parameters of one acquire.

    ``wait`` is how long to wait for the lock, in seconds (None: no limit). ``lease`` is how long the lock may be held
    (None: until released, renewed by the watchdog). ``scoped`` is 1 if the hold belongs to a block. With ``once``
    there is no waiting for another owner, only for an unreachable server. With ``hasty`` there is no waiting for a
    server that refuses connections.

    After an acquire that did not succeed, ``failed`` is the attempt.
    """

    __slots__ = ("failed", "hasty", "lease", "once", "owner", "scoped", "wait")

    failed: Attempt

    def __init__(
        self, owner: Owner, wait: float | None, lease: float | None, scoped: int = 0, once: bool = False
    ) -> None:
        self.owner = owner
        self.wait = wait
        self.lease = lease
        self.scoped = scoped
        self.once = once or wait == 0
        self.hasty = False

    def lease_under(self, options: AliasSettings) -> float:
        """The lease to request from the server, in seconds."""
        return options.watchdog_timeout if self.lease is None else self.lease

    def until(self, now: float) -> float | None:
        """When a wait that begins now ends."""
        return None if self.wait is None else now + self.wait


class Attempt:
    """One owner's attempt at one lock. Times are monotonic seconds.

    ``until`` is when the wait ends (None: never), ``renewed`` whether the watchdog will renew the hold, and ``hasty``
    is as in ``Claim``. After a try ``sent_at`` is the time before its command was sent. If the try took the lock,
    ``token`` is the fencing token, for kinds that have one. Otherwise ``left_ms`` is the holder's remaining lease (or
    ENDLESS), ``outside`` is whether the holder's release wakes no waiter in the queue, and ``ticket`` is the ticket
    that this try drew, if any. ``in_doubt`` is set while the outcome of a command is unknown; it stays set after a
    command was sent more than once, because the server may execute a copy late.

    A message that the lock was granted to this ticket proves the grant. Then ``granted_until`` is the time until which
    the server certainly keeps it, and ``sent_at`` is when the message was read. docs/architecture.md has the proof.
    """

    __slots__ = (
        "driver",
        "granted_until",
        "hasty",
        "in_doubt",
        "lease",
        "left_ms",
        "lock",
        "outside",
        "owner",
        "renewed",
        "sent_at",
        "ticket",
        "token",
        "tries",
        "until",
        "wire_name",
    )

    def __init__(
        self,
        lock: Waitable,
        driver: Driver,
        owner: Owner,
        wire_name: str,
        lease: float,
        until: float | None,
    ) -> None:
        self.lock = lock
        self.driver = driver
        self.owner = owner
        self.wire_name = wire_name
        self.lease = lease
        self.until = until
        self.sent_at = 0.0
        self.token: int | None = None
        self.left_ms = ENDLESS
        self.outside = False
        self.renewed = self.hasty = False
        self.ticket = ""
        self.granted_until: float | None = None
        self.tries = 0
        self.in_doubt = False

    async def once(self, waiting: bool = False) -> bool:
        """Try to take the lock. ``waiting`` also takes a place in the queue, for kinds that have one."""
        lock, driver, until = self.lock, self.driver, self.until
        if lock._fresh_names:
            self.owner.renew_name()
            self.wire_name = self.owner.wire_name
        call = lock._acquire_call(self.wire_name, 1, self.lease, waiting)
        if until is not None:
            until = min(until, driver.now() + lock._patience)
        call.hasty = self.hasty
        copies, self.in_doubt = self.in_doubt, True
        if lock._takes:
            reply = await driver.take(call, until, self._undo_call)
        else:
            reply = await driver.run(call, until)
        self.in_doubt = copies or call.sends > 1
        self.tries += 1
        self.sent_at = call.sent_at
        if reply[1] == OK:
            if len(reply) > 2:
                self.token = reply[2]
            return True
        if isinstance(reply[1], bytes):
            raise lock._refusal(reply)
        self.left_ms = reply[1]
        if len(reply) > 2:
            self.outside, self.ticket = bool(reply[2]), reply[3].decode()
        return False

    def _is_granted(self, waiter: Waiter) -> bool:
        """Whether a message proves a grant with enough time left. If in doubt False: the server is then asked."""
        if not self.ticket or waiter.ticket != self.ticket:
            return False
        options = self.lock._settings
        if not self.renewed or self.owner.is_named or options.replica_acks:
            return False
        # The grant came after the command that drew the ticket was sent.
        claim, now = min(options.claim_time, self.lease), self.driver.now()
        until = self.sent_at + claim
        if until - now < max(claim / 2, LEAST_LEFT):
            return False
        self.sent_at, self.granted_until = now, until
        return True

    def _undo_call(self) -> ScriptCall:
        return self.lock._leave_call(self.wire_name)

    async def wait(self) -> bool:
        """Take the lock, after a wait if necessary; returns False when the time is up."""
        lock, driver = self.lock, self.driver
        channel = lock._channel()
        if channel is None:
            return await self.once() or await self._wait_turn(_Sleeper(driver), tried=True)
        waiter = driver.overhear(channel, lock._token(self.wire_name)) if driver.hears(channel) else None
        asked = False
        try:
            # If already subscribed, the first try joins the queue; otherwise it may succeed without SUBSCRIBE.
            tried = waiter is not None
            taken = await self.once(waiting=tried)
            if not taken and waiter is None and self._has_time():
                waiter = await driver.listen(channel, lock._token(self.wire_name), self.until)
            if not taken and waiter is not None:
                taken = await self._wait_turn(waiter, tried)
            asked = True
            return taken
        finally:
            if waiter is not None:
                waiter.close(asked)

    def _has_time(self) -> bool:
        return self.until is None or self.driver.now() < self.until

    async def _wait_turn(self, waiter: Waiter, tried: bool) -> bool:
        wait = Wait(self.lock, self.owner, self.wire_name, self.driver.now(), waiter)
        try:
            WAITS.add(wait)
            return await self._try_when_woken(waiter, wait, tried)
        finally:
            WAITS.remove(wait)
            if wait.beat_at < math.inf:
                beat_after_grant(wait)

    async def _try_when_woken(self, waiter: Waiter, wait: Wait, tried: bool) -> bool:
        while tried or not await self.once(waiting=True):
            tried = False
            pause = self._pause(wait)
            if pause <= 0:
                # The last try leaves the queue, or takes the lock if it was granted meanwhile.
                return await self.once()
            await waiter.wait(pause)
            if self._is_granted(waiter):
                break
        return True

    def _pause(self, wait: Wait) -> float:
        """How long to sleep unless woken, in seconds; 0 or less when the time is up."""
        now = self.driver.now()
        poll, beat = self.lock._pauses(self.left_ms, self.tries)
        wait.beat_at = now + beat
        wait.outside = self.outside
        if beat < math.inf or not wait.expected:
            wait.expected = True
            expect(wait, now)
        return poll if self.until is None else min(poll, self.until - now)


class _Sleeper:
    """The waiter of a kind without wake-ups: it only sleeps."""

    ticket = ""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def wait(self, timeout: float | None) -> bool:  # noqa: ASYNC109 - the protocol's
        await self._driver.sleep(REPOLL if timeout is None else timeout)
        return False

    def wake(self) -> None:
        """Do nothing: it wakes by itself soon."""

    def close(self, asked: bool = True) -> None:
        """Do nothing: it is in no queue."""
