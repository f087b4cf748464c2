"""Crowds: owners of this process, and of several; and what a server was asked by them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from redis import Redis

from tests.processes import ClientProcess

PROCESSES = 4

_WORK = """exec('''
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
"""A counter that is read and then written, so that it is right only where one is inside at a time."""


async def all_together(face: Any, owners: int, work: Callable[..., Any], *args: Any) -> list[Any]:
    """What the work answered each of so many owners, who began at once."""
    started = [face.start(work, *args) for _ in range(owners)]
    return [await face.result(each) for each in started]


def in_processes(clients: Callable[..., list[ClientProcess]], calls: Iterable[str]) -> None:
    """Have each of four processes evaluate the calls at the same time, which may be of ``count`` and ``look``."""
    running = []
    for client in clients(PROCESSES):
        client.do(_WORK)
        running += [client.begin(call, f"thread {number}") for number, call in enumerate(calls)]
    for each in running:
        each.result(50)


def scripts_run(redis_client: Redis) -> int:
    """How many scripts the server has run: a waiter that tries in vain adds one."""
    calls: int = redis_client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
    return calls
