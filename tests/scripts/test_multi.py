"""The scripts that take and free several locks at once."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis

from django_rlock import FairLock, FencedLock, LimitedLock, ReadLock, RLock, SpinLock, WriteLock
from django_rlock._redis import scripts
from django_rlock._redis.keys import fair_release_keys, redisson_channel, token_key
from django_rlock.locks.groups import LockGroup
from tests.scripts.conftest import CLAIMED, JAVA, ME, OTHER, THIRD, written_out

LEASE, CLAIM = 30_000, 5000
LOCKS = [f"rlock:account:{letter}" for letter in "abc"]
A, B, C = LOCKS
STATES, QUEUES, ALIVE, CHANNELS, WAITING, DEADLINES = (
    list(sort) for sort in zip(*map(fair_release_keys, LOCKS), strict=True)
)


@pytest.fixture
def acquire(redis_client):
    def call(owner, lease=LEASE):
        keys = STATES + QUEUES
        reply = redis_client.eval(scripts.MULTI_ACQUIRE.source, len(keys), *keys, "1", owner, lease)
        return written_out(scripts.MULTI_ACQUIRE, reply)[1:]

    return call


@pytest.fixture
def release(redis_client):
    def call(owner):
        keys = STATES + QUEUES + WAITING + ALIVE + CHANNELS + DEADLINES
        reply = redis_client.eval(scripts.MULTI_RELEASE.source, len(keys), *keys, "1", owner, CLAIM)
        return written_out(scripts.MULTI_RELEASE, reply)[1]

    return call


@pytest.fixture
def holders(redis_client):
    """Who holds each of them how often."""
    return lambda: [redis_client.hgetall(lock) for lock in LOCKS]


def queue(redis_client, place, owner, alive=True):
    redis_client.zadd(QUEUES[place], {owner: 1})
    if alive:
        redis_client.zadd(ALIVE[place], {owner[:36]: 4e15})


@pytest.mark.parametrize("place", [0, 1, 2])
def test_none_is_taken_where_others_wait_for_a_free_one(acquire, redis_client, holders, place):
    queue(redis_client, place, OTHER)
    assert acquire(ME) == ["QUEUED"]
    assert holders() == [{}] * 3
    assert redis_client.zcard(QUEUES[place]) == 1


def test_others_that_wait_behind_a_holder_do_not_matter(acquire, redis_client):
    redis_client.hset(A, OTHER, 1)
    queue(redis_client, 0, THIRD)
    assert acquire(ME) == [-1, 1]


def test_those_that_another_holds_are_named_and_stay(acquire, release, redis_client, holders, heard):
    acquire(ME)
    redis_client.delete(A, C)
    redis_client.hset(C, OTHER, 1)
    assert release(ME) == [1, 3]
    assert holders() == [{}, {}, {OTHER: "1"}]
    assert heard() == [(redisson_channel(B), "0")]
    assert release(ME) == [1, 2, 3]
    assert heard() == []


def test_each_goes_to_its_first_waiter(acquire, release, redis_client, holders, heard):
    acquire(ME)
    queue(redis_client, 1, OTHER)
    queue(redis_client, 2, THIRD, alive=False)
    assert release(ME) == "OK"
    assert holders() == [{}, {OTHER: CLAIMED}, {}]
    assert CLAIM - 1000 < redis_client.pttl(B) <= CLAIM
    assert heard() == [
        (redisson_channel(A), "0"),
        (f"rlock_wake:{OTHER[:36]}", f"1 {OTHER} {B}"),
        (redisson_channel(C), "0"),
    ]


def test_the_first_in_redissons_fair_queue_is_woken(acquire, release, redis_client, heard):
    acquire(ME)
    gone = JAVA.replace("d", "e")
    redis_client.rpush(WAITING[1], gone, JAVA, JAVA.replace("d", "f"))
    redis_client.zadd(DEADLINES[1], {gone: 1, JAVA: 4e15})
    assert release(ME) == "OK"
    assert heard() == [
        (redisson_channel(A), "0"),
        (redisson_channel(B), "0"),
        (f"{redisson_channel(B)}:{JAVA}", "0"),
        (redisson_channel(C), "0"),
    ]


# --- locks of every kind ----------------------------------------------------------------------------------------------

X, Y = "account:x", "account:y"
MAKE: dict[str, Callable[[str], Any]] = {
    "fair": FairLock,
    "rlock": RLock,
    "spin": SpinLock,
    "fenced": FencedLock,
    "read": ReadLock,
    "reads after writers": partial(ReadLock, prefer="writer"),
    "write": WriteLock,
    "limited": partial(LimitedLock, permits=2),
}
each_kind = pytest.mark.parametrize("make", MAKE.values(), ids=MAKE.keys())


def send(client, call):
    """Execute a call, and return its reply without the nonce."""
    reply = client.eval(call.script.source, len(call.keys), *call.keys, "1", *call.args)
    return written_out(call.script, reply)[1:]


@pytest.fixture
def contents(redis_client):
    """What is stored where, and with which lease. A token is a time, so its value does not count."""

    def value(key):
        if key.startswith("redisson_lock_token"):
            return "a token"
        read = {"hash": redis_client.hgetall, "string": redis_client.get}
        return read.get(redis_client.type(key), lambda key: redis_client.zrange(key, 0, -1))(key)

    return lambda: {key: (value(key), lease_behind(redis_client.pttl(key))) for key in redis_client.keys("*")}


def lease_behind(left_ms):
    """The shortest lease that this may be the rest of."""
    return next(each for each in (-2, -1, 5000, 15_000, LEASE, 60_000, math.inf) if left_ms <= each)


def acquire_alone(lock, owner, lease=LEASE / 1000):
    return lock._kind.acquire(lock, owner, 1, lease)


def acquire_in_group(lock, owner, lease=LEASE / 1000):
    return LockGroup([lock]).acquire_call(owner, lease)


def is_held(client, make):
    send(client, acquire_alone(FairLock(X), OTHER, 5))


def is_read(client, make):
    send(client, acquire_alone(ReadLock(X), OTHER, 5))


def is_full(client, make):
    is_read(client, make)
    send(client, acquire_alone(ReadLock(X), THIRD, 15))


def is_written(client, make):
    send(client, acquire_alone(WriteLock(X), OTHER, 5))


def is_read_by_the_dead(client, make):
    is_full(client, make)
    client.delete(*client.keys("*rwlock_timeout*"))


def has_a_writer_waiting(client, make):
    lock = WriteLock(X, prefer="writer")
    is_read(client, make)
    send(client, lock._kind.acquire(lock, THIRD, 1, 5, waiting=True))


def is_mine(client, make):
    """As for a command that comes again."""
    send(client, acquire_alone(make(X), ME, 60))


def is_mine_beside_others(client, make):
    is_mine(client, make)
    has_a_writer_waiting(client, make)


SITUATIONS = {
    "free": lambda client, make: None,
    "held": is_held,
    "read": is_read,
    "full": is_full,
    "written": is_written,
    "read by the dead": is_read_by_the_dead,
    "read, and a writer waits": has_a_writer_waiting,
    "mine": is_mine,
    "mine, beside others": is_mine_beside_others,
}
each_situation = pytest.mark.parametrize("prepare", SITUATIONS.values(), ids=SITUATIONS.keys())


@each_kind
@each_situation
def test_it_is_taken_as_by_the_script_of_its_kind(redis_client, contents, make, prepare):
    found = []
    for acquire in (acquire_alone, acquire_in_group):
        redis_client.flushdb()
        prepare(redis_client, make)
        word, *_ = send(redis_client, acquire(make(X), ME))
        found.append((word if word == "OK" else lease_behind(word), contents()))
    assert found[0] == found[1]


@each_kind
@each_situation
def test_it_is_released_as_by_the_script_of_its_kind(redis_client, contents, heard, make, prepare):
    found = []
    for in_group in (False, True):
        redis_client.flushdb()
        prepare(redis_client, make)
        lock = make(X)
        group = LockGroup([lock])
        heard()
        (reply,) = send(redis_client, group.release_call(ME) if in_group else lock._kind.release(lock, ME, 0, 30.0))
        found.append((reply == "OK" if in_group else reply == 1, contents(), heard()))
    assert found[0] == found[1]


def kinds(*names):
    return [MAKE[name](f"account:{place}") for place, name in enumerate(names)]


def test_locks_of_all_kinds_are_taken_and_released_together(redis_client):
    group = LockGroup(kinds("limited", "read", "fenced", "fair", "write", "fenced", "rlock"))
    word, tokens = send(redis_client, group.acquire_call(ME, 30.0))
    assert word == "OK"
    assert [int(redis_client.get(token_key(f"rlock:account:{place}"))) for place in (2, 5)] == tokens
    assert group.tokens_in([b"1", word, tokens]) == dict(zip([group.locks[2], group.locks[5]], tokens, strict=True))
    assert len(redis_client.keys("rlock:account:*")) == 7
    assert send(redis_client, group.release_call(ME)) == ["OK"]
    assert {*redis_client.keys()} == {token_key(f"rlock:account:{place}") for place in (2, 5)}


@pytest.mark.parametrize("place", range(5))
def test_one_of_any_kind_that_is_taken_is_named(redis_client, place):
    group = LockGroup(kinds("limited", "read", "fenced", "fair", "write"))
    redis_client.hset(f"rlock:account:{place}", OTHER, 1)
    left, position = send(redis_client, group.acquire_call(ME, 30.0))
    assert (left, group.at([position])) == (-1, {group.locks[place]})
    assert len(redis_client.keys()) == 1


@pytest.mark.parametrize("place", range(5))
def test_one_of_any_kind_that_is_gone_is_named(redis_client, place):
    group = LockGroup(kinds("limited", "read", "fenced", "fair", "write"))
    send(redis_client, group.acquire_call(ME, 30.0))
    redis_client.delete(f"rlock:account:{place}")
    (missing,) = send(redis_client, group.release_call(ME))
    assert group.at(missing) == {group.locks[place]}
    assert not redis_client.keys("rlock:*")


def test_both_sides_of_a_lock_are_taken_by_one_script(redis_client, contents):
    both = [WriteLock(X), ReadLock(X)]
    for lock in both:
        send(redis_client, acquire_alone(lock, ME))
    alone = contents()
    redis_client.flushdb()
    group = LockGroup(both)
    for _ in range(2):  # the same command once more does nothing once more
        assert send(redis_client, group.acquire_call(ME, 30.0)) == ["OK"]
        assert contents() == alone
    assert send(redis_client, group.release_call(ME)) == ["OK"]
    assert not redis_client.keys()


@pytest.mark.parametrize("others", [("fair", "read"), ("fenced", "write"), ("write", "limited")], ids="-".join)
def test_locks_of_one_name_that_exclude_each_other_are_not_taken(redis_client, others):
    group = LockGroup([MAKE[kind](X) for kind in others])
    assert send(redis_client, group.acquire_call(ME, 30.0)) == [LEASE, 2]
    assert not redis_client.keys()


def test_a_reader_that_would_write_is_left_to_the_script_for_writers(redis_client):
    send(redis_client, acquire_alone(ReadLock(X), ME))
    assert send(redis_client, LockGroup([WriteLock(X), ReadLock(Y)]).acquire_call(ME, 30.0)) == ["QUEUED"]
    assert not redis_client.exists(f"rlock:{Y}")


def test_a_full_server_refuses_all_or_takes_all(redis_client):
    group = LockGroup(kinds("limited", "read", "fenced", "fair", "write"))
    redis_client.config_set("maxmemory", 1)
    try:
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            send(redis_client, group.acquire_call(ME, 30.0))
        assert not redis_client.keys()
        redis_client.config_set("maxmemory", 0)
        send(redis_client, group.acquire_call(ME, 30.0))
        redis_client.config_set("maxmemory", 1)
        assert send(redis_client, group.release_call(ME)) == ["OK"]
    finally:
        redis_client.config_set("maxmemory", 0)
