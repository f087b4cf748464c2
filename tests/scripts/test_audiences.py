"""Events × audiences: whatever frees a lock, or shortens its lease, tells all who sleep by the old lease.

Four audiences sleep until a message or the end of the lease that they know of: the subscribers of Redisson's channel,
Java's and ours; the first living waiter in the queue of Redisson's fair lock; the first waiter in our queue; and those
of other kinds, at channels of their own. ``EVENTS`` says what each script tells them, and each script is there, or in
``TELLS_NOBODY`` with the reason. Real Java clients are the subscribers in ``tests/interop``.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from django_rlock._redis import keys, scripts
from django_rlock._redis.scripts import Script
from tests.scripts.conftest import (
    ALIVE,
    CHANNEL,
    DEADLINES,
    JAVA,
    KEY,
    ME,
    OTHER,
    PERMITS,
    QUEUE,
    READS,
    RW_CHANNEL,
    THIRD,
    WAITING,
    WRITERS,
)
from tests.scripts.test_headers import ALL

LEASE, SHORT, CLAIM = 30_000, 1000, 5000
REDISSONS, JAVAS_FIRST, OUR_FIRST = CHANNEL, f"{CHANNEL}:{JAVA}", f"rlock_wake:{OTHER[:36]}"
SEMAPHORES, LATCHES = keys.semaphore_channel(KEY), keys.latch_channel(KEY)
NEVER = 4e15
PERMIT = "p" * 16


class Event(NamedTuple):
    """What a script does to a lock that is waited for, and the channels on which it tells that."""

    name: str
    before: Callable[[Any], object]
    args: list[Any]
    tells: set[str]


def held(redis_client):
    redis_client.hset(KEY, ME, 1)
    redis_client.pexpire(KEY, LEASE)


def held_and_wanted(redis_client):
    """An owner waits in our queue."""
    held(redis_client)
    redis_client.zadd(QUEUE, {OTHER: 1})
    redis_client.zadd(ALIVE, {OTHER[:36]: NEVER})


def granted(redis_client):
    """To a ticket that nobody waits for."""
    redis_client.hset(KEY, ME, "01")
    redis_client.pexpire(KEY, CLAIM)


def granted_and_wanted(redis_client):
    held_and_wanted(redis_client)
    granted(redis_client)


def wanted_by_a_dead_process(redis_client):
    """It has died a moment ago, and has no subscription any more."""
    held(redis_client)
    redis_client.zadd(QUEUE, {THIRD: 1})
    redis_client.zadd(ALIVE, {THIRD[:36]: NEVER})


def read(redis_client, *readers):
    redis_client.hset(KEY, mapping={"mode": "read", **dict.fromkeys(readers or (ME,), 1)})
    redis_client.pexpire(KEY, LEASE)
    for reader in readers or (ME,):
        redis_client.set(f"{READS}:{reader}:rwlock_timeout:1", 1, px=LEASE)


def read_by_two(redis_client):
    read(redis_client, ME, OTHER)


def written(redis_client):
    redis_client.hset(KEY, mapping={"mode": "write", f"{ME}:write": 1})
    redis_client.pexpire(KEY, LEASE)


def with_a_waiting_writer(redis_client):
    redis_client.zadd(WRITERS, {ME: NEVER})


def read_with_a_waiting_writer(redis_client):
    read(redis_client, OTHER)
    with_a_waiting_writer(redis_client)


def number(redis_client):
    redis_client.set(KEY, 1)


def permits(redis_client):
    number(redis_client)
    redis_client.zadd(PERMITS, {PERMIT: 4e14})


def our_entry(redis_client):
    """Java's release has told our entry, which leaves."""
    redis_client.lpush(WAITING, keys.JAVA_QUEUE_ENTRY)
    redis_client.zadd(DEADLINES, {keys.JAVA_QUEUE_ENTRY: NEVER})


def nothing(redis_client):
    """An empty server."""


FREED = {REDISSONS, JAVAS_FIRST}
SHORTENED = {REDISSONS, JAVAS_FIRST, OUR_FIRST}
EVENTS: dict[Script, list[Event]] = {
    scripts.RLOCK_RELEASE: [Event("frees", held, [ME, 0, LEASE], FREED)],
    scripts.FAIR_RELEASE: [
        Event("frees", held, [ME, 0, LEASE, CLAIM], FREED),
        Event("hands over", held_and_wanted, [ME, 0, LEASE, CLAIM], {OUR_FIRST}),
        Event("hands over to the dead", wanted_by_a_dead_process, [ME, 0, LEASE, CLAIM], FREED),
    ],
    scripts.FAIR_LEAVE: [
        Event("frees", held, [ME, CLAIM], FREED),
        Event("hands over", held_and_wanted, [ME, CLAIM], {OUR_FIRST}),
    ],
    scripts.FAIR_DECLINE: [
        Event("frees", granted, [ME, CLAIM], FREED),
        Event("hands over", granted_and_wanted, [ME, CLAIM], {OUR_FIRST}),
    ],
    scripts.LOCK_FORCE_RELEASE: [
        Event("frees", held, ["", CLAIM, "", "r1", "forced", ""], FREED),
        Event("hands over", held_and_wanted, ["", CLAIM, "", "r1", "forced", ""], {OUR_FIRST}),
        Event("frees a side", written, ["", CLAIM, "write", "r1", "forced", ""], {*FREED, RW_CHANNEL}),
    ],
    scripts.MULTI_RELEASE: [
        Event("frees", held, [ME, CLAIM], FREED),
        Event("hands over", held_and_wanted, [ME, CLAIM], {OUR_FIRST}),
    ],
    scripts.LOCK_KEEP: [Event("keeps", held_and_wanted, [ME, SHORT], SHORTENED)],
    scripts.LOCK_EXTEND: [
        Event("shortens", held_and_wanted, [ME, SHORT, 0], SHORTENED),
        Event("prolongs", held_and_wanted, [ME, 2 * LEASE, 0], set()),
    ],
    scripts.JAVA_LEAVE: [Event("is told for nothing", our_entry, [], FREED)],
    scripts.SIDE_EXTEND: [
        Event("shortens a reader's", read, [ME, SHORT, 0], {RW_CHANNEL}),
        Event("shortens a writer's", written, [f"{ME}:write", SHORT, 0], {RW_CHANNEL}),
        Event("prolongs", read, [ME, 2 * LEASE, 0], set()),
    ],
    scripts.READ_RELEASE: [
        Event("frees", read, [ME, 0, LEASE, 0], {RW_CHANNEL}),
        Event("makes room", read_by_two, [ME, 0, LEASE, 1], {RW_CHANNEL}),
        # As in Redisson. Our writers learn of a shorter lease of the others by their heartbeats.
        Event("leaves other readers", read_by_two, [ME, 0, LEASE, 0], set()),
    ],
    scripts.WRITE_RELEASE: [
        Event("frees", written, [ME, 0, LEASE], {RW_CHANNEL}),
        Event("lets readers in", with_a_waiting_writer, [ME, 0, LEASE], {RW_CHANNEL}),
    ],
    scripts.WRITE_ACQUIRE: [Event("gives up", read_with_a_waiting_writer, [ME, 1, LEASE, 0], {RW_CHANNEL})],
    scripts.WRITE_WITHDRAW: [Event("lets readers in", with_a_waiting_writer, [ME], {RW_CHANNEL})],
    scripts.SEMAPHORE_RELEASE: [Event("frees", number, ["r1", 1, 1000, 0], {SEMAPHORES})],
    scripts.SEMAPHORE_LEAVE: [Event("frees", number, ["r1", 1, 1000, 1], {SEMAPHORES})],
    scripts.SEMAPHORE_SET: [Event("frees", nothing, ["r1", 1, 1000, 0], {SEMAPHORES})],
    scripts.SEMAPHORE_ADD: [Event("frees", number, ["r1", 1, 1000], {SEMAPHORES})],
    scripts.PERMIT_RELEASE: [Event("frees", permits, [PERMIT], {SEMAPHORES})],
    scripts.PERMIT_LEAVE: [Event("frees", permits, [PERMIT, 1000], {SEMAPHORES})],
    scripts.PERMIT_SET: [Event("frees", permits, ["r1", 5, 1000], {SEMAPHORES})],
    scripts.PERMIT_RENEW: [
        Event("shortens", permits, [PERMIT, SHORT, 0], {SEMAPHORES}),
        Event("prolongs", permits, [PERMIT, 0, 0], set()),
    ],
    scripts.LATCH_SET: [Event("closes", nothing, ["r1", LATCHES, 1, 1000], {LATCHES})],
    scripts.LATCH_COUNT_DOWN: [Event("opens", number, ["r1", LATCHES, 1000], {LATCHES})],
    scripts.LATCH_DELETE: [Event("opens", number, ["r1", LATCHES, 1000], {LATCHES})],
}
_READS, _TAKES, _PROLONGS = "it only reads", "it only takes what is free", "it only prolongs"
_GRANTS = "it takes or grants what is free already, and was told of as such"
_POLLED = "the waiters of a RedLock poll"
_TASKS = "nobody waits for it: workers and senders look when they have a message"
TELLS_NOBODY: dict[Script, str] = {
    **dict.fromkeys((scripts.LOCK_STATE, scripts.LOCK_HOLDERS, scripts.READ_STATE, scripts.WRITE_STATE), _READS),
    **dict.fromkeys((scripts.READ_HEARTBEAT, scripts.COUNTER_READ, scripts.PERMIT_STATE, scripts.LATCH_PASS), _READS),
    **dict.fromkeys((scripts.RLOCK_ACQUIRE, scripts.RLOCK_WAIT, scripts.FENCED_ACQUIRE, scripts.FENCED_WAIT), _TAKES),
    **dict.fromkeys((scripts.READ_ACQUIRE, scripts.LIMITED_ACQUIRE, scripts.MULTI_ACQUIRE), _TAKES),
    **dict.fromkeys((scripts.SEMAPHORE_ACQUIRE, scripts.SEMAPHORE_DRAIN, scripts.PERMIT_ACQUIRE), _TAKES),
    **dict.fromkeys((scripts.LOCK_RENEW, scripts.SIDE_RENEW), _PROLONGS),
    **dict.fromkeys((scripts.WRITE_HEARTBEAT, scripts.JAVA_HEARTBEAT), _PROLONGS),
    **dict.fromkeys((scripts.FAIR_ACQUIRE, scripts.FAIR_HEARTBEAT), _GRANTS),
    **{script: _POLLED for script in ALL if script.name.startswith("redlock_")},
    **{script: _TASKS for script in ALL if script.name.startswith("task_")},
    scripts.REQUEST_RETIRE: "it frees nothing",
    scripts.SEMAPHORE_DELETE: "a deleted semaphore has no permits",
}


def test_each_script_has_a_row_here():
    assert set(ALL) == EVENTS.keys() | TELLS_NOBODY.keys()
    assert not EVENTS.keys() & TELLS_NOBODY.keys()


@pytest.mark.parametrize(
    ("script", "event"),
    [pytest.param(script, event, id=f"{script.name} {event.name}") for script, its in EVENTS.items() for event in its],
)
def test_event_is_told_to_all_who_sleep_by_the_old_lease(run, redis_client, heard_at, script, event):
    """A Java client waits in the queue of Redisson's fair lock."""
    hear = heard_at(REDISSONS, JAVAS_FIRST, OUR_FIRST, RW_CHANNEL, SEMAPHORES, LATCHES)
    redis_client.rpush(WAITING, JAVA)
    redis_client.zadd(DEADLINES, {JAVA: NEVER})
    event.before(redis_client)
    # About every fourth time, a hand-over leaves the lock to the Java client.
    redis_client.zadd(ALIVE, {"guests:absent": int(redis_client.time()[0]) * 1000 + 3000, "guests:missed": 1e15 + 5})
    run(script, *event.args)
    assert set(hear()) == event.tells
