"""The documents that processes write to Redis: their limits, how this process describes itself, and how to write and
parse them.

No value in them is trusted.
"""

from __future__ import annotations

import json
import math
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from django_rlock._core.clock import monotonic
from django_rlock._core.process import Owned, on_fork
from django_rlock._core.threads import snapshot
from django_rlock._redis.keys import WRITER
from django_rlock._transport.identity import client_id
from django_rlock._transport.registry import Command, Commands
from django_rlock.locks.infos import Party
from django_rlock.locks.records import Route
from django_rlock.settings import get_settings
from django_rlock.version import __version__

# --- limits of reports, for their writers and readers -----------------------------------------------------------------

HEARTBEAT = 5.0
"""The interval of heartbeats while a process has anything to report, in seconds."""
MAX_NAMED = 3
"""The number of last holders of a hot lock in a report, each a different thread or task."""
KEEP = 86400.0
"""How long a history is kept after it was last written, in seconds."""
SLOT = 300.0
"""The length of a slot of the last hour, in seconds."""
HOUR_SLOTS = 12
LAST = {"hold": 10, "wait": 50, "freed": 5}
"""The number of spans of a lock that a process remembers; the many waits show the length of the queue."""


# --- this process -----------------------------------------------------------------------------------------------------

MAX_VALUE = 256
"""The maximum length of one value of a hold's context; the rest is cut off."""
_CONTEXT_KEYS = ("route", "user", "task", "task_id")
_ROLES = {
    "celery": "celery",
    **dict.fromkeys(("shell", "shell_plus"), "shell"),
    **dict.fromkeys(("runserver", "runserver_plus", "gunicorn", "uvicorn", "daphne", "hypercorn"), "web"),
    **dict.fromkeys(("granian", "uwsgi", "waitress-serve", "mod_wsgi"), "web"),
}


def described_context(using: str, context: Mapping[str, str] | None) -> dict[str, str] | None:
    """The description of the work for which a lock is acquired, for a report of an alias; None if the report omits
    it."""
    settings = get_settings(using)
    if not context or not settings.record_context:
        return None
    found = {key: context[key] for key in _CONTEXT_KEYS if key in context}
    if settings.record_path and isinstance(route := found.get("route"), Route):
        found["route"] = route.path
    return {key: str(value)[:MAX_VALUE] for key, value in found.items()}


def describe_process(clock: float) -> dict[str, str]:
    return {
        "host": socket.gethostname(),
        "pid": str(os.getpid()),
        "role": guess_role(sys.argv),
        "version": __version__,
        "start": str(round(_started_at + clock, 3)),
    }


def guess_role(argv: Sequence[str]) -> str:
    """The kind of this process: ``web``, ``celery``, ``shell``, ``command <name>``, or ``python``."""
    program = Path(argv[0] if argv else "")
    # ``python -m celery`` runs .../celery/__main__.py.
    name = program.parent.name if program.name == "__main__.py" else program.name.removesuffix(".py")
    if name in {"manage", "django-admin", "django"} and len(argv) > 1:
        return _ROLES.get(argv[1], f"command {argv[1]}")
    return _ROLES.get(name, "python")


def _note_start() -> None:
    global _started_at  # noqa: PLW0603 - a child has a separate report
    _started_at = monotonic()


_started_at = monotonic()


on_fork("reports", _note_start)


# --- writing ----------------------------------------------------------------------------------------------------------


class Mirror:
    """A hash of this process on one server, of which only the differences are written, and the time of the last write,
    in a sorted set of all processes. ``write_from`` is the monotonic time before which it must not be changed."""

    def __init__(self, server: Commands, noun: str, key: str, index: str) -> None:
        self.noun = noun
        self.key = key
        self.write_from = -math.inf
        self.sent: dict[str, str] = {}
        self.certain = True  # whether the server has exactly what it was sent
        self._server = server
        self._index = index
        self._client = client_id()

    @property
    def is_there(self) -> bool:
        return bool(self.sent) and self.certain

    @property
    def may_be_there(self) -> bool:
        """Whether the server may have it, perhaps by a write whose reply was lost."""
        return bool(self.sent) or not self.certain

    def changes(self, fields: dict[str, str], clock: float) -> list[Command]:
        """The commands that write these fields."""
        if not self.is_there:
            mapping = describe_process(clock) | fields
            return [(self.key, ("UNLINK", self.key)), (self.key, ("HSET", self.key, *_flat(mapping)))]
        # Most texts are the same objects, so they are not read.
        changed = {name: text for name, text in fields.items() if self.sent.get(name) != text}
        gone = self.sent.keys() - fields.keys()
        commands = [("HSET", self.key, *_flat(changed))] if changed else []
        commands += [("HDEL", self.key, *gone)] if gone else []
        return [(self.key, words) for words in commands]

    def write(self, commands: list[Command], fields: dict[str, str], at: float) -> None:
        """Run the commands that write these fields, at a time of the server's clock."""
        # This comes last, because its reply shows whether the server has lost the hash (a restart, FLUSHALL).
        is_new = bool(self._server.run([*commands, (self._index, ("ZADD", self._index, repr(at), self._client))])[-1])
        self.certain = not (is_new and self.is_there)
        self.sent = fields

    def remove(self) -> None:
        self._server.run([(self.key, ("UNLINK", self.key)), (self._index, ("ZREM", self._index, self._client))])
        self.forget()

    def forget(self) -> None:
        """Assume that the server has no such hash."""
        self.sent = {}
        self.certain = True


def _flat(mapping: dict[str, str]) -> list[str]:
    return [word for pair in mapping.items() for word in pair]


# --- untrusted values -------------------------------------------------------------------------------------------------

# Converts untrusted values from Redis to their expected types: anyone with write access may have planted them.

MAX_TEXT = 300


def plain_text(value: bytes | str) -> str:
    """Decode a reply."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value


def encodable(text: str) -> str:
    """The text without lone surrogates, which JSON can contain but a page cannot encode."""
    # Most texts are ASCII, which this finds without a copy.
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def short_text(value: Any) -> str:
    """The beginning of a text; "" for None."""
    return "" if value is None else encodable(str(value)[:MAX_TEXT])


def number_of(value: Any) -> float | None:
    """A finite number, or None."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def texts_of(value: Any) -> dict[str, str]:
    """A dictionary of short texts; empty for anything but a dictionary."""
    return {short_text(k): short_text(v) for k, v in value.items()} if isinstance(value, dict) else {}


def list_of(value: Any, at_most: int) -> list[dict[str, Any]]:
    """The dictionaries among the first elements of a list; empty for anything but a list."""
    return [each for each in value[:at_most] if isinstance(each, dict)] if isinstance(value, list) else []


def parsed(text: str, at_most: int) -> Any:
    """The JSON in a text of at most ``at_most`` characters; None for anything else."""
    try:
        # The length is compared first: parsing a huge text takes long.
        return json.loads(text) if len(text) <= at_most else None
    except (ValueError, RecursionError):
        return None


def document_in(text: str, at_most: int) -> dict[str, Any]:
    """The JSON object in a text of at most ``at_most`` characters; empty for anything else."""
    document = parsed(text, at_most)
    return document if isinstance(document, dict) else {}


# --- reports and their entries ----------------------------------------------------------------------------------------

MAX_ENTRY_JSON = 16_384
MAX_RATE = 1e6
PARSED_MAX_AGE = 5.0
"""How long a parsed report is reused while its process writes nothing, in seconds: the report may have expired
since."""
_SETTLED = 1.0
"""A reading taken within this many seconds of a heartbeat may miss a part of the report: a cluster may execute the
parts of a report in another order, and the clocks of processes differ."""
MAX_KEPT_FIELDS = 12_000
"""The number of reports' fields that a process keeps between readings, about 1.5 kB each."""
_NO_LOCKS = {"latch", "permit", "semaphore"}
"""Kinds that are not held as locks are."""
_HOLD_FIELD, _GIVEN_FIELD, _WAIT_FIELD, _HOT_FIELD = b"hold ", b"given ", b"wait ", b"hot "

Fields = Mapping[bytes, bytes]
"""A report as the server has it."""


class Entry(NamedTuple):
    """A hold or wait as a report has it; ``since`` is the server's clock, in seconds.

    Lists need the first four values of every lock; the rest is read from ``document`` on access.
    """

    key: str
    owner: str
    kind: str
    since: float | None
    client: str
    document: Mapping[str, Any]

    @property
    def actor(self) -> str:
        """The thread or task; it stays the same when the owner id changes."""
        return _actor(self.document.get("by"), self.client) or actor_of(self.owner)

    @property
    def short_actor(self) -> str:
        return Party(owner=self.owner, actor=self.actor, client=self.client).short_actor

    @property
    def lease(self) -> float | None:
        lease = number_of(self.document.get("lease"))
        return lease if lease and lease > 0 else None

    @property
    def holds(self) -> int:
        """How often the owner holds the lock."""
        return int(number_of(self.document.get("count")) or 1)

    @property
    def caller_name(self) -> str:
        return short_text(self.document.get("place"))

    @property
    def context(self) -> dict[str, str]:
        return texts_of(self.document.get("context"))


class HotEntry(NamedTuple):
    """A lock that a process acquires ``rate`` times a second, and its last holders: time, actor, name and context."""

    key: str
    rate: float
    holders: Sequence[tuple[float, str, str, Mapping[str, str]]]


@dataclass(frozen=True, slots=True)
class Report:
    """The report of one process. ``heartbeat`` is the time of its last heartbeat, by the server's clock in seconds.
    ``given`` are holds that it has handed over."""

    client: str
    heartbeat: float
    host: str
    pid: int | None
    role: str
    version: str = ""
    started: float | None = None
    holds: list[Entry] = field(default_factory=list)
    given: list[Entry] = field(default_factory=list)
    waits: list[Entry] = field(default_factory=list)
    hot: list[HotEntry] = field(default_factory=list)


class _Parsed(NamedTuple):
    """The source of a parsed report, and its holds and waits by the names of their fields."""

    fields: Fields
    entries: Mapping[bytes, Entry | None]
    report: Report | None = None
    read_at: float = 0.0


_known: Owned[dict[tuple[str, str], _Parsed]] = Owned("reports", dict)
"""The last reading of each report, by server and process: most fields are the same in the next reading."""


def unchanged_report(client: str, heartbeat: float, server: str, now: float) -> Report | None:
    """The report of the last reading, if its process has written nothing since, which the heartbeat shows: each write
    is a heartbeat. None if the report must be read. ``now`` is the server's time."""
    known = _known.value.get((server, client))
    if known is None or known.report is None or known.report.heartbeat != heartbeat:
        return None
    return known.report if heartbeat + _SETTLED < known.read_at and now - known.read_at < PARSED_MAX_AGE else None


def parse_report(client: str, heartbeat: float, fields: Fields, server: str = "", now: float = 0.0) -> Report:
    """A report from its fields; invalid fields are left out. ``server`` is the alias or node that has it: a process
    reports to several servers; ``now`` is when it was read, by the server's clock, for ``unchanged_report``."""
    known = _known.value.get((server, client))
    # The process has sent a heartbeat, and its report is unchanged.
    if known and known.report and known.fields == fields:
        report = replace(known.report, heartbeat=heartbeat)
        _known.value[server, client] = known._replace(report=report, read_at=now)
        return report
    entries = _read_entries(server, client, fields)
    about = {name: plain_text(text) for name, text in fields.items() if name not in entries}
    pid = number_of(about.get(b"pid"))
    report = Report(
        client,
        heartbeat,
        host=short_text(about.get(b"host")),
        pid=None if pid is None else int(pid),
        role=short_text(about.get(b"role")),
        version=short_text(about.get(b"version")),
        started=number_of(about.get(b"start")),
        holds=[entry for name, entry in entries.items() if entry and name.startswith(_HOLD_FIELD)],
        given=[entry for name, entry in entries.items() if entry and name.startswith(_GIVEN_FIELD)],
        waits=[entry for name, entry in entries.items() if entry and name.startswith(_WAIT_FIELD)],
        hot=[hot for name, text in about.items() if name.startswith(_HOT_FIELD) and (hot := _hot_entry(text, client))],
    )
    _known.value[server, client] = _Parsed(fields, entries, report, now)
    return report


def _read_entries(server: str, client: str, fields: Fields) -> Mapping[bytes, Entry | None]:
    """The holds and waits of a report; only fields that have changed since the last reading are parsed."""
    before = _known.value.get((server, client), _Parsed({}, {}))
    names = [name for name in fields if name.startswith((_HOLD_FIELD, _GIVEN_FIELD, _WAIT_FIELD))]
    # Comparing bytes is much faster than parsing JSON.
    changed = [name for name in names if fields[name] != before.fields.get(name)]
    parsed = {name: _entry(plain_text(fields[name]), client) for name in changed}
    return {name: parsed[name] if name in parsed else before.entries[name] for name in names}


def limit_memory() -> None:
    """Forget the parsed reports if there are too many. As this counts all of them, it is called once for a reading."""
    if sum(len(each.entries) for each in snapshot(_known.value.values())) > MAX_KEPT_FIELDS:
        _known.value.clear()


def _entry(text: str, client: str) -> Entry | None:
    document = document_in(text, MAX_ENTRY_JSON)
    key, owner = document.get("key"), document.get("owner")
    if not isinstance(key, str) or not isinstance(owner, str):
        return None
    kind, since = short_text(document.get("kind")), number_of(document.get("since"))
    return None if kind in _NO_LOCKS else Entry(encodable(key), encodable(owner), kind, since, client, document)


def _hot_entry(text: str, client: str) -> HotEntry | None:
    document = document_in(text, MAX_ENTRY_JSON)
    key, rate = document.get("key"), number_of(document.get("rate"))
    if not isinstance(key, str) or rate is None or not 0 < rate <= MAX_RATE:
        return None
    holders = [
        (
            number_of(holder.get("at")) or 0.0,
            _actor(holder.get("by"), client) or client,
            short_text(holder.get("place")),
            texts_of(holder.get("context")),
        )
        for holder in list_of(document.get("holders"), MAX_NAMED)
    ]
    return HotEntry(encodable(key), rate, holders)


def _actor(number: Any, client: str) -> str | None:
    """The thread or task with a number; an owner with a chosen name is the same actor in every process."""
    return f"{client}/{number}" if isinstance(number, int) else None


def actor_of(owner: str) -> str:
    """The actor of an owner that no report names: the same for the owner's read lock and its write lock."""
    return owner.removesuffix(WRITER)
