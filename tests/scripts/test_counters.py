"""The scripts of the semaphores and the latch: a table of calls, their replies, and the state that they leave."""

import math
from typing import Any

import pytest
import redis

from django_rlock._redis import keys, scripts
from django_rlock._redis.scripts import Script
from tests.scripts.conftest import KEY, PERMITS, REQUESTS, Call, Step, call, calls, keys_of, now_ms, written_out

CHANNEL, GATE = keys.semaphore_channel(KEY), keys.latch_channel(KEY)
DRAINED = keys.drained_key(KEY, "r1")
OURS = KEY, PERMITS, REQUESTS, DRAINED
KEEP = 60_000
LEASE = 30_000
NEVER = 922337203685477
MOST = 2**31 - 1
A, B, C, D = (letter * 16 for letter in "abcd")


def test_names_are_redissons():
    assert (CHANNEL, PERMITS) == ("redisson_sc:{rlock:stock:42}", "{rlock:stock:42}:timeout")
    assert keys.latch_channel("n") == "redisson_countdownlatch__channel__{n}"
    assert keys.permits_key("shop{42}") == "shop{42}:timeout"
    assert keys.semaphore_channel("shop{42}") == "redisson_sc:shop{42}"
    assert keys.latch_channel("shop{42}") == "redisson_countdownlatch__channel__{shop{42}}"


# --- situations ------------------------------------------------------------------------------------------------------


def there(number: int, lease: int | None = None) -> Step:
    """So many permits, or so many parts of a latch; None ends the number."""
    return lambda _, redis_client: redis_client.set(KEY, number, px=lease)


def gone(_: Any, redis_client: Any) -> None:
    redis_client.delete(KEY)


def taken(**ends: int | None) -> Step:
    """Permits by their letters, and in how many seconds they end; None without end."""

    def take(_: Any, redis_client: Any) -> None:
        now = now_ms(redis_client)
        found = {each * 16: NEVER if seconds is None else now + seconds * 1000 - 1 for each, seconds in ends.items()}
        redis_client.zadd(PERMITS, found)

    return take


def state_of(redis_client: Any) -> str:
    """The number, whether it has an end, and the permits that are taken with the seconds that are left to them."""
    number, now = redis_client.get(KEY) or "nothing", now_ms(redis_client)
    told = [f"{number} for a time" if redis_client.pttl(KEY) > 0 else number]
    for permit, ends in redis_client.zrange(PERMITS, 0, -1, withscores=True):
        told.append(f"{permit[0]}:{'ever' if ends == NEVER else math.ceil((ends - now) / 1000)}")
    return " ".join(told)


# --- calls -----------------------------------------------------------------------------------------------------------


def acquire(request: str, permits: int) -> Call:
    return call(scripts.SEMAPHORE_ACQUIRE, request, permits, KEEP)


def release(request: str, permits: int, if_exists: int = 0) -> Call:
    return call(scripts.SEMAPHORE_RELEASE, request, permits, KEEP, if_exists)


def leave(request: str, permits: int, *surely: int) -> Call:
    return call(scripts.SEMAPHORE_LEAVE, request, permits, KEEP, *surely)


def set_permits(request: str, permits: int, ttl: int = 0) -> Call:
    return call(scripts.SEMAPHORE_SET, request, permits, KEEP, ttl)


def add(request: str, permits: int) -> Call:
    return call(scripts.SEMAPHORE_ADD, request, permits, KEEP)


def take(ids: str, lease: int = LEASE) -> Call:
    return call(scripts.PERMIT_ACQUIRE, ids, lease)


def renew(permit: str, lease: int, only_longer: int) -> Call:
    return call(scripts.PERMIT_RENEW, permit, lease, only_longer)


def close(request: str, count: int) -> Call:
    return call(scripts.LATCH_SET, request, GATE, count, KEEP)


def count_down(request: str) -> Call:
    return call(scripts.LATCH_COUNT_DOWN, request, GATE, KEEP)


retire = call(scripts.REQUEST_RETIRE, "r1", KEEP)
drain = call(scripts.SEMAPHORE_DRAIN, "r1", KEEP)
delete = call(scripts.SEMAPHORE_DELETE, "r1", KEEP)
delete_latch = call(scripts.LATCH_DELETE, "r1", GATE, KEEP)
OPENED = [(GATE, "0")]


def total(permits: int) -> list[tuple[str, str]]:
    """What waiters are told."""
    return [(CHANNEL, str(permits))]


def give_back(ids: str) -> Call:
    return call(scripts.PERMIT_RELEASE, ids)


def undo(ids: str) -> Call:
    return call(scripts.PERMIT_LEAVE, ids, KEEP)


# The same request once more does nothing once more. "r1" may be a request that was given up.
ROWS: list[tuple[list[Step], Call, Any, str, list[tuple[str, str]]]] = [
    # The semaphore.
    ([there(5, LEASE)], acquire("r1", 2), "OK", "3 for a time", []),
    ([there(5), acquire("r1", 2)], acquire("r1", 2), "OK", "3", []),
    ([there(3), acquire("r1", 2)], acquire("r2", 1), "OK", "0", []),
    ([], acquire("r1", 2), -1, "nothing", []),
    ([there(-3)], acquire("r1", 2), -1, "-3", []),
    ([there(0)], acquire("r1", 2), -1, "0", []),
    ([there(1)], acquire("r1", 2), -1, "1", []),
    ([there(1), acquire("r1", 2), there(5)], acquire("r1", 2), "OK", "3", []),  # a refusal is not remembered
    ([], release("r1", 2), 1, "2", total(2)),
    ([release("r1", 2)], release("r1", 2), 1, "2", []),
    ([there(2)], release("r1", 3, if_exists=1), 1, "5", total(5)),
    ([there(-5)], release("r1", 2), 1, "-3", []),
    ([there(-2)], release("r1", 2), 1, "0", []),
    ([], release("r1", 2, if_exists=1), 0, "nothing", []),
    ([there(MOST - 1)], release("r1", 2), -1, str(MOST - 1), []),
    ([there(MOST - 1), release("r1", 2)], release("r1", 1), 1, str(MOST), total(MOST)),
    ([there(5), acquire("r1", 2)], leave("r1", 2), 1, "5", total(5)),
    ([there(5), acquire("r1", 2), leave("r1", 2)], leave("r1", 2), 0, "5", []),
    ([there(5)], leave("r1", 2), 0, "5", []),
    ([there(5), leave("r1", 2)], acquire("r1", 2), "OK", "5", []),
    ([there(5), leave("r1", 2), acquire("r1", 2)], leave("r1", 2), 0, "5", []),
    ([there(5), acquire("r1", 2), acquire("r2 r1", 1)], leave("r1", 2, 0), 0, "2", []),
    ([there(5), acquire("r1", 2), acquire("r2 r1", 0)], leave("r1", 2, 1), 1, "5", total(5)),  # it took them
    ([there(5), acquire("r1", 2), acquire("r2 r1", 0), leave("r1", 2, 1)], leave("r1", 2, 1), 0, "5", []),
    ([there(5), acquire("r1", 2), gone], leave("r1", 2), 0, "nothing", []),
    ([], set_permits("r1", 7), 1, "7", total(7)),
    ([set_permits("r1", 7)], set_permits("r1", 7), 1, "7", []),
    ([set_permits("r1", 7)], set_permits("r2", 9), 0, "7", []),
    ([], set_permits("r1", 0, LEASE), 1, "0 for a time", []),  # nobody can take one
    ([there(5, LEASE)], add("r1", 4), 1, "9 for a time", total(9)),
    ([there(5), add("r1", 4)], add("r1", 4), 1, "9", []),
    ([there(9)], add("r1", -22), 1, "-13", []),
    ([there(1)], add("r1", MOST), -1, "1", []),
    ([there(-1)], add("r1", -MOST), -1, "-1", []),
    ([there(7, LEASE)], drain, 7, "0 for a time", []),
    ([there(7), drain], drain, 7, "0", []),
    ([there(-5)], drain, -5, "0", []),
    ([], drain, 0, "nothing", []),
    ([drain, there(5)], drain, 0, "5", []),
    ([there(0), drain, there(5)], drain, 0, "5", []),
    ([there(5), retire], drain, 0, "5", []),
    ([there(5), retire], add("r1", 1), 1, "5", []),
    ([], call(scripts.COUNTER_READ), 0, "nothing", []),
    ([there(-13)], call(scripts.COUNTER_READ), -13, "-13", []),
    ([], delete, 0, "nothing", []),
    ([there(0), taken(a=None)], delete, 1, "nothing", []),
    ([there(0), delete], delete, 1, "nothing", []),
    ([there(0), delete, there(3)], delete, 1, "3", []),
    # The expirable semaphore.
    ([there(5)], take(A + B), "OK", "3 a:30 b:30", []),
    ([there(5), take(A + B)], take(A + B), "OK", "3 a:30 b:30", []),
    ([there(5), take(A), taken(a=5)], take(A), "OK", "4 a:30", []),  # the caller counts from its last command, too
    ([there(1)], take(A, 0), "OK", "0 a:ever", []),
    ([taken(c=None)], take(A + B), -1, "nothing c:ever", []),
    ([there(-1), taken(c=None)], take(A + B), -1, "-1 c:ever", []),
    ([there(1), taken(c=None)], take(A + B), -1, "1 c:ever", []),
    ([there(0), taken(b=-9, c=0, d=None)], take(A), "OK", "1 a:30 d:ever", total(2)),
    ([taken(b=0)], call(scripts.PERMIT_STATE, ""), [0, 0, -2], "nothing", []),
    ([there(3), taken(a=None, b=None)], give_back(A), 1, "4 b:ever", total(4)),
    ([there(4), taken(b=None, c=None)], give_back(B + C), 2, "6", total(2)),  # how many came back
    ([there(-2), taken(a=None)], give_back(A), 1, "-1", []),
    ([there(3), taken(a=None)], give_back(B), 0, "3 a:ever", []),
    ([there(3), taken(a=None)], give_back(A + B), 0, "3 a:ever", []),
    ([there(3), taken(a=None, b=0)], give_back(A + B), 0, "4 a:ever", total(4)),
    ([there(5), take(A + B, 0)], undo(A + B), 2, "5", total(5)),
    ([there(5), take(A + B, 0), undo(A + B)], undo(A + B), 0, "5", []),
    ([there(5), undo(A + B)], take(A + B, 0), -1, "5", []),
    ([there(5), taken(a=5)], renew(A, LEASE, 1), 1, "5 a:30", []),
    ([there(5), taken(a=30)], renew(A, 5000, 1), 1, "5 a:30", []),
    ([there(5), taken(a=30)], renew(A, 5000, 0), 1, "5 a:5", total(1)),
    ([there(5), taken(a=5)], renew(A, 0, 0), 1, "5 a:ever", []),
    ([there(5), taken(a=None)], renew(A, LEASE, 1), 1, "5 a:ever", []),
    ([there(5)], renew(A, LEASE, 0), 0, "5", []),
    ([there(5), taken(a=0)], renew(A, LEASE, 0), 0, "6", total(6)),
    ([], call(scripts.PERMIT_STATE, A), [0, 0, -2], "nothing", []),
    ([there(2), taken(a=None, b=30, c=0)], call(scripts.PERMIT_STATE, A), [3, 2, -1], "3 b:30 a:ever", total(3)),
    ([there(2), taken(a=None, b=30, c=0)], call(scripts.PERMIT_STATE, C), [3, 2, -2], "3 b:30 a:ever", total(3)),
    ([], call(scripts.PERMIT_SET, "r1", 5, KEEP), 1, "5", total(5)),
    ([call(scripts.PERMIT_SET, "r1", 5, KEEP)], call(scripts.PERMIT_SET, "r1", 5, KEEP), 1, "5", []),
    ([there(1, LEASE), taken(a=None, b=None, c=None, d=0)], call(scripts.PERMIT_SET, "r1", 2, KEEP), 1,
     "-1 for a time a:ever b:ever c:ever", [*total(2), *total(2)]),  # for the permit that ended, and for the new number
    # The latch.
    ([], close("r1", 2), 1, "2", [(GATE, "1")]),
    ([close("r1", 2)], close("r1", 2), 1, "2", []),
    ([close("r1", 2)], close("r2", 5), 0, "2", []),
    ([], close("r1", 0), 1, "nothing", []),
    ([there(2)], count_down("r1"), 1, "1", []),
    ([there(2), count_down("r1")], count_down("r1"), 1, "1", []),
    ([there(1)], count_down("r1"), 0, "nothing", OPENED),
    ([], count_down("r1"), 0, "nothing", []),
    ([there(1), count_down("r1"), close("r2", 1)], count_down("r1"), 1, "1", []),  # a copy in the next round
    ([], call(scripts.LATCH_PASS), "OK", "nothing", []),
    ([there(1)], call(scripts.LATCH_PASS), -1, "1", []),
    ([], delete_latch, 0, "nothing", []),
    ([there(2)], delete_latch, 1, "nothing", OPENED),
    ([there(2), delete_latch], delete_latch, 1, "nothing", []),
    ([there(2), delete_latch, there(2)], delete_latch, 1, "2", []),
]  # fmt: skip


@calls(ROWS)
def test_a_call_in_a_situation(run, redis_client, heard, given, step, reply, after, told):
    for each in given:
        each(run, redis_client)
    heard()
    assert step(run, redis_client) == reply
    assert state_of(redis_client) == after
    assert heard() == told


def test_the_time_until_a_permit_ends(run, redis_client):
    """Who finds too few waits until the next lease ends."""
    for given in there(1), taken(b=30, c=None):
        given(run, redis_client)
    assert LEASE - 5000 < take(A + D)(run, redis_client) <= LEASE
    *numbers, left = run(scripts.PERMIT_STATE, B)
    assert (numbers, LEASE - 5000 < left <= LEASE) == ([1, 2], True)


def test_permits_live_no_longer_than_their_semaphore(run, redis_client):
    there(2, 5000)(run, redis_client)
    run(scripts.PERMIT_ACQUIRE, A, LEASE)
    assert 0 < redis_client.pttl(PERMITS) <= 5000
    redis_client.persist(KEY)
    redis_client.persist(PERMITS)
    run(scripts.PERMIT_ACQUIRE, B, LEASE)
    assert redis_client.pttl(PERMITS) == -1


# --- requests that are remembered ------------------------------------------------------------------------------------


def test_requests_are_forgotten_after_a_while(run, redis_client):
    there(5)(run, redis_client)
    redis_client.zadd(REQUESTS, {"old": now_ms(redis_client) - 1, "young": now_ms(redis_client) + 9000})
    run(scripts.SEMAPHORE_ACQUIRE, "r2", 1, KEEP)
    assert set(redis_client.zrange(REQUESTS, 0, -1)) == {"r2", "young"}
    assert 0 < redis_client.pttl(REQUESTS) <= KEEP
    assert abs(redis_client.zscore(REQUESTS, "r2") - now_ms(redis_client) - KEEP) < 5000
    drain(run, redis_client)
    assert 0 < redis_client.pttl(DRAINED) <= KEEP


def test_old_requests_are_forgotten_little_by_little(run, redis_client):
    """After a busy time there are many, and the server does nothing else meanwhile."""
    redis_client.set(KEY, 500)
    redis_client.zadd(REQUESTS, {f"old:{number}": number for number in range(250)})
    for left in (150, 50, 0, 0):
        run(scripts.SEMAPHORE_ACQUIRE, f"r{left}", 1, KEEP)
        assert redis_client.zcount(REQUESTS, "-inf", now_ms(redis_client)) == left
    assert set(redis_client.zrange(REQUESTS, 0, -1)) == {"r150", "r50", "r0"}


@pytest.mark.parametrize(
    ("script", "args"),
    [
        (scripts.SEMAPHORE_ACQUIRE, [1, KEEP]),
        (scripts.SEMAPHORE_ACQUIRE, [9, KEEP]),  # which are not there
        (scripts.SEMAPHORE_RELEASE, [1, KEEP, 0]),
        (scripts.SEMAPHORE_ADD, [1, KEEP]),
        (scripts.PERMIT_SET, [5, KEEP]),
    ],
)
def test_answered_requests_are_forgotten_at_once(run, redis_client, script, args):
    redis_client.set(KEY, 5)
    redis_client.zadd(REQUESTS, dict.fromkeys(["a", "b", "c", "d"], now_ms(redis_client) + KEEP))
    for _ in range(2):
        run(script, "r1 a b none", *args)
        assert set(redis_client.zrange(REQUESTS, 0, -1)) - {"r1"} == {"c", "d"}
    assert redis_client.get(KEY) in {"4", "5", "6"}


# --- all -------------------------------------------------------------------------------------------------------------

EACH: dict[Script, Call] = {row[1].script: row[1] for row in ROWS} | {
    scripts.SEMAPHORE_RELEASE: release("r1", 1, if_exists=1)
}
EACH.pop(scripts.REQUEST_RETIRE, None)


@pytest.mark.parametrize("step", EACH.values(), ids=lambda each: each.script.name)
@pytest.mark.parametrize("other", ["hash", "text"])
def test_nothing_is_done_to_another_kind_of_value(run, redis_client, heard, step, other):
    if other == "hash":
        redis_client.hset(KEY, "another", 1)
    else:
        redis_client.set(KEY, "0x10")
    redis_client.zadd(PERMITS, {A: 1, B: NEVER})
    before = redis_client.dump(KEY), redis_client.dump(PERMITS)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        step(run, redis_client)
    assert (redis_client.dump(KEY), redis_client.dump(PERMITS)) == before
    assert (redis_client.exists(*OURS), heard()) == (2, [])


@pytest.mark.parametrize(
    "step", [release("r1", 1), leave("r0", 1), give_back(A), renew(A, LEASE, 0), count_down("r1")],
    ids=lambda each: each.script.name,
)  # fmt: skip
def test_full_memory_refuses_no_giving_back(own_server, step):
    with own_server(None, args=["--maxmemory-policy", "noeviction"]).client() as client:
        names = keys_of(step.script)
        client.set(KEY, 2)
        client.zadd(REQUESTS, {"r0": now_ms(client) + KEEP})
        client.zadd(PERMITS, {A: NEVER})
        client.config_set("maxmemory", 1)
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            client.set("more", 1)
        reply = client.eval(step.script.source, len(names), *names, "7", *step.args)
        assert written_out(step.script, reply) == ["7", 1]
