"""No server, thread or user's function that fails or hangs takes a lock on a healthy server with it."""

import asyncio
import os
import re
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, cast

import pytest
from django.core.cache import caches
from django_redis import get_redis_connection
from redis.exceptions import MaxConnectionsError

from django_rlock import FairLock, LockUnavailableError, RLock
from django_rlock._core.clock import monotonic
from django_rlock._redis.scripts import LOCK_STATE
from django_rlock._tasks.holders import Holders
from django_rlock._transport import servers
from django_rlock._transport.calls import ScriptCall, Template
from django_rlock._transport.listener import Listener
from django_rlock._transport.registry import listener
from django_rlock._transport.subscriber import Subscriber
from django_rlock._transport.worker import CleanUp, CleanUps, clean_up, worker
from django_rlock.locks.holds import HOLDS, WAITS
from tests.background import forget_clean_up, is_clean, nudge, renew_now, settle, until_renewed
from tests.beside import beside, visit
from tests.eventually import PATIENCE, UNTIL_SERVED, eventually, in_threads
from tests.processes import ClientProcess

FAST = {"WATCHDOG_TIMEOUT": 6}
"""Renewed every 2 s; a connection to a silent server is given up after 5 s, or after 1 s where leases are as short."""


def is_done(clean_ups: CleanUps) -> bool:
    return not clean_ups.inbox and not clean_ups._due


@pytest.fixture
def silent():
    """The URL of a server that accepts connections and never replies."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"redis://127.0.0.1:{listening.getsockname()[1]}/0"


@pytest.fixture
def silent_alias(silent, settings):
    """An alias whose server never replies, beside the healthy default one; leases are short."""
    settings.CACHES = {**settings.CACHES, "silent": {**settings.CACHES["default"], "LOCATION": silent}}
    settings.RLOCK = {"default": FAST, "silent": {"CACHE": "silent", **FAST}}
    return "silent"


# --- servers ----------------------------------------------------------------------------------------------------------


def test_silent_server_costs_no_lock_of_another(own_server, settings):
    """One background thread for both lost the healthy one's locks after a lease or two."""
    other = own_server("other")
    other.pause()
    settings.RLOCK = {**settings.RLOCK, "default": FAST}
    for number in range(3):
        clean_up("other", ScriptCall("x", Template(LOCK_STATE), f"x{number}", ""), monotonic() + 60)
    with RLock("stock:42") as lock:
        first = HOLDS.snapshot()[0].deadline
        eventually(lambda: HOLDS.snapshot()[0].deadline > first + 3)
        lock.check()
    other.resume()  # what was sent to it is not waited for
    forget_clean_up()


async def test_silent_server_costs_its_callers_their_own_time_only(binding, kind, silent_alias):
    """Connecting and logging in included, whatever CACHES says: here nothing, as in the README."""
    for _ in range(2):
        started = monotonic()
        with pytest.raises(LockUnavailableError):
            await binding.acquire(kind("stock:42", using=silent_alias), wait_time=0.2)
        assert monotonic() - started < 10  # 1.2 s; it had no end, and a busy machine must not fail this


def test_silent_server_at_exit_costs_no_lock_of_another(own_server, server, redis_client):
    """All servers are asked at once, and none longer than there is time."""
    dead = own_server(None)
    entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": dead.url}
    with ClientProcess(server.url) as process:
        process.do(f"module('django.conf').settings.CACHES.update(dead={entry})")
        process.do("module('django.conf').settings.RLOCK.update(dead={'CACHE': 'dead'})")
        assert process.do("lock('stock:41', using='dead').acquire(), lock('stock:42').acquire()") == [True, True]
        dead.pause()
        process.end()
    dead.resume()
    assert not redis_client.exists("rlock:stock:42")


def test_skip_on_a_silent_server_delays_none_on_another(own_server):
    """Each asks its server for the holder, and no mutex is shared by both."""
    other = own_server("other")
    other.pause()
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(Holders(RLock("stock:42", using="other")).has, "the id of a task")
        eventually(lambda: servers.server("other").size > 0)  # it connects
        assert not Holders(RLock("stock:42")).has("the id of a task")
        assert not asked.done()
        other.resume()


# --- connections ------------------------------------------------------------------------------------------------------


def test_cache_without_connections_left_takes_no_locks_with_it(kind, settings, redis_client):
    entry = settings.CACHES["default"]
    # django-redis keeps one pool for each address, so this one must not be that of other tests.
    address = f"{entry['LOCATION']}&health_check_interval=99"
    options = {"CONNECTION_POOL_KWARGS": {"max_connections": 1}}
    settings.CACHES = {"default": {**entry, "LOCATION": address, "OPTIONS": options}}
    pool = get_redis_connection("default").connection_pool
    taken = pool.get_connection()
    with pytest.raises(MaxConnectionsError):
        pool.get_connection()
    with kind("stock:42") as lock:
        assert lock.owned()
    pool.release(taken)


def test_locks_need_nothing_that_an_interrupted_caller_of_the_cache_may_have_left_taken(kind, settings, monkeypatch):
    def taken(*_: object) -> None:
        raise AssertionError("behind a mutex of Django's")

    settings.CACHES = {**settings.CACHES}  # whatever was made before is forgotten
    monkeypatch.setattr(type(caches), "__getitem__", taken)
    with kind("stock:42") as lock:
        assert lock._named_owner is None


def test_connections_are_not_remembered_from_the_midst_of_a_change_of_settings(settings, monkeypatch):
    """A background thread may be making them."""
    settings.CACHES = {**settings.CACHES}
    changed = {"default": {**settings.CACHES["default"], "LOCATION": "unix:///changed?db=0"}}
    look = servers._redis_cache

    def look_and_see_a_change(using: str) -> object:
        looked = look(using)
        if settings.CACHES is not changed:
            settings.CACHES = changed
        return looked

    monkeypatch.setattr(servers, "_redis_cache", look_and_see_a_change)
    for _ in range(2):
        assert servers.source("default").options["path"] == "/changed"


def test_callers_wait_for_a_place_within_their_time(kind, settings, redis_client):
    settings.RLOCK = {"default": {"MAX_CONNECTIONS": 2}}
    start = threading.Barrier(20)

    def work(number: int) -> None:
        start.wait()
        for _ in range(5):
            visit(kind(f"stock:{number}"))

    with ExitStack() as working:
        for number in range(20):
            working.enter_context(beside(work, number))
    assert servers.server("default").size <= 2


@pytest.mark.lengthy
def test_caller_without_a_place_learns_which_setting_to_raise(kind, settings):
    settings.RLOCK = {"default": {"MAX_CONNECTIONS": 1}}
    with kind("stock:42"):
        pass
    link = servers.server("default").take(5)
    with pytest.raises(LockUnavailableError, match="MAX_CONNECTIONS"):
        kind("stock:42").acquire(blocking=False)
    servers.server("default").give_back(link)
    assert kind("stock:42").acquire(blocking=False)
    kind("stock:42").release()


def test_what_a_closed_connection_has_not_sent_is_dropped(redis_client):
    """By the kernel: nothing that an interrupted call left there is executed later."""
    link = servers.server("default").take(PATIENCE)
    with socket.socket(fileno=os.dup(link.fileno())) as same:
        link.close()
        assert struct.unpack("ii", same.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)) == (1, 0)


def test_places_of_interrupted_callers_are_free_again(kind, settings):
    settings.RLOCK = {"default": {"MAX_CONNECTIONS": 2}}
    for _ in range(10):
        servers.server("default").take(5)  # and no one gives it back
    with kind("stock:42"):
        pass


async def test_many_tasks_share_a_connection(binding, redis_client, settings):
    if binding.name == "sync":
        pytest.skip("threads have a connection each while they ask")
    before = len(redis_client.client_list())

    async def visit(number: int) -> None:
        async with FairLock(f"stock:{number}"):
            pass

    await asyncio.gather(*map(visit, range(300)))
    # theirs, and where the machine stalled the listener's, the background thread's and the reporter's
    assert len(redis_client.client_list()) <= before + 4


# --- threads ----------------------------------------------------------------------------------------------------------


def test_slow_callback_costs_no_lock(redis_client):
    goes_on, called = threading.Event(), threading.Event()

    def slow(_: object) -> None:
        called.set()
        goes_on.wait(PATIENCE)

    lost = RLock("stock:42", on_lost=slow)
    lost.acquire()
    with RLock("stock:43") as lock:
        redis_client.delete("rlock:stock:42")
        renew_now()
        assert called.wait(UNTIL_SERVED)
        hold = next(hold for hold in HOLDS.snapshot() if hold.lock is lock)
        until_renewed(hold)
        lock.check()
        goes_on.set()
    HOLDS.clear()


def test_waiter_goes_on_when_its_listener_cannot_connect(monkeypatch, settings, redis_client):
    """Heartbeats find what no message reported."""
    settings.RLOCK = {"default": {"WAITER_ALIVE_TIME": 1, "CLAIM_TIME": 1}}

    def refuse(self: object) -> None:
        raise OSError("no route")

    monkeypatch.setattr(Subscriber, "_connect", refuse)
    with ExitStack() as waiting, FairLock("stock:42"):
        waiting.enter_context(beside(visit, FairLock("stock:42")))
        eventually(WAITS.snapshot)


@pytest.mark.parametrize("begins_first", [False, True])
def test_a_listener_that_is_stopped_while_its_thread_begins(monkeypatch, begins_first):
    """Settings that change at once after a first wait: its sockets are closed by one of the two."""
    begun: list[Any] = []
    monkeypatch.setattr("django_rlock._core.threads.start", lambda function, **_: begun.append(function))
    made: Any = None  # nothing is made here
    subscriber = Subscriber(Listener(lambda *_: made), lambda: made, 1.0)
    subscriber.subscribe("rlock:stock:42")
    if begins_first:
        monkeypatch.setattr(subscriber, "_subscribe_to_new", subscriber.stop)
        begun.pop()()
    else:
        subscriber.stop()
    for run in begun:
        run()
    assert {subscriber._inner.fileno(), subscriber._outer.fileno()} == {-1}


def test_listening_connection_that_dies_silently_is_replaced(own_server, monkeypatch, settings):
    """Nothing arrives on it any more, and nothing says so: as after a NAT has forgotten it."""
    own = own_server()
    settings.RLOCK = {"default": {"WATCHDOG_TIMEOUT": 3}}  # a reply may take half a second
    monkeypatch.setattr("django_rlock._transport.subscriber.PING_AFTER", 0.1)
    with RLock("stock:42"):
        in_threads(lambda: RLock("stock:42").acquire(wait_time=0.2))
    (subscriber,) = cast("Any", listener("default")).subscribers.values()
    first = eventually(lambda: subscriber.connection)  # a server that stalled was given up as well
    own.pause()
    eventually(lambda: subscriber.connection is not first)
    own.resume()
    eventually(lambda: subscriber.connection is not None and subscriber.connection is not first)


def test_listening_connection_that_is_used_all_the_time_is_replaced_too(own_server, settings):
    """Each further SUBSCRIBE would give a dead connection more time."""
    own = own_server()
    settings.RLOCK = {"default": {"WATCHDOG_TIMEOUT": 3}}  # a reply may take half a second
    known = listener("default")
    kept = [known.call_at("first", str)]
    eventually(lambda: known.channels["first"].confirmed)
    (subscriber,) = cast("Any", known).subscribers.values()
    first = subscriber.connection
    own.pause()

    def is_replaced() -> bool:
        time.sleep(0.3)  # a buffer that is full would be noticed in any case
        kept.append(known.call_at(f"channel {len(kept)}", str))
        return subscriber.connection is not first

    eventually(is_replaced)
    own.resume()


# --- clean-up ---------------------------------------------------------------------------------------------------------


def calls(number: int) -> list[ScriptCall]:
    return [ScriptCall("x", Template(LOCK_STATE), f"x{each}", "") for each in range(number)]


def test_clean_up_that_may_be_obeyed_before_its_cause_comes_again(monkeypatch, redis_client):
    """At growing gaps, until it cannot matter any more."""
    monkeypatch.setattr("django_rlock._transport.worker.AGAIN_AFTER", 0.02)
    call = calls(1)[0]
    began = monotonic()
    clean_up("default", call, began + 0.3, again=True)
    eventually(lambda: is_done(worker("default").jobs[CleanUps]) and call.sent_at >= began + 0.3)
    assert call.sends <= 6


def test_clean_up_comes_again_after_the_first_success(own_server, monkeypatch):
    """Not after the attempt was given up, which may have been long before the server was back."""
    own = own_server()
    monkeypatch.setattr("django_rlock._transport.worker.AGAIN_AFTER", 100.0)
    its = worker("default").jobs[CleanUps]
    own.kill()
    (call,) = calls(1)
    clean_up("default", call, monotonic() + 1000, again=True)
    settle()
    assert [each.gap for _, each in its._due] == [100], "it has failed"
    own.start()
    eventually(lambda: [each.gap for _, each in its._due] == [200])
    ((at, _),) = its._due
    assert at >= call.sent_at + 100
    its.clear()


def test_clean_up_of_what_may_not_come_again_comes_once(redis_client):
    call = calls(1)[0]
    clean_up("default", call, monotonic() + 60)
    eventually(is_clean)
    assert call.sends == 1


def test_clean_up_waits_for_its_server_and_is_bounded(own_server, monkeypatch, caplog):
    own = own_server()
    monkeypatch.setattr("django_rlock._transport.worker.MOST_CLEAN_UPS", 5)
    its = worker("default").jobs[CleanUps]
    own.kill()
    for number, call in enumerate(calls(8)):
        clean_up("default", call, monotonic() + 60 + number)
    settle()
    assert len(its._due) == 5
    assert sum(map(int, re.findall(r"Gave up on cleaning up (\d+) call", caplog.text))) == 3
    own.start()
    eventually(lambda: is_done(its))


def test_clean_up_is_sent_in_few_round_trips(redis_client):
    redis_client.config_resetstat()
    monotonic_end = monotonic() + 60
    for call in calls(100):
        worker("default").jobs[CleanUps].inbox.append(CleanUp(call, monotonic_end))
    nudge()
    eventually(lambda: redis_client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0) >= 100)
    settle()  # the replies
    assert is_done(worker("default").jobs[CleanUps])
