"""The ``RLOCK`` setting, parsed into one frozen object per alias.

``RLOCK`` maps an alias to its options, as CACHES and DATABASES do; without it there is one alias, ``default``, on
``CACHES["default"]``. Unknown keys and wrong values raise ImproperlyConfigured with the text that the system check
shows. Parsed once, and again when a test overrides the settings.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from django_rlock.once import once

DEFAULT_ALIAS = "default"
KINDS = ("fair", "rlock", "spin", "fenced")
LOCKED_STATUSES = (423, 409, 429, 503)
LONGEST = 100 * 365 * 24 * 3600.0
"""No duration is longer, in seconds: a server's clock has an end."""
QUORUM_KIND = "redlock"
SHORTEST_LEASES = 20
"""The lease of a RedLock is at least so many times NODE_TIMEOUT."""
NODE_MARK = "#"
_PASSWORD = re.compile(r"//[^/@]*@")
_SCHEMES = "redis://", "rediss://", "unix://"
BEAT_SHARE = 0.3
"""A process beats for its waiters at this share of their alive time."""


class _RefusedError(ValueError):
    """Why a value is not acceptable, in words that follow "must be"."""


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _RefusedError("a string")
    return value


def _alias_name(value: object) -> str:
    name = _text(value)
    if name not in django_settings.CACHES:
        known = ", ".join(sorted(django_settings.CACHES))
        raise _RefusedError(f"an alias of CACHES: {known}{_did_you_mean(name, django_settings.CACHES)}")
    return name


def _nodes(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(node, str) for node in value):
        raise _RefusedError("a list of CACHES aliases and redis://, rediss:// or unix:// URLs")
    for node in value:
        if is_url(node) and not node.startswith(_SCHEMES):
            raise _RefusedError(f"a list whose URLs begin with one of {', '.join(_SCHEMES)}")
        if not is_url(node) and node not in django_settings.CACHES:
            known = ", ".join(sorted(django_settings.CACHES))
            raise _RefusedError(
                f"a list of URLs and aliases of CACHES: {known}{_did_you_mean(node, known.split(', '))}"
            )
    if len(value) < 2:
        raise _RefusedError("at least two independent servers (three or five are usual); for one, use CACHE")
    if len(set(value)) < len(value):
        raise _RefusedError("a list of different servers: one that is named twice would vote twice")
    return tuple(value)


def _quarantine(value: object) -> float | None:
    return 0.0 if value == 0 and not isinstance(value, bool) else _optional_seconds(value)


def _acks(value: object) -> int | str:
    if value in {"majority", "all"}:
        return str(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _RefusedError("a number of replicas, 'majority' or 'all'")
    return value


def _share(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise _RefusedError("a share of the lease: 0 or more, and less than 1")
    return float(value)


def is_url(node: str) -> bool:
    """Whether one of NODES is an URL, and not an alias of CACHES."""
    return "://" in node


def _prefix(value: object) -> str:
    text = _text(value)
    if any(char in "{}" or not char.isprintable() for char in text):
        raise _RefusedError("printable and without braces, which are Redis Cluster's hash tags")
    return text


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LONGEST:
        raise _RefusedError("a number of seconds above 0")
    return float(value)


def _wait_seconds(value: object) -> float | None:
    if value is None:
        return None
    return 0.0 if value == 0 and not isinstance(value, bool) else _seconds(value)


def _optional_seconds(value: object) -> float | None:
    return None if value is None else _seconds(value)


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


@dataclass(frozen=True, slots=True)
class AliasSettings:
    """The options of one alias. Durations are seconds."""

    alias: str
    cache: str = _option("default", _alias_name)
    """The CACHES alias, served by django-redis, where the locks live."""
    nodes: tuple[str, ...] | None = _option(None, _nodes)
    """Instead of ``cache``: independent servers, a majority of which holds each lock (RedLock). Aliases of CACHES, or
    URLs."""
    node_timeout: float = _option(0.05, _seconds)
    """How long a node may take to answer before RedLock goes on without it."""
    clock_drift: float = _option(0.01, _share)
    """By which share of the lease the clocks of RedLock's nodes and clients may drift apart."""
    quarantine: float | None = _option(None, _quarantine)
    """How long a node of RedLock that has restarted gets no votes, and the longest lease; None is WATCHDOG_TIMEOUT.
    0 is for nodes that forget nothing, and sets no limit to leases."""
    replica_acks: int | str = _option(0, _acks)
    """How many replicas must have a lock before it counts as taken: a number, ``majority`` or ``all``."""
    replica_ack_timeout: float = _option(1.0, _seconds)
    """How long they get for that; with fewer the lock is given back."""
    key_prefix: str = _option("rlock:", _prefix)
    """Put before every name; empty where Java clients use bare names."""
    kind: str = _option("fair", _one_of(*KINDS))
    """The kind that ``rlock()``, the decorator and tasks use."""
    watchdog_timeout: float = _option(30.0, _seconds)
    """Lease of a lock taken without a lease time; renewed every third of it."""
    view_wait_time: float | None = _option(3.0, _wait_seconds)
    """How long a decorated view waits; 0 tries once, None waits for ever."""
    locked_status: int = _option(423, _one_of(*LOCKED_STATUSES))
    """HTTP status of a view whose lock is taken."""
    claim_time: float = _option(5.0, _seconds)
    """How long a fair lock is kept for a waiter that was woken."""
    waiter_alive_time: float = _option(10.0, _seconds)
    """How long a waiting process counts as alive after it was last heard of."""
    fence_ttl: float | None = _option(7 * 86400.0, _optional_seconds)
    """How long a fencing counter outlives its last use; None for ever, where Java clients count on."""
    record_context: bool = _option(True, _flag)
    """Write the request's route and user, and the task's name and id, into the process report."""
    slow_hold: float = _option(10.0, _seconds)
    """A hold longer than this is coloured in the admin, and named in the log when it ends."""

    def check_kind(self, kind: str) -> None:
        """ImproperlyConfigured for a kind of lock that does not work on this alias."""
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
        """What a RedLock may ask for, in seconds; None sets no limit."""
        quarantine = self.watchdog_timeout if self.quarantine is None else self.quarantine
        return quarantine or None


_OPTIONS = {item.name.upper(): item for item in fields(AliasSettings) if item.default is not MISSING}


def get_aliases() -> list[str]:
    """All aliases, ``default`` among them even where RLOCK does not name it."""
    return sorted({DEFAULT_ALIAS, *_entries()})


@once
def get_settings(alias: str = DEFAULT_ALIAS) -> AliasSettings:
    """The options of an alias. ImproperlyConfigured when it is unknown or has a bad entry."""
    entries = _entries()
    if alias not in entries and NODE_MARK in alias:
        return _node_settings(alias)
    if alias not in entries and alias != DEFAULT_ALIAS:
        known = ", ".join(get_aliases())
        raise ImproperlyConfigured(
            f"RLOCK has no alias {alias!r}{_did_you_mean(alias, get_aliases())}. Known aliases: {known}."
        )
    options = entries.get(alias, {})
    if not isinstance(options, dict):
        raise ImproperlyConfigured(f"RLOCK[{alias!r}] must be a dict of options, not {options!r}.")
    parsed = AliasSettings(alias, **{_known_option(alias, key): _parse(alias, key, options[key]) for key in options})
    _alias_name_exists(parsed)
    _check_claim(parsed)
    _check_quorum(parsed, options)
    return parsed if parsed.nodes is None else replace(parsed, kind=QUORUM_KIND)


def _entries() -> dict[str, Any]:
    entries = getattr(django_settings, "RLOCK", None) or {}
    if not isinstance(entries, dict):
        raise ImproperlyConfigured(f"RLOCK must be a dict of alias → options, not {type(entries).__name__}.")
    for alias in entries:
        if not isinstance(alias, str):
            raise ImproperlyConfigured(f"An alias in RLOCK must be a string, not {alias!r}.")
    return entries


def _known_option(alias: str, key: object) -> str:
    if key not in _OPTIONS:
        raise ImproperlyConfigured(
            f"RLOCK[{alias!r}] has an unknown option {key!r}{_did_you_mean(str(key), _OPTIONS)}. "
            f"Known options: {', '.join(_OPTIONS)}."
        )
    return str(key).lower()


def _parse(alias: str, key: str, value: object) -> Any:
    try:
        return _OPTIONS[key].metadata["parse"](value)
    except _RefusedError as refused:
        shown = _PASSWORD.sub("//***@", repr(value))
        raise ImproperlyConfigured(f"RLOCK[{alias!r}][{key!r}] must be {refused}, not {shown}.") from None


def node_alias(alias: str, number: int) -> str:
    """What one node of an alias with NODES is called where an alias is expected."""
    return f"{alias}{NODE_MARK}{number}"


def server_aliases(alias: str) -> list[str]:
    """The alias itself, or what its nodes are called."""
    nodes = get_settings(alias).nodes
    return [alias] if nodes is None else [node_alias(alias, number) for number in range(len(nodes))]


def _node_settings(alias: str) -> AliasSettings:
    base, _, number = alias.rpartition(NODE_MARK)
    options = get_settings(base)
    return replace(options, alias=alias, cache=(options.nodes or ())[int(number)], nodes=None)


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


def _alias_name_exists(parsed: AliasSettings) -> None:
    if parsed.nodes is None and parsed.cache not in django_settings.CACHES:
        raise ImproperlyConfigured(
            f"RLOCK[{parsed.alias!r}] uses CACHES[{parsed.cache!r}], which does not exist. "
            f"Name a CACHES alias that django-redis serves in RLOCK[{parsed.alias!r}]['CACHE']."
        )


def _check_claim(parsed: AliasSettings) -> None:
    # A grant shortens its process's alive mark to the claim time; the next beat must come before that ends.
    if not BEAT_SHARE * parsed.waiter_alive_time < parsed.claim_time <= parsed.waiter_alive_time:
        raise ImproperlyConfigured(
            f"RLOCK[{parsed.alias!r}]['CLAIM_TIME'] must be above {BEAT_SHARE} times WAITER_ALIVE_TIME and not above "
            f"it, not {parsed.claim_time} of {parsed.waiter_alive_time}."
        )


def _did_you_mean(name: str, known: Any) -> str:
    match = get_close_matches(name, [str(item) for item in known], n=1)
    return f" (did you mean {match[0]!r}?)" if match else ""


def _reset(*, setting: str, **_: object) -> None:
    if setting in {"RLOCK", "CACHES"}:
        get_settings.cache_clear()


setting_changed.connect(_reset, dispatch_uid="django_rlock.settings")
