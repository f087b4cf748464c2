"""Crowds: owners of this process, and of several; and what a server was asked by them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tests.eventually import PATIENCE
from tests.processes import ClientProcess

PROCESSES = 4
_in_process = "RLOCK_TEST_IN_PROCESS" in os.environ
LOOPS = 10 if _in_process else 50
"""How often each owner of a crowd acquires. The server in the process takes twenty times as long for a turn."""
asks_the_server = pytest.mark.skipif(
    _in_process,
    reason="the server of django_rlock.testing counts no commands, and lists channels that nobody hears any more",
)

WORK = """exec('''
from django_redis import get_redis_connection
from django_rlock import *

def count(loops, block):
    redis = get_redis_connection("default")
    for _ in range(loops):
        with block():
            redis.set("counter", int(redis.get("counter") or 0) + 1)
            redis.incr("turns")

def look(loops, block):
    redis = get_redis_connection("default")
    for _ in range(loops):
        with block():
            assert redis.get("counter") == redis.get("turns")
''', globals())"""
"""A counter that is read and then written, so that it is right only if there is one holder at a time."""


async def all_together(binding: Any, owners: int, work: Callable[..., Any], *args: Any) -> list[Any]:
    """What the work returned to each of a number of owners, who began at once."""
    started = [binding.start(work, *args) for _ in range(owners)]
    return [await binding.result(each) for each in started]


def in_processes(clients: Callable[..., list[ClientProcess]], calls: Iterable[str]) -> None:
    """Have each of four processes evaluate the calls at the same time, which may be of ``count`` and ``look``."""
    running = []
    for client in clients(PROCESSES):
        client.do(WORK)
        running += [client.begin(call, f"thread {number}") for number, call in enumerate(calls)]
    for each in running:
        each.result(PATIENCE)
