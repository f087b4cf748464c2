"""Signals that interrupt locked functions and views, the middleware, and transactions."""

import asyncio
import gc
import traceback
from contextlib import suppress
from functools import partial

import pytest
from django.db import connections, transaction
from django.http import HttpResponse, StreamingHttpResponse
from django.template.response import TemplateResponse
from django.test import RequestFactory

from django_rlock import MultiLock, RLock, distributed_lock
from django_rlock._transport.identity import thread_owner
from django_rlock._web.calls import AROUND
from django_rlock.locks import BaseLock, ownership
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.records import context
from django_rlock.locks.transactions import keep_until_commit
from django_rlock.middleware import LockMiddleware
from tests.background import settle, until_clean
from tests.faults.interrupting import (
    Interruption,
    block_of,
    interrupted_once,
    interruptions,
    is_entered_once,
    outside_of,
)
from tests.faults.storm import is_swallowed

# A socket whose interrupted opener never had it is closed by Python.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@pytest.mark.parametrize("names", [["stock:42"], ["account:1", "account:2"]])
def test_interrupted_call_of_a_locked_function_is_left(names):
    """By no sweep of a middleware or a task: a management command has none."""
    call = distributed_lock(*names)(lambda: None)
    for number in interruptions(call):
        assert HOLDS.snapshot() == [], number
        until_clean()
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
    until_clean()
    thread_owner().holds.clear()  # other tests, which interrupt this thread elsewhere, may have left notes
    for number in interruptions(partial(view, request), OUTSIDE_OF_VIEWS):
        assert holds_left() == [], number
        assert context.get() is None, number
        until_clean()
        assert not thread_owner().holds, number  # each acquire in a library's thread looks through them
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
        until_clean()
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
    """Python makes the release then, and the signal's exception is raised again afterwards."""
    with pytest.raises(Interruption), transaction.atomic():
        block_of(until_commit())
        monkeypatch.setattr(type(BaseLock._engine), "release", interrupted_once(monkeypatch))
        _ = 1 / 0
    assert HOLDS.snapshot() == []
    until_clean()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_response_whose_end_is_interrupted_releases_its_lock(monkeypatch):
    response = distributed_lock("stock:42")(lambda request: StreamingHttpResponse(()))(RequestFactory().get("/"))
    monkeypatch.setattr(ownership, "clean_up", interrupted_once(monkeypatch))
    with pytest.raises(Interruption):
        del response
        gc.collect()
    assert HOLDS.snapshot() == []
    until_clean()
    assert not RLock("stock:42").locked()


def is_djangos(frame):
    """Django's own functions may be interrupted as well; here only the one by which it learns of us."""
    callers = [each.f_code for each, _ in traceback.walk_stack(frame)]
    ours, djangos = "/django_rlock/", "/django/db/"
    known = [code for code in callers if ours in code.co_filename or djangos in code.co_filename][:1]
    return is_swallowed(frame) or any(djangos in code.co_filename and code.co_name != "on_commit" for code in known)


OUTSIDE_OF_VIEWS = outside_of(
    "_web/calls.py", "_web/http.py", "ownership.py", "transactions.py", "holds.py", "release.py", "interruptions.py"
)


def holds_left():
    """The holds that are left when garbage has been collected: the errors of several locks refer to each other."""
    if HOLDS.snapshot():
        gc.collect()
    return HOLDS.snapshot()


OUTSIDE_OF_MIDDLEWARE = outside_of("middleware.py", "_web/http.py", "interruptions.py", "locks/base.py")


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


@pytest.mark.django_db(transaction=True)
def test_interrupted_call_of_a_locked_view_ends_its_transaction(monkeypatch):
    """A transaction that stays open would swallow the writes of the thread's next requests."""
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    inner = distributed_lock("stock:42")(lambda request: HttpResponse())
    call = partial(distributed_lock("stock:43")(inner), RequestFactory().get("/"))
    call()  # what is made on first use is there
    for number in interruptions(call, opens_no_transaction):
        assert not transaction.get_connection().in_atomic_block, number
        assert AROUND.get() == (), number
        settle()


OPENERS = "_web/calls.py", "transactions.py", "contextlib.py", "interruptions.py"
"""The modules between BEGIN and the function."""


def opens_no_transaction(frame):
    """Django's own BEGIN may be interrupted as well, whoever calls it; that is not tested here."""
    files = [each.f_code.co_filename for each, _ in traceback.walk_stack(frame)]
    return is_swallowed(frame) or not files[0].endswith(OPENERS) or any("/django/db/" in file for file in files)
