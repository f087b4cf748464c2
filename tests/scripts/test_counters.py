"""The scripts of the semaphores and the latch, one test for each reply."""

import pytest
import redis

from django_rlock._redis import keys, scripts
from tests.scripts.conftest import KEY, PERMITS, REQUESTS, keys_of, now_ms

CHANNEL, GATE = keys.semaphore_channel(KEY), keys.latch_channel(KEY)
DRAINED = keys.drained_key(KEY, "r1")
OURS = KEY, PERMITS, REQUESTS, DRAINED
KEEP = 60_000
LEASE = 30_000
NEVER = 922337203685477
MOST = 2**31 - 1
A, B, C, D = (letter * 16 for letter in "abcd")


@pytest.fixture
def left(redis_client):
    """Returns the number at the key."""
    return lambda: redis_client.get(KEY)


def test_names_are_redissons():
    assert (CHANNEL, PERMITS) == ("redisson_sc:{rlock:stock:42}", "{rlock:stock:42}:timeout")
    assert keys.latch_channel("n") == "redisson_countdownlatch__channel__{n}"
    assert keys.permits_key("shop{42}") == "shop{42}:timeout"
    assert keys.semaphore_channel("shop{42}") == "redisson_sc:shop{42}"
    assert keys.latch_channel("shop{42}") == "redisson_countdownlatch__channel__{shop{42}}"


# --- semaphore -------------------------------------------------------------------------------------------------------


def test_acquire_takes_permits_once(run, redis_client, left, heard):
    redis_client.set(KEY, 5, px=LEASE)
    for _ in range(2):  # the same command once more does nothing once more
        assert run(scripts.SEMAPHORE_ACQUIRE, "r1", 2, KEEP) == "OK"
    assert left() == "3"
    assert redis_client.pttl(KEY) > 0
    assert heard() == []
    assert run(scripts.SEMAPHORE_ACQUIRE, "r2", 3, KEEP) == "OK"
    assert left() == "0"


@pytest.mark.parametrize("there", [None, -3, 0, 1])
def test_acquire_takes_none_where_there_are_too_few(run, redis_client, left, there):
    if there is not None:
        redis_client.set(KEY, there)
    assert run(scripts.SEMAPHORE_ACQUIRE, "r1", 2, KEEP) == -1
    assert left() == (None if there is None else str(there))
    assert not redis_client.exists(REQUESTS)


def test_requests_are_forgotten_after_a_while(run, redis_client):
    redis_client.set(KEY, 5)
    redis_client.zadd(REQUESTS, {"old": now_ms(redis_client) - 1, "young": now_ms(redis_client) + 9000})
    run(scripts.SEMAPHORE_ACQUIRE, "r1", 1, KEEP)
    assert set(redis_client.zrange(REQUESTS, 0, -1)) == {"r1", "young"}
    assert 0 < redis_client.pttl(REQUESTS) <= KEEP
    assert abs(redis_client.zscore(REQUESTS, "r1") - now_ms(redis_client) - KEEP) < 5000


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
    ],
)
def test_answered_requests_are_forgotten_at_once(run, redis_client, script, args):
    redis_client.set(KEY, 5)
    redis_client.zadd(REQUESTS, dict.fromkeys(["a", "b", "c", "d"], now_ms(redis_client) + KEEP))
    for _ in range(2):
        run(script, "r1 a b none", *args)
        assert set(redis_client.zrange(REQUESTS, 0, -1)) - {"r1"} == {"c", "d"}
    assert redis_client.get(KEY) in {"4", "5", "6"}


def test_release_gives_permits_once_and_tells_the_total(run, left, heard):
    for _ in range(2):
        assert run(scripts.SEMAPHORE_RELEASE, "r1", 2, KEEP, 0) == 1
    assert left() == "2"
    assert heard() == [(CHANNEL, "2")]
    run(scripts.SEMAPHORE_RELEASE, "r2", 3, KEEP, 1)
    assert heard() == [(CHANNEL, "5")]


@pytest.mark.parametrize("there", [-5, -2])
def test_release_tells_no_total_below_one(run, redis_client, left, heard, there):
    redis_client.set(KEY, there)
    assert run(scripts.SEMAPHORE_RELEASE, "r1", 2, KEEP, 0) == 1
    assert left() == str(there + 2)
    assert heard() == []


def test_release_leaves_alone_what_does_not_exist(run, redis_client, heard):
    assert run(scripts.SEMAPHORE_RELEASE, "r1", 2, KEEP, 1) == 0
    assert redis_client.exists(*OURS) == 0
    assert heard() == []


def test_release_of_too_many_changes_nothing(run, redis_client, left, heard):
    redis_client.set(KEY, MOST - 1)
    assert run(scripts.SEMAPHORE_RELEASE, "r1", 2, KEEP, 0) == -1
    assert (left(), heard()) == (str(MOST - 1), [])
    assert run(scripts.SEMAPHORE_RELEASE, "r1", 1, KEEP, 0) == 1
    assert left() == str(MOST)


def test_leave_gives_back_once_what_was_taken(run, redis_client, left, heard):
    redis_client.set(KEY, 5)
    run(scripts.SEMAPHORE_ACQUIRE, "r1", 2, KEEP)
    assert run(scripts.SEMAPHORE_LEAVE, "r1", 2, KEEP) == 1
    assert run(scripts.SEMAPHORE_LEAVE, "r1", 2, KEEP) == 0
    assert left() == "5"
    assert heard() == [(CHANNEL, "5")]


def test_acquire_that_comes_after_its_undoing_takes_nothing(run, redis_client, left, heard):
    redis_client.set(KEY, 5)
    assert run(scripts.SEMAPHORE_LEAVE, "r1", 2, KEEP) == 0
    run(scripts.SEMAPHORE_ACQUIRE, "r1", 2, KEEP)
    assert run(scripts.SEMAPHORE_LEAVE, "r1", 2, KEEP) == 0
    assert (left(), heard()) == ("5", [])


def test_leave_gives_back_what_was_surely_taken_though_it_was_forgotten(run, redis_client, left):
    redis_client.set(KEY, 5)
    run(scripts.SEMAPHORE_ACQUIRE, "r1", 2, KEEP)
    run(scripts.SEMAPHORE_ACQUIRE, "r2 r1", 1, KEEP)
    assert run(scripts.SEMAPHORE_LEAVE, "r1", 2, KEEP, 0) == 0
    assert left() == "2"
    run(scripts.SEMAPHORE_ACQUIRE, "r3", 2, KEEP)
    run(scripts.SEMAPHORE_ACQUIRE, "r4 r3", 0, KEEP)
    assert run(scripts.SEMAPHORE_LEAVE, "r3", 2, KEEP, 1) == 1
    assert run(scripts.SEMAPHORE_LEAVE, "r3", 2, KEEP, 1) == 0
    assert left() == "2"


def test_leave_does_not_bring_back_what_was_deleted(run, redis_client):
    redis_client.set(KEY, 5)
    run(scripts.SEMAPHORE_ACQUIRE, "r1", 2, KEEP)
    redis_client.delete(KEY)
    assert run(scripts.SEMAPHORE_LEAVE, "r1", 2, KEEP) == 0
    assert not redis_client.exists(KEY)


def test_set_gives_permits_to_what_does_not_exist(run, redis_client, left, heard):
    for _ in range(2):
        assert run(scripts.SEMAPHORE_SET, "r1", 7, KEEP, 0) == 1
    assert (left(), redis_client.pttl(KEY)) == ("7", -1)
    assert heard() == [(CHANNEL, "7")]
    assert run(scripts.SEMAPHORE_SET, "r2", 9, KEEP, 0) == 0
    assert (left(), heard()) == ("7", [])


def test_set_for_a_time(run, redis_client, heard):
    assert run(scripts.SEMAPHORE_SET, "r1", 0, KEEP, LEASE) == 1
    assert 0 < redis_client.pttl(KEY) <= LEASE
    assert heard() == []  # no one can take one


def test_add_keeps_the_time_to_live(run, redis_client, left, heard):
    redis_client.set(KEY, 5, px=LEASE)
    for _ in range(2):
        assert run(scripts.SEMAPHORE_ADD, "r1", 4, KEEP) == 1
    assert left() == "9"
    assert redis_client.pttl(KEY) > 0
    assert run(scripts.SEMAPHORE_ADD, "r2", -22, KEEP) == 1
    assert left() == "-13"
    assert heard() == [(CHANNEL, "9")]


@pytest.mark.parametrize(("there", "more"), [(1, MOST), (-1, -MOST)])
def test_add_of_too_many_changes_nothing(run, redis_client, left, heard, there, more):
    redis_client.set(KEY, there)
    assert run(scripts.SEMAPHORE_ADD, "r1", more, KEEP) == -1
    assert (left(), heard()) == (str(there), [])


@pytest.mark.parametrize("there", [7, -5])
def test_drain_takes_all_and_says_so_again(run, redis_client, left, there):
    redis_client.set(KEY, there, px=LEASE)
    for _ in range(2):
        assert run(scripts.SEMAPHORE_DRAIN, "r1", KEEP) == there
        assert left() == "0"
    assert redis_client.pttl(KEY) > 0
    assert 0 < redis_client.pttl(DRAINED) <= KEEP


@pytest.mark.parametrize("there", [None, 0])
def test_drain_of_nothing(run, redis_client, there):
    if there is not None:
        redis_client.set(KEY, there)
    assert run(scripts.SEMAPHORE_DRAIN, "r1", KEEP) == 0
    redis_client.set(KEY, 5)
    assert run(scripts.SEMAPHORE_DRAIN, "r1", KEEP) == 0  # a copy that comes late
    assert redis_client.get(KEY) == "5"


def test_drain_that_was_given_up_takes_nothing(run, redis_client):
    redis_client.set(KEY, 5)
    run(scripts.REQUEST_RETIRE, "r1", KEEP)
    assert run(scripts.SEMAPHORE_DRAIN, "r1", KEEP) == 0
    assert redis_client.get(KEY) == "5"


def test_read(run, redis_client):
    assert run(scripts.COUNTER_READ) == 0
    redis_client.set(KEY, -13)
    assert run(scripts.COUNTER_READ) == -13


def test_delete(run, redis_client):
    assert run(scripts.SEMAPHORE_DELETE, "r1", KEEP) == 0
    redis_client.set(KEY, 0)
    redis_client.zadd(PERMITS, {A: NEVER})
    for _ in range(2):
        assert run(scripts.SEMAPHORE_DELETE, "r1", KEEP) == 1
        assert redis_client.exists(KEY, PERMITS) == 0
    redis_client.set(KEY, 3)
    assert run(scripts.SEMAPHORE_DELETE, "r1", KEEP) == 1  # a copy that comes late
    assert redis_client.exists(KEY)


# --- expirable semaphore ---------------------------------------------------------------------------------------------


@pytest.fixture
def permits(redis_client):
    """Returns the ids that are taken, and how long each still is, in seconds; None without end."""

    def look():
        found = redis_client.zrange(PERMITS, 0, -1, withscores=True)
        now = now_ms(redis_client)
        return {each: None if ends == NEVER else round((ends - now) / 1000) for each, ends in found}

    return look


def test_permits_are_taken_once_with_their_lease(run, redis_client, left, permits, heard):
    redis_client.set(KEY, 5)
    for _ in range(2):
        assert run(scripts.PERMIT_ACQUIRE, A + B, LEASE) == "OK"
    assert (left(), permits(), heard()) == ("3", {A: 30, B: 30}, [])
    assert redis_client.pttl(PERMITS) == -1


def test_repeated_acquire_counts_its_lease_anew(run, redis_client, left, permits):
    """The caller does so too: from when it last sent the command."""
    redis_client.set(KEY, 5)
    run(scripts.PERMIT_ACQUIRE, A, LEASE)
    redis_client.zadd(PERMITS, {A: now_ms(redis_client) + 5000})
    assert run(scripts.PERMIT_ACQUIRE, A, LEASE) == "OK"
    assert (left(), permits()) == ("4", {A: 30})


def test_permit_without_end(run, redis_client):
    redis_client.set(KEY, 1)
    assert run(scripts.PERMIT_ACQUIRE, A, 0) == "OK"
    assert redis_client.zscore(PERMITS, A) == NEVER


def test_permits_live_no_longer_than_their_semaphore(run, redis_client):
    redis_client.set(KEY, 1, px=5000)
    run(scripts.PERMIT_ACQUIRE, A, LEASE)
    assert 0 < redis_client.pttl(PERMITS) <= 5000


@pytest.mark.parametrize("there", [None, -1, 1])
def test_too_few_permits_and_none_that_end(run, redis_client, permits, there):
    if there is not None:
        redis_client.set(KEY, there)
    redis_client.zadd(PERMITS, {C: NEVER})
    assert run(scripts.PERMIT_ACQUIRE, A + B, LEASE) == -1
    assert permits() == {C: None}


def test_too_few_permits_until_the_next_lease_ends(run, redis_client, left):
    redis_client.set(KEY, 1)
    redis_client.zadd(PERMITS, {C: NEVER, D: now_ms(redis_client) + LEASE})
    assert LEASE - 5000 < run(scripts.PERMIT_ACQUIRE, A + B, LEASE) <= LEASE
    assert left() == "1"


def test_permits_whose_leases_ended_are_taken_again(run, redis_client, left, permits, heard):
    redis_client.set(KEY, 0)
    redis_client.zadd(PERMITS, {B: 1, C: now_ms(redis_client) - 1, D: NEVER})
    assert run(scripts.PERMIT_ACQUIRE, A, LEASE) == "OK"
    assert (left(), permits(), heard()) == ("1", {A: 30, D: None}, [(CHANNEL, "2")])


def test_ended_leases_do_not_bring_back_a_semaphore(run, redis_client):
    redis_client.zadd(PERMITS, {B: 1})
    assert run(scripts.PERMIT_STATE, "") == [0, 0, -2]
    assert redis_client.exists(*OURS) == 0


def test_permit_is_given_back(run, redis_client, left, permits, heard):
    redis_client.set(KEY, 3)
    redis_client.zadd(PERMITS, {A: NEVER, B: NEVER, C: NEVER})
    assert run(scripts.PERMIT_RELEASE, A) == 1
    assert heard() == [(CHANNEL, "4")]  # the total
    assert run(scripts.PERMIT_RELEASE, B + C) == 2
    assert heard() == [(CHANNEL, "2")]  # how many came back
    assert (left(), permits()) == ("6", {})


def test_permit_is_given_back_to_a_debt(run, redis_client, left, heard):
    redis_client.set(KEY, -2)
    redis_client.zadd(PERMITS, {A: NEVER})
    assert run(scripts.PERMIT_RELEASE, A) == 1
    assert (left(), heard()) == ("-1", [])


@pytest.mark.parametrize("ids", [B, A + B])
@pytest.mark.parametrize("ended", [False, True])
def test_release_of_what_is_not_taken_changes_nothing(run, redis_client, left, permits, ids, ended):
    redis_client.set(KEY, 3)
    redis_client.zadd(PERMITS, {A: NEVER, **({B: 1} if ended else {})})
    assert run(scripts.PERMIT_RELEASE, ids) == 0
    assert (left(), permits()) == ("4" if ended else "3", {A: None})


def test_leave_gives_permits_back_once(run, redis_client, left, permits, heard):
    redis_client.set(KEY, 5)
    run(scripts.PERMIT_ACQUIRE, A + B, 0)
    assert run(scripts.PERMIT_LEAVE, A + B, KEEP) == 2
    assert run(scripts.PERMIT_LEAVE, A + B, KEEP) == 0
    assert (left(), permits(), heard()) == ("5", {}, [(CHANNEL, "5")])


def test_permits_asked_for_before_their_undoing_are_not_taken_after_it(run, redis_client, left, permits):
    redis_client.set(KEY, 5)
    assert run(scripts.PERMIT_LEAVE, A + B, KEEP) == 0
    assert run(scripts.PERMIT_ACQUIRE, A + B, 0) == -1
    assert (left(), permits()) == ("5", {})


def test_renew(run, redis_client, permits):
    redis_client.set(KEY, 5)
    redis_client.zadd(PERMITS, {A: now_ms(redis_client) + 5000})
    assert run(scripts.PERMIT_RENEW, A, LEASE, 1) == 1
    assert permits() == {A: 30}
    assert run(scripts.PERMIT_RENEW, A, 5000, 1) == 1
    assert permits() == {A: 30}  # a longer lease stays
    assert run(scripts.PERMIT_RENEW, A, 5000, 0) == 1
    assert permits() == {A: 5}
    assert run(scripts.PERMIT_RENEW, A, 0, 0) == 1
    assert permits() == {A: None}
    assert run(scripts.PERMIT_RENEW, A, LEASE, 1) == 1
    assert permits() == {A: None}


@pytest.mark.parametrize("ended", [False, True])
def test_renew_of_what_is_not_taken_creates_nothing(run, redis_client, left, permits, ended):
    redis_client.set(KEY, 5)
    if ended:
        redis_client.zadd(PERMITS, {A: 1})
    assert run(scripts.PERMIT_RENEW, A, LEASE, 0) == 0
    assert (left(), permits()) == ("6" if ended else "5", {})


def test_permit_state(run, redis_client):
    assert run(scripts.PERMIT_STATE, A) == [0, 0, -2]
    redis_client.set(KEY, 2)
    redis_client.zadd(PERMITS, {A: NEVER, B: now_ms(redis_client) + LEASE, C: 1})
    assert run(scripts.PERMIT_STATE, A) == [3, 2, -1]
    assert run(scripts.PERMIT_STATE, C) == [3, 2, -2]
    *numbers, ms = run(scripts.PERMIT_STATE, B)
    assert (numbers, LEASE - 5000 < ms <= LEASE) == ([3, 2], True)


def test_permits_in_all(run, redis_client, left, heard):
    for _ in range(2):
        assert run(scripts.PERMIT_SET, "r1", 5, KEEP) == 1
        assert left() == "5"
    redis_client.zadd(PERMITS, {A: NEVER, B: NEVER, C: NEVER, D: 1})
    redis_client.set(KEY, 1, px=LEASE)
    heard()
    assert run(scripts.PERMIT_SET, "r2 r1", 2, KEEP) == 1
    assert redis_client.zrange(REQUESTS, 0, -1) == ["r2"]
    assert left() == "-1"
    assert redis_client.pttl(KEY) > 0
    assert heard() == [(CHANNEL, "2"), (CHANNEL, "2")]  # the one that ended, and the set


# --- latch -----------------------------------------------------------------------------------------------------------


def test_latch_is_set_once(run, redis_client, left, heard):
    for _ in range(2):
        assert run(scripts.LATCH_SET, "r1", GATE, 2, KEEP) == 1
    assert (left(), heard()) == ("2", [(GATE, "1")])
    assert run(scripts.LATCH_SET, "r2", GATE, 5, KEEP) == 0
    assert (left(), heard(), redis_client.pttl(KEY)) == ("2", [], -1)


def test_latch_of_nothing_stays_open(run, redis_client, heard):
    assert run(scripts.LATCH_SET, "r1", GATE, 0, KEEP) == 1
    assert (redis_client.exists(*OURS), heard()) == (0, [])


def test_latch_counts_down_once_for_each_request(run, redis_client, left, heard):
    redis_client.set(KEY, 2)
    for _ in range(2):
        assert run(scripts.LATCH_COUNT_DOWN, "r1", GATE, KEEP) == 1
    assert (left(), heard()) == ("1", [])
    assert run(scripts.LATCH_COUNT_DOWN, "r2", GATE, KEEP) == 0
    assert (left(), heard()) == (None, [(GATE, "0")])


def test_open_latch_does_not_count(run, redis_client, heard):
    assert run(scripts.LATCH_COUNT_DOWN, "r1", GATE, KEEP) == 0
    assert (redis_client.exists(*OURS), heard()) == (0, [])


def test_late_count_down_does_not_touch_the_next_round(run, left, heard):
    run(scripts.LATCH_SET, "r1", GATE, 1, KEEP)
    run(scripts.LATCH_COUNT_DOWN, "r2", GATE, KEEP)
    run(scripts.LATCH_SET, "r3", GATE, 1, KEEP)
    assert run(scripts.LATCH_COUNT_DOWN, "r2", GATE, KEEP) == 1
    assert left() == "1"


def test_latch_lets_pass(run, redis_client):
    assert run(scripts.LATCH_PASS) == "OK"
    redis_client.set(KEY, 1)
    assert run(scripts.LATCH_PASS) == -1


def test_deleted_latch_lets_its_waiters_go(run, redis_client, heard):
    assert run(scripts.LATCH_DELETE, "r1", GATE, KEEP) == 0
    redis_client.set(KEY, 2)
    for _ in range(2):
        assert run(scripts.LATCH_DELETE, "r1", GATE, KEEP) == 1
    assert (redis_client.exists(KEY), heard()) == (0, [(GATE, "0")])
    redis_client.set(KEY, 2)
    assert run(scripts.LATCH_DELETE, "r1", GATE, KEEP) == 1  # a copy that comes late
    assert redis_client.exists(KEY)


def test_retired_request_does_nothing(run, redis_client):
    redis_client.set(KEY, 5)
    assert run(scripts.REQUEST_RETIRE, "r1", KEEP) == 1
    assert run(scripts.SEMAPHORE_ADD, "r1", 1, KEEP) == 1
    assert redis_client.get(KEY) == "5"
    assert 0 < redis_client.pttl(REQUESTS) <= KEEP


# --- all -------------------------------------------------------------------------------------------------------------

CALLS = [
    (scripts.COUNTER_READ, ()),
    (scripts.SEMAPHORE_ACQUIRE, ("r1", 1, KEEP)),
    (scripts.SEMAPHORE_LEAVE, ("r1", 1, KEEP)),
    (scripts.SEMAPHORE_RELEASE, ("r1", 1, KEEP, 1)),
    (scripts.SEMAPHORE_SET, ("r1", 1, KEEP, 0)),
    (scripts.SEMAPHORE_ADD, ("r1", 1, KEEP)),
    (scripts.SEMAPHORE_DRAIN, ("r1", KEEP)),
    (scripts.SEMAPHORE_DELETE, ("r1", KEEP)),
    (scripts.PERMIT_ACQUIRE, (A, LEASE)),
    (scripts.PERMIT_LEAVE, (A, KEEP)),
    (scripts.PERMIT_RELEASE, (A,)),
    (scripts.PERMIT_RENEW, (A, LEASE, 0)),
    (scripts.PERMIT_STATE, (A,)),
    (scripts.PERMIT_SET, ("r1", 5, KEEP)),
    (scripts.LATCH_SET, ("r1", GATE, 1, KEEP)),
    (scripts.LATCH_COUNT_DOWN, ("r1", GATE, KEEP)),
    (scripts.LATCH_PASS, ()),
    (scripts.LATCH_DELETE, ("r1", GATE, KEEP)),
]


@pytest.mark.parametrize(("script", "args"), CALLS, ids=lambda each: getattr(each, "name", ""))
@pytest.mark.parametrize("other", ["hash", "text"])
def test_nothing_is_done_to_another_kind_of_value(run, redis_client, heard, script, args, other):
    if other == "hash":
        redis_client.hset(KEY, "another", 1)
    else:
        redis_client.set(KEY, "0x10")
    redis_client.zadd(PERMITS, {A: 1, B: NEVER})
    before = redis_client.dump(KEY), redis_client.dump(PERMITS)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        run(script, *args)
    assert (redis_client.dump(KEY), redis_client.dump(PERMITS)) == before
    assert (redis_client.exists(*OURS), heard()) == (2, [])


@pytest.mark.parametrize(
    ("script", "args"),
    [
        (scripts.SEMAPHORE_RELEASE, ("r1", 1, KEEP, 0)),
        (scripts.SEMAPHORE_LEAVE, ("r0", 1, KEEP)),
        (scripts.PERMIT_RELEASE, (A,)),
        (scripts.PERMIT_RENEW, (A, LEASE, 0)),
        (scripts.LATCH_COUNT_DOWN, ("r1", GATE, KEEP)),
    ],
    ids=lambda each: getattr(each, "name", ""),
)
def test_full_memory_refuses_no_giving_back(run, own_server, script, args, left):
    with own_server(None, args=["--maxmemory-policy", "noeviction"]).client() as client:
        names = keys_of(script)
        client.set(KEY, 2)
        client.zadd(REQUESTS, {"r0": now_ms(client) + KEEP})
        client.zadd(PERMITS, {A: NEVER})
        client.config_set("maxmemory", 1)
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            client.set("more", 1)
        assert client.eval(script.source, len(names), *names, "7", *args) == ["7", 1]
