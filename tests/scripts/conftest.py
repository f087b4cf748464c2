"""Tests of the scripts: each is called directly on the real server."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import redis
from redis.client import PubSub

from django_rlock._redis import keys
from django_rlock._redis.scripts import OK, Script
from example_project.embedded import EmbeddedServer
from tests.eventually import PATIENCE

KEY = "rlock:stock:42"
QUEUE, ALIVE, CHANNEL = keys.queue_key(KEY), keys.fair_keys(KEY)[2], keys.redisson_channel(KEY)
WAITING, DEADLINES = keys.release_keys(KEY)[2:]
TOKEN = keys.token_key(KEY)
FORCED = keys.forced_channel()
SETTLED = keys.settled_key(KEY, "client", "owner")
CLAIMED = "01"
"""How often a waiter holds a fair lock that was granted to it, until it has confirmed that."""
ME, OTHER, THIRD = (f"{letter * 14}8{letter * 21}:1" for letter in "abc")
JAVA = f"{'d' * 14}4{'d' * 21}:1"
RW_CHANNEL, READS = keys.readwrite_channel(KEY), keys.read_holds_key(KEY)
WRITERS = keys.writers_key(KEY)
PERMITS, REQUESTS = keys.permits_key(KEY), keys.requests_key(KEY)
_SEMAPHORE = [KEY, keys.semaphore_channel(KEY), REQUESTS]
_EXPIRABLE = [KEY, PERMITS, keys.semaphore_channel(KEY)]
OTHER_KEYS = {
    "lock_extend": [KEY, SETTLED, *keys.shorter_lease_keys(KEY)[1:]],
    "side_extend": [KEY, READS, SETTLED, RW_CHANNEL],
    "write_withdraw": [WRITERS, RW_CHANNEL],
    "task_read": list(keys.task_keys("rlock:id")),
    "task_done": list(keys.success_keys("rlock:id")),
    "task_finish": list(keys.success_keys("rlock:id")),
    "task_expect": list(keys.task_keys("rlock:id")[1:]),
    "semaphore_acquire": [KEY, REQUESTS],
    **dict.fromkeys(("semaphore_release", "semaphore_leave", "semaphore_set", "semaphore_add"), _SEMAPHORE),
    "semaphore_drain": [KEY, keys.drained_key(KEY, "r1"), REQUESTS],
    "semaphore_delete": [KEY, PERMITS, REQUESTS],
    **dict.fromkeys(("permit_release", "permit_state"), _EXPIRABLE),
    **{key: [*_EXPIRABLE, REQUESTS] for key in ("permit_set", "permit_acquire", "permit_leave")},
    "permit_renew": [*_EXPIRABLE, SETTLED],
    **{key: [KEY, REQUESTS] for key in ("latch_set", "latch_count_down", "latch_delete")},
    "request_retire": [REQUESTS],
    "multi_acquire": [KEY, QUEUE],
    "multi_release": [KEY, QUEUE, WAITING, ALIVE, CHANNEL, DEADLINES],
}

Run = Callable[..., Any]
Step = Callable[[Run, redis.Redis], Any]
"""Something that happens, given the fixtures ``run`` and ``redis_client``; it returns the reply of a script."""


@dataclass(frozen=True)
class Call:
    """A call of a script."""

    script: Script
    args: tuple[Any, ...]

    def __call__(self, run: Run, _: redis.Redis) -> Any:
        return run(self.script, *self.args)


def call(script: Script, *args: Any) -> Call:
    return Call(script, args)


def calls(rows: list[tuple[list[Step], Call, Any, Any, Any]]) -> pytest.MarkDecorator:
    """A test for each row: the steps before, the call, its reply, the state after it, and the messages."""
    names = [f"{row[1].script.name}-{number}" for number, row in enumerate(rows)]
    return pytest.mark.parametrize(("given", "step", "reply", "after", "told"), rows, ids=names)


def keys_of(script: Script) -> Sequence[str]:
    return OTHER_KEYS.get(script.name) or script.keys_of(KEY)


def written_out(script: Script, reply: Any) -> list[Any]:
    """A reply, with the value for which the nonce alone stands."""
    return [reply, "OK" if script.usual[0] == OK else 1] if type(reply) is str else reply


nonces = itertools.count(1)
"""They rise, as those of a process do."""


@pytest.fixture
def run(redis_client: redis.Redis) -> Run:
    """Calls a script with as many of the lock's keys as it takes; returns its reply without the nonce."""

    def call(script: Script, *args: str | int) -> Any:
        names = keys_of(script)
        sent = str(next(nonces))
        nonce, *reply = written_out(script, redis_client.eval(script.source, len(names), *names, sent, *args))
        assert nonce == sent
        return reply[0] if len(reply) == 1 else reply

    return call


@pytest.fixture
def heard(server: EmbeddedServer):
    """Returns what was published for waiters since the last call, or for holders, as (channel, text)."""
    with server.client(protocol=2) as client, client.pubsub() as listener:
        listener.psubscribe("*")
        listener.get_message(timeout=PATIENCE)

        def collect(*, by_holders: bool = False) -> list[tuple[str, str]]:
            return [message for message in arrived(listener) if (message[0] == FORCED) is by_holders]

        yield collect


@pytest.fixture
def heard_at(server: EmbeddedServer):
    """``heard_at(channel, …)`` subscribes to channels, and returns what collects the channels of its messages."""
    with server.client(protocol=2) as client, client.pubsub() as listener:

        def subscribe(*channels: str) -> Callable[[], list[str]]:
            for channel in channels:
                listener.subscribe(channel)
                listener.get_message(timeout=PATIENCE)
            return lambda: [channel for channel, _ in arrived(listener)] if channels else []

        yield subscribe


def arrived(listener: PubSub) -> list[tuple[str, str]]:
    """The messages since the last call, as (channel, text)."""
    found = []
    listener.ping("that was all")
    while (message := listener.get_message(timeout=PATIENCE))["type"] != "pong":
        found.append((message["channel"], message["data"]))
    return found


@pytest.fixture
def state(redis_client: redis.Redis):
    """Returns the holder and the queue."""

    def look() -> tuple[Any, Any]:
        return redis_client.hgetall(KEY), redis_client.zrange(QUEUE, 0, -1)

    return look


def now_ms(redis_client):
    seconds, micros = redis_client.time()
    return seconds * 1000 + micros // 1000
