"""``manage.py rlock_doctor``"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.checks import Tags, run_checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from django_rlock.management.diagnosis import Finding, diagnose, findings_of
from django_rlock.management.java import diagnose_java
from django_rlock.management.output import ERROR, check_usage, failed, to_json
from django_rlock.redaction import printable
from django_rlock.settings import get_aliases

OURS = "django_rlock."
"""The prefix of the ids of this package's checks."""


class Command(BaseCommand):
    help = (
        "Checks the servers of locks: version, eviction, persistence, replicas, latency, clocks, messages; takes a "
        "lock of its own there, and says what to do about problems. "
        "Exit status: 0 no errors (there may be warnings), 1 errors, 2 wrong usage."
    )
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--using", metavar="ALIAS", help="RLOCK alias; all of them by default")
        parser.add_argument("--java", action="store_true", help="also look for Redisson's clients and their traces")
        parser.add_argument("--format", choices=["text", "json"], default="text")

    def handle(self, *, using: str | None, java: bool, format: str, **_: Any) -> None:  # noqa: A002 - the option's name
        try:
            check_usage(using)
            aliases = get_aliases() if using is None else [using]
            messages = run_checks(tags=[Tags.caches], include_deployment_checks=True)
        except ImproperlyConfigured as error:
            raise failed(error) from error
        messages = [message for message in messages if str(message.id).startswith(OURS)]
        findings: list[Finding] = []
        for each in (findings_of(messages), *map(diagnose, aliases), *map(diagnose_java, aliases if java else ())):
            for finding in each:
                findings.append(finding)
                if format == "text":
                    self._print(finding)
        if format == "json":
            self.stdout.write(to_json([finding.as_dict() for finding in findings]))
        if errors := sum(finding.level == "error" for finding in findings):
            raise CommandError(f"{errors} of {len(findings)} findings are errors.", returncode=ERROR)

    def _print(self, finding: Finding) -> None:
        style = {"ok": self.style.SUCCESS, "warning": self.style.WARNING, "error": self.style.ERROR}[finding.level]
        where = " ".join(filter(None, [finding.alias, finding.server]))
        text = printable(f"{finding.check}: {finding.text}")
        self.stdout.write(f"{style(finding.level.ljust(7))}  {printable(where)}{'  ' * bool(where)}{text}")
        if finding.advice:
            self.stdout.write(printable(f"         → {finding.advice}"))
