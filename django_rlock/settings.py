"""The ``RLOCK`` setting, parsed into one frozen object for each alias.

``RLOCK`` maps an alias to its options, as CACHES and DATABASES do. Without it there is one alias, ``default``, on
``CACHES["default"]``. Any mistake in it raises ImproperlyConfigured, with the text that the system check, the commands
and the admin show; it never contains a password. The setting is parsed once, and again when a test overrides it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured

from django_rlock._core.clock import LONGEST, limit_for
from django_rlock._core.process import forget_settings, remembered
from django_rlock._core.redis_py import EXAMPLE, SCHEMES, is_well_formed, locations
from django_rlock._core.text import redacted, shown, suggestion

DEFAULT_ALIAS = "default"
STORES = ("cache", "embedded", "memory")
DJANGOS_CACHES = "django.core.cache.backends."
KIND_NAMES = ("fair", "rlock", "spin", "fenced")
LOCKED_STATUSES = (423, 409, 429, 503)
MEMORY = "memory://"
"""The URL of locks in a process's memory; ``memory://1`` is another server there, for STORE and NODES."""
EMBEDDED = "embedded://"
"""The scheme of an embedded server's URL; the server's folder follows."""
FOLDER = ".rlock"
"""The name of the embedded server's folder in the project's folder."""
QUORUM_KIND = "redlock"
SHORTEST_LEASES = 20
"""The shortest lease of a RedLock, as a multiple of NODE_TIMEOUT."""
NODE_MARK = "#"
"""Separates an alias with NODES from the number of one of its nodes."""
_MISNAMED: Any = object()
"""The entry of an alias whose name is wrong."""
HEARTBEAT_SHARE = 0.3
"""A process sends heartbeats for its waiters at intervals of this share of their alive time."""


class _RefusedError(ValueError):
    """Why a value is not acceptable, in words that follow "must be"."""


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _RefusedError("a string")
    return value


def _alias_name(value: object) -> str:
    name = _text(value)
    if name not in django_settings.CACHES:
        raise _RefusedError(f"an alias of CACHES: {_known_caches(name)}")
    return name


def _known_caches(name: str) -> str:
    return ", ".join(sorted(map(str, django_settings.CACHES))) + suggestion(name, django_settings.CACHES)


def _nodes(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(node, str) for node in value):
        raise _RefusedError("a list of CACHES aliases and redis://, rediss:// or unix:// URLs")
    for node in value:
        if node.startswith(MEMORY):
            continue
        if is_url(node) and not node.startswith(SCHEMES):
            raise _RefusedError(f"a list whose URLs begin with one of {', '.join(SCHEMES)}")
        if is_url(node) and not is_well_formed(node):
            raise _RefusedError(f"a list of URLs like {EXAMPLE}; {shown(node)} is none")
        if not is_url(node) and node not in django_settings.CACHES:
            raise _RefusedError(f"a list of URLs and aliases of CACHES: {_known_caches(node)}")
    if len(value) < 2:
        raise _RefusedError("at least two independent servers (three or five are usual); for one, use CACHE")
    if len(set(value)) < len(value):
        raise _RefusedError("a list of different servers: one that is named twice would vote twice")
    return tuple(value)


def _store(value: object) -> str:
    if value not in STORES and not (isinstance(value, str) and value.startswith(MEMORY)):
        raise _RefusedError(f"one of {', '.join(map(repr, STORES))}, or like 'memory://name'")
    return str(value)


def _folder(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str | Path) or not Path(value).is_absolute():
        raise _RefusedError("an absolute path, since processes may run in different folders")
    return str(value)


def _quarantine(value: object) -> float | None:
    return 0.0 if value == 0 and not isinstance(value, bool) else _optional_seconds(value)


def _acks(value: object) -> int | str:
    if value in ("majority", "all"):  # not a set, as the value may be unhashable
        return str(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _RefusedError("a number of replicas, 'majority' or 'all'")
    return value


def _share(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise _RefusedError("a share of the lease: 0 or more, and less than 1")
    return float(value)


def is_url(node: str) -> bool:
    """Whether an entry of NODES is a URL, and not an alias of CACHES."""
    return "://" in node


def _prefix(value: object) -> str:
    text = _text(value)
    if any(char in "{}" or not char.isprintable() for char in text):
        raise _RefusedError("printable and without braces, which are Redis Cluster's hash tags")
    return text


def _function(value: object) -> Any:
    if value is not None and not callable(value) and not (isinstance(value, str) and "." in value):
        raise _RefusedError("None, a function that gets a lock's name, or its dotted path")
    return value


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LONGEST:
        raise _RefusedError(f"a number of seconds above 0{limit_for(value)}")
    return float(value)


def _wait_seconds(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LONGEST:
        raise _RefusedError(f"a number of seconds, 0 to try once{limit_for(value)}, or None to wait forever")
    return float(value)


def _optional_seconds(value: object) -> float | None:
    return None if value is None else _seconds(value)


def _task_url(value: object) -> str | None:
    if value is not None and not (
        isinstance(value, str) and value.startswith(("https://", "http://", "/")) and value.count("{id}") == 1
    ):
        raise _RefusedError("None or a URL with {id} in it, as in 'https://flower.example.com/task/{id}'")
    return value


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _RefusedError("a whole number from 1")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise _RefusedError("True or False")
    return value


def _one_of(*choices: object) -> Callable[[object], Any]:
    def parse(value: object) -> object:
        if value not in choices:
            raise _RefusedError(f"one of {', '.join(map(repr, choices))}")
        return value

    return parse


def _option(default: object, parse: Callable[[object], Any]) -> Any:
    return field(default=default, metadata={"parse": parse})


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class AliasSettings:
    """The options of one alias. Durations are seconds."""

    alias: str
    cache: str = _option("default", _alias_name)
    """The CACHES alias where the locks live, served by django-redis or by Django's own Redis backend."""
    store: str = _option("cache", _store)
    """Where the locks live: on the server of ``cache``, on an ``embedded`` server that the project's processes on this
    machine share, or in the ``memory`` of each process, for its own threads and tasks, as ``memory://name`` is."""
    folder: str | None = _option(None, _folder)
    """The folder of the embedded server; None is ``.rlock`` in the project's folder."""
    idle_time: float = _option(60.0, _seconds)
    """How long the embedded server keeps running after the last process has disconnected."""
    nodes: tuple[str, ...] | None = _option(None, _nodes)
    """Instead of ``cache``: independent servers, as aliases of CACHES or URLs; a majority holds each lock (RedLock)."""
    node_timeout: float = _option(0.05, _seconds)
    """How long a node may take to reply before RedLock goes on without it."""
    clock_drift: float = _option(0.01, _share)
    """How far the clocks of RedLock's nodes and clients may drift apart, as a share of the lease."""
    quarantine: float | None = _option(None, _quarantine)
    """How long a restarted node of RedLock has no vote, and the longest lease; None means WATCHDOG_TIMEOUT. Use 0 for
    nodes that keep their data across restarts; leases are then unlimited."""
    replica_acks: int | str = _option(0, _acks)
    """How many replicas must have a lock before it counts as taken: a number, ``majority`` or ``all``."""
    replica_ack_timeout: float = _option(1.0, _seconds)
    """How long to wait for the replicas; if too few confirm, the lock is released."""
    max_connections: int = _option(100, _count)
    """How many connections a process keeps to one server for lock commands; callers wait for a free connection."""
    publish_to_all: bool = _option(False, _flag)
    """Whether a cluster's releases are published to all nodes too, for Java clients with ``subscriptionMode=SLAVE``."""
    refused_wait_time: float | None = _option(1.0, _wait_seconds)
    """How long a call retries while the server refuses connections, within its wait time; None means all of it."""
    key_prefix: str = _option("rlock:", _prefix)
    """The prefix of every key; empty if Java clients use bare names."""
    key_function: Callable[[str], str] | str | None = _option(None, _function)  # noqa: RUF009
    """Completes each lock's name where the lock is made, by the tenant for example; a function or its dotted path."""
    kind: str = _option("fair", _one_of(*KIND_NAMES))
    """The kind of lock that ``rlock()``, the decorator and tasks use."""
    watchdog_timeout: float = _option(30.0, _seconds)
    """The lease of a lock taken without a lease time; it is renewed after each third of it."""
    max_hold_time: float | None = _option(None, _optional_seconds)
    """The longest time for which a lock is renewed; None means unlimited, but after an hour it is logged."""
    wait_time: float | None = _option(None, _wait_seconds)
    """How long locks and semaphores without a wait time of their own wait; 0 tries once, None waits forever."""
    view_wait_time: float | None = _option(3.0, _wait_seconds)
    """How long a decorated view waits; 0 tries once, None waits forever."""
    locked_status: int = _option(423, _one_of(*LOCKED_STATUSES))
    """The HTTP status of a view whose lock is taken."""
    claim_time: float = _option(5.0, _seconds)
    """How long a fair lock is reserved for a waiter that was woken."""
    waiter_alive_time: float = _option(10.0, _seconds)
    """How long a waiting process counts as alive after its last sign of life."""
    fence_ttl: float | None = _option(7 * 86400.0, _optional_seconds)
    """How long a fencing counter outlives its last use; use None (forever) if Java clients also use it."""
    record_context: bool = _option(True, _flag)
    """Whether to write the request's route and user, and the task's name and id, into the process report."""
    record_path: bool = _option(False, _flag)
    """Whether these reports have the whole path of a request instead of its route; a path may contain secrets."""
    show_stacks: bool = _option(True, _flag)
    """Whether a process shows the call stack of a lock's holder to operators with the permission to see it."""
    slow_hold: float = _option(10.0, _seconds)
    """The admin highlights a hold that is longer than this while others wait; the log names it when it ends."""
    task_url: str | None = _option(None, _task_url)
    """The URL of a page about a Celery task, in Flower for example, with ``{id}`` for its id; the admin links to it."""

    def __repr__(self) -> str:
        options = ", ".join(f"{item.name}={shown(getattr(self, item.name))}" for item in fields(self))
        return f"{type(self).__name__}({options})"

    def check_kind(self, kind: str) -> None:
        """Raise ImproperlyConfigured if this alias does not support a kind of lock."""
        if self.nodes is not None and kind != QUORUM_KIND:
            raise ImproperlyConfigured(
                f"RLOCK[{self.alias!r}] has NODES, where only RedLock works: a lock of kind {kind!r} needs one server. "
                f"Use rlock() without kind=, or an alias with CACHE."
            )
        if self.nodes is None and kind == QUORUM_KIND:
            raise ImproperlyConfigured(
                f"RLOCK[{self.alias!r}] has one server, and RedLock needs several: name independent servers in "
                f"RLOCK[{self.alias!r}]['NODES'], or use another kind of lock."
            )

    @property
    def longest_lease(self) -> float | None:
        """The longest lease of a RedLock, in seconds; None means unlimited."""
        quarantine = self.watchdog_timeout if self.quarantine is None else self.quarantine
        return quarantine or None


_OPTIONS = {item.name.upper(): item for item in fields(AliasSettings) if item.default is not MISSING}


_changes: list[Callable[[dict[str, Any]], dict[str, Any]]] = []


@contextmanager
def changed_entries(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Iterator[None]:
    """Apply a function to RLOCK during a block, also when a test overrides RLOCK inside the block."""
    _changes.append(change)
    forget_settings()
    try:
        yield
    finally:
        _changes.remove(change)
        forget_settings()


def get_aliases() -> list[str]:
    """All aliases, including ``default`` even if RLOCK does not name it, and aliases whose entry or name is wrong."""
    return sorted({DEFAULT_ALIAS, *_entries()})


def get_settings(alias: str = DEFAULT_ALIAS) -> AliasSettings:
    """The options of an alias. Raises ImproperlyConfigured if the alias is unknown or its entry is invalid."""
    if not isinstance(alias, str):
        raise unknown_alias(alias)
    return parsed_entry(alias)


@remembered("settings")
def settings_of(alias: str) -> AliasSettings:
    """The same, for locks, which call it several times per command. Raises ImproperlyConfigured if the entry of any
    alias is invalid: it may hold the options that were meant for this alias, as in ``{"CACHE": "locks"}``.
    """
    for each in get_aliases():
        parsed_entry(each)
    return parsed_entry(alias)


@remembered("settings")
def parsed_entry(alias: str) -> AliasSettings:
    """As ``get_settings``, for an alias that is certainly a string."""
    entries = _entries()
    if alias not in entries and alias != DEFAULT_ALIAS:
        return _node_settings(alias)
    options = entries.get(alias, {})
    if options is _MISNAMED:
        raise ImproperlyConfigured(f"An alias in RLOCK must be a string without '#' and '://', not {shown(alias)}.")
    if not isinstance(options, dict):
        advice = f" For an option of the alias 'default', write RLOCK = {{'default': {{{alias!r}: …}}}}."
        meant = advice if alias in _OPTIONS else ""
        raise ImproperlyConfigured(f"RLOCK[{alias!r}] must be a dict of options, not {shown(options)}.{meant}")
    parsed = AliasSettings(alias, **{str(key).lower(): _parse(alias, key, options[key]) for key in options})
    _check_store(parsed, options)
    if parsed.store == "cache":
        _check_caches(parsed)
    else:
        parsed = _without_cache(parsed)
    _check_claim(parsed)
    _check_quorum(parsed, options)
    return parsed if parsed.nodes is None else replace(parsed, kind=QUORUM_KIND)


def unknown_alias(alias: object) -> ImproperlyConfigured:
    """The error for an unknown alias of RLOCK. Raises another error if RLOCK itself is wrong."""
    known = get_aliases()
    return ImproperlyConfigured(
        f"RLOCK has no alias {shown(alias)}{suggestion(alias, known)}. Known aliases: {', '.join(known)}."
    )


def names_no_place(alias: str) -> bool:
    """Whether RLOCK does not place an alias's locks, and the default cache is a backend of Django's without Redis, such
    as LocMemCache, the default of projects that do not set CACHES.
    """
    if NODE_MARK in alias or _entries().get(alias, {}).keys() & {"CACHE", "NODES", "STORE"}:
        return False
    entry: Any = django_settings.CACHES.get(DEFAULT_ALIAS)
    backend = entry.get("BACKEND") if isinstance(entry, Mapping) else None
    return isinstance(backend, str) and backend.startswith(DJANGOS_CACHES) and ".redis." not in backend


def _entries() -> dict[str, Any]:
    entries = getattr(django_settings, "RLOCK", None)
    if entries is None:
        entries = {}
    if not isinstance(entries, dict):
        raise ImproperlyConfigured(f"RLOCK must be a dict of alias → options, not {type(entries).__name__}.")
    for change in _changes:
        entries = change(entries)
    named = {key: entries[key] for key in entries if isinstance(key, str) and not (NODE_MARK in key or is_url(key))}
    return {redacted(str(key)): _MISNAMED for key in entries if key not in named} | named


def _parse(alias: str, key: str, value: object) -> Any:
    if key not in _OPTIONS:
        raise ImproperlyConfigured(
            f"RLOCK[{alias!r}] has an unknown option {shown(key)}{suggestion(key, _OPTIONS)}. "
            f"Known options: {', '.join(_OPTIONS)}."
        )
    try:
        return _OPTIONS[key].metadata["parse"](value)
    except _RefusedError as refused:
        raise ImproperlyConfigured(f"RLOCK[{alias!r}][{key!r}] must be {refused}, not {shown(value)}.") from None


def node_alias(alias: str, number: int) -> str:
    """The name of one node of an alias with NODES, to use instead of an alias."""
    return f"{alias}{NODE_MARK}{number}"


def server_aliases(alias: str) -> list[str]:
    """The alias itself, or the names of its nodes."""
    nodes = get_settings(alias).nodes
    return [alias] if nodes is None else [node_alias(alias, number) for number in range(len(nodes))]


def _node_settings(alias: str) -> AliasSettings:
    base, mark, _number = alias.rpartition(NODE_MARK)
    if mark and base in get_aliases():
        options = get_settings(base)
        for number, node in enumerate(options.nodes or ()):
            if alias == node_alias(base, number):
                return replace(options, alias=alias, cache=node, nodes=None)
    raise unknown_alias(alias)


def _check_quorum(parsed: AliasSettings, options: dict[str, Any]) -> None:
    if parsed.nodes is None:
        return
    place = f"RLOCK[{parsed.alias!r}]"
    if parsed.replica_acks:
        raise ImproperlyConfigured(
            f"{place} has both 'NODES' and 'REPLICA_ACKS'; RedLock's nodes need no replicas. Remove one."
        )
    for other in {"CACHE", "KIND"} & options.keys():
        raise ImproperlyConfigured(f"{place} has both 'NODES' and {other!r}; locks on NODES are RedLocks. Remove one.")
    if parsed.watchdog_timeout < SHORTEST_LEASES * parsed.node_timeout:
        raise ImproperlyConfigured(
            f"{place}['WATCHDOG_TIMEOUT'] must be at least {SHORTEST_LEASES} times NODE_TIMEOUT "
            f"({SHORTEST_LEASES * parsed.node_timeout:g} s), not {parsed.watchdog_timeout:g}."
        )
    if parsed.quarantine and parsed.quarantine < parsed.watchdog_timeout:
        raise ImproperlyConfigured(
            f"{place}['QUARANTINE'] must not be less than WATCHDOG_TIMEOUT ({parsed.watchdog_timeout:g} s), "
            f"which is the lease of locks taken without one; not {parsed.quarantine:g}."
        )


def _check_store(parsed: AliasSettings, options: dict[str, Any]) -> None:
    place = f"RLOCK[{parsed.alias!r}]"
    if parsed.store != "cache":
        for other in sorted({"CACHE", "NODES", "REPLICA_ACKS"} & options.keys()):
            raise ImproperlyConfigured(f"{place} has both 'STORE': {parsed.store!r} and {other!r}. Remove one.")
    if parsed.store != "embedded":
        for other in sorted({"FOLDER", "IDLE_TIME"} & options.keys()):
            raise ImproperlyConfigured(f"{place} has {other!r}, which is for 'STORE': 'embedded'. Remove it.")


def _without_cache(parsed: AliasSettings) -> AliasSettings:
    """The same, with the store's location as a URL, which identifies the store as URLs in NODES identify nodes."""
    if parsed.store != "embedded":
        return replace(parsed, cache=parsed.store if is_url(parsed.store) else MEMORY)
    folder = parsed.folder or str(_project_folder(parsed.alias) / FOLDER)
    return replace(parsed, folder=folder, cache=EMBEDDED + folder)


def _project_folder(alias: str) -> Path:
    """BASE_DIR, or the folder of the settings. All processes of a project must find the same folder, so the environment
    and /tmp are not used: two processes with a server each could hold the same lock.
    """
    base = getattr(django_settings, "BASE_DIR", None)
    if base is None:
        name = getattr(django_settings, "SETTINGS_MODULE", None)  # missing where a test overrides settings
        module = sys.modules.get(name or os.environ.get("DJANGO_SETTINGS_MODULE", ""))
        base = Path(module.__file__).parent if module is not None and module.__file__ else None
    if not base:
        raise ImproperlyConfigured(
            f"RLOCK[{alias!r}]['STORE'] is 'embedded', and the settings have no BASE_DIR: set "
            f"RLOCK[{alias!r}]['FOLDER'] to a folder that all processes of the project share."
        )
    return Path(base).resolve()


def _check_caches(parsed: AliasSettings) -> None:
    for name in [parsed.cache] if parsed.nodes is None else [node for node in parsed.nodes if not is_url(node)]:
        uses = f"RLOCK[{parsed.alias!r}] uses CACHES[{shown(name)}]"
        if name not in django_settings.CACHES:
            raise ImproperlyConfigured(
                f"{uses}, which does not exist. "
                f"Name a CACHES alias that has a Redis backend in RLOCK[{parsed.alias!r}]['CACHE']."
            )
        entry = django_settings.CACHES[name]
        if not isinstance(entry, Mapping):
            raise ImproperlyConfigured(f"{uses}, which must be a dict of options, not {shown(entry)}.")
        for location in locations(entry):
            if not is_well_formed(location):
                # Show the whole string: a separator may be part of a password, and a piece would show some of it.
                written: Any = entry["LOCATION"]
                named = written if isinstance(written, str) else location
                raise ImproperlyConfigured(f"{uses}, whose LOCATION must be like {EXAMPLE}, not {shown(named)}.")


def _check_claim(parsed: AliasSettings) -> None:
    # A grant shortens its process's alive mark to the claim time; the next heartbeat must come before it ends.
    if not HEARTBEAT_SHARE * parsed.waiter_alive_time < parsed.claim_time <= parsed.waiter_alive_time:
        raise ImproperlyConfigured(
            f"RLOCK[{parsed.alias!r}]['CLAIM_TIME'] must be above {HEARTBEAT_SHARE} times WAITER_ALIVE_TIME and not "
            f"above it, not {parsed.claim_time} of {parsed.waiter_alive_time}."
        )
