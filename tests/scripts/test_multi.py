"""The scripts that take and free several locks at once."""

import pytest

from django_rlock._redis import scripts
from django_rlock._redis.keys import fair_release_keys, redisson_channel
from tests.scripts.conftest import CLAIMED, JAVA, ME, OTHER, THIRD

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
        return redis_client.eval(scripts.MULTI_ACQUIRE.source, len(keys), *keys, "1", owner, lease)[1:]

    return call


@pytest.fixture
def release(redis_client):
    def call(owner):
        keys = STATES + QUEUES + WAITING + ALIVE + CHANNELS + DEADLINES
        return redis_client.eval(scripts.MULTI_RELEASE.source, len(keys), *keys, "1", owner, CLAIM)[1]

    return call


@pytest.fixture
def holders(redis_client):
    """Who holds each of them how often."""
    return lambda: [redis_client.hgetall(lock) for lock in LOCKS]


def queue(redis_client, place, owner, alive=True):
    redis_client.zadd(QUEUES[place], {owner: 1})
    if alive:
        redis_client.zadd(ALIVE[place], {owner[:36]: 4e15})


def test_all_are_taken_with_one_lease(acquire, redis_client, holders):
    assert acquire(ME) == ["OK"]
    assert holders() == [{ME: "1"}] * 3
    assert all(LEASE - 1000 < redis_client.pttl(lock) <= LEASE for lock in LOCKS)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_that_is_taken_is_named(acquire, redis_client, holders, place):
    redis_client.hset(LOCKS[place], OTHER, 1)
    redis_client.pexpire(LOCKS[place], 5000)
    left, taken = acquire(ME)
    assert 4000 < left <= 5000
    assert taken == place + 1
    assert sum(map(bool, holders())) == 1


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


def test_what_was_granted_before_counts(acquire, redis_client, holders):
    redis_client.hset(B, ME, 1)
    redis_client.pexpire(B, CLAIM)
    queue(redis_client, 1, OTHER)
    assert acquire(ME) == ["OK"]
    assert holders() == [{ME: "1"}] * 3
    assert LEASE - 1000 < redis_client.pttl(B) <= LEASE
    assert redis_client.zcard(QUEUES[1]) == 1


def test_a_command_that_comes_again_shortens_no_lease(acquire, redis_client):
    acquire(ME, 2 * LEASE)
    assert acquire(ME) == ["OK"]
    assert all(redis_client.pttl(lock) > LEASE for lock in LOCKS)


def test_all_are_freed_and_told(acquire, release, redis_client, holders, heard):
    acquire(ME)
    assert release(ME) == []
    assert holders() == [{}] * 3
    assert heard() == [(redisson_channel(lock), "0") for lock in LOCKS]


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
    assert release(ME) == []
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
    assert release(ME) == []
    assert heard() == [
        (redisson_channel(A), "0"),
        (redisson_channel(B), "0"),
        (f"{redisson_channel(B)}:{JAVA}", "0"),
        (redisson_channel(C), "0"),
    ]
