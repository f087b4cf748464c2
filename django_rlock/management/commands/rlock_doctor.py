"""``manage.py rlock_doctor``; and its checks of Java clients, for ``--java``."""

from __future__ import annotations

import re
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from typing import Any

import redis
from django.core.checks import CheckMessage, Tags
from django.core.checks.registry import registry
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError

from django_rlock._core import threads
from django_rlock._core.text import printable, redacted
from django_rlock._redis.keys import JAVA_QUEUE_ENTRY, plain_mark
from django_rlock._transport.servers import SERVER_ERRORS, clients_of, is_cluster
from django_rlock.console.diagnosis import WITHIN, Finding, Level, diagnose, findings_of
from django_rlock.management import ERROR, USAGE, output
from django_rlock.settings import get_aliases, get_settings

OURS = "django_rlock."
"""The prefix of this package's modules."""


class Command(output.ShellCommand):
    help = (
        "Checks the servers of locks: connections, version, memory, eviction, persistence, replicas, sentinels, "
        "latency, clocks, messages, proxies; acquires test locks there, and says how to solve problems. "
        "Exit status: 0 no errors (there may be warnings), 1 errors, 2 wrong usage."
    )
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--using", metavar="ALIAS", help="RLOCK alias (default: all)")
        parser.add_argument("--java", action="store_true", help="also look for Redisson's clients and their traces")
        parser.add_argument("--format", choices=["text", "json"], default="text")
        parser.add_argument(
            "--watch",
            type=output.pause,
            nargs="?",
            const=10.0,
            metavar="SECONDS",
            help="repeat every SECONDS (10), until Ctrl-C; show only warnings and errors",
        )

    def handle(self, *, using: str | None, java: bool, format: str, watch: float | None, **_: Any) -> None:  # noqa: A002
        if watch is not None and format != "text":
            raise CommandError(f"--watch shows text; it cannot be combined with --format {format}.", returncode=USAGE)
        if watch is not None:
            self._watch(watch, using, java)
            return
        findings: list[Finding] = []
        for finding in _findings(using, java):
            findings.append(finding)
            if format == "text":
                self._print(finding)
        if format == "json":
            self.stdout.write(output.to_json([finding.as_dict() for finding in findings]))
        if errors := sum(finding.level == "error" for finding in findings):
            raise CommandError(f"{errors} of {len(findings)} findings are errors.", returncode=ERROR)

    def _watch(self, every: float, using: str | None, java: bool) -> None:
        """Repeat the checks; an error does not end this, as it may be solved in the next round."""
        with output.second_screen(self.stdout), suppress(KeyboardInterrupt):
            while True:
                self._examine_briefly(using, java)
                time.sleep(every)

    def _examine_briefly(self, using: str | None, java: bool) -> None:
        findings = list(_findings(using, java))
        warnings = [finding for finding in findings if finding.level != "ok"]
        state = f"{len(warnings)} of {len(findings)} findings are warnings or errors"
        self.stdout.write(f"{output.CLEAR if self.stdout.isatty() else ''}{time.strftime('%H:%M:%S')} {state}")
        for finding in warnings:
            self._print(finding)
        self.stdout.flush()

    def _print(self, finding: Finding) -> None:
        style = {"ok": self.style.SUCCESS, "warning": self.style.WARNING, "error": self.style.ERROR}[finding.level]
        where = " ".join(filter(None, [finding.alias, finding.server]))
        text = printable(f"{finding.check}: {finding.text}")
        self.stdout.write(f"{style(finding.level.ljust(7))}  {printable(where)}{'  ' * bool(where)}{text}")
        if finding.advice:
            self.stdout.write(printable(f"         → {finding.advice}"))


def _findings(using: str | None, java: bool) -> Iterator[Finding]:
    """The findings about the settings, then about each alias. Raises CommandError for an unknown alias."""
    try:
        output.check_usage(using)
        aliases = get_aliases() if using is None else [using]
    except ImproperlyConfigured:  # RLOCK as a whole: its check says so
        aliases = []
    yield from findings_of(list(_messages()))
    for examine in (diagnose, diagnose_java) if java else (diagnose,):
        # All at once: each may wait for a distant server.
        for call in [threads.Call(partial(list, examine(alias))).start() for alias in aliases]:
            call.wait()
            yield from call.result()


def _messages() -> Iterator[CheckMessage]:
    """The messages of this package's checks of RLOCK and CACHES. Django's own raise errors for some wrong entries."""
    for check in registry.get_checks(include_deployment_checks=True):
        if check.__module__.startswith(OURS) and Tags.caches in check.tags:
            yield from check(app_configs=None, databases=None)


# --- Java clients -----------------------------------------------------------------------------------------------------

# Java clients of other systems may use the same server, so a finding is a warning only if it is an error in any system.

_JAVA_QUEUE = "redisson_lock_queue:"
_RIGHTS_FOR_JAVA = "Grant +client|list +pubsub +scan +llen +lindex to check it; locks do not need them."
_SCANNED = 200
"""The highest number of SCAN calls to a server, of 1,000 keys each."""
_NAMES_SHOWN = 5
"""The highest number of names in a text."""


def diagnose_java(alias: str) -> Iterator[Finding]:
    """All findings about the Java clients on an alias's servers, each produced on demand."""
    try:
        clients = clients_of(alias, WITHIN)
    except (ImproperlyConfigured, *SERVER_ERRORS):
        return  # other findings report it
    for server, client in clients.items():
        with closing(client.connection_pool):
            for examine in _versions, _subscribers, _doubled_names, _fair_waiters:
                check = examine.__name__.lstrip("_").replace("_", " ")
                try:
                    level, text, advice = examine(client, alias)
                except SERVER_ERRORS as error:
                    level, text, advice = "warning", redacted(str(error)), _RIGHTS_FOR_JAVA
                yield Finding(alias, server, f"java {check}", level, text, advice)


_Observation = tuple[Level, str, str]


def _versions(client: redis.Redis, _alias: str) -> _Observation:
    found = Counter(
        f"{each['lib-name']} {each.get('lib-ver', '')}".strip()
        for each in client.client_list()
        if "redisson" in each.get("lib-name", "").lower()
    )
    if not found:
        return "ok", "no connection names Redisson as its library, but not every Redisson does", ""
    return "ok", ", ".join(f"{library} ({number} connections)" for library, number in sorted(found.items())), ""


def _subscribers(client: Any, alias: str) -> _Observation:
    """The subscribers of Redisson's channels that are not processes of this package."""
    # Our processes mark a subscription to such a channel by a second one, in a cluster on a sharded channel.
    count_marks = client.pubsub_shardnumsub if is_cluster(alias) else client.pubsub_numsub
    plain = _others(client.pubsub_channels, client.pubsub_numsub, count_marks)
    text = f"{sum(plain.values())} wait for messages on {len(plain)} channels"
    if not is_cluster(alias):
        return "ok", text, ""
    sharded = _others(client.pubsub_shardchannels, client.pubsub_shardnumsub, count_marks)
    text += f" of all nodes, {sum(sharded.values())} on {len(sharded)} sharded channels"
    advice = "These two groups of Java clients don't wake each other: set one shardedSubscriptionMode."
    return ("warning", text, advice) if plain and sharded else ("ok", text, "")


def _others(
    channels: Callable[[str], list[Any]], count: Callable[..., list[Any]], count_marks: Callable[..., list[Any]]
) -> dict[str, int]:
    """The number of other clients that subscribe to each of Redisson's channels."""
    names = list(map(_text, channels("redisson_*")))
    if not names:
        return {}
    counts = zip(names, count(*names), count_marks(*map(plain_mark, names)), strict=True)
    return {name: number - marks for name, (_, number), (_, marks) in counts if number > marks}


def _doubled_names(client: redis.Redis, alias: str) -> _Observation:
    prefix = get_settings(alias).key_prefix
    if not prefix:
        return "ok", "KEY_PREFIX is empty, so names have no prefix", ""
    doubled = _scan(client, prefix + prefix)
    if not doubled:
        return "ok", f"no key begins with {prefix + prefix!r}", ""
    advice = "Redisson up to 3.20 puts its nameMapper's prefix twice before read-write locks: update it."
    return "warning", f"keys begin with {prefix + prefix!r}: {_some(doubled)}", advice


def _fair_waiters(client: Any, alias: str) -> _Observation:
    prefix = get_settings(alias).key_prefix
    # The entry of our own waiters is before Java's.
    lengths = {
        key: client.llen(key) - (_text(client.lindex(key, 0)) == JAVA_QUEUE_ENTRY) for key in _scan(client, _JAVA_QUEUE)
    }
    queues = {key: length for key, length in lengths.items() if length}
    text = f"{sum(queues.values())} wait in {len(queues)} queues of Redisson's fair lock"
    unmapped = [key for key in queues if not key.removeprefix(_JAVA_QUEUE).lstrip("{").startswith(prefix)]
    if not unmapped:
        return "ok", text, ""
    advice = (
        "Redisson before 3.52 queues waiters without its nameMapper's prefix, so this package does not wake them; they "
        "retry when the holder's lease should end. Update Redisson."
    )
    return "warning", f"{text}; without the prefix {prefix!r}: {_some(unmapped)}", advice


def _scan(client: Any, prefix: str) -> list[str]:
    pattern = re.sub(r"([*?\[\]\\^])", r"\\\1", prefix) + "*"
    found, cursor = set[str](), 0
    for _ in range(_SCANNED):
        cursor, keys = client.scan(cursor, match=pattern, count=1000)
        found.update(map(_text, keys))
        if not cursor:
            break
    return sorted(found)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
