"""The owners of locks: threads, tasks and greenlets, also those whose idents are used again."""

import asyncio
import gc
import threading

import greenlet  # type: ignore[import-untyped]
import pytest

from django_rlock import LockNotOwnedError, LockUnavailableError
from django_rlock._transport import identity
from django_rlock.locks.holds import HOLDS
from tests.background import settle, until_clean
from tests.eventually import UNTIL_SERVED


def in_thread(function):
    outcome = []
    thread = threading.Thread(target=lambda: outcome.append((threading.get_ident(), function())))
    thread.start()
    thread.join(UNTIL_SERVED)
    return outcome[0]


def test_thread_with_a_recycled_ident_does_not_enter(kind):
    lock = kind("stock:42")
    with lock:  # starts the package's own threads, which would get the ident otherwise
        pass
    first, taken = in_thread(lock.acquire)
    assert taken
    for _ in range(200):
        second, again = in_thread(lambda: lock.acquire(blocking=False))
        assert not again
        if second == first:
            break
    else:
        HOLDS.clear()
        pytest.skip("The system did not use a thread's ident again.")
    assert in_thread(lock.owned)[1] is False
    HOLDS.clear()


def test_names_are_never_used_twice():
    names = {in_thread(lambda: identity.current_owner().owner_id)[1] for _ in range(100)}
    assert len(names) == 100


@pytest.mark.lengthy
def test_lock_of_a_thread_that_ended_is_not_renewed(kind, redis_client, settings, caplog):
    settings.RLOCK = {"default": {"WATCHDOG_TIMEOUT": 3.0}}
    in_thread(lambda: kind("stock:42").acquire())
    assert kind("stock:42").acquire(wait_time=10, lease_time=30)
    assert "ended without releasing" in caplog.text
    kind("stock:42").release()


def test_lock_of_a_task_whose_loop_was_closed_is_not_renewed(kind, settings):
    """As a worker does that ends its loop: the task is pending for ever, and is kept here."""
    settings.RLOCK = {"default": {"WATCHDOG_TIMEOUT": 0.4}}
    loop = asyncio.new_event_loop()
    taken = loop.create_future()

    async def never_ends() -> None:
        taken.set_result(await kind("stock:42").aacquire())
        await loop.create_future()

    task = loop.create_task(never_ends())
    assert loop.run_until_complete(taken)
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
    with kind("stock:42", wait_time=10, lease_time=30):
        assert not task.done()


def test_an_owner_that_is_kept_has_ended_all_the_same(kind):
    """A kept traceback, for one, keeps the owner's object."""
    kept = []

    def take(name: str) -> None:
        kept.append(identity.current_owner())
        kind(name).acquire()

    async def take_in_a_task() -> None:
        kept.append(identity.current_owner())
        await kind("task").aacquire()

    in_thread(lambda: take("thread"))
    greenlet.greenlet(lambda: take("greenlet")).switch()
    asyncio.run(take_in_a_task())
    assert {hold.lock.name: hold.owner_ended for hold in HOLDS.snapshot()} == dict.fromkeys(
        ["thread", "greenlet", "task"], True
    )
    assert len(kept) == 3
    HOLDS.clear()


def test_greenlets_of_one_thread_exclude_each_other(kind):
    """Without any monkey patching they share their thread's locals."""
    lock = kind("stock:42")
    seen = []

    def first() -> None:
        with lock:
            greenlet.getcurrent().parent.switch()
            seen.append(lock.owned())

    def second() -> None:
        seen.append(lock.acquire(blocking=False))
        seen.append(lock.owned())
        with pytest.raises(LockNotOwnedError):
            lock.release()

    one, two = greenlet.greenlet(first), greenlet.greenlet(second)
    one.switch()
    two.switch()
    assert not lock.acquire(blocking=False)  # nor does the thread's main greenlet
    one.switch()
    assert seen == [False, False, True]


# It collects the garbage of earlier tests too: sockets of connections that a signal interrupted while they were made.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_lock_of_a_greenlet_that_ended_is_not_renewed(kind, settings):
    settings.RLOCK = {"default": {"WATCHDOG_TIMEOUT": 0.4}}
    greenlet.greenlet(lambda: kind("stock:42").acquire()).switch()
    gc.collect()
    with kind("stock:42", wait_time=10, lease_time=30):
        pass


def test_failed_release_of_an_explicit_owner_does_not_free_its_next_hold(kind, own_server):
    """The name cannot be changed, so a release left for later would hit whatever the name holds by then."""
    server = own_server()
    lock = kind("stock:42", owner="order-7")
    lock.acquire()
    address = server.folder / "server.sock"
    with server.client() as client:
        client.ping()
        away = address.rename(server.folder / "away.sock")
        client.client_kill_filter(_type="normal")
    with pytest.raises(LockUnavailableError):
        lock.release()
    settle()
    away.rename(address)
    assert lock.acquire()
    until_clean()
    assert lock.owned()
    lock.release()
