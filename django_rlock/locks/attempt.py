"""One owner's attempt at one lock: try, sleep until woken, try again."""

from __future__ import annotations

import math
from collections import deque

from django_rlock._core.clock import has_jumped, wall_offset
from django_rlock._core.threads import Alive
from django_rlock._redis.scripts import ENDLESS, OK
from django_rlock._transport.bridges import is_blocked_on_caller, may_be_awaited_later, whereabouts
from django_rlock._transport.calls import Driver, QueueWaiter, ScriptCall, backoff
from django_rlock._transport.identity import Owner
from django_rlock._transport.one_server import UnconfirmedError
from django_rlock.exceptions import LockUnavailableError
from django_rlock.locks.heartbeats import expect, heartbeat_after
from django_rlock.locks.holds import HOLDS, WAITS
from django_rlock.locks.kinds import REPOLL, Candidate, Named
from django_rlock.locks.records import Wait
from django_rlock.settings import settings_of

LEAST_LEFT = 1.0
"""How much of a claim must be left, in seconds, to accept a grant from its message, without asking the server."""

ACCEPTING: Alive[Attempt] = Alive()
"""The attempts that may accept a grant by its message; each until its hold is in the table of holds."""
DECLINED: deque[str] = deque(maxlen=10_000)
"""The names in the queue whose grants were declined, because nobody seemed to wait for them. An attempt with such a
name confirms each grant by acquire, so that a late copy of the decline does nothing. An attempt may have such a name:
while a listener moves its waiter to a new channel (``Listener._forget``), the listener of another alias of the server
does not see the waiter, and declines a grant whose message then reaches the attempt."""

_AGAIN_AFTER = 0.05, 1.0
"""The shortest and the longest pause after a grant that came too late, in seconds."""

OWNER_LOOK_AFTER = 1.0
"""After how many seconds a waiting job checks again for a deadlock; the intervals double. A job is the function that a
thread of a pool executes, or a task that came from another thread. A task that waits for a thread of its process checks
again, too: at first it may have shared a look at the tasks of its loop that was older than its own bridge."""


class Attempt(Candidate):
    """One owner's attempt at one lock. Times are monotonic seconds.

    ``asker`` is the owner's name in the queue, where that is not its owner id, and ``beside`` its owner id on the
    other side of a read-write lock. ``until`` is when the wait ends (None: never), and ``renewed`` whether the
    watchdog will renew the hold. After a try ``sent_at`` is the time before its command was sent. If the try took the
    lock, ``granted_at`` is when that was known (else 0), and ``token`` is the fencing token, for kinds that have one.
    Otherwise ``left_ms`` is the holder's remaining lease (or ENDLESS), ``outside`` is whether the holder's release
    wakes no waiter in the queue, and ``ticket`` is the ticket that this try drew, if any. ``in_doubt`` is set while
    the outcome of a command is unknown; it stays set after a command was sent more than once, because the server may
    execute a copy late.

    A message that the lock was granted to this ticket proves the grant. Then ``granted_until`` is the time until which
    the server certainly keeps it, and ``sent_at`` is when the message was read; docs/design/fair-queue.md proves it.
    ``clocks`` is the distance of the clocks before the ticket was drawn: if one of them has jumped since, the time that
    has passed is not known.
    """

    __slots__ = (
        "__weakref__",
        "clocks",
        "driver",
        "granted_at",
        "granted_until",
        "in_doubt",
        "kind",
        "lease",
        "left_ms",
        "look_at",
        "outside",
        "renewed",
        "sent_at",
        "ticket",
        "token",
        "tries",
        "until",
        "waits_since",
    )

    def __init__(
        self,
        lock: Named,
        driver: Driver,
        owner: Owner,
        owner_id: str,
        lease: float,
        until: float | None,
    ) -> None:
        self.asker = self.owner_id = owner_id
        self.beside = ""
        self.lock = lock
        self.owner = owner
        self.kind = lock._kind
        self.driver = driver
        self.lease = lease
        self.until = until
        self.sent_at = self.granted_at = 0.0
        self.token: int | None = None
        self.left_ms = ENDLESS
        self.outside = False
        self.renewed = False
        self.ticket = ""
        self.granted_until: float | None = None
        self.clocks = 0.0
        self.tries = 0
        self.in_doubt = False

    @property
    def was_refused(self) -> bool:
        """Whether someone else had the lock at first."""
        return self.tries > 1 or self.granted_until is not None

    async def once(self, waiting: bool = False) -> bool:
        """Try to take the lock. ``waiting`` also takes a place in the queue, for kinds that have one."""
        driver, kind, until = self.driver, self.kind, self.until
        if kind.fresh_names:
            self.owner_id = self.asker = self.owner.new_id()
        call = kind.acquire(self.lock, self.asker, 1, self.lease, waiting, self.beside)
        if until is not None:
            until = min(until, driver.now() + kind.patience)
        if waiting:
            self.clocks = wall_offset()
        copies, self.in_doubt = self.in_doubt, True
        reply = await driver.run(call, until, self._leave if kind.writes else None)
        # The server may still execute a copy of the command: rules 8 and 15 of docs/design/architecture.md.
        self.in_doubt = copies or call.sends > 1
        self.tries += 1
        # The deadline counts from before the command was sent: rule 7.
        self.sent_at = call.sent_at
        if reply[1] == OK:
            self.granted_at = driver.now()
            if len(reply) > 2:
                self.token = reply[2]
            return True
        if isinstance(reply[1], bytes):
            raise kind.refusal(self.lock, reply)
        self.left_ms = reply[1]
        if len(reply) > 2:
            self.outside, self.ticket = bool(reply[2]), reply[3].decode()
        return False

    def _is_granted(self, waiter: QueueWaiter) -> bool:
        """Whether a message proves a grant with enough time left. If in doubt False: then the waiter runs acquire.

        docs/design/fair-queue.md proves this, under "When a waiter accepts the message of its grant".
        """
        # A message of an earlier wait has another ticket.
        if not self.ticket or waiter.ticket != self.ticket:
            return False
        options = settings_of(self.lock.using)
        # Nothing renews a fixed lease; others may use the name; it is unknown which replicas have the grant.
        if not self.renewed or self.owner.is_named or options.replica_acks:
            return False
        # The grant came after the command that drew the ticket was sent, so the claim ends no sooner than this.
        claim, now = min(options.claim_time, self.lease), self.driver.now()
        until = self.sent_at + claim
        if until - now < max(claim / 2, LEAST_LEFT) or has_jumped(self.clocks):
            return False
        # In this order: a thread that declines grants does the opposite, so one of the two sees the other.
        ACCEPTING.add(self)
        if self.asker in DECLINED:
            return False
        self.sent_at = self.granted_at = now
        self.granted_until = until
        return True

    def check_speed(self) -> None:
        """Raise LockUnavailableError if the lock was granted by a reply that came after the end of its lease."""
        took = self.granted_at - self.sent_at
        if took >= self.lease - self.kind.drift(self.lock, self.lease):
            raise LockUnavailableError(
                self.lock.name,
                reason=f"the reply that granted it took {took * 1000:.0f} ms, which is longer than its lease of "
                f"{self.lease * 1000:.0f} ms",
                advice="It was released again; check why Redis or the network is slow, or use a longer lease_time.",
                noun=self.lock.noun,
            )

    def acquire_call(self, count: int, lease: float, waiting: bool = False) -> ScriptCall:
        return self.kind.acquire(self.lock, self.asker, count, lease, waiting, self.beside)

    def _leave(self) -> ScriptCall:
        return self.kind.leave(self.lock, self.asker)

    def undo(self) -> ScriptCall | None:
        """Undoes a hold that the attempt may have taken, as far as it can be distinguished from a wanted hold."""
        return self.kind.undo(self.lock, self.owner, self.asker)

    async def wait(self) -> bool:
        """Take the lock, after a wait if necessary; returns False when the time is up. May follow a first try."""
        channel, driver = self.kind.channel(self.lock), self.driver
        if channel is None:
            return (not self.tries and await self.once()) or await self._wait_turn(_Sleeper(driver), tried=True)
        token = self.kind.token(self.lock, self.asker)
        waiter = None
        if not self.tries and channel in driver.channels:
            waiter = driver.listen_if_subscribed(channel, token)
        asked = False
        try:
            # If already subscribed, the first try joins the queue; otherwise it may succeed without SUBSCRIBE.
            tried = waiter is not None
            taken = not self.tries and await self.once(waiting=tried)
            if not taken and waiter is None and self._has_time():
                waiter = await driver.listen(channel, token, self.until)
            if not taken and waiter is not None:
                taken = await self._wait_turn(waiter, tried)
            asked = True
            return taken
        finally:
            if waiter is not None:
                waiter.close(asked)

    def _has_time(self) -> bool:
        return self.until is None or self.driver.now() < self.until

    async def _wait_turn(self, waiter: QueueWaiter, tried: bool) -> bool:
        self.waits_since = self.driver.now()
        looks_again = refuse_deadlock(self.lock, self.owner, self.until is None)
        self.look_at = self.waits_since + OWNER_LOOK_AFTER if looks_again else math.inf
        wait = Wait(self.lock, self.owner, self.owner_id, self.waits_since, waiter, self.asker)
        taken = False
        try:
            WAITS.add(wait)
            taken = await self._try_when_woken(waiter, wait, tried)
            return taken
        finally:
            WAITS.remove(wait)
            if wait.heartbeat_at < math.inf:
                heartbeat_after(wait, taken)

    async def _try_when_woken(self, waiter: QueueWaiter, wait: Wait, tried: bool) -> bool:
        while tried or not await self.once(waiting=True):
            tried = False
            pause = self._pause(wait)
            if pause <= 0:
                # The last try leaves the queue, or takes the lock if it was granted meanwhile.
                return await self.once()
            await self._sleep(waiter, pause)
            if self._is_granted(waiter):
                break
        return True

    async def _sleep(self, waiter: QueueWaiter, pause: float) -> None:
        """Sleep until woken. A holder may begin to wait for the result of a job while the job sleeps here."""
        now = self.driver.now()
        while now + pause > self.look_at:
            left = max(self.look_at - now, 0.0)
            if await waiter.wait(left):
                return
            refuse_deadlock(self.lock, self.owner, self.until is None)
            pause -= left
            now = self.driver.now()
            self.look_at = now + (now - self.waits_since)
        await waiter.wait(pause)

    def _pause(self, wait: Wait) -> float:
        """How long to sleep unless woken, in seconds; 0 or less when the time is up."""
        now = self.driver.now()
        poll, heartbeat = self.kind.pauses(self.lock, self.left_ms, self.tries)
        if self.outside:
            heartbeat = min(heartbeat, self.kind.java_poll)
        wait.asked_at, wait.heartbeat_at = self.sent_at, now + heartbeat
        wait.outside = self.outside
        if heartbeat < math.inf or not wait.expected:
            wait.expected = True
            expect(wait, now)
        return poll if self.until is None else min(poll, self.until - now)


async def pause_before_retry(driver: Driver, late: int, until: float) -> None:
    """Sleep after a number of grants that came too late, and no longer than until a monotonic time: the next grant
    will often come too late, too.
    """
    await driver.sleep(max(min(backoff(late, *_AGAIN_AFTER), until - driver.now()), 0.0))


def lack_of_replicas(error: BaseException) -> UnconfirmedError | None:
    """The cause of an error if too few replicas confirmed a lock, which the server then undid; else None."""
    return error.__cause__ if isinstance(error.__cause__, UnconfirmedError) else None


async def pause_for_replicas(error: BaseException, driver: Driver, give_up_at: float) -> bool:
    """If too few replicas have confirmed the lock, pause before the retry, for as long as the server has waited for
    them. The retry uses another owner id. Returns False for any other error, and when the time is up: then the caller
    raises the error."""
    lack, left = lack_of_replicas(error), give_up_at - driver.now()
    if lack is None or left <= 0:
        return False
    await driver.sleep(min(lack.waited, left))
    return True


def refuse_deadlock(lock: Named, owner: Owner, is_patient: bool) -> bool:
    """Before an owner waits for a lock (without a limit if it ``is_patient``), raise RuntimeError if the holder
    continues only when the running code ends, and the watchdog renews its lease until then. Returns whether that may
    be so later, or be seen later.
    """
    holders = [] if lock.noun != Named.noun else [each.owner for each in HOLDS.held_against(lock) if each.renewed]
    for holder in holders:
        if holder is not owner and is_blocked_on_caller(holder, is_patient):
            raise RuntimeError(
                f"Lock {lock.name!r} is held by {whereabouts(holder)}, which waits until {owner.caller_name!r} has "
                f"ended. So {owner.caller_name!r} would wait for the lock forever. Take it on one side only, or with "
                f"the same owner= on both."
            )
    return owner.pool != "" or may_be_awaited_later(holders)


class _Sleeper:
    """The waiter of a kind without wake-ups: it only sleeps."""

    ticket = ""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def wait(self, timeout: float | None) -> bool:  # noqa: ASYNC109 - the protocol's
        await self._driver.sleep(REPOLL if timeout is None else timeout)
        return False

    def wake(self) -> None:
        """Do nothing: it wakes itself soon."""

    def close(self, asked: bool = True) -> None:
        """Do nothing: it is in no queue."""
