"""Locks and transactions without the decorator: ``atomic()``, ``until_commit``, and a warning for what has neither."""

import asyncio
import contextlib
import inspect
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import Group
from django.db import DEFAULT_DB_ALIAS, InterfaceError, OperationalError, connection, connections, transaction
from django.test import TestCase

from django_rlock import FairLock, LockLostError, LockUnavailableError, ReadWriteLock, rlock
from django_rlock.locks import BaseLock
from django_rlock.locks.holds import HOLDS
from tests.background import is_handed_over, until_clean
from tests.beside import in_another_thread
from tests.conftest import OwnServer
from tests.eventually import PATIENCE, eventually
from tests.operators import free_by_force

pytestmark = pytest.mark.django_db(transaction=True)

IN_ORDER = ["acquire stock:7", "BEGIN", "COMMIT", "release stock:7"]


def sell() -> None:
    Group.objects.create(name="sold 7")


def sold() -> bool:
    return Group.objects.filter(name="sold 7").exists()


def is_taken(name: str = "stock:7") -> bool:
    """As Redis sees it."""
    return rlock(name).locked()


# ---- atomic() --------------------------------------------------------------------------------------------------------


def test_the_transaction_is_inside_the_lock(events: list[str]) -> None:
    with rlock("stock:7").atomic() as lock:
        lock.check()
        sell()
    assert events == IN_ORDER
    assert sold()


@pytest.mark.parametrize("make", [lambda: rlock("stock:7").atomic(), lambda: rlock("stock:7")], ids=["atomic", "lock"])
def test_looking_at_a_block_does_not_end_it(make: Callable[[], Any]) -> None:
    """As debuggers do, and error reports."""
    block = make()
    with block:
        sell()
        dict(inspect.getmembers(block))
        assert is_taken()
        assert connection.in_atomic_block is hasattr(block, "is_entered")
    assert sold()
    assert not is_taken()


def test_it_decorates_functions(events: list[str]) -> None:
    @rlock("stock:7", wait_time=1).atomic(using="default")
    def buy(name: str) -> str:
        """Buys."""
        sell()
        return name

    assert [buy("a"), buy.__name__, buy.__doc__] == ["a", "buy", "Buys."]
    assert events == IN_ORDER
    connection.queries_log.clear()
    Group.objects.all().delete()
    events.clear()
    buy("b")
    assert events == IN_ORDER


def test_calls_of_a_decorated_function_run_by_themselves() -> None:
    depth: list[int] = []

    @rlock("stock:7").atomic(nested=True)
    def countdown(left: int) -> None:
        depth.append(rlock("stock:7").hold_count())
        if left:
            countdown(left - 1)

    countdown(2)
    assert depth == [1, 2, 3]
    assert not is_taken()


def test_an_error_rolls_back_before_the_release(events: list[str]) -> None:
    with pytest.raises(ZeroDivisionError), rlock("stock:7").atomic():
        sell()
        raise ZeroDivisionError
    assert events == ["acquire stock:7", "BEGIN", "ROLLBACK", "release stock:7"]


@pytest.mark.parametrize(
    "make",
    [rlock, lambda name: rlock(name, f"{name}:b"), lambda name: ReadWriteLock(name).write_lock],
    ids=["one", "several", "writer"],
)
def test_a_lock_that_was_freed_rolls_back(make: Callable[[str], BaseLock], events: list[str]) -> None:
    with pytest.raises(LockLostError), make("stock:7").atomic():
        sell()
        free_by_force("stock:7")
    assert "COMMIT" not in events
    assert not sold()
    assert not is_taken("stock:7:b")


def test_a_redis_that_is_away_rolls_back(own_server: OwnServer) -> None:
    server = own_server()
    with pytest.raises(LockUnavailableError), rlock("stock:7").atomic():
        sell()
        server.kill()
    assert not sold()


def test_what_is_committed_stays(caplog: pytest.LogCaptureFixture) -> None:
    with rlock("stock:7").atomic():
        sell()
        transaction.on_commit(lambda: free_by_force("stock:7"))
    assert sold()
    assert "is done, but" in caplog.text
    assert is_handed_over(caplog)


@pytest.mark.parametrize(
    ("of_requests", "advice"), [(False, "Call it outside that transaction, or"), (True, "put @distributed_lock above")]
)
def test_it_refuses_to_nest_and_says_what_to_do(
    events: list[str], monkeypatch: pytest.MonkeyPatch, of_requests: bool, advice: str
) -> None:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", of_requests)
    with (
        transaction.atomic(),
        pytest.raises(RuntimeError, match=f"{advice}.*nested=True"),
        rlock("stock:7").atomic(),
    ):
        raise AssertionError("The body ran.")
    assert "acquire stock:7" not in events


def test_nested_it_keeps_the_lock_until_the_outer_commit(events: list[str]) -> None:
    with transaction.atomic():
        with rlock("stock:7").atomic(nested=True):
            sell()
        assert is_taken()
    assert events == ["BEGIN", "acquire stock:7", "COMMIT", "release stock:7"]


def test_it_is_three_round_trips(server: Any, redis_client: Any) -> None:
    with rlock("stock:7").atomic():
        pass  # the scripts are known from here on
    # The background may still clean up after an earlier test: what counts is the smallest round.
    sent = []
    for _ in range(10):
        before = redis_client.info("commandstats")["cmdstat_evalsha"]["calls"]
        with rlock("stock:7").atomic():
            pass
        sent.append(redis_client.info("commandstats")["cmdstat_evalsha"]["calls"] - before)
    assert min(sent) == 3


def test_what_would_run_outside_is_refused() -> None:
    async def aview() -> None: ...

    def rows() -> Any:
        yield 1

    for each in aview, rows:
        with pytest.raises(TypeError, match="plain functions"):
            rlock("stock:7").atomic()(each)


def test_one_object_is_for_one_block_at_a_time() -> None:
    block = rlock("stock:7").atomic(nested=True)
    for _ in range(2):
        with block:
            pass
    with block, pytest.raises(RuntimeError, match="twice"), block:
        raise AssertionError("The body ran.")
    assert not is_taken()


# ---- until_commit ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("until_commit", [True, "default"])
@pytest.mark.parametrize("names", [["stock:7"], ["stock:7", "stock:8"]], ids=len)
def test_it_is_given_back_after_commit(until_commit: Any, names: list[str], events: list[str]) -> None:
    with transaction.atomic():
        with rlock(*names, until_commit=until_commit):
            sell()
        assert is_taken()
    assert not is_taken()
    acquired, released = [f"acquire {name}" for name in names], [f"release {name}" for name in names]
    assert events[: len(names) * 2 + 2] == ["BEGIN", *acquired, "COMMIT", *released]


def test_it_is_given_back_after_rollback(events: list[str]) -> None:
    with contextlib.suppress(ZeroDivisionError), transaction.atomic():
        with rlock("stock:7", until_commit=True):
            sell()
        raise ZeroDivisionError
    assert events == ["BEGIN", "acquire stock:7", "ROLLBACK", "release stock:7"]


def test_an_error_inside_the_block_does_not_give_it_back_early(events: list[str]) -> None:
    with transaction.atomic():
        with contextlib.suppress(ZeroDivisionError), rlock("stock:7", until_commit=True):
            sell()
            raise ZeroDivisionError
        assert is_taken()
    assert not is_taken()
    assert sold()


def test_a_savepoint_that_is_rolled_back_gives_it_back() -> None:
    with transaction.atomic():
        with contextlib.suppress(ZeroDivisionError), transaction.atomic():
            with rlock("stock:7", until_commit=True):
                sell()
            raise ZeroDivisionError
        assert not is_taken()
    assert not sold()


def test_a_failing_callback_before_it_does_not_keep_it() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), transaction.atomic(), rlock("stock:7", until_commit=True):
        transaction.on_commit(fail)
    assert not is_taken()


def test_without_a_transaction_it_ends_with_its_block(events: list[str]) -> None:
    with rlock("stock:7", until_commit=True):
        assert is_taken()
    with rlock("stock:7", until_commit=True), transaction.atomic():
        sell()
    assert events == ["acquire stock:7", "release stock:7", *IN_ORDER]


def test_a_release_by_hand_waits_as_well(events: list[str]) -> None:
    lock = rlock("stock:7", until_commit=True)
    with transaction.atomic():
        assert lock.acquire()
        lock.release()
        assert is_taken()
    assert events == ["BEGIN", "acquire stock:7", "COMMIT", "release stock:7"]


def test_a_test_that_runs_what_waits_for_the_commit_more_than_once_releases_once() -> None:
    """As Django's own tool does, inside of itself or before the COMMIT."""
    with rlock("stock:7") as outer:
        inner = rlock("stock:7", until_commit=True)
        with transaction.atomic(), TestCase.captureOnCommitCallbacks(execute=True), inner:
            pass
        assert outer.owned()


@pytest.mark.parametrize("names", [["stock:7"], ["stock:7", "stock:8"]], ids=len)
@pytest.mark.parametrize("times", [1, 2])
def test_an_acquire_needs_no_release(names: list[str], times: int, events: list[str]) -> None:
    """As with PostgreSQL's pg_advisory_xact_lock()."""
    with transaction.atomic():
        for _ in range(times):
            rlock(*names, until_commit=True).acquire()
        sell()
        assert is_taken()
    assert not is_taken()
    assert HOLDS.snapshot() == []
    assert events[-len(names) :] == [f"release {name}" for name in names]


def test_a_release_in_a_savepoint_that_is_rolled_back_waits_for_the_end() -> None:
    lock = rlock("stock:7", until_commit=True)
    with transaction.atomic():
        lock.acquire()
        with contextlib.suppress(ZeroDivisionError), transaction.atomic():
            lock.release()
            raise ZeroDivisionError
        assert is_taken()
    assert not is_taken()


def test_a_block_beside_an_acquire_releases_its_own_hold() -> None:
    lock = rlock("stock:7", until_commit=True)
    with transaction.atomic():
        lock.acquire()
        with lock:
            assert lock.hold_count() == 2
        lock.release()
        assert is_taken()
    assert not is_taken()
    assert HOLDS.snapshot() == []


def test_an_acquire_outside_of_transactions_is_released_by_hand() -> None:
    lock = rlock("stock:7", until_commit=True)
    lock.acquire()
    with transaction.atomic():
        sell()
    assert is_taken()
    lock.release()
    assert not is_taken()


def test_a_connection_that_is_closed_inside_a_transaction_gives_back_what_was_acquired() -> None:
    with contextlib.suppress(InterfaceError, OperationalError), transaction.atomic():
        rlock("stock:7", until_commit=True).acquire()
        connection.close()
    assert not is_taken()


def test_a_lock_that_was_lost_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with transaction.atomic():
        with rlock("stock:7", until_commit=True):
            sell()
        free_by_force("stock:7")
    assert sold()
    assert "has ended, but" in caplog.text
    assert is_handed_over(caplog)


def test_a_connection_that_another_thread_drops_gives_it_back() -> None:
    lock = rlock("stock:7", until_commit=True)
    left: list[Any] = []

    def work() -> None:
        transaction.set_autocommit(True)
        with contextlib.suppress(KeyboardInterrupt), transaction.atomic():
            with lock:
                pass
            left.extend(connection.run_on_commit)
            connection.run_on_commit = []

    in_another_thread(work)
    assert is_taken()
    left.clear()
    until_clean()
    eventually(lambda: not is_taken())


def test_async_code_has_no_transactions() -> None:
    async def take() -> None:
        async with rlock("stock:7", until_commit=True):
            pass

    async def acquire() -> None:
        await rlock("stock:7", until_commit=True).aacquire()

    for each in take, acquire:
        with pytest.raises(RuntimeError, match="async code"):
            async_to_sync(each)()
    assert not is_taken()


def test_without_autocommit_nobody_tells_of_the_end() -> None:
    transaction.set_autocommit(False)
    try:
        with pytest.raises(RuntimeError, match="autocommit"), rlock("stock:7", until_commit=True):
            raise AssertionError("The body ran.")
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)


@pytest.mark.parametrize("value", [1, 0.5, object()])
def test_bad_values_are_named(value: Any) -> None:
    with pytest.raises(TypeError, match="until_commit must be True, False or a database's alias, not"):
        rlock("stock:7", until_commit=value)


# ---- with nothing ----------------------------------------------------------------------------------------------------


def test_a_block_inside_a_transaction_warns_once_for_each_line(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        with transaction.atomic(), rlock("stock:7"):
            pass
    with transaction.atomic(), contextlib.ExitStack() as stack:
        stack.enter_context(rlock("stock:7"))
    first, second = caplog.records
    for record in first, second:
        assert record.levelname == "WARNING"
        assert "test_atomic.py:" in record.getMessage()
        assert "until_commit" in record.getMessage()
    assert first.getMessage() != second.getMessage()


class Helper:
    """As projects have one around their locks."""

    def __init__(self) -> None:
        self.lock = rlock("stock:7")

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


@contextlib.contextmanager
def helping() -> Iterator[None]:
    with rlock("stock:7"):
        yield


@pytest.mark.parametrize("helper", [Helper, helping])
def test_a_helper_is_named_with_each_of_its_callers_once(helper: Any, caplog: pytest.LogCaptureFixture) -> None:
    def one() -> None:
        with transaction.atomic(), helper():
            pass

    def another() -> None:
        with transaction.atomic(), helper():
            pass

    def outside() -> None:
        with helper(), transaction.atomic():
            pass

    for _ in range(2):
        for caller in outside, one, another:
            caller()
    first, second = [re.findall(r"test_atomic\.py:(\d+)", record.getMessage()) for record in caplog.records]
    assert first[0] == second[0]  # the helper's line
    assert [int(first[1]), int(second[1])] == [each.__code__.co_firstlineno + 1 for each in (one, another)]


def test_a_release_by_hand_before_commit_warns(caplog: pytest.LogCaptureFixture) -> None:
    lock = rlock("stock:7")
    lock.acquire()
    with transaction.atomic():
        lock.release()
    [record] = caplog.records
    assert "releases lock 'stock:7' inside an open transaction" in record.getMessage()


def test_a_block_that_was_long_outside_of_transactions_warns_yet(caplog: pytest.LogCaptureFixture) -> None:
    for inside in [False] * 105 + [True, True]:
        with transaction.atomic() if inside else contextlib.nullcontext(), rlock("stock:7"):
            pass
    assert len(caplog.records) == 1


def connect_first() -> None:
    with transaction.atomic(), rlock("stock:7"):
        pass


def lock_first() -> None:
    with rlock("stock:7"):
        pass
    with transaction.atomic(), rlock("stock:7"):
        pass


def lock_in_a_loop_first() -> None:
    """Django keeps connections of their own for loops, here a notebook's."""

    async def hold() -> None:
        assert not connections.all(initialized_only=True)
        with rlock("stock:7"):
            pass

    connection.ensure_connection()
    asyncio.run(hold())
    with transaction.atomic(), rlock("stock:7"):
        pass


def be_in_a_loop() -> None:
    async def hold() -> None:
        with transaction.atomic(), rlock("stock:7"):
            pass
        connection.close()

    asyncio.run(hold())


def have_another_thread_connect() -> None:
    """As the thread of a live server may do, which shares the tests' connections."""
    with rlock("stock:7"):
        pass
    shared = connections[DEFAULT_DB_ALIAS]
    shared.inc_thread_sharing()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(shared.ensure_connection).result(PATIENCE)
    with transaction.atomic(), rlock("stock:7"):
        pass


@pytest.mark.parametrize(
    "use", [connect_first, lock_first, lock_in_a_loop_first, be_in_a_loop, have_another_thread_connect]
)
def test_a_release_warns_in_each_thread_with_a_connection(
    use: Callable[[], None], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> None:
        use()
        connection.close()

    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(run).result(PATIENCE)
    assert len(caplog.records) == 1


def test_no_warning_where_none_is_due(caplog: pytest.LogCaptureFixture) -> None:
    with rlock("stock:7"):
        pass
    with rlock("stock:7"), transaction.atomic(), rlock("stock:7"):
        pass
    with transaction.atomic(), rlock("stock:7", until_commit=False):
        pass
    with transaction.atomic(), rlock("stock:7", until_commit=True):
        pass
    with rlock("stock:7").atomic():
        pass
    with transaction.atomic(), rlock("stock:7").atomic(nested=True):
        pass
    assert not caplog.records


class InTestCase(TestCase):
    """Whose own transaction nobody meant."""

    def test_no_warning(self) -> None:
        with self.assertNoLogs("django_rlock"), rlock("stock:7"):
            pass

    def test_atomic_does_not_nest(self) -> None:
        with rlock("stock:7").atomic():
            sell()
        assert not is_taken()
        assert sold()

    def test_until_commit_ends_with_the_block(self) -> None:
        with rlock("stock:7", until_commit=True):
            sell()
        assert not is_taken()

    def test_until_commit_with_captured_callbacks(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            with transaction.atomic(), FairLock("stock:7", until_commit=True):
                pass
            assert is_taken()
        assert not is_taken()
