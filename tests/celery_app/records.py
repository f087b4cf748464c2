"""Messages of the tasks to the tests, in lists and sets of a Redis of the tests' own.

A list is an event too: who waits for it blocks until the next item is there.
"""

import json
import os
import time
from contextlib import contextmanager
from functools import cache
from typing import Any

import redis

WAIT = 60
"""After how many seconds a waiting test gives up."""


def _connect() -> redis.Redis:
    return redis.Redis.from_url(os.environ["RLOCK_TEST_RECORDS"], decode_responses=True, socket_timeout=None)


client = cache(_connect)
os.register_at_fork(after_in_child=client.cache_clear)


def record(name: str, item) -> int:
    """Add an item to a list; returns how many it has then."""
    return client().rpush(name, json.dumps(item))


def wait_for(name: str):
    """The next item of a list."""
    # A time limit may strike while it waits, and an interrupted connection has another command's reply.
    with _connect() as own:
        found = own.blpop([name], timeout=WAIT)
    assert found is not None, f"Nobody told {name!r} within {WAIT} s."
    return json.loads(found[1])


def until(is_true) -> None:
    """Wait for something that happens in a worker without a notification."""
    give_up_at = time.monotonic() + WAIT
    while not is_true():
        assert time.monotonic() < give_up_at
        time.sleep(0.01)


def is_waited_for() -> bool:
    """Whether a task waits for an item of a list in ``wait_for``."""
    return any("b" in each["flags"] for each in client().client_list(_type="normal") if each["cmd"] == "blpop")


def count(name: str) -> int:
    return client().llen(name)


def last(name: str):
    """The last item of a list, which stays there; None where there is none."""
    found = client().lindex(name, -1)
    return None if found is None else json.loads(found)


@contextmanager
def inside(log: str, task_id: str):
    """Record start and end, and how many tasks hold the lock at the start."""
    me = f"{os.getpid()}:{task_id}"
    together = client().pipeline()
    together.sadd(f"{log}:inside", me)
    together.scard(f"{log}:inside")
    try:
        _, insiders = together.execute()
        record(f"{log}:starts", {"id": task_id, "pid": os.getpid(), "insiders": insiders})
        yield
    finally:
        client().srem(f"{log}:inside", me)
        record(f"{log}:ends", task_id)


def starts(log: str, number: int) -> list[dict[str, Any]]:
    """The next runs, waited for."""
    return [wait_for(f"{log}:starts") for _ in range(number)]


def overlaps(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that were not alone when they started."""
    return [run for run in runs if run["insiders"] > 1]
