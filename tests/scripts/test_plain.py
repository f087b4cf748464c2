"""The scripts of the plain lock, and those that all kinds share."""

from typing import Any

import pytest

from django_rlock._redis import scripts
from django_rlock._transport.calls import REMEMBERED
from django_rlock.locks.options import milliseconds
from tests.scripts.conftest import CHANNEL, FORCED, KEY, ME, OTHER, SETTLED, Call, Step, call, calls, nonces
from tests.scripts.test_fair import fell_free, held, state_of, take, wake_up

LEASE = 30_000
FREED = [(CHANNEL, "0")]
LEFT = "the lease that is left"


def acquire(owner: str, count: int = 1, lease: int = LEASE) -> Call:
    return call(scripts.RLOCK_ACQUIRE, owner, count, lease)


def release(owner: str, left: int = 0) -> Call:
    return call(scripts.RLOCK_RELEASE, owner, left, LEASE)


def renew(lease: int) -> Call:
    return call(scripts.LOCK_RENEW, lease, ME)


def extend(lease: int) -> Call:
    return call(scripts.LOCK_EXTEND, ME, lease, 0)


def force(owner: str = "", request: str = "r1", *telling: str) -> Call:
    return call(scripts.LOCK_FORCE_RELEASE, owner, 5000, "", request, *telling)


ROWS: list[tuple[list[Step], Call, Any, str, Any]] = [
    ([], acquire(ME), "OK", "me=1 for 30", []),
    ([acquire(ME, lease=5000)], acquire(ME, 2), "OK", "me=2 for 30", []),
    ([acquire(ME), acquire(ME, 2)], acquire(ME, 2, 5000), "OK", "me=2 for 30", []),  # the same command once more
    ([acquire(OTHER)], acquire(ME), LEFT, "other=1 for 30", []),
    ([], acquire(ME, 2), "LOST", "free", []),
    ([acquire(OTHER)], acquire(ME, 2), "LOST", "other=1 for 30", []),
    ([acquire(ME)], release(ME), 1, "free", FREED),
    ([acquire(ME, 1, 5000), acquire(ME, 3, 5000)], release(ME, 2), 1, "me=2 for 30", []),
    ([acquire(ME), acquire(ME, 3), release(ME, 2)], release(ME, 2), 1, "me=2 for 30", []),
    ([], release(ME), 0, "free", []),
    ([acquire(OTHER)], release(ME), 0, "other=1 for 30", []),
    ([acquire(ME, lease=5000)], renew(LEASE), 1, "me=1 for 30", []),
    ([acquire(ME)], renew(5000), 1, "me=1 for 30", []),
    ([], renew(LEASE), 0, "free", []),
    ([acquire(OTHER, lease=5000)], renew(LEASE), 0, "other=1 for 5", []),
    ([acquire(ME)], extend(5000), 1, "me=1 for 5", FREED),
    ([acquire(ME, lease=5000)], extend(LEASE), 1, "me=1 for 30", []),
    ([acquire(OTHER)], extend(5000), 0, "other=1 for 30", []),
    ([acquire(OTHER), acquire(OTHER, 2)], force(), 1, "free", FREED),
    ([acquire(OTHER)], force(ME), 0, "other=1 for 30", []),
    ([acquire(OTHER)], force(OTHER), 1, "free", FREED),
    ([], force(), 0, "free", []),
    ([acquire(OTHER), force(), held(ME)], force(), 1, "me=1 for 30", []),  # a copy leaves the next holder
    ([acquire(OTHER), force(), held(ME)], force(request="r2"), 1, "free", FREED),
    ([acquire(OTHER), take(ME)], force(), 1, "me=01 for 5", ME),
    ([acquire(OTHER)], call(scripts.LOCK_STATE, ME), [0, LEFT], "other=1 for 30", []),
    ([acquire(OTHER), acquire(OTHER, 2)], call(scripts.LOCK_STATE, OTHER), [2, LEFT], "other=2 for 30", []),
    ([], call(scripts.LOCK_STATE, ME), [0, -2], "free", []),
    ([], call(scripts.LOCK_HOLDERS, ""), [], "free", []),
]  # fmt: skip


def is_as_told(said: Any, reply: Any) -> bool:
    if isinstance(reply, list):
        return len(said) == len(reply) and all(map(is_as_told, said, reply))
    return LEASE / 2 < said <= LEASE if reply is LEFT else said == reply


@calls(ROWS)
def test_a_call_in_a_situation(run, redis_client, heard, given, step, reply, after, told):
    tickets = [each(run, redis_client) for each in given]
    heard()
    assert is_as_told(step(run, redis_client), reply)
    assert state_of(redis_client) == after
    assert heard() == ([wake_up(told, tickets[-1][2])] if told == ME else told)


def test_a_lock_without_end(run, redis_client):
    redis_client.hset(KEY, mapping={ME: 1, OTHER: 2, "mode": "read"})
    assert sorted(run(scripts.LOCK_HOLDERS, "")) == sorted([ME, OTHER])
    fell_free(run, redis_client)
    redis_client.hset(KEY, OTHER, 1)
    assert run(scripts.RLOCK_ACQUIRE, ME, 1, LEASE) == -1
    assert run(scripts.LOCK_STATE, OTHER) == [1, -1]


def test_extension_may_shorten_until_it_is_settled(run, redis_client):
    run(scripts.RLOCK_ACQUIRE, ME, 1, LEASE)
    late = str(next(nonces))
    assert run(scripts.LOCK_EXTEND, ME, LEASE, 2) == 1
    assert redis_client.eval(scripts.LOCK_EXTEND.source, 2, KEY, SETTLED, late, ME, 5000, 0) == late
    assert redis_client.pttl(KEY) > 5000


def test_renew_of_several_locks_answers_for_each(redis_client):
    for key, holder in {"a": ME, "b": OTHER, "c": ME}.items():
        redis_client.hset(key, holder, 1)
    reply = redis_client.eval(scripts.LOCK_RENEW.source, 4, "a", "b", "gone", "c", "nonce", LEASE, ME, ME, ME, ME)
    assert reply == ["nonce", 1, 0, 0, 1]
    assert [redis_client.pttl(each) > 0 for each in "abc"] == [True, False, True]


def test_holders_hear_of_a_forced_release_and_of_no_other(run, redis_client, heard):
    for step, told in (
        (force(ME, "r1", FORCED, "how"), []),
        (force(OTHER, "r2", FORCED, "how"), [(FORCED, "how")]),
        (release(OTHER), []),
    ):
        held(OTHER)(run, redis_client)
        step(run, redis_client)
        assert heard(by_holders=True) == told


@pytest.mark.parametrize(
    ("source", "text"), [(scripts.LOCK_EXTEND.source, "'px', {})"), (scripts.LOCK_FORCE_RELEASE.source, "ARGV[5], {})")]
)
def test_extensions_and_forced_releases_are_remembered_as_requests_are(source, text):
    assert text.format(milliseconds(REMEMBERED)) in source
