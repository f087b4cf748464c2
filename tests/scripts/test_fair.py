"""The scripts of the fair lock: a table of calls, their replies, and the state that they leave."""

import math
from typing import Any
from uuid import UUID

import pytest

from django_rlock._redis import scripts
from django_rlock._redis.keys import release_keys
from django_rlock.locks.heartbeats import GRANTED, STILL_QUEUED, UNKNOWN
from tests.eventually import eventually
from tests.scripts.conftest import (
    ALIVE,
    CHANNEL,
    CLAIMED,
    JAVA,
    KEY,
    ME,
    OTHER,
    QUEUE,
    THIRD,
    Call,
    Step,
    call,
    calls,
    now_ms,
)

LEASE, CLAIM, ALIVE_FOR = 30_000, 5000, 10_000


NAMED = f"{ME[:36]}/17/order-7"
"""The ticket of an owner that the caller named: its client and a number of the attempt come before the name."""
NAMES = {ME: "me", OTHER: "other", THIRD: "third", NAMED: "ticket-7", "order-7": "order-7"}


def acquire(run, owner, count=1, waiting=True, lease=LEASE):
    """OK or LOST; or the lease left, whether the holder knows nothing of the queue, and the ticket that was drawn."""
    return run(scripts.FAIR_ACQUIRE, owner, count, lease, CLAIM, ALIVE_FOR if waiting else 0)


def release(run, owner, left=0):
    return run(scripts.FAIR_RELEASE, owner, left, LEASE, CLAIM)


def heartbeat(run, member):
    return run(scripts.FAIR_HEARTBEAT, CLAIM, ALIVE_FOR, member)


def wake_up(owner, ticket):
    return f"rlock_wake:{owner[:36]}", f"{ticket} {owner} {KEY}"


# --- a call in a situation -------------------------------------------------------------------------------------------


def take(owner: str, count: int = 1, waiting: int = ALIVE_FOR, lease: int = LEASE) -> Call:
    return call(scripts.FAIR_ACQUIRE, owner, count, lease, CLAIM, waiting)


def give(owner: str, left: int = 0) -> Call:
    return call(scripts.FAIR_RELEASE, owner, left, LEASE, CLAIM)


def leave(owner: str) -> Call:
    return call(scripts.FAIR_LEAVE, owner, CLAIM)


def decline(owner: str) -> Call:
    return call(scripts.FAIR_DECLINE, owner, CLAIM)


def beat(owner: str) -> Call:
    return call(scripts.FAIR_HEARTBEAT, CLAIM, ALIVE_FOR, owner)


def held(owner: str, lease: int = LEASE) -> Step:
    """The lock, by whatever came before."""

    def hold(_: Any, redis_client: Any) -> None:
        redis_client.delete(KEY)
        redis_client.hset(KEY, owner, 1)
        redis_client.pexpire(KEY, lease)

    return hold


def fell_free(_: Any, redis_client: Any) -> None:
    """The lease has ended."""
    redis_client.delete(KEY)


def prolonged(lease: int) -> Step:
    return lambda _, redis_client: redis_client.pexpire(KEY, lease)


def died(*owners: str) -> Step:
    return lambda _, redis_client: redis_client.zadd(ALIVE, {owner[:36]: 1 for owner in owners})


def state_of(redis_client: Any) -> str:
    """The holder with its count and the seconds that are left to it, and the queue."""
    holder = [
        f"{NAMES[owner]}={count} for {math.ceil(redis_client.pttl(KEY) / 1000)}"
        for owner, count in redis_client.hgetall(KEY).items()
    ]
    return " ".join([*(holder or ["free"]), *[f"then {NAMES[each]}" for each in redis_client.zrange(QUEUE, 0, -1)]])


WAITS = "the lease that is left, the holder knows of the queue, and a ticket if it stands there newly"
GRANTED_TO_ME: list[Step] = [take(OTHER), take(ME), give(OTHER)]
FREED = [(CHANNEL, "0")]

ROWS: list[tuple[list[Step], Call, Any, str, Any]] = [
    ([], take(ME), "OK", "me=1 for 30", []),
    ([take(OTHER)], take(ME), WAITS, "other=1 for 30 then me", []),
    ([take(OTHER), take(ME), take(THIRD)], take(ME), WAITS, "other=1 for 30 then me then third", []),
    ([take(OTHER), take(ME)], take(ME, waiting=0), WAITS, "other=1 for 30", []),  # it gives its ticket up
    ([take(ME)], take(ME, 3, 0), "OK", "me=3 for 30", []),
    ([take(ME), take(ME, 3, 0)], take(ME, 3, 0), "OK", "me=3 for 30", []),
    ([], take(ME, 2, 0), "LOST", "free", []),
    ([take(OTHER)], take(ME, 2, 0), "LOST", "other=1 for 30", []),
    # A grant lasts for the claim, until its owner confirms it.
    ([take(OTHER), take(ME)], give(OTHER), 1, "me=01 for 5", ME),
    (GRANTED_TO_ME, take(ME), "OK", "me=1 for 30", []),
    (GRANTED_TO_ME, take(ME, lease=1000), "OK", "me=1 for 1", []),
    ([*GRANTED_TO_ME, take(ME, lease=1000), prolonged(CLAIM)], take(ME, lease=1000), "OK", "me=1 for 5", []),
    (GRANTED_TO_ME, take(ME, 2, lease=1000), "OK", "me=2 for 5", []),  # its owner has believed the message
    (GRANTED_TO_ME, beat(ME), [GRANTED, WAITS], "me=01 for 5", []),
    ([take(OTHER), take(ME), fell_free], take(THIRD, waiting=0), WAITS, "me=01 for 5", ME),
    ([take(OTHER), take(ME), take(THIRD), fell_free], take(ME), "OK", "me=1 for 30 then third", []),
    ([take(OTHER), take(THIRD), died(THIRD), take(ME), fell_free], take(ME), "OK", "me=1 for 30", ME),
    ([take(OTHER), take(THIRD), died(THIRD), fell_free], take(ME, waiting=0), "OK", "me=1 for 30", []),
    # The end of a hold.
    ([take(ME)], give(ME), 1, "free", FREED),
    ([take(ME), take(OTHER), died(OTHER)], give(ME), 1, "free", FREED),
    ([take(ME), take(THIRD), take(OTHER)], give(ME), 1, "third=01 for 5 then other", THIRD),
    ([take(ME), take(ME, 2), take(OTHER), prolonged(1000)], give(ME, 1), 1, "me=1 for 30 then other", []),
    ([], give(ME), 0, "free", []),
    ([take(OTHER)], give(ME), 0, "other=1 for 30", []),
    ([take(OTHER), take(ME)], leave(ME), 0, "other=1 for 30", []),
    ([take(OTHER), take(ME), take(THIRD), give(OTHER)], leave(ME), 1, "third=01 for 5", THIRD),
    ([take(ME)], leave(ME), 1, "free", FREED),
    ([take(OTHER), take(ME), take(THIRD), give(OTHER)], decline(ME), 1, "third=01 for 5", THIRD),
    ([*GRANTED_TO_ME, take(ME), take(THIRD)], decline(ME), 0, "me=1 for 30 then third", []),  # it was confirmed
    # Heartbeats.
    ([take(OTHER), take(ME)], beat(ME), [STILL_QUEUED, WAITS], "other=1 for 30 then me", []),
    ([take(OTHER)], beat(ME), [UNKNOWN, WAITS], "other=1 for 30", []),
    ([], beat(ME), [UNKNOWN, -2], "free", []),
    ([take(OTHER), take(THIRD), take(ME), fell_free], beat(ME), [STILL_QUEUED, CLAIM], "third=01 for 5 then me", THIRD),
    # An owner that the caller named: another process may hold the lock under the name.
    ([take(OTHER)], take(NAMED), WAITS, "other=1 for 30 then ticket-7", []),
    ([take(OTHER), take(NAMED)], give(OTHER), 1, "ticket-7=01 for 5", NAMED),
    ([take(OTHER), take(NAMED), give(OTHER)], beat(NAMED), [GRANTED, WAITS], "ticket-7=01 for 5", []),
    ([take(OTHER), take(NAMED), give(OTHER)], take(NAMED), "OK", "order-7=1 for 30", []),
    ([take(OTHER), take(NAMED), give(OTHER)], take(NAMED, lease=1000), "OK", "order-7=1 for 1", []),
    ([take(OTHER), take(NAMED), give(OTHER), take(NAMED, 1, 0, 1000), prolonged(CLAIM)], take(NAMED, 1, 0, 1000), "OK",
     "order-7=1 for 5", []),
    ([take(OTHER), take(NAMED), give(OTHER)], leave(NAMED), 1, "free", FREED),
    ([held("order-7")], leave(NAMED), 0, "order-7=1 for 30", []),
    ([held("order-7")], give("order-7"), 1, "free", FREED),
    ([take(OTHER), take(NAMED), held("order-7", 500_000)], take(NAMED), "OK", "order-7=1 for 500", []),
]  # fmt: skip


def is_as_told(said: Any, reply: Any) -> bool:
    if reply is WAITS and isinstance(said, list):
        return 0 <= said[0] <= LEASE and not said[1]
    if isinstance(reply, list):
        return len(said) == len(reply) and all(map(is_as_told, said, reply))
    return 0 < said <= LEASE if reply is WAITS else said == reply


@calls(ROWS)
def test_a_call_in_a_situation(run, redis_client, heard, given, step, reply, after, told):
    for each in given:
        each(run, redis_client)
    heard()
    tickets = dict(redis_client.zrange(QUEUE, 0, -1, withscores=True))
    assert is_as_told(step(run, redis_client), reply)
    assert state_of(redis_client) == after
    assert heard() == ([wake_up(told, int(tickets[told]))] if isinstance(told, str) else told)


def test_acquire_queues_once_and_its_process_counts_as_alive(run, redis_client):
    acquire(run, OTHER)
    ticket = acquire(run, ME)[2]
    acquire(run, THIRD)
    assert acquire(run, ME)[2] == ""  # it was drawn before
    assert redis_client.zscore(QUEUE, ME) == int(ticket)
    assert redis_client.zscore(ALIVE, ME[:36]) > now_ms(redis_client) + ALIVE_FOR - 1000
    assert 0 < redis_client.pttl(QUEUE) <= ALIVE_FOR * 6
    assert 0 < redis_client.pttl(ALIVE) <= ALIVE_FOR * 6
    release(run, OTHER)  # until its next heartbeat, it counts as alive for the claim only
    assert redis_client.zscore(ALIVE, ME[:36]) <= now_ms(redis_client) + CLAIM


@pytest.mark.parametrize("last", [1, 4e15], ids=["of an earlier second", "of a clock that was ahead"])
def test_who_queues_first_in_a_second_lets_the_queue_live_on(run, redis_client, last):
    acquire(run, OTHER)
    acquire(run, ME)
    redis_client.zadd(QUEUE, {ME: last})
    for key in (QUEUE, ALIVE):
        redis_client.persist(key)
    acquire(run, THIRD)
    assert 0 < redis_client.pttl(QUEUE) <= ALIVE_FOR * 6
    assert 0 < redis_client.pttl(ALIVE) <= ALIVE_FOR * 6


def test_alive_marks_that_begin_anew_live_no_longer_than_the_queue(run, redis_client):
    """A grant took the last mark away, of a process that was dead, within a second."""
    acquire(run, OTHER)
    acquire(run, ME)
    redis_client.delete(ALIVE)
    acquire(run, THIRD)
    assert 0 < redis_client.pttl(ALIVE) <= ALIVE_FOR * 6


def test_tickets_rise_also_when_the_clock_goes_back(run, redis_client):
    acquire(run, OTHER)
    redis_client.zadd(QUEUE, {THIRD: 4e15})
    acquire(run, ME)
    assert redis_client.zscore(QUEUE, ME) == 4e15 + 1


def test_release_skips_the_dead(run, redis_client, heard, state):
    acquire(run, ME)
    dead = f"{'d' * 36}:"
    for number in range(3):
        acquire(run, f"{dead}{number}")
    *_, ticket = acquire(run, OTHER)
    redis_client.zadd(ALIVE, {dead[:36]: 1})
    release(run, ME)
    assert state() == ({OTHER: CLAIMED}, [])
    assert redis_client.zscore(ALIVE, dead[:36]) is None
    assert heard() == [wake_up(OTHER, ticket)]


def test_many_dead_waiters_are_removed_step_by_step(run, redis_client, heard, state):
    """A server that removes a hundred thousand at once serves nobody else for a fifth of a second."""
    acquire(run, ME)
    dead, number = "d" * 36, 2500
    redis_client.zadd(QUEUE, {f"{dead}:{each}": each for each in range(number)})
    *_, ticket = acquire(run, OTHER)
    release(run, ME)
    assert redis_client.zcard(QUEUE) == number + 1 - 1000
    assert state()[0] == {}
    assert acquire(run, THIRD, waiting=False)[0] == 0, "it does not pass those who wait behind the dead"
    assert redis_client.zcard(QUEUE) == number + 1 - 2000
    assert heartbeat(run, OTHER)[1] > 0
    assert state() == ({OTHER: CLAIMED}, [])
    assert heard()[-1] == wake_up(OTHER, ticket)


def test_heartbeat_goes_on_at_once_behind_many_dead_waiters(run, redis_client):
    redis_client.zadd(QUEUE, {f"{'d' * 36}:{each}": each for each in range(2500)})
    assert heartbeat(run, OTHER) == [0, 0]
    assert redis_client.zcard(QUEUE) == 1500


def test_heartbeat_of_a_waiter_in_the_queue(run, redis_client, heard):
    acquire(run, OTHER)
    acquire(run, ME)
    redis_client.zadd(ALIVE, {ME[:36]: 1})
    state, left = heartbeat(run, ME)
    assert state == STILL_QUEUED
    assert 0 < left <= LEASE
    assert redis_client.zscore(ALIVE, ME[:36]) > now_ms(redis_client) + ALIVE_FOR - 1000
    assert heard() == []


def test_heartbeat_keeps_the_queue(run, redis_client):
    """However long its waiters wait: its keys expire after six times WAITER_ALIVE_TIME without a command."""
    acquire(run, OTHER)
    acquire(run, ME)
    for key in (QUEUE, ALIVE):
        redis_client.pexpire(key, 1000)
    heartbeat(run, ME)
    assert min(redis_client.pttl(QUEUE), redis_client.pttl(ALIVE)) > ALIVE_FOR * 5


@pytest.mark.parametrize("mark", [acquire, heartbeat], ids=["acquire", "heartbeat"])
def test_marks_of_ended_processes_go(run, redis_client, mark):
    acquire(run, THIRD)
    acquire(run, OTHER)
    now = now_ms(redis_client)
    redis_client.zadd(ALIVE, {f"{number:036}": now - number for number in range(5000)})
    mark(run, ME)
    assert sorted(redis_client.zrange(ALIVE, 0, -1)) == [ME[:36], OTHER[:36]]


def test_commands_of_a_hand_over(run, redis_client):
    """The release and the next queueing; the waiter asks for nothing. The first one in a second runs some more."""
    owners = [ME, OTHER, THIRD]
    for owner in owners:
        acquire(run, owner)
    counts = []
    for owner in owners * 3:
        redis_client.config_resetstat()
        release(run, owner)
        acquire(run, owner)
        stats = redis_client.info("commandstats")
        counts.append(sum(each["calls"] for name, each in stats.items() if not name.startswith("cmdstat_config")))
    assert min(counts) <= 18


# --- beside Redisson -------------------------------------------------------------------------------------------------

NEVER, LONG_AGO = 4e15, 1
_, _, WAITING, DEADLINES = release_keys(KEY)


@pytest.mark.parametrize(
    ("script", "args"),
    [
        (scripts.FAIR_RELEASE, [ME, 0, LEASE, CLAIM]),
        (scripts.FAIR_LEAVE, [ME, CLAIM]),
        (scripts.RLOCK_RELEASE, [ME, 0, LEASE]),
        (scripts.LOCK_FORCE_RELEASE, ["", CLAIM, "", "r1"]),
    ],
    ids=lambda each: getattr(each, "name", ""),
)
@pytest.mark.parametrize("is_monitored", [False, True], ids=["", "monitored"])
@pytest.mark.parametrize(
    ("queue", "told", "kept"),
    [
        ({JAVA: (NEVER, True), OTHER: (NEVER, True)}, JAVA, [JAVA, OTHER]),
        ({JAVA: (LONG_AGO, False), OTHER: (NEVER, True)}, OTHER, [OTHER]),
        ({JAVA: (LONG_AGO, False), OTHER: (LONG_AGO, False)}, None, []),
        ({JAVA: (LONG_AGO, True), OTHER: (NEVER, True)}, JAVA, [JAVA, OTHER]),
    ],
    ids=["two living", "a dead head", "all dead", "a slow clock"],
)
def test_free_lock_is_told_to_the_first_of_redissons_queue_that_lives(
    run, redis_client, heard_at, request, script, args, queue, told, kept, is_monitored
):
    """It lives while it subscribes to its channel, whatever the clock of its host says."""
    if is_monitored:
        request.getfixturevalue("heard")  # it listens to all channels
    redis_client.hset(KEY, ME, 1)
    hear = stand_in_redissons_queue(redis_client, heard_at, queue)
    assert run(script, *args) == 1
    assert hear() == ([f"{CHANNEL}:{told}"] if told else [])
    assert redis_client.lrange(WAITING, 0, -1) == kept
    assert set(redis_client.zrange(DEADLINES, 0, -1)) == set(kept)


def test_dead_waiter_without_a_deadline_is_removed(run, redis_client):
    """Redisson never would."""
    redis_client.hset(KEY, ME, 1)
    redis_client.rpush(WAITING, JAVA)
    run(scripts.RLOCK_RELEASE, ME, 0, LEASE)
    assert not redis_client.exists(WAITING)


def stand_in_redissons_queue(redis_client, heard_at, queue):
    """Owners with their deadlines, and whether they live. Returns what collects the channels on which they are told."""
    for owner, (deadline, _) in queue.items():
        redis_client.rpush(WAITING, owner)
        if deadline is not None:
            redis_client.zadd(DEADLINES, {owner: deadline})
    return heard_at(*[f"{CHANNEL}:{owner}" for owner, (_, lives) in queue.items() if lives])


def test_waiter_behind_a_dead_one_is_told_before_its_deadline(run, redis_client, heard_at):
    """The dead one keeps its entry: its client may listen at a replica, which the script cannot see."""
    redis_client.hset(KEY, ME, 1)
    hear = stand_in_redissons_queue(redis_client, heard_at, {JAVA: (NEVER, False), OTHER: (NEVER, True)})
    run(scripts.RLOCK_RELEASE, ME, 0, LEASE)
    assert hear() == [f"{CHANNEL}:{OTHER}"]
    assert redis_client.lrange(WAITING, 0, -1) == [JAVA, OTHER]


def test_many_dead_waiters_of_redissons_queue_are_removed_step_by_step(run, redis_client):
    """Each release used to read all of them, and removed none."""
    redis_client.rpush(WAITING, *(f"dead:{number}" for number in range(250)))
    redis_client.zadd(DEADLINES, {f"dead:{number}": LONG_AGO for number in range(250)})
    for left in 150, 50, 0:
        redis_client.hset(KEY, ME, 1)
        run(scripts.RLOCK_RELEASE, ME, 0, LEASE)
        assert redis_client.llen(WAITING) == redis_client.zcard(DEADLINES) == left
    redis_client.rpush(WAITING, *(f"living:{number}" for number in range(250)))
    redis_client.zadd(DEADLINES, {f"living:{number}": NEVER for number in range(250)})
    redis_client.hset(KEY, ME, 1)
    redis_client.config_resetstat()
    run(scripts.RLOCK_RELEASE, ME, 0, LEASE)
    assert redis_client.info("commandstats")["cmdstat_publish"]["calls"] < 30, "nor are all told that listen nowhere"


def test_release_grants_or_leaves_the_lock_to_redissons_waiter(run, redis_client, heard, heard_at, state):
    """By the server's clock about every fourth time. Nobody else hears of a grant."""
    heard_at(f"{CHANNEL}:{JAVA}")
    outcomes = set()
    for _ in range(300):
        redis_client.flushall()
        acquire(run, ME)
        *_, ticket = acquire(run, OTHER)
        redis_client.rpush(WAITING, JAVA)
        heard()
        release(run, ME)
        granted = state()[0] == {OTHER: CLAIMED}
        outcomes.add(granted)
        if granted:
            assert heard() == [wake_up(OTHER, ticket)]
        else:
            assert state() == ({}, [OTHER])
            assert heard() == [wake_up(OTHER, ""), (CHANNEL, "0"), (f"{CHANNEL}:{JAVA}", "0")]
            assert redis_client.zscore(ALIVE, "guests") > 0
            redis_client.zadd(ALIVE, {"guests": now_ms(redis_client) + 100})
            assert 0 < acquire(run, OTHER)[0] <= 100, "the reply says for how long"
            assert 0 < heartbeat(run, OTHER)[1] <= 100
            assert state()[0] == {}, "no script here takes it meanwhile"
        if len(outcomes) == 2:
            return
    raise AssertionError(f"only {outcomes}")


def left_to_guests(run, redis_client, releases=100):
    """Whether one of so many releases leaves the lock free."""
    for _ in range(releases):
        redis_client.delete(KEY, QUEUE)
        redis_client.hset(KEY, ME, 1)
        redis_client.zadd(QUEUE, {OTHER: 1})
        redis_client.zadd(ALIVE, {OTHER[:36]: 4e15})
        release(run, ME)
        if not redis_client.exists(KEY):
            return True
    return False


def test_lock_is_not_left_to_a_dead_waiter_of_redissons_queue(run, redis_client):
    redis_client.rpush(WAITING, JAVA)
    redis_client.zadd(DEADLINES, {JAVA: NEVER})
    assert not left_to_guests(run, redis_client)


@pytest.mark.parametrize("channel", [CHANNEL, f"{CHANNEL}:{JAVA}"], ids=["plain", "fair"])
@pytest.mark.parametrize("look", [acquire, heartbeat], ids=["acquire", "heartbeat"])
def test_lock_is_seldom_left_to_those_who_do_not_take_it(run, redis_client, heard_at, channel, look):
    """A process that is stopped listens too, and so does a client of another database."""
    heard_at(channel)
    redis_client.rpush(WAITING, JAVA)
    redis_client.zadd(DEADLINES, {JAVA: NEVER})
    for missed in range(8):
        assert left_to_guests(run, redis_client)
        now = now_ms(redis_client)
        quiet_ms = 100 * 2 ** min(missed, 5)
        assert redis_client.zscore(ALIVE, "guests:absent") <= now + 100 + quiet_ms
        redis_client.zadd(ALIVE, {"guests:absent": now + quiet_ms})
        assert quiet_ms < 3000 or not left_to_guests(run, redis_client)
        redis_client.zadd(ALIVE, {"guests:absent": now})
    redis_client.delete(KEY)
    redis_client.hset(KEY, f"{UUID(int=5, version=4)}:7", 1)
    look(run, OTHER)
    assert not redis_client.zrangebyscore(ALIVE, 2e14, 3e15), "a client took it meanwhile"
    redis_client.zadd(ALIVE, {"guests:absent": now + 3_600_000})
    assert left_to_guests(run, redis_client), "the server's clock was set back"


def by_acquire(run):
    return acquire(run, OTHER)[0]


def by_heartbeat(run):
    return heartbeat(run, OTHER)[1]


@pytest.mark.parametrize("look", [by_acquire, by_heartbeat])
def test_lock_is_left_to_guests_briefly_though_the_clock_was_set_back_meanwhile(run, redis_client, state, look):
    redis_client.zadd(QUEUE, {OTHER: 1})
    redis_client.zadd(ALIVE, {OTHER[:36]: 4e15, "guests": now_ms(redis_client) + 3_600_000})
    assert look(run) == 100
    eventually(lambda: look(run) and state()[0], within=5)


@pytest.mark.parametrize("holder", [JAVA, "order 7"])
def test_waiter_is_told_of_a_holder_who_does_not_know_of_the_queue(run, redis_client, holder):
    redis_client.hset(KEY, holder, 1)
    assert acquire(run, ME)[:2] == [-1, 1]
    redis_client.delete(KEY, QUEUE)
    acquire(run, OTHER)
    assert acquire(run, ME, waiting=False)[1] == 0


@pytest.mark.parametrize(("ours", "javas", "is_read"), [([], [], False), ([], [JAVA], True), ([OTHER], [], False)])
def test_redissons_queue_is_read_only_where_its_clients_wait(run, redis_client, ours, javas, is_read):
    for owner in (ME, *ours):
        acquire(run, owner)
    for owner in javas:
        redis_client.rpush(WAITING, owner)
    redis_client.config_resetstat()
    release(run, ME)
    assert ("cmdstat_lindex" in redis_client.info("commandstats")) is is_read
