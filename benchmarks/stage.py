"""What every benchmark needs: a server of its own, Django configured for it, and what that server counted."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import django
import redis
from django.conf import settings

from django_rlock import scripts
from example_project.embedded import EmbeddedServer

URL_VARIABLE = "RLOCK_BENCH_URL"
"""Tells the processes that a benchmark starts where the server is."""


@contextmanager
def server() -> Iterator[EmbeddedServer]:
    """A server on a free port of the loopback interface, and Django configured for it."""
    with EmbeddedServer(port=0) as started:
        os.environ[URL_VARIABLE] = started.url
        configure()
        yield started


def configure() -> None:
    """Configure Django for the server that URL_VARIABLE names."""
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": os.environ[URL_VARIABLE]}
    settings.configure(CACHES={"default": cache}, INSTALLED_APPS=["django_rlock"], USE_TZ=True)
    django.setup()
    logging.getLogger("django_rlock").setLevel(logging.ERROR)  # thousands of long holds are no news here


@contextmanager
def one_core(*others: int) -> Iterator[None]:
    """Keep this process and others, the server when none are named, on one core, where the system can.

    On two, what is measured is how fast an idle core wakes, above all in a virtual machine.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    pids = others or (int(observer().info("server")["process_id"]),)
    cores = {pid: os.sched_getaffinity(pid) for pid in (0, *pids)}
    try:
        for pid in cores:
            os.sched_setaffinity(pid, {min(cores[0])})
        yield
    finally:
        for pid, before in cores.items():
            os.sched_setaffinity(pid, before)


def observer() -> redis.Redis:
    """A client beside those that are measured."""
    return redis.Redis.from_url(os.environ[URL_VARIABLE], decode_responses=True)


def calls_by_command() -> Counter[str]:
    """How often the server has run each command since it started, those inside scripts included."""
    stats: dict[str, dict[str, int]] = observer().info("commandstats")
    return Counter({name.removeprefix("cmdstat_"): entry["calls"] for name, entry in stats.items()})


def load_scripts(client: redis.Redis) -> None:
    """Have the server know the scripts, as it does after their first use."""
    for script in vars(scripts).values():
        if isinstance(script, scripts.Script):
            client.script_load(script.source)


class Monitored:
    """The commands that clients sent, and those that scripts called, during a ``with monitored()`` block."""

    def __init__(self) -> None:
        self.by_clients: Counter[str] = Counter()
        self.in_scripts: Counter[str] = Counter()

    def note(self, record: dict[str, Any]) -> None:
        by_whom = self.in_scripts if record["client_type"] == "lua" else self.by_clients
        by_whom[record["command"].split(maxsplit=1)[0].upper()] += 1


@contextmanager
def monitored() -> Iterator[Monitored]:
    """Have the server tell every command (MONITOR); the counts are there when the block ends. For few commands only."""
    counts, last_word = Monitored(), f"bench-{os.urandom(4).hex()}"
    with observer() as client, observer() as teller:
        teller.ping()  # so that the commands of a new connection are not counted
        with client.monitor() as monitor:
            yield counts
            teller.echo(last_word)
            while last_word not in (record := monitor.next_command())["command"]:
                counts.note(record)
