"""The scripts of the fair lock."""

import pytest

from django_rlock import scripts
from tests.scripts.conftest import ALIVE, CHANNEL, KEY, ME, OTHER, QUEUE, THIRD

LEASE, CLAIM, ALIVE_FOR = 30_000, 5000, 10_000


def acquire(run, owner, count=1, waiting=True):
    return run(scripts.FAIR_ACQUIRE, owner, count, LEASE, CLAIM, ALIVE_FOR if waiting else 0)


def release(run, owner, left=0):
    return run(scripts.FAIR_RELEASE, owner, left, LEASE, CLAIM)


def beat(run, member):
    return run(scripts.FAIR_BEAT, member, CLAIM, ALIVE_FOR)


def wake_up(owner):
    return f"rlock_wake:{owner[:36]}", f"{owner} {KEY}"


def now_ms(redis_client):
    seconds, micros = redis_client.time()
    return seconds * 1000 + micros // 1000


def test_acquire_takes_a_free_lock(run, redis_client, state):
    assert acquire(run, ME) == "OK"
    assert state() == ({ME: "1"}, [])
    assert LEASE - 1000 < redis_client.pttl(KEY) <= LEASE


def test_acquire_queues_once_and_answers_the_lease(run, redis_client, state):
    acquire(run, OTHER)
    assert LEASE - 1000 < acquire(run, ME) <= LEASE
    ticket = redis_client.zscore(QUEUE, ME)
    acquire(run, THIRD)
    acquire(run, ME)
    assert redis_client.zscore(QUEUE, ME) == ticket
    assert state() == ({OTHER: "1"}, [ME, THIRD])
    assert redis_client.zscore(ALIVE, ME[:36]) > now_ms(redis_client) + ALIVE_FOR - 1000
    assert 0 < redis_client.pttl(QUEUE) <= ALIVE_FOR * 6
    assert 0 < redis_client.pttl(ALIVE) <= ALIVE_FOR * 6


def test_tickets_rise_also_when_the_clock_goes_back(run, redis_client):
    acquire(run, OTHER)
    redis_client.zadd(QUEUE, {THIRD: 4e15})
    acquire(run, ME)
    assert redis_client.zscore(QUEUE, ME) == 4e15 + 1


def test_acquire_once_gives_up_the_ticket(run, state):
    acquire(run, OTHER)
    acquire(run, ME)
    assert acquire(run, ME, waiting=False) > 0
    assert state() == ({OTHER: "1"}, [])


def test_acquire_confirms_a_grant(run, redis_client, state):
    acquire(run, OTHER)
    acquire(run, ME)
    release(run, OTHER)
    assert redis_client.pttl(KEY) <= CLAIM
    assert acquire(run, ME) == "OK"
    assert state() == ({ME: "1"}, [])
    assert redis_client.pttl(KEY) > CLAIM


def test_acquire_sets_the_count_that_it_is_told(run, redis_client):
    acquire(run, ME)
    assert acquire(run, ME, 3, waiting=False) == "OK"
    assert acquire(run, ME, 3, waiting=False) == "OK"
    assert redis_client.hgetall(KEY) == {ME: "3"}


@pytest.mark.parametrize("holder", [None, OTHER])
def test_acquire_does_not_enter_again_what_is_gone(run, state, redis_client, holder):
    if holder:
        redis_client.hset(KEY, holder, 1)
    assert acquire(run, ME, 2, waiting=False) == "LOST"
    assert state() == ({holder: "1"} if holder else {}, [])


def test_newcomer_does_not_pass_the_queue(run, redis_client, heard, state):
    """The lock fell free by its lease, and somebody waits."""
    acquire(run, OTHER)
    acquire(run, ME)
    redis_client.delete(KEY)
    assert 0 < acquire(run, THIRD, waiting=False) <= CLAIM
    assert state() == ({ME: "1"}, [])
    assert heard() == [wake_up(ME)]


def test_head_of_the_queue_takes_the_free_lock(run, redis_client, heard, state):
    acquire(run, OTHER)
    acquire(run, ME)
    acquire(run, THIRD)
    redis_client.delete(KEY)
    assert acquire(run, ME) == "OK"
    assert state() == ({ME: "1"}, [THIRD])
    assert redis_client.pttl(KEY) > CLAIM
    assert heard() == []


def test_acquire_behind_dead_waiters_takes_the_free_lock(run, redis_client, state):
    acquire(run, OTHER)
    acquire(run, THIRD)
    redis_client.zadd(ALIVE, {THIRD[:36]: 1})
    acquire(run, ME)
    redis_client.delete(KEY)
    assert acquire(run, ME) == "OK"
    assert state() == ({ME: "1"}, [])
    redis_client.delete(KEY, QUEUE)
    redis_client.zadd(QUEUE, {THIRD: 1})
    assert acquire(run, ME, waiting=False) == "OK"


def test_release_frees_when_nobody_waits(run, redis_client, heard):
    acquire(run, ME)
    assert release(run, ME) == 1
    assert not redis_client.exists(KEY)
    assert heard() == [(CHANNEL, "0")]


def test_release_hands_over_to_the_first(run, redis_client, heard, state):
    acquire(run, ME)
    acquire(run, THIRD)
    acquire(run, OTHER)
    assert release(run, ME) == 1
    assert state() == ({THIRD: "1"}, [OTHER])
    assert 0 < redis_client.pttl(KEY) <= CLAIM
    assert heard() == [wake_up(THIRD)]
    # Until it confirms, its process counts as alive for the claim only.
    assert redis_client.zscore(ALIVE, THIRD[:36]) <= now_ms(redis_client) + CLAIM


def test_release_skips_the_dead(run, redis_client, heard, state):
    acquire(run, ME)
    dead = f"{'d' * 36}:"
    for number in range(3):
        acquire(run, f"{dead}{number}")
    acquire(run, OTHER)
    redis_client.zadd(ALIVE, {dead[:36]: 1})
    release(run, ME)
    assert state() == ({OTHER: "1"}, [])
    assert redis_client.zscore(ALIVE, dead[:36]) is None
    assert heard() == [wake_up(OTHER)]


def test_release_frees_when_all_are_dead(run, redis_client, heard, state):
    acquire(run, ME)
    acquire(run, OTHER)
    redis_client.delete(ALIVE)
    assert release(run, ME) == 1
    assert state() == ({}, [])
    assert heard() == [(CHANNEL, "0")]


def test_release_of_an_inner_hold(run, redis_client, heard):
    acquire(run, ME, 1)
    acquire(run, ME, 2)
    acquire(run, OTHER)
    redis_client.pexpire(KEY, 1000)
    assert release(run, ME, 1) == 1
    assert redis_client.hgetall(KEY) == {ME: "1"}
    assert redis_client.pttl(KEY) > 1000
    assert heard() == []


@pytest.mark.parametrize("holder", [None, OTHER])
def test_release_of_what_is_not_held(run, redis_client, heard, holder):
    if holder:
        redis_client.hset(KEY, holder, 1)
    assert release(run, ME) == 0
    assert redis_client.hgetall(KEY) == ({holder: "1"} if holder else {})
    assert heard() == []


def test_leave_gives_up_the_ticket(run, heard, state):
    acquire(run, OTHER)
    acquire(run, ME)
    assert run(scripts.FAIR_LEAVE, ME, CLAIM) == 0
    assert state() == ({OTHER: "1"}, [])
    assert heard() == []


def test_leave_hands_a_grant_on(run, heard, state):
    acquire(run, OTHER)
    acquire(run, ME)
    acquire(run, THIRD)
    release(run, OTHER)
    heard()
    assert run(scripts.FAIR_LEAVE, ME, CLAIM) == 1
    assert state() == ({THIRD: "1"}, [])
    assert heard() == [wake_up(THIRD)]


def test_leave_frees_a_grant_when_nobody_waits(run, heard, state):
    acquire(run, ME)
    assert run(scripts.FAIR_LEAVE, ME, CLAIM) == 1
    assert state() == ({}, [])
    assert heard() == [(CHANNEL, "0")]


def test_beat_of_a_waiter_in_the_queue(run, redis_client, heard):
    acquire(run, OTHER)
    acquire(run, ME)
    redis_client.zadd(ALIVE, {ME[:36]: 1})
    known, left, owners = beat(run, ME)
    assert (known, owners) == (1, [OTHER])
    assert 0 < left <= LEASE
    assert redis_client.zscore(ALIVE, ME[:36]) > now_ms(redis_client) + ALIVE_FOR - 1000
    assert heard() == []


def test_beat_of_a_waiter_that_the_server_does_not_know(run):
    acquire(run, OTHER)
    assert beat(run, ME)[0] == 0


def test_beat_of_a_waiter_that_was_granted(run):
    acquire(run, OTHER)
    acquire(run, ME)
    release(run, OTHER)
    known, left, owners = beat(run, ME)
    assert (known, owners) == (1, [ME])
    assert 0 < left <= CLAIM


def test_beat_hands_on_a_lock_that_fell_free(run, redis_client, heard):
    acquire(run, OTHER)
    acquire(run, THIRD)
    acquire(run, ME)
    redis_client.delete(KEY)
    known, left, owners = beat(run, ME)
    assert (known, left, owners) == (1, CLAIM, [THIRD])
    assert heard() == [wake_up(THIRD)]


def test_beat_on_an_empty_server(run):
    assert beat(run, ME) == [0, -2, []]


def test_owner_that_the_caller_named(run, heard, state):
    """In the queue it stands behind its client, in the lock alone."""
    member = f"{ME[:36]}/order-7"
    acquire(run, OTHER)
    acquire(run, member)
    assert state() == ({OTHER: "1"}, [member])
    release(run, OTHER)
    assert state() == ({"order-7": "1"}, [])
    assert heard() == [(f"rlock_wake:{ME[:36]}", f"{member} {KEY}")]
    assert beat(run, member)[0] == 1
    assert acquire(run, member) == "OK"
    assert release(run, "order-7") == 1
    acquire(run, member)
    assert run(scripts.FAIR_LEAVE, member, CLAIM) == 1
    assert state() == ({}, [])
