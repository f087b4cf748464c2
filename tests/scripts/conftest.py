"""Tests of the scripts: each is called directly on the real server, one test per reply."""

from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_rlock import keys
from django_rlock.scripts import Script
from example_project.embedded import EmbeddedServer

KEY = "rlock:stock:42"
QUEUE, ALIVE, CHANNEL = keys.queue_key(KEY), keys.alive_key(KEY), keys.redisson_channel(KEY)
TOKEN = keys.token_key(KEY)
ME, OTHER, THIRD = (f"{letter * 36}:1" for letter in "abc")
RW_CHANNEL, READS = keys.readwrite_channel(KEY), keys.read_holds_key(KEY)
WRITERS = keys.writers_key(KEY)
OTHER_KEYS = {
    "rlock_release": [KEY, CHANNEL],
    "fenced_acquire": [KEY, TOKEN],
    "lock_force_release": list(keys.force_release_keys(KEY)),
    "read_acquire": [KEY, READS, WRITERS],
    "read_release": [KEY, READS, RW_CHANNEL],
    "read_renew": [KEY, READS],
    "read_state": [KEY, READS],
    "write_acquire": [KEY, READS, WRITERS, RW_CHANNEL],
    "write_release": [KEY, READS, WRITERS, RW_CHANNEL],
    "write_renew": [KEY, READS],
    "write_beat": [KEY, WRITERS],
    "multi_acquire": [KEY, QUEUE, ALIVE, CHANNEL],
    "multi_release": [KEY, QUEUE, ALIVE, CHANNEL],
}

Run = Callable[..., Any]


@pytest.fixture
def run(redis_client: redis.Redis) -> Run:
    """Calls a script with as many of the lock's keys as it takes; answers its reply without the nonce."""

    def call(script: Script, *args: str | int) -> Any:
        count = 4 if "KEYS[4]" in script.source else 3 if "KEYS[3]" in script.source else 1
        names = [KEY, QUEUE, ALIVE, CHANNEL][:count]
        names = OTHER_KEYS.get(script.name, names)
        nonce, *reply = redis_client.eval(script.source, len(names), *names, "nonce", *args)
        assert nonce == "nonce"
        return reply[0] if len(reply) == 1 else reply

    return call


@pytest.fixture
def heard(server: EmbeddedServer):
    """Answers what was published since the last time, as (channel, text)."""
    with server.client(protocol=2) as client, client.pubsub() as listener:
        listener.psubscribe("*")
        listener.get_message(timeout=5)

        def collect() -> list[tuple[str, str]]:
            found = []
            listener.ping("that was all")
            while (message := listener.get_message(timeout=5))["type"] != "pong":
                found.append((message["channel"], message["data"]))
            return found

        yield collect


@pytest.fixture
def state(redis_client: redis.Redis):
    """Answers the holder and the queue."""

    def look() -> tuple[Any, Any]:
        return redis_client.hgetall(KEY), redis_client.zrange(QUEUE, 0, -1)

    return look
