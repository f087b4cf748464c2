"""A signal handler, or __del__, takes a lock that its thread is just taking or releasing."""

import asyncio
import itertools
import signal
import sys
import threading
from contextlib import suppress

import pytest

from django_rlock import FairLock, FencedLock, LockLostError, MultiLock, ReadWriteLock, RLock
from django_rlock._redis import scripts
from django_rlock.locks.holds import HOLDS
from tests.eventually import UNTIL_SERVED, eventually
from tests.faults.interrupting import Interruption, is_interrupted
from tests.faults.opcodes import Aim
from tests.forms import THOROUGH, first_place, long

MAKE = {
    "fair": (FairLock, scripts.FAIR_ACQUIRE, scripts.FAIR_RELEASE),
    "rlock": (RLock, scripts.RLOCK_ACQUIRE, scripts.RLOCK_RELEASE),
    "fenced": (FencedLock, scripts.FENCED_ACQUIRE, scripts.RLOCK_RELEASE),
    "read": (lambda name, **more: ReadWriteLock(name, **more).read_lock, scripts.READ_ACQUIRE, scripts.READ_RELEASE),
}
INSIDE = "inside a call that does so for the same owner"


@pytest.fixture(params=MAKE)
def kind(request):
    return MAKE[request.param]


@pytest.fixture
def during(proxy):
    """Runs a function in a signal's handler while the reply to a script is awaited; returns what it raised."""
    raised: list[BaseException | None] = []
    before, main = signal.getsignal(signal.SIGUSR1), threading.get_ident()

    def arrange(script, act):
        reply = proxy.hold_reply(script)

        def handle(*_: object) -> None:
            try:
                act()
                raised.append(None)
            except Exception as error:  # noqa: BLE001 - the test looks at it
                raised.append(error)
            finally:
                reply.let_go.set()

        def interrupt() -> None:
            reply.served.wait(UNTIL_SERVED)
            signal.pthread_kill(main, signal.SIGUSR1)

        signal.signal(signal.SIGUSR1, handle)
        threading.Thread(target=interrupt, daemon=True).start()
        return raised

    yield arrange
    signal.signal(signal.SIGUSR1, before)


def refused(raised) -> bool:
    (error,) = raised
    return isinstance(error, RuntimeError) and INSIDE in str(error)


@pytest.mark.parametrize("owner", [None, "order 7"], ids=["thread", "name"])
@pytest.mark.parametrize("nested", ["acquire", "release", "with"])
def test_while_it_is_taken(kind, during, redis_client, owner, nested):
    make, acquire, _ = kind
    lock, other = make("stock:42", owner=owner), make("stock:42", owner=owner)
    raised = during(acquire, other.__enter__ if nested == "with" else getattr(other, nested))
    assert lock.acquire()
    assert refused(raised)
    assert [hold.count for hold in HOLDS.snapshot()] == [1]
    assert lock.hold_count() == 1
    lock.release()
    assert not redis_client.exists("rlock:stock:42")


@pytest.mark.parametrize("owner", [None, "order 7"], ids=["thread", "name"])
@pytest.mark.parametrize("nested", ["acquire", "release"])
@pytest.mark.parametrize("block", [False, True], ids=["call", "block"])
def test_while_it_is_released(kind, during, redis_client, owner, nested, block):
    make, _, release = kind
    lock = make("stock:42", owner=owner)
    lock.__enter__() if block else lock.acquire()
    raised = during(release, getattr(make("stock:42", owner=owner), nested))
    lock.__exit__(None, None, None) if block else lock.release()
    assert refused(raised)
    assert HOLDS.snapshot() == []
    assert not redis_client.exists("rlock:stock:42")


def test_while_it_is_taken_as_one_of_several(during, redis_client):
    lock = MultiLock(RLock("stock:42"), RLock("stock:43"))
    raised = during(scripts.MULTI_ACQUIRE, RLock("stock:43").acquire)
    assert lock.acquire()
    assert refused(raised)
    lock.release()
    assert not redis_client.exists("rlock:stock:42", "rlock:stock:43")


def test_the_other_side_while_one_is_taken(during):
    """It would wait for itself: the reader that it interrupts is not known yet."""
    lock = ReadWriteLock("stock:42")
    raised = during(scripts.READ_ACQUIRE, lock.write_lock.acquire)
    with lock.read_lock:
        assert refused(raised)


def test_by_del(during, redis_client):
    class Closing:
        def __del__(self) -> None:
            try:
                RLock("stock:42").acquire()
            except RuntimeError as error:
                errors.append(error)

    errors: list[RuntimeError] = []
    kept = [Closing()]
    raised = during(scripts.RLOCK_ACQUIRE, kept.clear)
    with RLock("stock:42"):
        assert raised == [None]
        assert refused(errors)
    assert not redis_client.exists("rlock:stock:42")


def test_another_lock_may_be_taken(during, redis_client):
    def visit() -> None:
        with RLock("stock:43"), RLock("stock:43"), pytest.raises(RuntimeError, match=INSIDE):
            RLock("stock:42").acquire()

    raised = during(scripts.RLOCK_ACQUIRE, visit)
    with RLock("stock:42"):
        assert raised == [None]
    assert not redis_client.exists("rlock:stock:42", "rlock:stock:43")


def test_for_another_owner(during):
    """The other owner does not have what the interrupted call holds, and waits as long as it may."""
    outcome = []
    raised = during(scripts.RLOCK_ACQUIRE, lambda: outcome.append(RLock("stock:42", owner="x").acquire(blocking=False)))
    with RLock("stock:42"):
        assert raised == [None]
        assert outcome == [False]


def test_a_handler_inside_of_a_block_enters_again(during, redis_client):
    def visit() -> None:
        with RLock("stock:42"):
            pass

    with RLock("stock:42"):
        signal.signal(signal.SIGUSR1, lambda *_: visit())
        signal.raise_signal(signal.SIGUSR1)
        assert redis_client.exists("rlock:stock:42")
    eventually(lambda: not redis_client.exists("rlock:stock:42"))


def several(name):
    return MultiLock(FairLock(name), FairLock(f"{name}, too"))


@pytest.mark.parametrize("make", [several, *[make for make, *_ in MAKE.values()]], ids=["several", *MAKE])
def test_a_block_that_is_refused_releases_nothing(make, redis_client):
    """Wherever it interrupts the call that takes the lock; also where only a part of the tables has the new hold."""
    outcomes = []

    def handle() -> None:
        try:
            with make("stock:42"):
                outcomes.append("entered")
        except RuntimeError as error:
            outcomes.append(str(error))

    for number in itertools.count(1):
        lock = make("stock:42")
        is_interrupted(lock.acquire, number, handle)
        lock.release()
        if len(outcomes) < number:
            break
    assert any(INSIDE in outcome for outcome in outcomes)
    assert not redis_client.exists("rlock:stock:42")


# --- at every opcode of a named owner's call --------------------------------------------------------------------------

# The calls of a named owner wait for each other: one must not wait for a call that can only go on after it.

NAME = "order 7"
ENDLESS = 10.0
"""A wait that takes so long, in seconds, is a wait for the interrupted call."""
EXTENDED = 60.0


def named(kind):
    return kind[0]("stock:42", owner=NAME, wait_time=ENDLESS)


def enter_and_leave(lock) -> None:
    with lock:
        pass


def enter_and_leave_in_a_loop(lock) -> None:
    async def body() -> None:
        async with lock:
            pass

    asyncio.run(body())


CALLS = {
    "acquire": (lambda _: None, lambda lock: lock.acquire()),
    "release": (lambda lock: lock.acquire(), lambda lock: lock.release()),
    "extend": (lambda lock: lock.acquire(), lambda lock: lock.extend(EXTENDED)),
    "force": (lambda lock: lock.acquire(), lambda lock: lock.force_release()),
    "with": (lambda _: None, enter_and_leave),
}
"""What comes before a call, and the call."""


@pytest.fixture
def opcodes(request):
    """The numbers of the opcodes to interrupt."""
    stride = 1 if THOROUGH else 11
    return itertools.count(first_place(request.config, stride), stride)


def end_all(lock) -> None:
    """Release what a call has taken, and what the server granted to it without its knowledge."""
    for hold in HOLDS.of_lock(lock, lock._named_owner):
        with suppress(LockLostError):
            for _ in range(hold.count):
                lock.release()
    lock.force_release()


OFTEN = pytest.mark.parametrize("kind", ["fair", *long("rlock", "fenced", "read")], indirect=True)


@OFTEN
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("enter", [enter_and_leave, enter_and_leave_in_a_loop])
def test_a_handler_does_not_wait_for_the_named_call_that_it_interrupts(kind, call, enter, opcodes):
    def handle() -> None:
        try:
            enter(named(kind))
        except RuntimeError as error:
            refusals.append(INSIDE in str(error))

    refusals: list[bool] = []
    prepare, act = CALLS[call]
    for at in opcodes:
        lock, aim = named(kind), Aim(handle)
        prepare(lock)
        aim.begin(at)
        act(lock)
        aim.end()
        end_all(lock)
        assert HOLDS.snapshot() == [], aim.place
        if not aim.place:
            break
    assert refusals
    assert all(refusals)


@OFTEN
@pytest.mark.parametrize("call", CALLS)
def test_nobody_waits_for_a_named_call_that_was_interrupted(kind, call):
    """Also while its error is handled, which keeps its frames."""

    def go_on_after_an_error() -> None:
        try:
            act(lock)
        except Interruption:
            sys.setprofile(None)
            with suppress(LockLostError):
                assert named(kind).acquire()
            raise

    prepare, act = CALLS[call]
    for number in itertools.count(1):
        lock = named(kind)
        prepare(lock)
        is_over = not is_interrupted(go_on_after_an_error, number)
        end_all(lock)
        if is_over:
            break
