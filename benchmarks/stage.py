"""The stage of every benchmark: a server of its own, Django configured for it, and the server's counts."""

from __future__ import annotations

import logging
import os
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import django
import redis
from django.conf import settings
from django.test.utils import override_settings

from django_rlock import FairLock
from django_rlock._redis import scripts
from django_rlock._redis.keys import queue_key
from example_project.embedded import EmbeddedServer

URL_VARIABLE = "RLOCK_BENCH_URL"
"""The environment variable that names the server to the processes of a benchmark."""

LATENCY_FILE = Path("/dev/cpu_dma_latency")


@contextmanager
def server() -> Iterator[EmbeddedServer]:
    """A server on a free port of the loopback interface, and Django configured for it."""
    with EmbeddedServer(port=0) as started:
        os.environ[URL_VARIABLE] = started.url
        configure()
        yield started


def configure() -> None:
    """Configure Django for the server that URL_VARIABLE names."""
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    settings.configure(
        CACHES=_caches(),
        DATABASES={"default": database},
        INSTALLED_APPS=["django_rlock"],
        SECRET_KEY="not a secret",  # noqa: S106 - for sessions that end with the benchmark
        USE_TZ=True,
    )
    django.setup()
    logging.getLogger("django_rlock").setLevel(logging.ERROR)  # thousands of long holds are normal here


def _caches() -> dict[str, dict[str, str]]:
    return {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": os.environ[URL_VARIABLE]}}


def use_server(url: str) -> None:
    """Make this process, which has no locks yet, use another server than the one that ``server()`` started."""
    if os.environ[URL_VARIABLE] != url:
        os.environ[URL_VARIABLE] = url
        override_settings(CACHES=_caches()).enable()


def set_leases(seconds: float) -> None:
    """Make the watchdog of this process, whose settings do not change any more, renew leases of this many seconds."""
    override_settings(RLOCK={"default": {"WATCHDOG_TIMEOUT": seconds}}).enable()


@contextmanager
def one_core(*others: int) -> Iterator[None]:
    """Keep this process and others (by default the server) on one core, if the system can.

    On two cores, part of the measured time is how fast an idle core wakes, especially in a virtual machine:
    ``cores_awake()``.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    pids = others or (int(observer().info("server")["process_id"]),)
    cores = _cores_of([thread for pid in (os.getpid(), *pids) for thread in _threads(pid)])
    try:
        core = min(os.sched_getaffinity(0))
        _pin({thread: {core} for thread in cores})
        yield
    finally:
        _pin(cores)


def _threads(pid: int) -> list[int]:
    """A process's threads, each of which has its own cores; threads that it starts later inherit their starter's."""
    return [int(thread.name) for thread in Path(f"/proc/{pid}/task").iterdir()]


def _cores_of(threads: Iterable[int]) -> dict[int, set[int]]:
    cores = {}
    for thread in threads:
        with suppress(ProcessLookupError):  # it has ended
            cores[thread] = os.sched_getaffinity(thread)
    return cores


def _pin(cores: Mapping[int, set[int]]) -> None:
    for thread, chosen in cores.items():
        with suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(thread, chosen)


@contextmanager
def cores_awake() -> Iterator[bool]:
    """Let no core sleep during the block; whether the system can, and lets us: Linux does, as root.

    An idle core then waits in a loop for what comes next, instead of halting, so waking it takes no time. The kernel
    ends that when the file is closed. Linux's own measurer of latency, cyclictest, does the same.
    """
    try:
        latency = os.open(LATENCY_FILE, os.O_WRONLY)
    except OSError:
        yield False
        return
    try:
        os.write(latency, struct.pack("i", 0))  # microseconds that waking may take
        yield True
    finally:
        os.close(latency)


def observer() -> redis.Redis:
    """A client in addition to those that are measured."""
    return redis.Redis.from_url(os.environ[URL_VARIABLE], decode_responses=True)


def calls_by_command() -> Counter[str]:
    """How often the server has run each command since it started, including those inside scripts."""
    stats: dict[str, dict[str, int]] = observer().info("commandstats")
    return Counter({name.removeprefix("cmdstat_"): entry["calls"] for name, entry in stats.items()})


def plant(name: str, count: int, lease: float) -> None:
    """Let another owner hold the locks ``name0``, ``name1`` and so on, for a number of seconds, without a process."""
    observer().eval(_PLANT, 1, *_around_number(FairLock(f"{name}@").key), count, round(lease * 1000))


def queued(name: str, count: int) -> int:
    """How many owners wait for the locks ``name0``, ``name1`` and so on, according to the server's queues."""
    return int(observer().eval(_QUEUED, 1, *_around_number(queue_key(FairLock(f"{name}@").key)), count))


def _around_number(key: str) -> list[str]:
    return key.split("@")


_PLANT = """
for number = 0, ARGV[2] - 1 do
    redis.call('hset', KEYS[1] .. number .. ARGV[1], 'another owner', 1)
    redis.call('pexpire', KEYS[1] .. number .. ARGV[1], ARGV[3])
end
"""
_QUEUED = """
local waiting = 0
for number = 0, ARGV[2] - 1 do waiting = waiting + redis.call('zcard', KEYS[1] .. number .. ARGV[1]) end
return waiting
"""


def load_scripts(client: redis.Redis) -> None:
    """Load the scripts into the server, as their first use does."""
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
    """Let the server report every command (MONITOR); the counts are complete when the block ends. Only for a few."""
    counts, last_word = Monitored(), f"bench-{os.urandom(4).hex()}"
    with observer() as client, observer() as teller:
        teller.ping()  # so that the commands of a new connection are not counted
        with client.monitor() as monitor:
            yield counts
            teller.echo(last_word)
            while last_word not in (record := monitor.next_command())["command"]:
                counts.note(record)
