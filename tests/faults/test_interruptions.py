"""Exceptions that signals raise anywhere in acquire and release: Celery's soft time limit, Ctrl-C."""

import ctypes
import gc
import itertools
import operator
import signal
import sys
import threading
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import pytest

from django_rlock import (
    LockLostError,
    LockNotOwnedError,
    MultiLock,
    PermitExpirableSemaphore,
    RLock,
    Semaphore,
    signals,
)
from django_rlock._core import threads
from django_rlock._core.clock import monotonic
from django_rlock._redis.keys import report_key
from django_rlock._transport import calls
from django_rlock._transport.calls import EVERYBODY, pack_command, run_sync
from django_rlock._transport.connection import Connection
from django_rlock._transport.identity import client_id
from django_rlock._transport.registry import sync_driver
from django_rlock._transport.servers import server
from django_rlock.locks.holds import HOLDS, WAITS
from django_rlock.locks.records import Hold
from django_rlock.management import _CommandSection as Section
from tests.background import look_at, settle, until_clean
from tests.beside import beside
from tests.eventually import UNTIL_SERVED, eventually
from tests.faults.interrupting import (
    MAKERS,
    Interruption,
    at_call,
    block_of,
    interrupted_once,
    interruptions,
    is_interrupted,
    lose_hold_of,
    raise_interruption,
)
from tests.faults.storm import KINDS
from tests.faults.storm_process import BrokenOffError, StoppedError, Watched, run_storm

# A socket whose interrupted opener never had it is closed by Python.
pytestmark = [pytest.mark.lengthy, pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]

KEY = "rlock:stock:42"
_raise_signal = ctypes.PyDLL(None)["raise"]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_a_storm_of_interruptions_stops_nobody(kind):
    """Nobody waits for what an interrupted thread has left taken, and nothing stays locked, queued or recorded.

    ``make storm`` runs longer ones.
    """
    outcome = run_storm(kind, interruptions=100)
    assert outcome.passed, f"{outcome.how}\n{outcome.text}"


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["fair", "redlock"])
def test_a_storm_without_hiredis(kind):
    outcome = run_storm(kind, interruptions=100, company="pair", hiredis=False)
    assert outcome.passed, f"{outcome.how}\n{outcome.text}"


STOPS = """
import faulthandler, signal, threading
faulthandler.enable()
faulthandler.register(signal.SIGUSR1)
mutex = threading.Lock()
def take_it_twice():
    mutex.acquire()
    print("goes on", flush=True)
    mutex.acquire()
threading.Thread(target=take_it_twice).start()
"""


def test_a_process_that_stops_is_shown_where_it_stands():
    with Watched([sys.executable, "-c", STOPS]) as process:
        assert process.line() == "goes on\n"
        process.patience = 0.1
        with pytest.raises(StoppedError, match="in take_it_twice"):
            process.line()


def test_a_process_that_crashes_is_shown_where_it_ran():
    program = "import faulthandler, os\nfaulthandler.enable()\ndef crash(): os.kill(os.getpid(), 11)\ncrash()"
    with Watched([sys.executable, "-c", program]) as process, pytest.raises(BrokenOffError, match="in crash"):
        process.line()


async def test_interruption_after_the_grant_leaves_no_hold(binding, kind, redis_client, monkeypatch):
    """The grant is there, but the caller never learns of it."""
    lock = kind("stock:42")
    with monkeypatch.context() as patch:
        patch.setattr("django_rlock.locks.acquire.report_acquired", raise_interruption)
        with pytest.raises(Interruption):
            await binding.acquire(lock)
    assert HOLDS.snapshot() == []
    await binding.until(lambda: not redis_client.exists(KEY))


async def test_interruption_after_entering_again_keeps_the_count(binding, kind, redis_client, monkeypatch):
    lock = kind("stock:42")
    async with binding.inside(lock):
        with monkeypatch.context() as patch:
            patch.setattr("django_rlock.locks.acquire.report_acquired", raise_interruption)
            with pytest.raises(Interruption):
                await binding.acquire(lock)
        assert [hold.count for hold in HOLDS.snapshot()] == [1]
    assert not redis_client.exists(KEY)


def test_wait_that_was_interrupted_while_it_left_is_over(kind, redis_client, monkeypatch):
    """Neither the report that names it nor the heartbeats for it keep it, or its place in the line."""
    lock = kind("stock:42")

    def wait_for_it() -> None:
        with pytest.raises(Interruption):
            lock.acquire(wait_time=30)

    with monkeypatch.context() as patch:
        patch.setattr("django_rlock.locks.holds.Waits.remove", raise_interruption)
        with ExitStack() as waiting, lock:
            waiting.enter_context(beside(wait_for_it))
            report = report_key(client_id())
            eventually(lambda: any(field.startswith("wait ") for field in redis_client.hkeys(report)))
    gc.collect()  # the exception and its frames
    assert WAITS.snapshot() == []
    until_clean()


@pytest.mark.parametrize("make", [lambda: RLock("stock:42"), lambda: MultiLock(RLock("a"), RLock("stock:42"))])
def test_interrupted_release_of_a_lock_that_was_lost_before_reports_that(monkeypatch, make):
    outer, lock = RLock("stock:42"), make()
    lose_hold_of(outer)
    lock.acquire()
    monkeypatch.setattr(Connection, "ask", interrupted_once(monkeypatch))
    with pytest.raises(Interruption):
        lock.release()
    with pytest.raises(LockLostError):
        outer.release()


def nested_blocks_of(lock):
    with lock, lock:
        pass


@pytest.mark.parametrize(
    ("kind", "run"), [*((kind, block_of) for kind in MAKERS), ("rlock", nested_blocks_of), ("read", nested_blocks_of)]
)
def test_interrupted_block_is_left(kind, run):
    """Wherever it was interrupted, before it began and after it ended as well: nothing stays locked in its thread."""
    lock = MAKERS[kind]()
    for number in interruptions(partial(run, lock)):
        assert HOLDS.snapshot() == [], number
        until_clean()
        assert not any(part.locked() for part in lock.parts), number


def test_interrupted_block_of_a_lock_that_was_lost_before_is_left():
    """There, too, what was taken anew is released."""
    lock = RLock("stock:42")
    lose_hold_of(lock)
    for number in interruptions(partial(block_of, lock)):
        assert all(hold.lost for hold in HOLDS.snapshot()), number
        until_clean()
        assert not lock.locked(), number
        if not HOLDS.snapshot():
            lose_hold_of(lock)
    with pytest.raises(LockLostError):
        lock.release()


@pytest.mark.parametrize("make", [RLock, lambda name, owner: MultiLock(RLock("a"), RLock(name), owner=owner)])
def test_interrupted_end_of_a_call_keeps_no_lock_of_a_name(monkeypatch, make):
    """Its owner never ends, and nobody else releases it."""
    lock = make("stock:42", owner="batch")
    monkeypatch.setattr("django_rlock.locks.mutex.QueuedCall.__exit__", interrupted_once(monkeypatch))
    with pytest.raises(Interruption):
        lock.acquire()
    assert HOLDS.snapshot() == []


@pytest.mark.parametrize("owner", [None, "batch"])
def test_interrupted_extension_is_renewed_as_before(owner):
    """Otherwise it would be lost although nothing has gone wrong, or be renewed with the lease of the extension."""
    lock = RLock("stock:42", owner=owner)
    lock.acquire()
    for number in interruptions(lambda: lock.extend(1000)):
        settle()
        (hold,) = HOLDS.snapshot()
        assert is_as_taken(hold) or is_extended(hold), number
        lock.release()
        lock.acquire()
    lock.release()


@pytest.mark.parametrize("lease", [1000, None])
def test_permit_is_renewed_as_before_when_the_change_of_its_lease_is_interrupted(licences, lease):
    def change() -> None:
        licences.update_lease_time(permit, lease)

    permit = licences.acquire(renewed=True)
    for number in interruptions(change):
        settle()
        holds = HOLDS.snapshot()
        assert all(is_as_taken(hold) or is_extended(hold) for hold in holds), number
        assert holds or licences.lease_time(permit) is None, number
        permit.release()
        permit = licences.acquire(renewed=True)
    permit.release()


def is_as_taken(hold):
    return hold.renewed and hold.lease == hold.runs_for == 30 and hold.deadline < monotonic() + 30


def is_extended(hold):
    return not hold.renewed and hold.lease == hold.runs_for == 1000 and hold.deadline > monotonic() + 900


def test_extension_that_is_interrupted_when_it_is_recorded_is_renewed_as_before(licences, monkeypatch):
    """At any attribute: half a record would stop the renewal of all locks."""
    permit = licences.acquire(renewed=True)
    for at in itertools.count():
        (hold,) = HOLDS.snapshot()
        with monkeypatch.context() as patch:
            patch.setattr(Hold, "__setattr__", interrupted_after(at), raising=False)
            try:
                licences.update_lease_time(permit, 1000)
            except Interruption:
                pass
            else:
                break
        assert is_as_taken(hold), at
        settle()
    assert is_extended(hold)
    assert at == 5  # so many assignments, each of which was interrupted
    permit.release()


def interrupted_after(number):
    """An assignment of a lease's attributes that is interrupted once, after so many."""
    left = itertools.count(number, -1)

    def assign(hold, name, value):
        object.__setattr__(hold, name, value)
        if name in {"lease", "runs_for", "renewed", "deadline"} and next(left) == 0:
            raise Interruption

    return assign


def test_interrupted_keeping_of_a_lock_is_not_renewed():
    """A command keeps its lock for a while after its end; then nobody releases it."""
    lock = RLock("stock:42", at_least=300)

    def keep():
        with Section(lock):
            pass

    keep()
    lock.force_release()
    for number in interruptions(keep):
        settle()
        assert not any(hold.renewed for hold in HOLDS.snapshot()), number
        lock.force_release()
        with suppress(LockNotOwnedError, LockLostError):
            lock.release()
    lock.force_release()


def test_interrupted_release_by_force_frees_the_lock_or_lets_it_be_renewed():
    lock = RLock("stock:42")
    lock.acquire()
    for number in interruptions(lock.force_release):
        settle()
        for hold in HOLDS.snapshot():
            assert (hold.renewed and not hold.ending) or not lock.locked(), number
        with suppress(LockLostError, LockNotOwnedError):  # it was freed
            lock.release()
        lock.acquire()
    assert not lock.locked()


def test_interrupted_re_entry_does_not_count():
    lock = RLock("stock:42")
    with lock:
        for number in interruptions(lock.acquire):
            settle()
            (hold,) = HOLDS.snapshot()
            assert hold.count == 1, number
            assert hold.renewed, number
        lock.release()
    assert not lock.locked()


def test_interrupted_re_entry_keeps_what_was_renewed_meanwhile(monkeypatch):
    """By the watchdog, while receivers of the signal ran; an earlier deadline would be taken for a loss."""
    lock = RLock("stock:42")
    lock.acquire()
    (hold,) = HOLDS.snapshot()

    def be_renewed_and_interrupted(*_: object) -> None:
        hold.deadline += 1000
        raise Interruption

    with monkeypatch.context() as patch:
        patch.setattr("django_rlock.locks.acquire.report_acquired", be_renewed_and_interrupted)
        with pytest.raises(Interruption):
            lock.acquire()
    assert hold.deadline > monotonic() + 900
    lock.release()


class RecordingMutex:
    """A mutex that knows which threads have taken it."""

    def __init__(self) -> None:
        self.takers: set[int] = set()

    def __enter__(self) -> None:
        self.takers.add(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("told", [signals.lock_acquired, signals.lock_released])
async def test_callers_do_not_take_the_mutex_of_a_signal(binding, kind, told, monkeypatch):
    """Not when a kind's first lock sends it, nor after a receiver is gone. An interruption might leave it locked."""
    heard: list[str] = []

    def hear(lock, **_):
        heard.append(lock.name)

    def hear_for_a_while(**_):
        pass

    told.connect(hear_for_a_while)
    told.connect(hear)
    try:
        monkeypatch.setattr(told, "lock", mutex := RecordingMutex())
        async with binding.inside(kind("stock:42")):
            pass
        del hear_for_a_while
        gc.collect()
        async with binding.inside(kind("stock:43")):
            pass
        assert mutex.takers
        assert threading.get_ident() not in mutex.takers
    finally:
        told.disconnect(hear)
    assert heard == ["stock:42", "stock:43"]


def look() -> None:
    """As reports do, and the end of a request."""
    HOLDS.snapshot()


def renew() -> None:
    """As the watchdog does, when a third of the lease has passed."""
    for hold in HOLDS.snapshot():
        hold.deadline -= hold.lease * 2 / 3
        look_at(hold)
    settle()


@pytest.mark.parametrize("ask", [look, renew])
@pytest.mark.parametrize("interrupted", ["acquire", "release"])
def test_members_may_be_asked_for_while_they_are_taken_or_freed(redis_client, ask, interrupted):
    """By another thread, at any point: what was one record becomes one for each of them there."""
    lock = MAKERS["multi"]()
    for number in itertools.count(1):
        asked: list[int] = []

        def strike(number: int = number, asked: list[int] = asked) -> None:
            asked.append(number)
            ask()

        if interrupted == "release":
            lock.acquire()
        is_interrupted(getattr(lock, interrupted), number, strike)
        if interrupted == "acquire":
            lock.check()
            lock.release()
        assert HOLDS.snapshot() == [], number
        assert not redis_client.keys("rlock:*"), number
        if not asked:
            return


@pytest.mark.parametrize("permits", [1, 2])
def test_interrupted_acquire_of_a_semaphore_takes_nothing(redis_client, permits):
    printers = Semaphore("printers")
    printers.try_set_permits(2)
    for number in interruptions(lambda: printers.acquire(permits)):
        until_clean()
        assert redis_client.get("rlock:printers") == "2", number
    assert redis_client.get("rlock:printers") == str(2 - permits)


@pytest.fixture
def licences():
    licences = PermitExpirableSemaphore("licences")
    licences.try_set_permits(2)
    return licences


@pytest.mark.parametrize("renewed", [True, False])
def test_interrupted_acquire_of_permits_takes_nothing(licences, renewed):
    taken = []
    for number in interruptions(lambda: taken.append(licences.acquire(2, renewed=renewed))):
        until_clean()
        assert taken or licences.available_permits() == 2, number
        assert taken or HOLDS.snapshot() == [], number
        while taken:
            licences.release(taken.pop())
    licences.release(taken.pop())


def test_permit_whose_release_is_interrupted_is_renewed_or_given_back(licences):
    def give_back() -> None:
        permit.release()

    permit = licences.acquire(renewed=True)
    for number in interruptions(give_back):
        until_clean()
        assert licences.acquired_permits() == len(HOLDS.snapshot()), number
        if not HOLDS.snapshot():
            permit = licences.acquire(renewed=True)
    assert licences.acquired_permits() == 0


def test_waiter_that_is_interrupted_while_it_leaves_takes_nobody_along(redis_client):
    """Another one comes at any call before that."""
    driver = sync_driver("default")
    came: list[Any] = []

    def leave(comes, ends):
        """Whether there were as many calls."""
        channel = f"left at {comes} and {ends}"
        leaver = run_sync(driver.listen(channel, EVERYBODY))

        def come() -> None:
            came.append(driver.listen_if_subscribed(channel, EVERYBODY))
            at_call(ends, raise_interruption)

        interrupted = is_interrupted(leaver.close, comes, come)
        redis_client.publish(channel, "1")
        return interrupted

    for comes in itertools.count(1):
        for ends in itertools.count(1):
            interrupted = leave(comes, ends)
            while came:
                assert run_sync(came.pop().wait(UNTIL_SERVED)), (comes, ends)
            if not interrupted:
                break
        if ends == 1:
            return


class Gate:
    """A raw lock before which a signal comes just before a thread sleeps on it, when Python no longer looks for any."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock
        self.asked: list[float] = []

    def acquire(self, blocking: bool, timeout: float) -> bool:
        self.asked.append(timeout)
        raised, acquired = partial(_raise_signal, signal.SIGUSR2), partial(self.lock.acquire, blocking, timeout)
        _, woken = map(operator.call, (raised, acquired))
        return woken


def test_a_signal_just_before_a_long_sleep_ends_it_soon(monkeypatch):
    monkeypatch.setattr(threads, "SIGNALS_WITHIN", 0.02)
    waiter: Any = run_sync(sync_driver("default").listen("channel", EVERYBODY))
    waiter._event._gate = gate = Gate(waiter._event._gate)
    former = signal.signal(signal.SIGUSR2, raise_interruption)
    try:
        with pytest.raises(Interruption):
            run_sync(waiter.wait(UNTIL_SERVED))
    finally:
        signal.signal(signal.SIGUSR2, former)
    assert gate.asked == [0.02]


@pytest.fixture
def stale(redis_client):
    """Plants a reply into an idle link, as a caller would who is interrupted between send and read."""

    def plant(*command: str) -> None:
        links = server("default")
        link = links.take(5)
        link.sock.sendall(pack_command(*command))
        links.give_back(link)

    return plant


@pytest.mark.parametrize(
    "command",
    [
        ("EVAL", "return {ARGV[1], 'OK'}", "0", "1"),
        ("EVAL", "return 'OK'", "0"),
        ("EVAL", "return {1}", "0"),
        ("PING",),
        ("EVALSHA", "0" * 40, "0"),
        ("GET", KEY),
    ],
    ids=["grant", "ok", "number", "pong", "noscript", "wrongtype"],
)
def test_stale_reply_in_the_pool_is_not_believed(kind, redis_client, stale, command, monkeypatch):
    monkeypatch.setattr(calls, "REPLY_GRACE", UNTIL_SERVED)  # a stalled machine may take long to connect anew
    redis_client.hset(KEY, "another", 1)
    stale(*command)
    assert kind("stock:42").acquire(blocking=False) is False
    assert redis_client.hgetall(KEY) == {"another": "1"}


def test_stale_answer_to_a_release_is_not_believed(kind, redis_client, stale):
    lock = kind("stock:42")
    lock.acquire()
    stale("EVAL", "return {'1', 0}", "0")
    lock.release()
    assert not redis_client.exists(KEY)


def test_interrupted_link_is_closed(kind, redis_client, monkeypatch):
    """Its reply may still be on the way, and belongs to no caller."""
    lock = kind("stock:42")
    interrupted: list[Connection] = []

    def ask(link: Connection, packed: bytes, *_: object) -> None:
        link.sock.sendall(packed)
        interrupted.append(link)
        raise Interruption

    with lock:
        pass
    with monkeypatch.context() as patch:
        patch.setattr(Connection, "ask", ask)
        with pytest.raises(Interruption):
            lock.acquire(blocking=False)
    (link,) = interrupted
    assert link.sock.fileno() == -1
    assert link not in server("default").idle
    with lock:
        assert lock.owned()
