"""The scripts of the read-write lock: a table of calls, their replies, and the state that they leave."""

import math
from typing import Any

import pytest

from django_rlock._redis import scripts
from django_rlock._redis.scripts import Script
from tests.scripts.conftest import (
    ALIVE,
    CLAIMED,
    KEY,
    ME,
    OTHER,
    QUEUE,
    READS,
    RW_CHANNEL,
    THIRD,
    WRITERS,
    Call,
    Step,
    call,
    calls,
    now_ms,
)

LEASE, ALIVE_FOR = 30, 10
NAMES = {ME: "me", OTHER: "other", THIRD: "third"}
FREE = "free"
ONE, ALL = (RW_CHANNEL, "0"), (RW_CHANNEL, "1")
"""Messages for one waiter, and for all."""


def read(owner: str, count: int = 1, lease: int = LEASE, yields: int = 0, writer: str = "") -> Call:
    return call(scripts.READ_ACQUIRE, owner, count, lease * 1000, yields * 1000, writer)


def end_read(owner: str, left: int = 0, lease: int = LEASE) -> Call:
    return call(scripts.READ_RELEASE, owner, left, lease * 1000)


def write(owner: str, count: int = 1, lease: int = LEASE, alive: int = 0) -> Call:
    return call(scripts.WRITE_ACQUIRE, owner, count, lease * 1000, alive * 1000)


def wait_to_write(owner: str) -> Call:
    """A writer that goes before new readers."""
    return write(owner, alive=ALIVE_FOR)


def end_write(owner: str, left: int = 0) -> Call:
    return call(scripts.WRITE_RELEASE, owner, left, LEASE * 1000)


def renew(owner: str, lease: int = LEASE) -> Call:
    return call(scripts.SIDE_RENEW, lease * 1000, owner)


def extend(owner: str, lease: int) -> Call:
    return call(scripts.SIDE_EXTEND, owner, lease * 1000, 0)


def force(owner: str = "", side: str = "") -> Call:
    return call(scripts.LOCK_FORCE_RELEASE, owner, 5000, side, "r1")


def held(owner: str, lease: int | None = None) -> Step:
    """By a lock of another kind."""

    def hold(_: Any, redis_client: Any) -> None:
        redis_client.hset(KEY, owner, 1)
        if lease:
            redis_client.pexpire(KEY, lease * 1000)

    return hold


def ended(owner: str, *numbers: int) -> Step:
    """The leases of some of a reader's holds have ended."""
    return lambda _, redis_client: redis_client.delete(*(hold_key(owner, number) for number in numbers or [1]))


def dead(writer: str) -> Step:
    """A writer that waits has died."""
    return lambda _, redis_client: redis_client.zadd(WRITERS, {writer: 1})


def hold_key(owner: str, number: int) -> str:
    return f"{READS}:{owner}:rwlock_timeout:{number}"


def state_of(redis_client: Any) -> str:
    """The mode, the holders with their counts and the seconds of each reader's holds, the lock's own seconds, and the
    writers that go first."""

    def seconds(key: str) -> str:
        left = redis_client.pttl(key)
        return {-2: "-", -1: "ever"}.get(left) or str(math.ceil(left / 1000))

    fields = redis_client.hgetall(KEY)
    told = [fields.pop("mode", "other kind")] if fields else [FREE]
    for owner, count in sorted(fields.items()):
        number = redis_client.keys(hold_key(owner, "*"))  # type: ignore[arg-type]
        name = NAMES[owner.removesuffix(":write")] + owner[len(ME) :]
        leases = ",".join(seconds(hold_key(owner, each + 1)) for each in range(max(int(count), len(number))))
        told.append(f"{name}={count}" + (f"({leases})" if number else ""))
    if fields:
        told.append(f"for {seconds(KEY)}")
    waiting = [f"then {NAMES[writer]}" for writer in sorted(redis_client.zrange(WRITERS, 0, -1))]
    return ", ".join([" ".join(told), *waiting])


READING, WRITING = "read me=1(30) for 30", "write me:write=1 for 30"
READ_BY_OTHER, WRITTEN_BY_OTHER = "read other=1(30) for 30", "write other:write=1 for 30"
LEFT = "the time that is left"

# What is the case, what happens, the reply, the state after it, and what is told.
ROWS: list[tuple[list[Step], Call, Any, str, list[tuple[str, str]]]] = [
    # Reading.
    ([], read(ME), "OK", READING, []),
    ([read(ME)], read(OTHER, lease=5), "OK", "read me=1(30) other=1(5) for 30", []),
    ([read(ME, lease=5)], read(ME, 2), "OK", "read me=2(5,30) for 30", []),
    ([read(ME, lease=5), read(ME, 2)], read(ME, 2), "OK", "read me=2(5,30) for 30", []),
    ([write(OTHER)], read(ME), LEFT, WRITTEN_BY_OTHER, []),
    ([held(OTHER)], read(ME), -1, "other kind other=1 for ever", []),
    ([held(OTHER, 5)], read(ME), LEFT, "other kind other=1 for 5", []),
    ([], read(ME, 2), "LOST", FREE, []),
    ([read(OTHER)], read(ME, 2), "LOST", READ_BY_OTHER, []),
    ([write(OTHER)], read(ME, 2), "LOST", WRITTEN_BY_OTHER, []),
    ([read(OTHER), read(ME), ended(ME)], read(ME, 2), "LOST", "read me=1 other=1(30) for 30", []),
    ([write(ME, lease=5)], read(ME), "OK", "write me=1(30) me:write=1 for 30", []),
    ([write(ME)], read(THIRD), LEFT, WRITING, []),
    ([write(ME)], read(THIRD, writer=ME), "OK", "write me:write=1 third=1(30) for 30", []),  # under a newer owner id
    # The end of reading.
    ([read(ME), read(OTHER, lease=5)], end_read(ME), 1, "read other=1(5) for 5", []),
    ([read(ME)], end_read(ME), 1, FREE, [ONE]),
    ([read(ME, each, 5) for each in (1, 2, 3)], end_read(ME, 1), 1, READING, []),
    ([*[read(ME, each, 5) for each in (1, 2, 3)], end_read(ME, 1)], end_read(ME, 1), 1, READING, []),
    ([read(ME, lease=5), read(ME, 2), ended(ME)], end_read(ME, 1), 1, READING, []),  # whose own lease was shorter
    ([], end_read(ME), 0, FREE, []),
    ([read(OTHER)], end_read(ME), 0, READ_BY_OTHER, []),
    ([write(OTHER)], end_read(ME), 0, WRITTEN_BY_OTHER, []),
    ([write(ME)], end_read(ME), 0, WRITING, []),
    ([held(ME)], end_read(ME), 0, "other kind me=1 for ever", []),
    ([read(ME), ended(ME)], end_read(ME), 0, FREE, [ONE]),
    ([read(ME), read(OTHER), read(THIRD), ended(OTHER), ended(THIRD)], end_read(ME), 1, FREE, [ONE]),
    ([write(ME), read(ME, 1, 1), read(ME, 2, 1)], end_read(ME, 1, 1), 1, "write me=1(1) me:write=1 for 30", []),
    ([write(ME), read(ME, lease=1)], end_read(ME), 1, WRITING, []),
    # Renewing and extending.
    ([read(ME, 1, 5), read(ME, 2, 5), read(OTHER, 1, 5)], renew(ME), 1, "read me=2(30,30) other=1(5) for 30", []),
    ([read(OTHER), read(ME), ended(OTHER)], renew(ME), 1, READING, []),
    ([read(OTHER, 1, 20), read(ME)], renew(ME, 5), 1, "read me=1(30) other=1(20) for 30", []),
    ([read(OTHER, 1, 20), read(ME)], extend(ME, 5), 1, "read me=1(5) other=1(20) for 20", [ALL]),
    ([read(ME)], extend(ME, 5), 1, "read me=1(5) for 5", [ALL]),
    ([], renew(ME), 0, FREE, []),
    ([read(OTHER)], renew(ME), 0, READ_BY_OTHER, []),
    ([read(OTHER), read(ME), ended(ME)], renew(ME), 0, "read me=1 other=1(30) for 30", []),
    ([], renew(f"{ME}:write"), 0, FREE, []),
    ([write(ME, lease=5)], renew(f"{OTHER}:write"), 0, "write me:write=1 for 5", []),
    ([write(ME, lease=5)], renew(f"{ME}:write"), 1, WRITING, []),
    ([write(ME)], renew(f"{ME}:write", 5), 1, WRITING, []),
    ([write(ME)], extend(f"{ME}:write", 5), 1, "write me:write=1 for 5", [ALL]),
    ([write(ME), read(ME, 1, 20)], extend(f"{ME}:write", 5), 1, "write me=1(20) me:write=1 for 20", [ALL]),
    # Writing.
    ([], write(ME), "OK", WRITING, []),
    ([write(ME)], write(ME, 2), "OK", "write me:write=2 for 30", []),
    ([write(ME), write(ME, 2)], write(ME, 2, 5), "OK", "write me:write=2 for 30", []),  # nor do leases add up
    ([read(OTHER)], write(ME), LEFT, READ_BY_OTHER, []),
    ([write(OTHER)], write(ME), LEFT, WRITTEN_BY_OTHER, []),
    ([held(OTHER)], write(ME), -1, "other kind other=1 for ever", []),
    ([], write(ME, 2), "LOST", FREE, []),
    ([read(OTHER)], write(ME, 2), "LOST", READ_BY_OTHER, []),
    ([write(OTHER)], write(ME, 2), "LOST", WRITTEN_BY_OTHER, []),
    ([read(ME)], write(ME, 2), "LOST", READING, []),
    ([read(ME), read(OTHER)], write(ME), "UPGRADE", "read me=1(30) other=1(30) for 30", []),
    ([read(ME), read(OTHER), ended(OTHER)], write(THIRD), LEFT, READING, []),
    ([read(ME), ended(ME)], write(THIRD), "OK", "write third:write=1 for 30", []),
    ([read(OTHER), read(ME, lease=5), ended(OTHER)], write(THIRD), LEFT, "read me=1(5) for 5", []),
    ([write(ME)], end_write(ME), 1, FREE, [ALL]),
    ([write(ME, each, 5) for each in (1, 2, 3)], end_write(ME, 1), 1, WRITING, []),
    ([*[write(ME, each, 5) for each in (1, 2, 3)], end_write(ME, 1)], end_write(ME, 1), 1, WRITING, []),
    ([write(ME), read(ME, lease=5)], end_write(ME), 1, "read me=1(5) for 5", [ALL]),
    ([write(ME), read(ME, lease=5), ended(ME)], end_write(ME), 1, FREE, [ALL]),
    ([], end_write(ME), 0, FREE, []),
    ([read(OTHER)], end_write(ME), 0, READ_BY_OTHER, []),
    ([write(OTHER)], end_write(ME), 0, WRITTEN_BY_OTHER, []),
    ([read(ME)], end_write(ME), 0, READING, []),
    ([held(ME)], end_write(ME), 0, "other kind me=1 for ever", []),
    # Other kinds take a share for no hold of their own, though its field has the same name.
    ([read(ME)], call(scripts.FAIR_LEAVE, ME, 5000), 0, READING, []),
    ([read(ME)], call(scripts.FAIR_RELEASE, ME, 0, 30_000, 5000), 0, READING, []),
    ([read(ME)], call(scripts.RLOCK_RELEASE, ME, 0, 30_000), 0, READING, []),
    ([read(ME)], call(scripts.LOCK_RENEW, 60_000, ME), 0, READING, []),
    ([read(ME)], call(scripts.MULTI_RELEASE, ME, 5000), [1], READING, []),
    ([read(ME)], call(scripts.RLOCK_ACQUIRE, ME, 2, 30_000), "LOST", READING, []),
    ([read(ME)], call(scripts.FENCED_ACQUIRE, ME, 2, 30_000, 0, 0), "LOST", READING, []),
    ([read(ME)], call(scripts.FAIR_ACQUIRE, ME, 2, 30_000, 5000, 0), "LOST", READING, []),
    # Writers that go first.
    ([read(OTHER)], wait_to_write(ME), LEFT, f"{READ_BY_OTHER}, then me", []),
    ([read(OTHER), wait_to_write(ME)], read(THIRD, yields=10), LEFT, f"{READ_BY_OTHER}, then me", []),
    ([read(OTHER), wait_to_write(ME)], read(OTHER, 2, 30, 10), "OK", "read other=2(30,30) for 30, then me", []),
    ([read(OTHER), wait_to_write(ME)], read(THIRD), "OK", "read other=1(30) third=1(30) for 30, then me", []),
    ([read(OTHER), wait_to_write(ME), end_read(OTHER)], read(THIRD, yields=10), LEFT, "free, then me", []),
    ([read(OTHER), wait_to_write(ME), end_read(OTHER)], write(ME), "OK", WRITING, []),
    ([read(OTHER), wait_to_write(THIRD), dead(THIRD)], read(ME, yields=10), "OK",
     "read me=1(30) other=1(30) for 30, then third", []),
    ([write(ME), wait_to_write(OTHER)], read(ME, yields=10), "OK", "write me=1(30) me:write=1 for 30, then other", []),
    ([write(ME), wait_to_write(OTHER)], read(THIRD, 1, 30, 10, ME), "OK",
     "write me:write=1 third=1(30) for 30, then other", []),
    ([read(OTHER), wait_to_write(ME), wait_to_write(THIRD)], write(ME), LEFT, f"{READ_BY_OTHER}, then third", []),
    ([read(OTHER), wait_to_write(ME)], write(ME), LEFT, READ_BY_OTHER, [ALL]),  # the last one gives up
    ([read(OTHER)], write(ME), LEFT, READ_BY_OTHER, []),
    ([read(OTHER), wait_to_write(ME)], end_write(ME), 0, READ_BY_OTHER, [ALL]),  # as after an interruption
    ([read(OTHER), wait_to_write(ME), read(ME)], wait_to_write(ME), "UPGRADE",
     "read me=1(30) other=1(30) for 30", [ALL]),
    ([read(OTHER), wait_to_write(ME)], call(scripts.WRITE_WITHDRAW, ME), 1, READ_BY_OTHER, [ALL]),
    ([write(ME)], call(scripts.WRITE_WITHDRAW, ME), 1, WRITING, []),
    # Force.
    ([read(ME), read(ME, 2), read(OTHER)], force(side="write"), 0, "read me=2(30,30) other=1(30) for 30", []),
    ([read(ME), read(ME, 2), read(OTHER)], force(side="read"), 1, FREE, [ONE]),
    ([read(ME), read(OTHER, lease=5)], force(THIRD), 0, "read me=1(30) other=1(5) for 30", []),
    ([read(ME), read(OTHER, lease=5)], force(ME), 1, "read other=1(5) for 5", [ONE]),
    ([read(ME), read(OTHER, lease=5)], force(ME, "read"), 1, "read other=1(5) for 5", [ONE]),
    ([write(ME)], force(side="read"), 0, WRITING, []),
    ([write(ME)], force(f"{OTHER}:write"), 0, WRITING, []),
    ([write(ME)], force(f"{OTHER}:write", "write"), 0, WRITING, []),
    ([write(ME)], force(side="write"), 1, FREE, [ALL]),
    ([write(ME)], force(f"{ME}:write"), 1, FREE, [ALL]),
    ([write(ME)], force(f"{ME}:write", "write"), 1, FREE, [ALL]),
    ([write(ME), read(ME, lease=5)], force(side="write"), 1, "read me=1(5) for 5", [ALL]),
    ([write(ME), read(ME)], force(side="read"), 1, WRITING, [ONE]),
    ([write(ME), read(ME)], force(), 1, FREE, [ALL]),
    ([held(OTHER)], force(side="read"), 0, "other kind other=1 for ever", []),
    ([held(OTHER)], force(side="write"), 0, "other kind other=1 for ever", []),
]  # fmt: skip


@calls(ROWS)
def test_a_call_in_a_situation(run, redis_client, heard, given, step, reply, after, told):
    for each in given:
        each(run, redis_client)
    heard()
    said = step(run, redis_client)
    assert said > 0 if reply is LEFT else said == reply
    assert state_of(redis_client) == after
    assert [message for message in heard() if message[0] == RW_CHANNEL] == told
    if after == FREE:
        assert not redis_client.keys(f"{READS}:*")


def test_the_time_that_is_left(run, redis_client):
    """Of the others' longest lease, or of the time for which a waiting writer counts as alive."""
    rows: list[tuple[list[Step], Call, int]] = [
        ([write(OTHER)], read(ME), 30),
        ([read(OTHER), read(ME, lease=5), ended(OTHER)], write(THIRD), 5),
        ([read(OTHER), wait_to_write(ME)], read(THIRD, yields=ALIVE_FOR), 10),
        ([read(OTHER), wait_to_write(ME), end_read(OTHER)], read(THIRD, yields=ALIVE_FOR), 10),
        ([read(OTHER)], wait_to_write(ME), 30),
    ]
    for given, step, left in rows:
        redis_client.flushall()
        for each in given:
            each(run, redis_client)
        assert left - 1 < step(run, redis_client) / 1000 <= left
    assert ALIVE_FOR - 1 < redis_client.pttl(WRITERS) / 1000 <= ALIVE_FOR


def test_writers_mark_from_a_clock_that_was_fast_is_brought_back(run, redis_client):
    """The writer may be dead, and would keep readers out until that time comes."""
    for step in (read(OTHER), wait_to_write(ME)):
        step(run, redis_client)
    redis_client.zadd(WRITERS, {each: now_ms(redis_client) + 3_600_000 for each in (ME, THIRD)})
    redis_client.persist(WRITERS)
    for _ in range(2):
        assert 0 < read(THIRD, yields=ALIVE_FOR)(run, redis_client) <= ALIVE_FOR * 1000
    assert redis_client.zrange(WRITERS, now_ms(redis_client) + ALIVE_FOR * 1000 + 1, "+inf", byscore=True) == []


# --- heartbeats and questions ----------------------------------------------------------------------------------------


def test_heartbeat_of_readers_finds_what_they_may_enter(run, redis_client):
    def heartbeat(*, yields: bool) -> int:
        return run(scripts.READ_HEARTBEAT, int(yields))[0]

    assert heartbeat(yields=True) == 0, "the lock is free"
    write(OTHER)(run, redis_client)
    assert heartbeat(yields=True) == 1
    read(OTHER)(run, redis_client)
    redis_client.hset(KEY, "mode", "read")
    redis_client.hdel(KEY, f"{OTHER}:write")
    assert heartbeat(yields=True) == 0, "its writer has become a reader"
    wait_to_write(ME)(run, redis_client)
    assert [heartbeat(yields=yields) for yields in (True, False)] == [1, 0], "a writer waits"
    dead(ME)(run, redis_client)
    assert heartbeat(yields=True) == 0, "that writer is dead"


def test_heartbeat_keeps_the_writers_of_its_process_alive(run, redis_client):
    mates = [f"{ME[:36]}:{number}" for number in range(2)]
    for step in (read(OTHER), *map(wait_to_write, (*mates, THIRD))):
        step(run, redis_client)
    redis_client.zadd(WRITERS, {mates[0]: 2, mates[1]: 2, THIRD: 2})
    known, left = run(scripts.WRITE_HEARTBEAT, mates[0], 10_000, 1)
    assert (known, 29_000 < left <= 30_000) == (1, True)
    now = redis_client.time()[0] * 1000
    assert [redis_client.zscore(WRITERS, each) > now for each in (*mates, THIRD)] == [True, True, False]
    assert 9000 < redis_client.pttl(WRITERS) <= 10_000


def test_heartbeat_of_a_writer_finds_a_lost_mark_and_a_free_lock(run, redis_client):
    """The writer retries and so makes a new mark; the heartbeat makes none, because that writer may just have left."""
    held(OTHER)(run, redis_client)
    assert run(scripts.WRITE_HEARTBEAT, ME, 10_000, 1) == [0, -1]
    assert run(scripts.WRITE_HEARTBEAT, ME, 10_000, 0) == [1, -1]
    assert not redis_client.exists(WRITERS)
    redis_client.delete(KEY)
    assert run(scripts.WRITE_HEARTBEAT, ME, 10_000, 0) == [0, -2]


@pytest.mark.parametrize(
    ("given", "readers", "writers"),
    [
        ([], [0, -2, -2], [0, -2]),
        ([write(ME)], [0, -2, -2], [1, 30]),
        ([write(ME), write(ME, 2), read(ME, lease=5)], [1, 5, 5], [2, 30]),
        ([read(ME, lease=5), read(OTHER, lease=60)], [1, 60, 5], [0, -2]),
        ([read(OTHER, lease=5)], [0, 5, -2], [0, -2]),
        ([read(ME), ended(ME)], [0, -2, -2], [0, -2]),
    ],
)
def test_the_state_of_each_side(run, redis_client, given, readers, writers):
    """An owner's count, the longest lease of all readers and the owner's own; the writer's count and lease."""
    for step in given:
        step(run, redis_client)

    def asked(script: Script) -> list[int]:
        count, *leases = run(script, ME)
        return [count, *(each if each < 0 else math.ceil(each / 1000) for each in leases)]

    assert asked(scripts.READ_STATE) == readers
    assert asked(scripts.WRITE_STATE) == writers


def test_force_release_hands_on_to_the_fair_queue(run, redis_client, heard):
    read(OTHER)(run, redis_client)
    redis_client.zadd(QUEUE, {ME: 1})
    redis_client.zadd(ALIVE, {ME[:36]: 9e15})
    assert force()(run, redis_client) == 1
    assert redis_client.hgetall(KEY) == {ME: CLAIMED}
    assert heard() == [(f"rlock_wake:{ME[:36]}", f"1 {ME} {KEY}"), ONE]
