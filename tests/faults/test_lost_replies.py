"""A command whose reply never came is sent again in time. That nothing happens twice is shown by ``tests/flows``."""

import math
import socket
import threading
import time
from concurrent.futures import Future

import pytest
import redis
from django_redis import get_redis_connection

from django_rlock import FencedLock, LockLostError, LockUnavailableError, MultiLock, RLock
from django_rlock._core.clock import monotonic
from django_rlock._monitoring import reporter
from django_rlock._monitoring.recorder import Recorder
from django_rlock._redis import keys, scripts
from django_rlock._transport import async_connection, calls, pool
from django_rlock._transport.connection import KEEPALIVE
from django_rlock._transport.servers import server
from django_rlock.locks.holds import HOLDS
from tests.background import until_renewed
from tests.eventually import PATIENCE, UNTIL_SERVED

pytestmark = pytest.mark.lengthy

ACQUIRE = {"fair": scripts.FAIR_ACQUIRE, "rlock": scripts.RLOCK_ACQUIRE}
RELEASE = {"fair": scripts.FAIR_RELEASE, "rlock": scripts.RLOCK_RELEASE}
KEY = "rlock:stock:42"


async def test_command_that_never_arrived_is_sent_again(binding, kind, proxy, redis_client):
    lock = kind("stock:42")
    cut = proxy.cut_before(ACQUIRE[kind.kind])
    assert await binding.acquire(lock, blocking=False)
    assert cut.served.is_set()
    cut = proxy.cut_before(RELEASE[kind.kind])
    await binding.release(lock)
    assert cut.served.is_set()
    assert not redis_client.exists(KEY)


async def test_member_of_several_is_tried_for_as_long_as_the_whole(binding, proxy, settings):
    """Though it is tried once, without a wait for who holds it. Members of two aliases are taken one by one."""
    settings.RLOCK = {**settings.RLOCK, "other": settings.RLOCK["default"]}
    cuts = [proxy.cut_before(scripts.FENCED_ACQUIRE) for _ in range(5)]
    async with binding.inside(MultiLock(FencedLock("a"), FencedLock("b", using="other"), wait_time=20)):
        assert all(cut.served.is_set() for cut in cuts)


async def test_connections_that_all_broke_are_one_failure(binding, kind, redis_client, monkeypatch):
    """Which is made up for at once."""
    paused: list[int] = []

    def pause(tries: int, *_: float) -> float:
        paused.append(tries)
        return 0.01

    monkeypatch.setattr(calls, "backoff", pause)
    links = server("default")
    for link in [links.take(5) for _ in range(5)]:
        links.give_back(link)
    redis_client.client_kill_filter(_type="normal", skipme=True)
    assert await binding.acquire(kind("stock:42"), wait_time=10)
    assert paused == []
    await binding.release(kind("stock:42"))


async def test_silent_connection_is_given_up_within_the_wait(binding, kind, proxy, redis_client):
    """The acquire was executed but got no reply: it fails, and the grant is released afterwards."""
    swallowed = proxy.swallow_reply(ACQUIRE[kind.kind])
    lock = kind("stock:42")
    with pytest.raises(LockUnavailableError):
        await binding.acquire(lock, blocking=False)
    assert swallowed.served.is_set()
    await binding.until(lambda: not redis_client.exists(KEY))
    assert await binding.acquire(lock, blocking=False)
    await binding.release(lock)


@pytest.fixture
def doubted(monkeypatch):
    """Connections are doubted as soon as they are idle; their servers have all the time that they need."""
    monkeypatch.setattr(pool, "FRESH", 0.0)
    for module in (pool, async_connection):
        monkeypatch.setattr(module, "DOUBTED_AFTER", 0.0)
    monkeypatch.setattr(calls, "REPLY_GRACE", PATIENCE)


@pytest.mark.usefixtures("doubted")
async def test_idle_connection_that_is_gone_without_a_word_fails_no_call(binding, kind, proxy, redis_client):
    lock = kind("stock:42")
    for _ in range(2):
        assert await binding.acquire(lock, blocking=False)
        proxy.forget_connections()
        await binding.release(lock)
        assert not redis_client.exists(KEY)
        proxy.forget_connections()


@pytest.mark.usefixtures("doubted")
def test_idle_connection_that_is_gone_without_a_word_delays_no_renewal(proxy, caplog):
    with RLock("stock:42"):
        for _ in range(2):
            until_renewed(*HOLDS.snapshot())
            proxy.forget_connections()
    assert "could not be renewed" not in caplog.text


@pytest.mark.parametrize("wanted", [True, False])
def test_the_kernel_asks_idle_connections_for_signs_of_life(own_server, settings, wanted):
    own_server(port=0)
    options = {} if wanted else {"CONNECTION_POOL_KWARGS": {"socket_keepalive": False}}
    settings.CACHES = {"default": {**settings.CACHES["default"], "OPTIONS": options}}
    link = server("default").open()
    assert bool(link.sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)) == wanted
    if wanted:
        assert link.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == KEEPALIVE["TCP_KEEPIDLE"]
    link.close()


async def test_idle_connection_that_lives_is_kept(binding, kind, doubted, redis_client):
    async with binding.inside(kind("warm")):
        pass
    before = redis_client.info("stats")["total_connections_received"]
    async with binding.inside(kind("stock:42")):
        pass
    assert redis_client.info("stats")["total_connections_received"] == before


async def test_acquire_that_arrives_after_its_clean_up_does_not_meet_the_next_hold(binding, kind, proxy, redis_client):
    """The first command is stuck on its way, the caller gives up, comes back, and only then it arrives."""
    stuck = proxy.hold(ACQUIRE[kind.kind])
    lock = kind("stock:42")
    with pytest.raises(LockUnavailableError):
        await binding.acquire(lock, blocking=False)
    assert await binding.acquire(lock, blocking=False)
    owner = redis_client.hkeys(KEY)
    stuck.let_go.set()
    await binding.sleep(0.05)
    assert redis_client.hkeys(KEY) == owner
    await binding.release(lock)
    assert not redis_client.exists(KEY)


async def test_deadline_counts_from_before_the_command(binding, kind, proxy):
    """However late the reply, the hold counts as lost before the server may give the lock to another."""
    lock = kind("stock:42", lease_time=20)
    reply = proxy.hold_reply(ACQUIRE[kind.kind])
    obeyed_at = _let_go_later(reply)
    await binding.acquire(lock)
    assert HOLDS.snapshot()[0].deadline <= obeyed_at.result(UNTIL_SERVED) + 20
    await binding.release(lock)


async def test_deadline_of_a_renewal_counts_from_before_the_command(binding, kind, proxy):
    lock = kind("stock:42")
    await binding.acquire(lock)
    hold = HOLDS.snapshot()[0]
    reply = proxy.hold_reply(scripts.LOCK_RENEW)
    obeyed_at = _let_go_later(reply)
    until_renewed(hold)
    assert hold.deadline <= obeyed_at.result(UNTIL_SERVED) + hold.lease
    await binding.release(lock)


def _let_go_later(reply):
    """Let a reply go a fifth of a second after the server gave it; returns when that was."""
    obeyed_at: Future[float] = Future()

    def wait() -> None:
        reply.served.wait(UNTIL_SERVED)
        obeyed_at.set_result(monotonic())
        time.sleep(0.2)
        reply.let_go.set()

    threading.Thread(target=wait).start()
    return obeyed_at


def test_release_that_was_not_sent_at_first_does_not_hide_a_loss(kind, redis_client, monkeypatch):
    """Only what the server may have executed makes "not yours" the echo of an earlier release."""
    lock = kind("stock:42")
    lock.acquire()
    redis_client.delete(KEY)
    cache_pool = get_redis_connection("default").connection_pool
    connect = cache_pool.get_connection
    failures = [redis.ConnectionError("refused")]

    def get_connection(*args, **kwargs):
        if failures:
            raise failures.pop()
        return connect(*args, **kwargs)

    monkeypatch.setattr(cache_pool, "get_connection", get_connection)
    with pytest.raises(LockLostError):
        lock.release()


@pytest.fixture
def publisher(proxy):
    """The report of another process, whose first write was executed and not confirmed."""
    publisher = reporter.Publisher("default", Recorder())
    publisher.report.key = keys.report_key("another")
    lost = [proxy.lose_reply(b"PEXPIRE") for _ in range(2)]
    with RLock("stock:42"):
        (hold,) = HOLDS.snapshot()
        publisher.add(hold)
        publisher.publish(hold.since + reporter.MIN_AGE)
    assert all(each.served.is_set() for each in lost)
    return publisher


def test_an_unconfirmed_report_is_removed_when_nothing_is_held(publisher, redis_client):
    assert redis_client.exists(publisher.report.key)
    publisher.publish(publisher.report.write_from)
    assert not redis_client.exists(publisher.report.key)


def test_an_unconfirmed_report_is_taken_back_at_exit(publisher, proxy, redis_client):
    """Over a connection that turns out to be broken."""
    cut = proxy.cut_before(b"UNLINK")
    publisher.finish(publisher.report.write_from)
    assert cut.served.is_set()
    assert not redis_client.exists(publisher.report.key)
    assert redis_client.zscore(keys.PROCESSES, "another") is None


@pytest.fixture
def news(publisher):
    """The same publisher, which also has a history to write."""
    publisher.history.key = keys.history_key("another")
    publisher._recorder.version += 1
    return publisher


def test_a_report_that_cannot_be_removed_costs_no_history(news, proxy, redis_client):
    cuts = [proxy.cut_before(b"ZREM\r\n") for _ in range(2)]
    news.finish(news.report.write_from)
    assert all(each.served.is_set() for each in cuts)
    assert redis_client.exists(news.history.key)


def test_a_history_that_cannot_be_written_delays_no_report(news, proxy, redis_client):
    cuts = [proxy.cut_before(b"rlock_histories") for _ in range(2)]
    again_at = news.publish(news.report.write_from)
    assert all(each.served.is_set() for each in cuts)
    assert not redis_client.exists(news.report.key, news.history.key)
    with RLock("stock:42"):
        (hold,) = HOLDS.snapshot()
        news.add(hold)
        assert news.publish(again_at - 2) < again_at
        assert redis_client.exists(news.report.key)
    news.publish(again_at)
    assert redis_client.exists(news.history.key)


def test_neither_mirror_is_written_once_its_alias_is_gone(redis_client, settings):
    settings.RLOCK = aliases = {"gone": {"CACHE": "default"}}
    recorder = Recorder()
    publisher = reporter.Publisher("gone", recorder)
    publisher.aliases = {"gone"}
    with RLock("stock:41", using="gone"):
        pass
    with RLock("stock:42", using="gone"):
        (hold,) = HOLDS.snapshot()
        publisher.add(hold)
        recorder.look(hold.since)
        now = publisher.publish(hold.since + reporter.MIN_AGE)
        assert redis_client.exists(publisher.report.key, publisher.history.key) == 2
        publisher.clock += 1  # which every entry contains
        recorder.version += 1
        settings.RLOCK = {}
        assert publisher.publish(now) == math.inf
        settings.RLOCK = aliases
    assert not publisher.report.may_be_there
    assert not publisher.history.may_be_there
