"""``manage.py rlock_doctor``"""

from __future__ import annotations

import time
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from django.core.checks import Tags, run_checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from django_rlock._core.text import printable
from django_rlock.management import ERROR, USAGE
from django_rlock.management.diagnosis import Finding, diagnose, findings_of
from django_rlock.management.java import diagnose_java
from django_rlock.management.output import (
    CLEAR,
    check_usage,
    pause,
    to_json,
)
from django_rlock.settings import get_aliases

OURS = "django_rlock."
"""The prefix of the ids of this package's checks."""


class Command(BaseCommand):
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
            type=pause,
            nargs="?",
            const=10.0,
            metavar="SECONDS",
            help="repeat every SECONDS (10), until Ctrl-C; show only warnings and errors",
        )

    def handle(self, *, using: str | None, java: bool, format: str, watch: float | None, **_: Any) -> None:  # noqa: A002
        if watch is None:
            self._examine(using, java, format)
        elif format == "text":
            self._watch(watch, using, java)
        else:
            raise CommandError(f"--watch shows text; it cannot be combined with --format {format}.", returncode=USAGE)

    def _examine(self, using: str | None, java: bool, format: str) -> None:  # noqa: A002
        findings: list[Finding] = []
        for finding in _findings(using, java):
            findings.append(finding)
            if format == "text":
                self._print(finding)
        if format == "json":
            self.stdout.write(to_json([finding.as_dict() for finding in findings]))
        if errors := sum(finding.level == "error" for finding in findings):
            raise CommandError(f"{errors} of {len(findings)} findings are errors.", returncode=ERROR)

    def _watch(self, every: float, using: str | None, java: bool) -> None:
        """Repeat the checks. A problem may be solved in the next round."""
        with suppress(KeyboardInterrupt):
            while True:
                self._examine_briefly(using, java)
                time.sleep(every)

    def _examine_briefly(self, using: str | None, java: bool) -> None:
        findings = list(_findings(using, java))
        warnings = [finding for finding in findings if finding.level != "ok"]
        state = f"{len(warnings)} of {len(findings)} findings are warnings or errors"
        self.stdout.write(f"{CLEAR if self.stdout.isatty() else ''}{time.strftime('%H:%M:%S')} {state}")
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
        check_usage(using)
        aliases = get_aliases() if using is None else [using]
    except ImproperlyConfigured:  # RLOCK as a whole: its check says so
        aliases = []
    messages = run_checks(tags=[Tags.caches], include_deployment_checks=True)
    yield from findings_of([message for message in messages if str(message.id).startswith(OURS)])
    for examine in (diagnose, diagnose_java) if java else (diagnose,):
        for alias in aliases:
            yield from examine(alias)
