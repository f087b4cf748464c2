"""The scripts of the plain lock, and those that all kinds share."""

import pytest

from django_rlock._redis import scripts
from django_rlock._transport.calls import REMEMBERED
from django_rlock.locks.options import milliseconds
from tests.scripts.conftest import ALIVE, CHANNEL, CLAIMED, FORCED, KEY, ME, OTHER, QUEUE, SETTLED, nonces

LEASE = 30_000


def test_acquire_takes_a_free_lock(run, redis_client):
    assert run(scripts.RLOCK_ACQUIRE, ME, 1, LEASE) == "OK"
    assert redis_client.hgetall(KEY) == {ME: "1"}
    assert LEASE / 2 < redis_client.pttl(KEY) <= LEASE


def test_acquire_sets_the_count_that_it_is_told(run, redis_client):
    run(scripts.RLOCK_ACQUIRE, ME, 1, 5000)
    for _ in range(3):  # the same command once more does nothing once more
        assert run(scripts.RLOCK_ACQUIRE, ME, 2, LEASE) == "OK"
    assert redis_client.hgetall(KEY) == {ME: "2"}
    assert redis_client.pttl(KEY) > 5000


def test_acquire_answers_the_lease_of_the_other(run, redis_client):
    run(scripts.RLOCK_ACQUIRE, OTHER, 1, LEASE)
    assert LEASE / 2 < run(scripts.RLOCK_ACQUIRE, ME, 1, 99) <= LEASE
    assert redis_client.hgetall(KEY) == {OTHER: "1"}


def test_acquire_answers_minus_one_for_a_lock_without_end(run, redis_client):
    redis_client.hset(KEY, OTHER, 1)
    assert run(scripts.RLOCK_ACQUIRE, ME, 1, LEASE) == -1


@pytest.mark.parametrize("holder", [None, OTHER])
def test_acquire_does_not_enter_again_what_is_gone(run, redis_client, holder):
    if holder:
        redis_client.hset(KEY, holder, 1)
    assert run(scripts.RLOCK_ACQUIRE, ME, 2, LEASE) == "LOST"
    assert redis_client.hgetall(KEY) == ({holder: "1"} if holder else {})


def test_release_frees_and_wakes(run, redis_client, heard):
    run(scripts.RLOCK_ACQUIRE, ME, 1, LEASE)
    assert run(scripts.RLOCK_RELEASE, ME, 0, LEASE) == 1
    assert not redis_client.exists(KEY)
    assert heard() == [(CHANNEL, "0")]


def test_release_leaves_the_holds_that_it_is_told(run, redis_client, heard):
    run(scripts.RLOCK_ACQUIRE, ME, 3, 5000)
    for _ in range(2):
        run(scripts.RLOCK_ACQUIRE, ME, 1, 5000)
        run(scripts.RLOCK_ACQUIRE, ME, 3, 5000)
        assert run(scripts.RLOCK_RELEASE, ME, 2, LEASE) == 1
        assert redis_client.hgetall(KEY) == {ME: "2"}
    assert redis_client.pttl(KEY) > 5000
    assert heard() == []


@pytest.mark.parametrize("holder", [None, OTHER])
def test_release_of_what_is_not_held(run, redis_client, heard, holder):
    if holder:
        redis_client.hset(KEY, holder, 1)
    assert run(scripts.RLOCK_RELEASE, ME, 0, LEASE) == 0
    assert redis_client.hgetall(KEY) == ({holder: "1"} if holder else {})
    assert heard() == []


def test_renew_gives_a_new_lease(run, redis_client):
    run(scripts.RLOCK_ACQUIRE, ME, 1, 5000)
    assert run(scripts.LOCK_RENEW, LEASE, ME) == 1
    assert redis_client.pttl(KEY) > 5000


def test_renew_leaves_a_longer_lease(run, redis_client):
    run(scripts.RLOCK_ACQUIRE, ME, 1, LEASE)
    assert run(scripts.LOCK_RENEW, 5000, ME) == 1
    assert redis_client.pttl(KEY) > 5000


def test_extension_may_shorten_until_it_is_settled(run, redis_client):
    run(scripts.RLOCK_ACQUIRE, ME, 1, LEASE)
    assert run(scripts.LOCK_EXTEND, ME, 5000, 0) == 1
    assert redis_client.pttl(KEY) <= 5000
    late = str(next(nonces))
    assert run(scripts.LOCK_EXTEND, ME, LEASE, 0) == 1
    assert run(scripts.LOCK_EXTEND, ME, LEASE, 2) == 1
    assert redis_client.eval(scripts.LOCK_EXTEND.source, 2, KEY, SETTLED, late, ME, 5000, 0) == [late, 1]
    assert redis_client.pttl(KEY) > 5000
    assert run(scripts.LOCK_EXTEND, OTHER, LEASE, 0) == 0


def test_renew_of_several_locks_answers_for_each(redis_client):
    for key, holder in {"a": ME, "b": OTHER, "c": ME}.items():
        redis_client.hset(key, holder, 1)
    reply = redis_client.eval(scripts.LOCK_RENEW.source, 4, "a", "b", "gone", "c", "nonce", LEASE, ME, ME, ME, ME)
    assert reply == ["nonce", 1, 0, 0, 1]
    assert redis_client.pttl("a") > 0
    assert redis_client.pttl("b") == -1
    assert redis_client.pttl("c") > 0


@pytest.mark.parametrize("holder", [None, OTHER])
def test_renew_of_what_is_not_held_creates_nothing(run, redis_client, holder):
    if holder:
        redis_client.hset(KEY, holder, 1)
    assert run(scripts.LOCK_RENEW, LEASE, ME) == 0
    assert redis_client.pttl(KEY) == (-1 if holder else -2)


def test_state(run, redis_client):
    assert run(scripts.LOCK_STATE, ME) == [0, -2]
    redis_client.hset(KEY, OTHER, 2)
    assert run(scripts.LOCK_STATE, ME) == [0, -1]
    redis_client.pexpire(KEY, LEASE)
    holds, left = run(scripts.LOCK_STATE, OTHER)
    assert (holds, left > LEASE - 1000) == (2, True)


def test_holders(run, redis_client):
    assert run(scripts.LOCK_HOLDERS, "") == []
    redis_client.hset(KEY, mapping={ME: 1, OTHER: 2, "mode": "read"})
    assert sorted(run(scripts.LOCK_HOLDERS, "")) == sorted([ME, OTHER])


def test_force_release_frees_whoever_holds_it(run, redis_client, heard):
    redis_client.hset(KEY, OTHER, 2)
    assert run(scripts.LOCK_FORCE_RELEASE, "", 5000, "", "r1") == 1
    assert not redis_client.exists(KEY)
    assert heard() == [(CHANNEL, "0")]


def test_force_release_of_one_owner_only(run, redis_client, heard):
    redis_client.hset(KEY, OTHER, 2)
    assert run(scripts.LOCK_FORCE_RELEASE, ME, 5000, "", "r1") == 0
    assert redis_client.hgetall(KEY) == {OTHER: "2"}
    assert heard() == []
    assert run(scripts.LOCK_FORCE_RELEASE, OTHER, 5000, "", "r1") == 1


def test_force_release_of_a_free_lock(run, heard):
    assert run(scripts.LOCK_FORCE_RELEASE, "", 5000, "", "r1") == 0
    assert heard() == []


def test_force_release_that_is_sent_again_leaves_the_next_holder(run, redis_client):
    redis_client.hset(KEY, OTHER, 2)
    assert run(scripts.LOCK_FORCE_RELEASE, "", 5000, "", "r1") == 1
    redis_client.hset(KEY, ME, 1)
    assert run(scripts.LOCK_FORCE_RELEASE, "", 5000, "", "r1") == 1
    assert redis_client.hgetall(KEY) == {ME: "1"}
    assert run(scripts.LOCK_FORCE_RELEASE, "", 5000, "", "r2") == 1


def test_holders_hear_of_a_forced_release_and_of_no_other(run, redis_client, heard):
    redis_client.hset(KEY, OTHER, 2)
    assert run(scripts.LOCK_FORCE_RELEASE, ME, 5000, "", "r1") == 0
    assert heard(by_holders=True) == []
    assert run(scripts.LOCK_FORCE_RELEASE, OTHER, 5000, "", "r2", FORCED, "how") == 1
    assert heard(by_holders=True) == [(FORCED, "how")]
    redis_client.hset(KEY, OTHER, 1)
    run(scripts.RLOCK_RELEASE, OTHER, 0, 5000)
    assert heard(by_holders=True) == []


def test_force_release_hands_on_to_the_next(run, redis_client, heard, state):
    redis_client.hset(KEY, OTHER, 2)
    redis_client.zadd(QUEUE, {ME: 1})
    redis_client.zadd(ALIVE, {ME[:36]: 9e15})
    assert run(scripts.LOCK_FORCE_RELEASE, "", 5000, "", "r1") == 1
    assert state() == ({ME: CLAIMED}, [])
    assert heard() == [(f"rlock_wake:{ME[:36]}", f"1 {ME} {KEY}")]


def test_extensions_are_settled_for_as_long_as_requests_are_remembered():
    assert f"'px', {milliseconds(REMEMBERED)})" in scripts.LOCK_EXTEND.source


def test_forced_releases_are_remembered_as_long():
    assert f"ARGV[5], {milliseconds(REMEMBERED)})" in scripts.LOCK_FORCE_RELEASE.source
