"""Exceptions that signals raise anywhere in acquire and release: Celery's soft time limit, Ctrl-C."""

import asyncio
import ctypes
import gc
import itertools
import operator
import signal
import sys
import threading
import traceback
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any

import pytest
from django.db import connections, transaction
from django.http import HttpResponse, StreamingHttpResponse
from django.template.response import TemplateResponse
from django.test import RequestFactory

from django_rlock import (
    FairLock,
    FencedLock,
    LockLostError,
    LockNotOwnedError,
    LockTimeoutError,
    MultiLock,
    PermitExpirableSemaphore,
    ReadWriteLock,
    RLock,
    Semaphore,
    distributed_lock,
    signals,
    threads,
)
from django_rlock.connections import server
from django_rlock.drivers.base import EVERYBODY, run_sync
from django_rlock.drivers.calls import pack_command
from django_rlock.drivers.identity import client_id, current_owner
from django_rlock.drivers.room import sync_driver
from django_rlock.links.link import Link
from django_rlock.locked_calls import AROUND
from django_rlock.locks.allornone import AllOrNone
from django_rlock.locks.attempt import Claim
from django_rlock.locks.detached import Detached
from django_rlock.locks.flows import LockFlows
from django_rlock.locks.hold import Hold
from django_rlock.locks.holds import HOLDS, WAITS, context
from django_rlock.locks.transactions import keep_until_commit
from django_rlock.locks.watchdog import lose
from django_rlock.management.locked import _Section as Section
from django_rlock.middleware import LockMiddleware
from django_rlock.reports import report_key
from tests.background import look_at, settle, until_clean
from tests.eventually import UNTIL_SERVED, eventually
from tests.faults.storm import KINDS, is_swallowed
from tests.faults.storm_process import BrokenOffError, Outcome, StoppedError, Watched, run_storm
from tests.faults.storms import places_of, summary
from tests.operators import free_by_force

# A socket whose interrupted opener never had it is closed by Python.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

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
        with pytest.raises(StoppedError) as stopped:
            process.line()
    outcome = Outcome("stopped", str(stopped.value), 0)
    assert any(":take_it_twice < " in place for place in places_of(outcome))
    assert "\n1 stopped:\n   1  " in summary([outcome])


def test_a_process_that_crashes_is_shown_where_it_ran():
    program = "import faulthandler, os\nfaulthandler.enable()\ndef crash(): os.kill(os.getpid(), 11)\ncrash()"
    with Watched([sys.executable, "-c", program]) as process, pytest.raises(BrokenOffError) as broken:
        process.line()
    (place,) = places_of(Outcome("broke off", str(broken.value), 0))
    assert ":crash < " in place


class Interruption(BaseException):
    pass


def _interrupted(*_: object) -> None:
    raise Interruption


async def test_interruption_after_the_grant_leaves_no_hold(face, kind, redis_client, monkeypatch):
    """The grant is there, but the caller never learns of it."""
    lock = kind("stock:42")
    with monkeypatch.context() as patch:
        patch.setattr("django_rlock.locks.flows.LockFlows._tell_acquired", _interrupted)
        with pytest.raises(Interruption):
            await face.acquire(lock)
    assert HOLDS.snapshot() == []
    await face.until(lambda: not redis_client.exists(KEY))


async def test_interruption_after_entering_again_keeps_the_count(face, kind, redis_client, monkeypatch):
    lock = kind("stock:42")
    async with face.inside(lock):
        with monkeypatch.context() as patch:
            patch.setattr("django_rlock.locks.flows.LockFlows._tell_acquired", _interrupted)
            with pytest.raises(Interruption):
                await face.acquire(lock)
        assert [hold.count for hold in HOLDS.snapshot()] == [1]
    assert not redis_client.exists(KEY)


def test_wait_that_was_interrupted_while_it_left_is_over(kind, redis_client, monkeypatch):
    """Neither the report that names it nor the beats for it keep it, or its place in the line."""
    lock = kind("stock:42")

    def wait_for_it() -> None:
        with pytest.raises(Interruption):
            lock.acquire(wait_time=30)

    with monkeypatch.context() as patch:
        patch.setattr("django_rlock.locks.holds.Waits.remove", _interrupted)
        with lock:
            thread = threading.Thread(target=wait_for_it)
            thread.start()
            report = report_key(client_id())
            eventually(lambda: any(field.startswith("wait ") for field in redis_client.hkeys(report)))
        thread.join(UNTIL_SERVED)
    gc.collect()  # the exception and its frames
    assert WAITS.snapshot() == []
    until_clean()


def at_call(number, strike, is_spared=is_swallowed):
    """Have something done at the calls that follow, at one of them, as a signal's handler would do it."""
    made = itertools.count(1)

    def count(frame, event, _argument):
        if event in {"call", "c_return"} and not is_spared(frame) and next(made) == number:
            strike()

    sys.setprofile(count)


def is_interrupted(action, number, strike=_interrupted, is_spared=is_swallowed):
    """Whether an action was interrupted, by what is done at one of its calls; not when it makes fewer of them."""
    try:
        at_call(number, strike, is_spared)
        action()
    except Interruption:
        return True
    finally:
        sys.setprofile(None)
    return False


def interruptions(action, is_spared=is_swallowed):
    """Interrupt an action at one of its calls, each time at a later one, until it ends before.

    An interruption may be dropped by Python, where it ends a generator. Whatever Python complains of is an error, such
    as a coroutine that was made and not awaited.
    """
    struck = []

    def strike() -> None:
        struck.append(True)
        _interrupted()

    for number in itertools.count(1):
        is_interrupted(action, number, strike, is_spared)
        if not struck:
            return
        struck.clear()
        yield number


def outside_of(*files):
    """Spares what is not in these files, because other tests interrupt it."""
    return lambda frame: is_swallowed(frame) or not frame.f_code.co_filename.endswith(files)


MAKERS = {
    "rlock": lambda: RLock("stock:42"),
    "fair": lambda: FairLock("stock:42"),
    "fenced": lambda: FencedLock("stock:42"),
    "read": lambda: ReadWriteLock("stock:42").read_lock,
    "write": lambda: ReadWriteLock("stock:42").write_lock,
    "multi": lambda: MultiLock(*[FairLock(f"account:{number}") for number in range(3)]),
    "multi, by several scripts": lambda: MultiLock(FairLock("account:1"), RLock("account:2"), FencedLock("account:3")),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("interrupted", ["acquire", "release"])
def test_what_an_interruption_leaves_locked_is_known_as_held(make, interrupted):
    """So that it can be swept, is renewed, and ends with its thread."""
    lock = make()

    def act() -> None:
        getattr(lock, interrupted)()

    if interrupted == "release":
        lock.acquire()
    for number in interruptions(act):
        settle()
        for part in lock.parts:
            hold = HOLDS.get(part, current_owner())
            assert part.locked() == (hold is not None), number
            if hold is not None:
                assert hold.count == 1, number
                part.release()
        if interrupted == "release":
            lock.acquire()
    if interrupted == "acquire":
        lock.release()


@pytest.mark.parametrize("kind", [RLock, FencedLock], ids=["together", "alone"])
def test_interrupted_attempt_at_several_locks_keeps_none(redis_client, kind):
    """The second one becomes free during the wait, the third one never."""
    lock = MultiLock(*[kind(f"account:{number}") for number in range(4)])
    redis_client.hset("rlock:account:2", "somebody", 1)

    def act() -> None:
        redis_client.hset("rlock:account:1", "somebody", 1)
        redis_client.pexpire("rlock:account:1", 2)
        lock.acquire(wait_time=0.01)

    for number in interruptions(act, OUTSIDE_OF_SEVERAL):
        if HOLDS.snapshot():
            gc.collect()  # errors of several locks refer to each other
        assert HOLDS.snapshot() == [], number
    settle()
    assert redis_client.keys("rlock:account:?") == ["rlock:account:2"]


def test_interrupted_release_of_several_locks_keeps_none_that_it_began_with(redis_client):
    """Before that, all are held."""
    lock = MultiLock(FairLock("account:1"), RLock("account:2"), FencedLock("account:3"))
    lock.acquire()
    for number in interruptions(lock.release, OUTSIDE_OF_SEVERAL):
        held = {hold.lock.name for hold in HOLDS.snapshot()}
        assert held in ({"account:1", "account:2", "account:3"}, set()), number
        settle()
        assert bool(redis_client.keys("rlock:account:?")) == bool(held), number
        if not held:
            lock.acquire()
    assert HOLDS.snapshot() == []


def test_interrupted_attempt_of_a_name_at_several_locks_keeps_none(redis_client):
    """Its owner never ends, so nothing else would end their renewal."""
    lock = MultiLock(RLock("account:1"), FencedLock("account:2"), owner="batch")
    redis_client.hset("rlock:account:2", "somebody", 1)
    for number in interruptions(partial(lock.acquire, wait_time=0), OUTSIDE_OF_SEVERAL):
        assert HOLDS.snapshot() == [], number
        redis_client.delete("rlock:account:1")  # else it ends with its lease


def test_interrupted_attempt_of_a_name_leaves_its_other_blocks_counted(redis_client):
    several = MultiLock(RLock("account:1"), FencedLock("account:2"), owner="batch", wait_time=0)
    redis_client.hset("rlock:account:2", "somebody", 1)

    def act() -> None:
        with suppress(LockTimeoutError):
            several.enter(describe=False)

    with RLock("account:1", owner="batch"):
        for number in interruptions(act, OUTSIDE_OF_SEVERAL):
            assert [(hold.count, hold.scoped) for hold in HOLDS.snapshot()] == [(1, 1)], number


def test_failed_attempt_keeps_no_lock_whose_earlier_loss_was_forgotten_meanwhile():
    """As the watchdog does after a minute, if the loss was never reported."""
    several = MultiLock(RLock("account:1"), FencedLock("account:2"))
    lose_hold_of(several.parts[0])
    attempt = AllOrNone(sync_driver("default"), Claim(current_owner(), 0, None), None, several.parts)
    HOLDS.remove(HOLDS.snapshot()[0])
    assert run_sync(attempt.wait_for(several.parts[0]))
    run_sync(attempt.give_up(Interruption()))
    assert HOLDS.snapshot() == []
    until_clean()


def test_failed_attempt_forgets_a_lock_that_was_lost_during_it():
    """Else a later hold of its owner would count as lost."""
    several = MultiLock(RLock("account:1"), FencedLock("account:2"))
    attempt = AllOrNone(sync_driver("default"), Claim(current_owner(), 0, None), None, several.parts)
    assert run_sync(attempt.wait_for(several.parts[0]))
    lose(HOLDS.snapshot()[0], "it was freed by force")
    run_sync(attempt.give_up(Interruption()))
    assert HOLDS.snapshot() == []
    until_clean()


@pytest.mark.parametrize("make", [lambda: RLock("stock:42"), lambda: MultiLock(RLock("a"), RLock("stock:42"))])
def test_interrupted_release_of_a_lock_that_was_lost_before_reports_that(monkeypatch, make):
    outer, lock = RLock("stock:42"), make()
    lose_hold_of(outer)
    lock.acquire()
    monkeypatch.setattr(Link, "ask", interrupted_once(monkeypatch))
    with pytest.raises(Interruption):
        lock.release()
    with pytest.raises(LockLostError):
        outer.release()


OUTSIDE_OF_SEVERAL = outside_of("multi.py", "allornone.py", "together.py")


def block_of(lock):
    with lock:
        pass


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
        settle()
        assert not any(part.locked() for part in lock.parts), number


def test_interrupted_block_of_a_lock_that_was_lost_before_is_left():
    """There, too, what was taken anew is released."""
    lock = RLock("stock:42")
    lose_hold_of(lock)
    for number in interruptions(partial(block_of, lock)):
        assert all(hold.lost for hold in HOLDS.snapshot()), number
        settle()
        assert not lock.locked(), number
        if not HOLDS.snapshot():
            lose_hold_of(lock)
    with pytest.raises(LockLostError):
        lock.release()


@pytest.mark.parametrize("together", [False, True])
def test_interrupted_block_of_several_locks_is_left_where_an_earlier_loss_was_forgotten_meanwhile(together):
    """As the watchdog does after a minute, while the statement waits."""
    lock = MultiLock(RLock("account:1"), RLock("account:2"))
    lose_hold_of(lock if together else lock.parts[0])
    leave = lock.__exit__  # the statement looks it up before it enters
    for hold in HOLDS.snapshot():
        HOLDS.remove(hold)
    lock.enter()
    del leave
    assert HOLDS.snapshot() == []
    settle()
    assert not any(part.locked() for part in lock.parts)


def lose_hold_of(lock):
    lock.acquire()
    for part in lock.parts:
        free_by_force(part.name)
    for hold in HOLDS.snapshot():
        lose(hold, "it was freed by force")
    settle()


@pytest.mark.parametrize("names", [["stock:42"], ["account:1", "account:2"]])
def test_interrupted_call_of_a_locked_function_is_left(names):
    """By no sweep of a middleware or a task: a management command has none."""
    call = distributed_lock(*names)(lambda: None)
    for number in interruptions(call):
        assert HOLDS.snapshot() == [], number
        settle()
        assert not any(RLock(name).locked() for name in names), number


@pytest.mark.parametrize("names", [["stock:42"], ["account:1", "account:2"]])
@pytest.mark.parametrize(
    "kind_of_response", [StreamingHttpResponse, pytest.param(TemplateResponse, marks=pytest.mark.thorough)]
)
def test_interrupted_call_of_a_view_whose_response_keeps_the_lock_is_left(names, kind_of_response):
    """No response is returned that could release it, and its thread no longer has it."""
    view = distributed_lock(*names)(lambda request: kind_of_response(request, ()))
    request = RequestFactory().get("/")
    view(request)
    for number in interruptions(partial(view, request), OUTSIDE_OF_VIEWS):
        assert holds_left() == [], number
        assert context.get() is None, number
        settle()
        assert not any(RLock(name).locked() for name in names), number


@pytest.mark.django_db(transaction=True)
def test_interrupted_atomic_block_ends_its_transaction():
    """And may be entered again."""
    block = RLock("stock:42").atomic()
    block_of(block)
    for number in interruptions(partial(block_of, block), opens_no_transaction):
        assert not transaction.get_connection().in_atomic_block, number
        assert HOLDS.snapshot() == [], number
        block_of(block)
        settle()
    assert not RLock("stock:42").locked()


def until_commit() -> RLock:
    return RLock("stock:42", until_commit=True)


def several_until_commit() -> MultiLock:
    return MultiLock(RLock("account:1"), RLock("stock:42"), until_commit=True)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("make", "fails"),
    [
        (until_commit, False),
        (until_commit, True),
        (several_until_commit, True),
        pytest.param(several_until_commit, False, marks=pytest.mark.thorough),
    ],
)
def test_lock_until_commit_is_released_once_when_interrupted(make, fails):
    """Neither never, nor twice, which would release an outer hold, too."""
    lock, outer = make(), RLock("stock:42")

    def write():
        with suppress(ZeroDivisionError), transaction.atomic():
            block_of(lock)
            _ = 1 / (not fails)

    with outer:
        write()
        for number in interruptions(write, is_djangos):
            if not is_entered_once(outer):
                gc.collect()  # errors of several locks refer to each other
            assert is_entered_once(outer), number
            settle()
            assert outer.owned(), number
    assert not any(part.locked() for part in lock.parts)


@pytest.mark.django_db(transaction=True)
def test_interrupted_block_is_left_at_the_end_of_the_transaction(monkeypatch, caplog):
    """Where the transaction goes on, and what was written under the lock is committed later."""
    lock = RLock("stock:42", until_commit=True)

    def end_block():
        with lock:
            monkeypatch.setattr("django_rlock.locks.base.keep_until_commit", keep_and_be_interrupted)

    def keep_and_be_interrupted(*args):
        monkeypatch.undo()
        keep_until_commit(*args)
        raise Interruption

    with transaction.atomic():
        with suppress(Interruption):
            end_block()
        assert lock.owned()
    assert not lock.locked()
    assert HOLDS.snapshot() == []
    assert not caplog.records  # of a second release


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("registers", [True, False])
@pytest.mark.parametrize("fails", [True, False], ids=["ROLLBACK", "COMMIT"])
def test_release_that_is_interrupted_as_it_is_registered_is_made_once(monkeypatch, registers, fails):
    lock, outer = until_commit(), RLock("stock:42")
    register = transaction.on_commit

    def be_interrupted(*args, **options):
        monkeypatch.undo()
        if registers:
            register(*args, **options)
        raise Interruption

    with outer:
        with suppress(ZeroDivisionError), transaction.atomic():
            lock.acquire()
            monkeypatch.setattr(transaction, "on_commit", be_interrupted)
            with suppress(Interruption):
                lock.release()
            assert lock.hold_count() == 2
            _ = 1 / (not fails)
        assert is_entered_once(outer)


@pytest.mark.django_db(transaction=True)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_release_that_is_interrupted_as_the_transaction_is_rolled_back_is_made(monkeypatch):
    """Python calls for it then what a signal's exception only ends; it drops the exception."""
    with suppress(ZeroDivisionError), transaction.atomic():
        block_of(until_commit())
        monkeypatch.setattr(LockFlows, "_give_back", interrupted_once(monkeypatch))
        _ = 1 / 0
    assert HOLDS.snapshot() == []
    until_clean()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_response_whose_end_is_interrupted_releases_its_lock(monkeypatch):
    response = distributed_lock("stock:42")(lambda request: StreamingHttpResponse(()))(RequestFactory().get("/"))
    monkeypatch.setattr(Detached, "drop", interrupted_once(monkeypatch))
    del response
    gc.collect()
    assert HOLDS.snapshot() == []
    until_clean()


def interrupted_once(monkeypatch):
    def be_interrupted(*_):
        monkeypatch.undo()
        raise Interruption

    return be_interrupted


@pytest.mark.parametrize("make", [RLock, lambda name, owner: MultiLock(RLock("a"), RLock(name), owner=owner)])
def test_interrupted_end_of_a_turn_keeps_no_lock_of_a_name(monkeypatch, make):
    """Its owner never ends, and nobody else releases it."""
    lock = make("stock:42", owner="batch")
    monkeypatch.setattr("django_rlock.locks.turns.Turn.__exit__", interrupted_once(monkeypatch))
    with pytest.raises(Interruption):
        lock.acquire()
    assert HOLDS.snapshot() == []


def is_entered_once(lock):
    return [(hold.lock.name, hold.count) for hold in HOLDS.snapshot()] == [(lock.name, 1)]


def is_djangos(frame):
    """Django's own functions may be interrupted as well; here only the one by which it learns of us."""
    callers = [each.f_code for each, _ in traceback.walk_stack(frame)]
    ours, djangos = "/django_rlock/", "/django/db/"
    known = [code for code in callers if ours in code.co_filename or djangos in code.co_filename][:1]
    return is_swallowed(frame) or any(djangos in code.co_filename and code.co_name != "on_commit" for code in known)


OUTSIDE_OF_VIEWS = outside_of(
    "locked_calls.py", "streaming.py", "requests.py", "sections.py", "detached.py", "holds.py", "exits.py", "blocks.py"
)


def holds_left():
    """The holds that are left when garbage has been collected: the errors of several locks refer to each other."""
    if HOLDS.snapshot():
        gc.collect()
    return HOLDS.snapshot()


OUTSIDE_OF_MIDDLEWARE = outside_of("middleware.py", "requests.py", "exits.py", "base.py", "flows.py")


def test_interrupted_middleware_renews_nothing_of_tasks_that_have_ended():
    """Under WSGI an async view runs in a task of its own. What nobody can release must not be renewed for ever."""

    async def take():
        await RLock("stock:42").aacquire()

    async def run_task():
        await asyncio.create_task(take())

    def leave_it(_request):
        asyncio.run(run_task())
        return HttpResponse()

    for number in interruptions(partial(LockMiddleware(leave_it), RequestFactory().get("/")), OUTSIDE_OF_MIDDLEWARE):
        settle()
        assert context.get() is None, number
        for hold in HOLDS.snapshot():
            assert hold.owner_ended, number
            RLock("stock:42").force_release()
            HOLDS.remove(hold)
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
    lock = RLock("stock:42")

    def keep():
        with Section(lock, at_least=300):
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


@pytest.mark.django_db(transaction=True)
def test_interrupted_call_of_a_locked_view_ends_its_transaction(monkeypatch):
    """What is left open in a thread would swallow what the thread's next requests write."""
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    inner = distributed_lock("stock:42")(lambda request: HttpResponse())
    call = partial(distributed_lock("stock:43")(inner), RequestFactory().get("/"))
    call()  # what is made on first use is there
    for number in interruptions(call, opens_no_transaction):
        assert not transaction.get_connection().in_atomic_block, number
        assert AROUND.get() == (), number
        settle()


OPENERS = "locked_calls.py", "transactions.py", "contextlib.py", "exits.py"
"""The modules between BEGIN and the function."""


def opens_no_transaction(frame):
    """Django's own BEGIN may be interrupted as well, whoever calls it; that is not tested here."""
    files = [each.f_code.co_filename for each, _ in traceback.walk_stack(frame)]
    return is_swallowed(frame) or not files[0].endswith(OPENERS) or any("/django/db/" in file for file in files)


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
        patch.setattr("django_rlock.locks.flows.LockFlows._tell_acquired", be_renewed_and_interrupted)
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
async def test_callers_do_not_take_the_mutex_of_a_signal(face, kind, told, monkeypatch):
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
        async with face.inside(kind("stock:42")):
            pass
        del hear_for_a_while
        gc.collect()
        async with face.inside(kind("stock:43")):
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
        settle()
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
        settle()
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
        settle()
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
            came.append(driver.overhear(channel, EVERYBODY))
            at_call(ends, _interrupted)

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
    waiter._bell._gate = gate = Gate(waiter._bell._gate)
    former = signal.signal(signal.SIGUSR2, _interrupted)
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
def test_stale_reply_in_the_pool_is_not_believed(kind, redis_client, stale, command):
    redis_client.hset(KEY, "somebody", 1)
    stale(*command)
    assert kind("stock:42").acquire(blocking=False) is False
    assert redis_client.hgetall(KEY) == {"somebody": "1"}


def test_stale_answer_to_a_release_is_not_believed(kind, redis_client, stale):
    lock = kind("stock:42")
    lock.acquire()
    stale("EVAL", "return {'1', 0}", "0")
    lock.release()
    assert not redis_client.exists(KEY)


def test_interrupted_link_is_closed(kind, redis_client, monkeypatch):
    """Its reply may still be on the way, and belongs to no caller."""
    lock = kind("stock:42")
    interrupted: list[Link] = []

    def ask(link: Link, packed: bytes, limit: float) -> None:
        link.sock.sendall(packed)
        interrupted.append(link)
        raise Interruption

    with lock:
        pass
    with monkeypatch.context() as patch:
        patch.setattr(Link, "ask", ask)
        with pytest.raises(Interruption):
            lock.acquire(blocking=False)
    (link,) = interrupted
    assert link.sock.fileno() == -1
    assert link not in server("default").idle
    with lock:
        assert lock.owned()
