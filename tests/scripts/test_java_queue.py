"""The entry of our waiters in the queue of Redisson's fair lock."""

from uuid import UUID

import pytest

from django_rlock._redis import scripts
from django_rlock._redis.keys import JAVA_QUEUE_ENTRY, java_queue_channel
from django_rlock.locks.heartbeats import BESIDE_JAVA, GRANTED, STILL_QUEUED
from tests.scripts.conftest import CHANNEL, DEADLINES, JAVA, KEY, ME, OTHER, WAITING, now_ms

THEIRS = f"{UUID(int=5, version=4)}:7"
LEASE, ENTRY_LIVES = 30_000, 2_000


@pytest.fixture(autouse=True)
def held_by_java(redis_client):
    """A Java client holds the lock, and another one waits for it in Redisson's queue."""
    redis_client.hset(KEY, THEIRS, 1)
    redis_client.pexpire(KEY, LEASE)
    redis_client.rpush(WAITING, JAVA)
    redis_client.zadd(DEADLINES, {JAVA: now_ms(redis_client) + 300_000})


def wait(run, owner=ME):
    return run(scripts.RLOCK_WAIT, owner, 1, LEASE)


def wait_fenced(run):
    return run(scripts.FENCED_WAIT, ME, 1, LEASE, 0, 0)


def heartbeat(run):
    return run(scripts.JAVA_HEARTBEAT)


def queue(redis_client):
    return redis_client.lrange(WAITING, 0, -1)


@pytest.mark.parametrize("join", [wait, wait_fenced, heartbeat])
def test_entry_is_before_javas_and_expires(join, run, redis_client):
    for _ in range(2):
        reply = join(run)
        left = now_ms(redis_client)
        assert reply[0 if join is heartbeat else 1] == (BESIDE_JAVA if join is heartbeat else 1)
        assert queue(redis_client) == [JAVA_QUEUE_ENTRY, JAVA]
        assert left < redis_client.zscore(DEADLINES, JAVA_QUEUE_ENTRY) <= left + ENTRY_LIVES
    assert redis_client.pttl(WAITING) > 1000 * 3600, "the keys of a queue in which nobody waits expire"


@pytest.mark.parametrize("holder", [OTHER, str(UUID(int=5, version=4)), "order:7", "mode"])
@pytest.mark.parametrize("join", [wait, heartbeat])
def test_no_entry_while_no_java_client_holds_the_lock(join, holder, run, redis_client):
    redis_client.delete(KEY)
    redis_client.hset(KEY, holder, 1)
    assert STILL_QUEUED in join(run) if join is heartbeat else join(run)[1] == 0
    assert queue(redis_client) == [JAVA]


@pytest.mark.parametrize("take", [wait, wait_fenced])
def test_taking_the_lock_removes_the_entry_and_changes_no_other(take, run, redis_client):
    heartbeat(run)
    deadline = redis_client.zscore(DEADLINES, JAVA)
    redis_client.delete(KEY)
    assert heartbeat(run)[0] == GRANTED
    reply = take(run)
    assert (reply if take is wait else reply[0]) == "OK"
    assert queue(redis_client) == [JAVA]
    assert redis_client.zrange(DEADLINES, 0, -1, withscores=True) == [(JAVA, deadline)]
    assert redis_client.ttl(WAITING) == redis_client.ttl(DEADLINES) == -1


def test_release_of_an_owner_that_did_not_wait_removes_the_entry_and_notifies_java(run, redis_client, heard):
    heartbeat(run)
    redis_client.delete(KEY)
    run(scripts.RLOCK_ACQUIRE, ME, 1, LEASE)
    heard()
    assert run(scripts.RLOCK_RELEASE, ME, 0, LEASE) == 1
    assert heard() == [(CHANNEL, "0"), (f"{CHANNEL}:{JAVA}", "0")]
    assert queue(redis_client) == [JAVA]


@pytest.mark.parametrize("is_free", [True, False])
def test_who_leaves_passes_the_message_of_a_release_on(is_free, run, redis_client, heard):
    heartbeat(run)
    if is_free:
        redis_client.delete(KEY)
    assert run(scripts.JAVA_LEAVE) == 1
    assert run(scripts.JAVA_LEAVE) == 0
    assert heard() == [(CHANNEL, "0"), (f"{CHANNEL}:{JAVA}", "0")] * is_free
    assert queue(redis_client) == [JAVA]


@pytest.mark.parametrize("missing", ["zadd", "lpush", "lpop", "persist"])
def test_user_without_the_rights_waits_as_before(missing, run, redis_client):
    """An entry without a deadline would keep Java's waiters out for ever."""
    redis_client.acl_setuser("default", enabled=True, nopass=True, commands=["+@all", f"-{missing}"])
    try:
        heartbeat(run)
        assert wait(run)[1] == 1
        redis_client.delete(KEY)
        assert wait(run) == "OK"
    finally:
        redis_client.acl_setuser("default", enabled=True, nopass=True, commands=["+@all"])
    assert set(queue(redis_client)) <= set(redis_client.zrange(DEADLINES, 0, -1))


def test_channel_of_the_entry_is_the_one_where_redisson_notifies_it():
    assert java_queue_channel(KEY) == f"{CHANNEL}:{JAVA_QUEUE_ENTRY}"
