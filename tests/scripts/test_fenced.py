"""The script of the fenced lock; its release and the others are the plain lock's."""

import pytest

from django_rlock._redis import scripts
from tests.scripts.conftest import KEY, ME, OTHER, TOKEN

LEASE = 30_000
WEEK = 7 * 86_400_000


def micros(redis_client):
    seconds, micros = redis_client.time()
    return seconds * 1_000_000 + micros


def test_first_token_is_the_time(run, redis_client):
    before = micros(redis_client)
    answer, token = run(scripts.FENCED_ACQUIRE, ME, 1, LEASE, WEEK, 0)
    assert answer == "OK"
    assert before < token < micros(redis_client)
    assert redis_client.hgetall(KEY) == {ME: "1"}
    assert redis_client.get(TOKEN) == str(token)
    assert LEASE / 2 < redis_client.pttl(KEY) <= LEASE


def test_token_rises_by_one_when_it_is_ahead_of_the_clock(run, redis_client):
    ahead = micros(redis_client) + 10**12
    redis_client.set(TOKEN, ahead)
    assert run(scripts.FENCED_ACQUIRE, ME, 1, LEASE, WEEK, 0) == ["OK", ahead + 1]


@pytest.mark.parametrize(("count", "shared"), [(2, 0), (2, 1), (1, 1)])
def test_token_stays_on_a_second_acquire(run, redis_client, count, shared):
    taken = run(scripts.FENCED_ACQUIRE, ME, 1, 5000, WEEK, shared)
    assert run(scripts.FENCED_ACQUIRE, ME, count, LEASE, WEEK, shared) == taken
    assert redis_client.hgetall(KEY) == {ME: str(count)}
    assert redis_client.pttl(KEY) > 5000


def test_token_rises_where_its_owner_knows_of_no_hold(run, redis_client):
    """The server may have forgotten a release, and owners who came after it."""
    _, before = run(scripts.FENCED_ACQUIRE, ME, 1, 5000, WEEK, 0)
    answer, token = run(scripts.FENCED_ACQUIRE, ME, 1, LEASE, WEEK, 0)
    assert (answer, redis_client.get(TOKEN)) == ("OK", str(token))
    assert before < token < micros(redis_client)
    assert redis_client.hgetall(KEY) == {ME: "1"}
    assert redis_client.pttl(KEY) > 5000


def test_hold_of_the_plain_kind_gets_a_token_on_re_entry(run, redis_client):
    run(scripts.RLOCK_ACQUIRE, ME, 1, LEASE)
    answer, token = run(scripts.FENCED_ACQUIRE, ME, 2, LEASE, WEEK, 0)
    assert (answer, redis_client.get(TOKEN)) == ("OK", str(token))


def test_refused_owner_draws_no_token(run, redis_client):
    run(scripts.RLOCK_ACQUIRE, OTHER, 1, LEASE)
    assert LEASE / 2 < run(scripts.FENCED_ACQUIRE, ME, 1, 99, WEEK, 0) <= LEASE
    assert not redis_client.exists(TOKEN)


@pytest.mark.parametrize("holder", [None, OTHER])
def test_it_does_not_enter_again_what_is_gone(run, redis_client, holder):
    if holder:
        redis_client.hset(KEY, holder, 1)
    assert run(scripts.FENCED_ACQUIRE, ME, 2, LEASE, WEEK, 0) == "LOST"
    assert not redis_client.exists(TOKEN)
