"""A story of each script that writes, for ``test_every_script``.

It sends the script, does what its sender may do next, and mostly leaves a lock held. ``strike`` is called just before
the command under test.
"""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import redis
from celery import Celery
from django.conf import settings

from django_rlock import (
    CountDownLatch,
    FairLock,
    FencedLock,
    LimitedLock,
    MultiLock,
    PermitExpirableSemaphore,
    ReadLock,
    RLock,
    Semaphore,
    WriteLock,
    rlock,
)
from django_rlock._redis import keys, scripts
from django_rlock._redis.scripts import Script
from django_rlock._tasks.reservations import Reservation
from django_rlock._transport.calls import ScriptCall, Template, run_flow
from django_rlock._transport.identity import client_id, new_request, thread_owner
from django_rlock._transport.registry import sync_driver
from django_rlock.celery import LockedTask
from django_rlock.locks.expirable import Permit
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.kinds import RENEW, leave_javas_call, retire_call
from django_rlock.locks.redlock import RedLock
from django_rlock.locks.semaphore import _AcquirePermits
from tests.background import settle, until_renewed
from tests.eventually import UNTIL_SERVED

JAVA = f"{UUID(int=5, version=4)}:1"
"""An owner like those of Redisson's clients."""
NAME, KEY = "stock:42", "rlock:stock:42"

Strike = Callable[[], object]
Story = Callable[[Strike], object]
STORIES: dict[Script, Story] = {}


def story(script: Script) -> Callable[[Story], Story]:
    """Add a story of a script."""

    def add(tell: Story) -> Story:
        STORIES[script] = tell
        return tell

    return add


def send(call: ScriptCall) -> list[Any]:
    """What a hook of a lock makes, sent as all calls are."""
    driver = sync_driver("default")
    return run_flow(driver.run, (call, driver.now() + UNTIL_SERVED))


# --- locks -----------------------------------------------------------------------------------------------------------


def takes(make: Callable[..., Any]) -> Story:
    """Take it, and again under another lease."""

    def tell(strike: Strike) -> None:
        strike()
        with make(lease_time=5):
            pass
        make(lease_time=60).acquire()

    return tell


def releases(make: Callable[..., Any]) -> Story:
    def tell(strike: Strike) -> None:
        with make(lease_time=5):
            strike()
        make(lease_time=60).acquire()

    return tell


def renews(make: Callable[..., Any]) -> Story:
    """Renew it, and choose a longer lease."""

    def tell(strike: Strike) -> None:
        lock = make()
        lock.acquire()
        strike()
        [hold] = HOLDS.snapshot()
        until_renewed(hold)
        lock.extend(70)

    return tell


def fair(**options: Any) -> Any:
    return FairLock(NAME, **options)


def plain(**options: Any) -> Any:
    return RLock(NAME, **options)


def fenced(**options: Any) -> Any:
    return FencedLock(NAME, **options)


def reading(**options: Any) -> Any:
    return rlock(NAME, kind="read", **options)


def limited(**options: Any) -> Any:
    return rlock(NAME, permits=1, **options)


def writing(**options: Any) -> Any:
    return rlock(NAME, kind="write", **options)


def several(**options: Any) -> Any:
    others = FencedLock("stock:44"), ReadLock("stock:45"), WriteLock("stock:46"), LimitedLock("stock:47")
    return MultiLock(RLock(NAME), FairLock("stock:43"), *others, **options)


STORIES |= {
    scripts.FAIR_ACQUIRE: takes(fair),
    scripts.RLOCK_ACQUIRE: takes(plain),
    scripts.FENCED_ACQUIRE: takes(fenced),
    scripts.READ_ACQUIRE: takes(reading),
    scripts.LIMITED_ACQUIRE: takes(limited),
    scripts.WRITE_ACQUIRE: takes(writing),
    scripts.MULTI_ACQUIRE: takes(several),
    scripts.FAIR_RELEASE: releases(fair),
    scripts.RLOCK_RELEASE: releases(plain),
    scripts.READ_RELEASE: releases(reading),
    scripts.WRITE_RELEASE: releases(writing),
    scripts.MULTI_RELEASE: releases(several),
    scripts.LOCK_RENEW: renews(plain),
    scripts.SIDE_RENEW: renews(reading),
}


def waits(make: Callable[..., Any]) -> Story:
    """A waiter tries while a Java client holds the lock, gives up, and is the holder later."""

    def tell(strike: Strike) -> None:
        lock, abandoned = make(), thread_owner().owner_id
        thread_owner().new_id()
        with plain(owner=JAVA, lease_time=60):
            strike()
            send(lock._kind.acquire(lock, abandoned, 1, 60, waiting=True))
            send(leave_javas_call(lock))
        make(lease_time=60).acquire()

    return tell


STORIES |= {scripts.RLOCK_WAIT: waits(plain), scripts.FENCED_WAIT: waits(fenced)}


@story(scripts.JAVA_HEARTBEAT)
def heartbeat_beside_java(strike: Strike) -> None:
    """A process whose waiters have left."""
    with plain(owner=JAVA, lease_time=60):
        strike()
        send(plain()._kind.heartbeat([(plain(), "")], 0))
        send(leave_javas_call(plain()))
    plain(lease_time=60).acquire()


@story(scripts.JAVA_LEAVE)
def leave_javas(strike: Strike) -> None:
    """Its process waits again since."""
    with plain(owner=JAVA, lease_time=60):
        send(plain()._kind.heartbeat([(plain(), "")], 0))
        strike()
        send(leave_javas_call(plain()))
        send(plain()._kind.heartbeat([(plain(), "")], 0))
    plain(lease_time=60).acquire()


def extends(make: Callable[..., Any]) -> Story:
    def tell(strike: Strike) -> None:
        lock = make(lease_time=60)
        lock.acquire()
        strike()
        lock.extend(5)
        lock.extend(50)

    return tell


STORIES |= {scripts.LOCK_EXTEND: extends(plain), scripts.SIDE_EXTEND: extends(reading)}


@story(scripts.LOCK_KEEP)
def keep(strike: Strike) -> None:
    """Release it for a while, free it by force, and take it again."""
    lock = plain(lease_time=60)
    lock.acquire()
    strike()
    lock.leave(50)
    lock.force_release()
    lock.acquire()


@story(scripts.LOCK_FORCE_RELEASE)
def force_release(strike: Strike) -> None:
    plain(owner="another").acquire()
    strike()
    plain().force_release()
    HOLDS.clear()
    plain(lease_time=60).acquire()


@story(scripts.FAIR_LEAVE)
def leave(strike: Strike) -> None:
    """A waiter gives up, and is the holder later."""
    abandoned = thread_owner().owner_id
    thread_owner().new_id()
    with plain(lease_time=60):
        send(fair()._kind.acquire(fair(), abandoned, 1, 60, waiting=True))
        strike()
        send(fair()._kind.leave(fair(), abandoned))
    fair(lease_time=60).acquire()


@story(scripts.FAIR_DECLINE)
def decline(strike: Strike) -> None:
    """A ticket that nobody waits for is granted; later its owner takes the lock."""
    granted = thread_owner().owner_id
    with plain(owner="another", lease_time=60):
        send(fair()._kind.acquire(fair(), granted, 1, 60, waiting=True))
    send(fair()._kind.heartbeat([(fair(), granted)], 10))
    strike()
    send(fair()._kind.decline(fair(), granted))
    fair(lease_time=60).acquire()


@story(scripts.FAIR_HEARTBEAT)
def heartbeat(strike: Strike) -> None:
    """A process whose waiter had its turn since, and has left."""
    with plain(owner="another", lease_time=60):
        waiting = thread_owner().owner_id
        send(fair()._kind.acquire(fair(), waiting, 1, 60, waiting=True))
        strike()
        send(fair()._kind.heartbeat([(fair(), waiting)], 0))
        send(fair()._kind.leave(fair(), waiting))
    thread_owner().new_id()
    fair(lease_time=60).acquire()


@story(scripts.WRITE_HEARTBEAT)
def beat_of_a_writer(strike: Strike) -> None:
    reading(owner="another", lease_time=60).acquire()
    lock, waiting = writing(prefer="writer"), f"{client_id()}:waits"
    send(lock._kind.acquire(lock, waiting, 1, 60, waiting=True))
    strike()
    send(lock._kind.heartbeat([(lock, waiting)], 0))


@story(scripts.WRITE_WITHDRAW)
def withdraw(strike: Strike) -> None:
    reading(owner="another", lease_time=60).acquire()
    lock, first, second = writing(prefer="writer"), f"{client_id()}:1st", f"{client_id()}:2nd"
    send(lock._kind.acquire(lock, first, 1, 60, waiting=True))
    strike()
    send(lock._kind.withdraw(lock, first))
    send(lock._kind.acquire(lock, second, 1, 60, waiting=True))


# --- RedLock: what it sends to one of its nodes ----------------------------------------------------------------------


def node_calls() -> tuple[Any, str, Callable[[], object]]:
    """The lock, the owner of an attempt, and the next owner's attempt."""
    lock, owner, after = RedLock(NAME), new_request(), new_request()
    return lock, owner, lambda: send(lock._kind.acquire(lock, after, 1, 25, False))


@story(scripts.REDLOCK_ACQUIRE)
def vote(strike: Strike) -> None:
    """For an attempt that is given up: the node is free."""
    lock, owner, _ = node_calls()
    strike()
    send(lock._kind.acquire(lock, owner, 1, 5, False))
    send(lock._kind.leave(lock, owner).lasting())


@story(scripts.REDLOCK_BUMP)
def bump(strike: Strike) -> None:
    """Count on from a token, for an owner that is gone when the next one has drawn its own."""
    lock, owner, then = node_calls()
    call = lock._kind.acquire(lock, owner, 1, 5, False)
    [*_, token, _] = send(call)
    strike()
    send(call.bump(token + 1_000_000))
    send(lock._kind.leave(lock, owner))
    then()


def holder() -> tuple[Any, str, Callable[[], object]]:
    """The lock, the owner that holds it, and the next owner's attempt."""
    lock, owner, then = node_calls()
    send(lock._kind.acquire(lock, owner, 1, 5, False))
    return lock, owner, then


@story(scripts.REDLOCK_RELEASE)
def last_release(strike: Strike) -> None:
    lock, owner, then = holder()
    strike()
    send(lock._kind.release(lock, owner, 0, 5))
    then()


@story(scripts.REDLOCK_RENEW)
def renewal(strike: Strike) -> None:
    lock, owner, then = holder()
    strike()
    send(lock._kind.lease(lock, owner, 30, RENEW))
    send(lock._kind.release(lock, owner, 0, 5))
    then()


@story(scripts.REDLOCK_SEED)
def seed(strike: Strike) -> None:
    """A node that has forgotten a holder gets it back, and the holder leaves."""
    lock, owner, _ = node_calls()
    strike()
    send(lock._kind.lease(lock, owner, 30, RENEW).seed(2))
    send(lock._kind.leave(lock, owner).lasting())


@story(scripts.REDLOCK_VOUCH)
def vouch(strike: Strike) -> None:
    """A node gets its vote, loses its data, and gets a new mark."""
    client = redis.Redis.from_url(settings.CACHES["default"]["LOCATION"])
    mark = keys.NODE_KEY
    client.hset(mark, "mark", "?first")
    strike()
    send(ScriptCall(NAME, Template(scripts.REDLOCK_VOUCH, ("run", 30_000), (mark,)), mark, "?first"))
    client.hset(mark, "mark", "?second")
    client.close()


# --- semaphores and latches ------------------------------------------------------------------------------------------


def changes(make: Callable[..., Any], method: str, *args: Any, there: int | None = 3) -> Story:
    """A number is changed, and has another value when the story ends."""

    def tell(strike: Strike) -> None:
        counter = make("printers")
        if there is not None:
            set_number(there)
        strike()
        getattr(counter, method)(*args)
        settle()
        set_number(7)

    return tell


def set_number(number: int) -> None:
    """As others may."""
    Semaphore("printers").delete()
    Semaphore("printers").try_set_permits(number)


def permits() -> PermitExpirableSemaphore:
    set_number(3)
    return PermitExpirableSemaphore("printers")


def take(licences: PermitExpirableSemaphore, lease: float) -> Permit:
    permit = licences.acquire(lease_time=lease)
    assert permit
    return permit


STORIES |= {
    scripts.SEMAPHORE_ACQUIRE: changes(Semaphore, "acquire"),
    scripts.SEMAPHORE_RELEASE: changes(Semaphore, "release"),
    scripts.SEMAPHORE_SET: changes(Semaphore, "try_set_permits", 5, there=None),
    scripts.SEMAPHORE_ADD: changes(Semaphore, "add_permits", 2),
    scripts.SEMAPHORE_DRAIN: changes(Semaphore, "drain_permits"),
    scripts.SEMAPHORE_DELETE: changes(Semaphore, "delete"),
    scripts.PERMIT_SET: changes(PermitExpirableSemaphore, "set_permits", 5),
    scripts.LATCH_SET: changes(CountDownLatch, "try_set_count", 5, there=None),
    scripts.LATCH_COUNT_DOWN: changes(CountDownLatch, "count_down"),
    scripts.LATCH_DELETE: changes(CountDownLatch, "delete"),
}


@story(scripts.SEMAPHORE_LEAVE)
def leave_semaphore(strike: Strike) -> None:
    """A request that took a permit is given up; others take some later."""
    set_number(3)
    request = _AcquirePermits(Semaphore("printers"), 1)
    send(request._kind.acquire(request, request.id, 1, 120, False))
    strike()
    send(request._kind.leave(request, request.id))
    assert Semaphore("printers").acquire(2)


@story(scripts.REQUEST_RETIRE)
def retire(strike: Strike) -> None:
    set_number(3)
    strike()
    send(retire_call(Semaphore("printers"), new_request()))
    assert Semaphore("printers").acquire(2)


@story(scripts.PERMIT_ACQUIRE)
def take_permit(strike: Strike) -> None:
    licences = permits()
    strike()
    take(licences, 5).release()
    licences.acquire(lease_time=60)


@story(scripts.PERMIT_RELEASE)
def release_permit(strike: Strike) -> None:
    licences = permits()
    permit = take(licences, 5)
    strike()
    permit.release()
    licences.acquire(2, lease_time=60)


@story(scripts.PERMIT_LEAVE)
def leave_permit(strike: Strike) -> None:
    licences = permits()
    permit = take(licences, 5)
    strike()
    send(licences._kind.leave(licences, permit.ids[0]))
    licences.acquire(2, lease_time=60)


@story(scripts.PERMIT_RENEW)
def renew_permit(strike: Strike) -> None:
    licences = permits()
    permit = take(licences, 60)
    strike()
    licences.update_lease_time(permit, 5)
    licences.update_lease_time(permit, 50)


# --- Celery ----------------------------------------------------------------------------------------------------------


def reservation(token: str) -> Reservation:
    """The reservation of a message of a task."""
    with Celery("scripts", broker="memory://", set_as_current=False) as app:

        @app.task(base=LockedTask, shared=False, name="job", lock_key="job", lock_scope="queue")
        def job() -> None:
            """Do nothing."""

        return Reservation(job, "job", "1", token)


@story(scripts.TASK_RESERVATION)
def keep_reservation(strike: Strike) -> None:
    reservation("first").reserve()
    reservation("first").keep(60)
    reservation("second").reserve(replaces="replace")
    strike()
    reservation("second").keep(60)
    reservation("second").release()
    reservation("third").reserve()


@story(scripts.TASK_QUEUE)
def reserve(strike: Strike) -> None:
    strike()
    reservation("first").reserve(replaces="replace")
    reservation("first").keep(60)
    reservation("second").reserve(replaces="replace")
    reservation("second").keep(60)


def task_call(script: Script, first: str | int, *args: str | int) -> ScriptCall:
    key = f"rlock_task:{script.name}"
    return ScriptCall("job", Template(script, args, (key,)), key, first)


@story(scripts.TASK_DONE)
def note_success(strike: Strike) -> None:
    """A task succeeds, retries itself all the same, succeeds again, is rejected, and succeeds for the third time."""
    strike()
    send(task_call(scripts.TASK_DONE, "0.1", 60_000))
    send(task_call(scripts.TASK_DONE, "1.2", 60_000))
    send(task_call(scripts.TASK_DONE, "1.2", 0))
    send(task_call(scripts.TASK_DONE, "1.3", 60_000))


@story(scripts.TASK_FINISH)
def note_end(strike: Strike) -> None:
    """A task has done all that follows its body, and later all that follows the body of its retry."""
    strike()
    send(task_call(scripts.TASK_FINISH, 60_000, "+0.1"))
    send(task_call(scripts.TASK_FINISH, 60_000, "+1.2"))


@story(scripts.TASK_EXPECT)
def expect_copy(strike: Strike) -> None:
    """A copy of a message is expected, and then the one that comes after it."""
    strike()
    send(task_call(scripts.TASK_EXPECT, "0:a", "", 60_000))
    send(task_call(scripts.TASK_EXPECT, "0:b", "0:a", 60_000))
