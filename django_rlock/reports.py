"""Process reports: what this process holds and waits for, told to Redis beside the acquire path.

The background thread writes them: one hash per process with a field for each hold or wait that is older than
half a second, as differences and in one pipeline, at most once a second. The admin and the commands read them
(``inspection``), and compare them with the locks themselves, so a late or a lost report misleads nobody. All
times in a report are the server's clock, so hosts whose clocks differ agree on how long a lock has been held.
"""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import redis
from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured

from django_rlock.connections import SERVER_ERRORS, background_client
from django_rlock.drivers import background
from django_rlock.drivers.identity import client_id
from django_rlock.locks.holds import HOLDS, WAITS, Hold, Wait
from django_rlock.settings import get_settings, server_aliases

logger = logging.getLogger("django_rlock.reports")

PROCESSES = "rlock_processes"
"""Sorted set of the processes that have a report: client id → server time of the last beat, in seconds."""
BEAT = 5.0
"""How often a process says that it is alive while it has something to report, in seconds."""
MIN_AGE = 0.5
"""Holds and waits that end sooner are never written, in seconds."""
MAX_ENTRIES = 1000
"""The oldest holds and waits of a process that its report names; it leaves out the others."""
MAX_TEXT = 256
"""Characters of one value of a hold's context; the rest is cut off."""
_WRITE_PAUSE = 1.0
_RETRY_PAUSE = 10.0
_SHORTEST_TTL = 60.0
_CLOCK_PAUSE = 60.0
_CLOCK_STEP = 0.2
_FORGET_AFTER = 30 * 86400.0
_CONTEXT_KEYS = ("route", "user", "task", "task_id")
_ROLES = {
    "celery": "celery",
    **dict.fromkeys(("shell", "shell_plus"), "shell"),
    **dict.fromkeys(("runserver", "runserver_plus", "gunicorn", "uvicorn", "daphne", "hypercorn"), "web"),
    **dict.fromkeys(("granian", "uwsgi", "waitress-serve", "mod_wsgi"), "web"),
}


def report_key(client: str) -> str:
    """Where a process writes its report: a hash."""
    return f"rlock_process:{client}"


class Publisher:
    """The report of this process in one Redis. It remembers what the server was told, and writes the rest."""

    def __init__(self, using: str) -> None:
        self.using = using
        self.client = client_id()
        self.key = report_key(self.client)
        self.told: dict[str, str] = {}
        self.certain = True  # whether the server has exactly what it was told
        self.clock = 0.0  # server time minus monotonic time
        self.ttl = 0.0
        self.clock_due = self.beat_due = self.ttl_due = self.write_from = -math.inf

    def publish(self, items: Sequence[Hold | Wait], now: float) -> float:
        """Write what changed; answer when to come back."""
        if now < self.write_from or not (items or self.told):
            return self.write_from if items or self.told else math.inf
        try:
            if items:
                self._write(items, now)
            else:
                self.remove()
        except ImproperlyConfigured:
            self.told = {}  # a test has taken its alias away; elsewhere settings stay
            return math.inf
        except SERVER_ERRORS as error:
            logger.info("The process report was not written, and is tried again later: %s", error)
            self.certain = False
            self.write_from = now + _RETRY_PAUSE
            return self.write_from
        self.write_from = now + _WRITE_PAUSE
        return self.beat_due if items else math.inf

    def remove(self) -> None:
        """Take the report back."""
        pipe = background_client(self.using).pipeline(transaction=False)
        pipe.unlink(self.key)
        pipe.zrem(PROCESSES, self.client)
        pipe.execute()
        self.told = {}
        self.certain = True

    def _write(self, items: Sequence[Hold | Wait], now: float) -> None:
        client = background_client(self.using)
        if now >= self.clock_due:
            self._learn_clock(client)
            self.clock_due = now + _CLOCK_PAUSE
        fields = dict(_entry(item, self.clock) for item in items)
        pipe: Any = client.pipeline(transaction=False)
        if self.told and self.certain:
            self._add_changes(pipe, fields)
        else:
            pipe.unlink(self.key)
            pipe.hset(self.key, mapping=_describe_process(self.clock) | fields)
            self.ttl = 0.0
        self._add_ttl(pipe, items, now)
        if pipe.command_stack or now >= self.beat_due:
            # Last, because its answer tells whether the server has lost the report (a restart, FLUSHALL).
            pipe.zadd(PROCESSES, {self.client: now + self.clock})
            is_new = bool(pipe.execute()[-1])
            self.certain = not (is_new and self.told and self.certain)
            self.beat_due = now + (BEAT if self.certain else _WRITE_PAUSE)
        self.told = fields

    def _add_changes(self, pipe: Any, fields: dict[str, str]) -> None:
        changed = {field: text for field, text in fields.items() if self.told.get(field) != text}
        gone = self.told.keys() - fields.keys()
        if changed:
            pipe.hset(self.key, mapping=changed)
        if gone:
            pipe.hdel(self.key, *gone)

    def _add_ttl(self, pipe: Any, items: Sequence[Hold | Wait], now: float) -> None:
        # A third of it is the longest that passes before it is refreshed, so the report of a process that
        # died outlives the leases in it.
        longest = max((item.lease for item in items if isinstance(item, Hold)), default=0.0)
        ttl = max(_SHORTEST_TTL, 2 * longest)
        if ttl > self.ttl or now >= self.ttl_due:
            pipe.pexpire(self.key, math.ceil(ttl * 1000))
            self.ttl, self.ttl_due = ttl, now + ttl / 3

    def _learn_clock(self, client: redis.Redis) -> None:
        before = time.monotonic()
        seconds, micros = client.time()
        clock = seconds + micros / 1e6 - (before + time.monotonic()) / 2
        # Smaller differences are the network's; to follow them would rewrite every entry.
        if abs(clock - self.clock) > _CLOCK_STEP:
            self.clock = clock
            client.zremrangebyscore(PROCESSES, "-inf", before + clock - _FORGET_AFTER)


def publish_reports(now: float) -> float:
    """The background thread's job; answers when it has something to do next."""
    with _mutex:
        groups, due = _collect(now)
        for cache in groups.keys() - _publishers.keys():
            _publishers[cache] = Publisher(_homes(groups[cache][0])[cache])
        return min([due, *(publisher.publish(groups[cache], now) for cache, publisher in _publishers.items())])


def remove_reports() -> None:
    """At a clean exit: nothing is held any more. What still is stays in the report, which then falls
    silent."""
    with _mutex:
        for publisher in _publishers.values():
            if publisher.told and not HOLDS.snapshot():
                publisher.remove()


def local_report(clock: float) -> dict[str, str]:
    """The report of this process as it would be written now, the youngest holds and waits included.

    ``clock`` is the server's time minus the monotonic time, in seconds.
    """
    items: list[Hold | Wait] = [*HOLDS.snapshot(), *WAITS.snapshot()]
    return _describe_process(clock) | dict(_entry(item, clock) for item in items if _homes(item))


def _collect(now: float) -> tuple[dict[str, list[Hold | Wait]], float]:
    """The holds and waits to report, by server and oldest first, and when the next is old enough."""
    groups: dict[str, list[Hold | Wait]] = defaultdict(list)
    due = math.inf
    items: list[Hold | Wait] = [*HOLDS.snapshot(), *WAITS.snapshot()]
    for item in sorted(items, key=lambda item: item.since):
        caches = _homes(item)
        if not caches or (isinstance(item, Hold) and item.lost):
            continue
        if now - item.since < MIN_AGE:
            due = min(due, item.since + MIN_AGE)
            continue
        for cache in caches:
            if len(groups[cache]) < MAX_ENTRIES:
                groups[cache].append(item)
    return groups, due


def _homes(item: Hold | Wait) -> dict[str, str]:
    """The servers that are told of it, by CACHES alias or URL, with the RLOCK alias that leads there."""
    try:
        return {get_settings(server).cache: server for server in server_aliases(item.lock.using)}
    except ImproperlyConfigured:
        return {}  # a test has put its settings back while a lock of it was held


def _entry(item: Hold | Wait, clock: float) -> tuple[str, str]:
    """A hold or wait as a field of the report and its JSON."""
    what = "hold" if isinstance(item, Hold) else "wait"
    owner = item.lock.field(item.owner)
    document: dict[str, Any] = {
        "key": item.lock.key,
        "kind": item.lock.kind,
        "owner": owner,
        "since": round(item.since + clock, 3),
        "place": item.place,
        "context": _context(item),
    }
    if isinstance(item, Hold):
        document |= {"count": item.count, "lease": item.lease, "renewed": item.renewed}
    return f"{what} {owner} {item.lock.key}", json.dumps(document, separators=(",", ":"))


def _context(item: Hold | Wait) -> dict[str, str] | None:
    if not item.context or not get_settings(item.lock.using).record_context:
        return None
    return {key: str(item.context[key])[:MAX_TEXT] for key in _CONTEXT_KEYS if key in item.context}


def _describe_process(clock: float) -> dict[str, str]:
    return {
        "host": socket.gethostname(),
        "pid": str(os.getpid()),
        "role": guess_role(sys.argv),
        "service": (getattr(django_settings, "SETTINGS_MODULE", None) or "").partition(".")[0],
        "version": _version(),
        "start": str(round(_started_at + clock, 3)),
    }


@lru_cache(maxsize=1)
def _version() -> str:
    try:
        return metadata.version("django-rlock")
    except metadata.PackageNotFoundError:
        return ""  # run from its sources


def guess_role(argv: Sequence[str]) -> str:
    """What kind of process this is: ``web``, ``celery``, ``shell``, ``command <name>``, or ``python``."""
    program = Path(argv[0] if argv else "")
    name = program.parent.name if program.name == "__main__.py" else program.name.removesuffix(".py")
    if name in {"manage", "django-admin", "django"} and len(argv) > 1:
        return _ROLES.get(argv[1], f"command {argv[1]}")
    return _ROLES.get(name, "python")


def _after_fork() -> None:
    global _mutex, _started_at  # noqa: PLW0603 - a child has a report of its own
    _mutex = threading.Lock()
    _started_at = time.monotonic()
    _publishers.clear()


_mutex = threading.Lock()
_started_at = time.monotonic()
_publishers: dict[str, Publisher] = {}

os.register_at_fork(after_in_child=_after_fork)
background.add_job(publish_reports)
background.add_exit_job(remove_reports)
