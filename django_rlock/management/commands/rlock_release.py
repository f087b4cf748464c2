"""``manage.py rlock_release``"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from django_rlock.exceptions import LockUnavailableError
from django_rlock.inspection import force_release, iter_locks, lock_infos
from django_rlock.inspection.infos import Holder, LockInfo
from django_rlock.management.output import ERROR, NOTHING_MATCHED, USAGE, failed, printable, table, to_json
from django_rlock.settings import DEFAULT_ALIAS, get_aliases


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened to one lock: ``would free``, ``freed``, ``gone`` (the owner had lost it), or an error's text."""

    lock: LockInfo
    holder: Holder
    result: str

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.lock.name,
            "using": self.lock.using,
            "owner": self.holder.owner,
            "holder": str(self.holder),
            "silent": self.holder.silent,
            "result": self.result,
        }


class Command(BaseCommand):
    help = (
        "Frees locks that somebody else holds, each only while the owner that was found still holds it. NAME and "
        "--pattern add up, the other conditions narrow. After a deploy: rlock_release --dead --no-input. "
        "Exit status: 0 freed, 1 an error, 2 wrong usage, 3 nothing matched."
    )
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("names", nargs="*", metavar="NAME", help="locks to free")
        parser.add_argument("--using", choices=get_aliases(), default=DEFAULT_ALIAS, help="RLOCK alias (%(default)s)")
        parser.add_argument("--owner", help="only what this owner holds: a whole id, as JSON has it")
        parser.add_argument("--dead", action="store_true", help="only what processes hold that have fallen silent")
        parser.add_argument("--host", help="only what processes on this host hold")
        parser.add_argument("--pattern", help="locks whose names match a shell pattern, as in 'stock:*'")
        parser.add_argument("--dry-run", action="store_true", help="say what would be freed, and free nothing")
        parser.add_argument(
            "--no-input", "--noinput", action="store_false", dest="interactive", help="do not ask first"
        )
        parser.add_argument("--reason", default="", help="for the log")
        parser.add_argument("--format", choices=["table", "json"], default="table")

    def handle(self, *, dry_run: bool, interactive: bool, format: str, **options: Any) -> None:  # noqa: A002
        self._check_usage(options, ask=interactive and not dry_run)
        try:
            found = self._find(**options)
        except (LockUnavailableError, ImproperlyConfigured) as error:
            raise failed(error) from error
        if found and interactive and not dry_run:
            self._ask(found)
        outcomes = [self._free(lock, holder, dry_run, options["reason"]) for lock, holder in found]
        self._print(outcomes, format)
        if not found:
            raise CommandError("No lock matches; nothing was freed.", returncode=NOTHING_MATCHED)
        if errors := sum(outcome.result.startswith("error") for outcome in outcomes):
            raise CommandError(f"{errors} of {len(outcomes)} could not be freed.", returncode=ERROR)

    def _check_usage(self, options: dict[str, Any], *, ask: bool) -> None:
        if not any(options[name] for name in ("names", "owner", "dead", "host", "pattern")):
            raise CommandError("Say which: NAME, --pattern, --owner, --host or --dead.", returncode=USAGE)
        if ask and not (sys.stdin and sys.stdin.isatty()):
            raise CommandError("There is no terminal to ask on: add --no-input, or --dry-run.", returncode=USAGE)

    def _find(
        self,
        *,
        names: list[str],
        using: str,
        pattern: str | None,
        owner: str | None,
        dead: bool,
        host: str | None,
        **_: Any,
    ) -> list[tuple[LockInfo, Holder]]:
        locks = list(iter_locks(using, pattern)) if pattern or not names else []
        locks += (
            lock_infos([name for name in names if name not in {lock.name for lock in locks}], using) if names else []
        )
        return [
            (lock, holder)
            for lock in locks
            for holder in lock.holders
            if owner in {None, holder.owner} and host in {None, holder.host} and (holder.silent or not dead)
        ]

    def _ask(self, found: list[tuple[LockInfo, Holder]]) -> None:
        for lock, holder in found:
            self.stderr.write(printable(f"{lock.name}  held by {holder}{'' if holder.silent else '  (alive)'}"))
        self.stderr.write(f"Free {len(found)} of them? [y/N] ", ending="")
        self.stderr.flush()
        if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
            raise CommandError("Nothing was freed.", returncode=ERROR)

    def _free(self, lock: LockInfo, holder: Holder, dry_run: bool, reason: str) -> Outcome:
        if dry_run:
            return Outcome(lock, holder, "would free")
        try:
            freed = force_release(lock.name, holder.owner, lock.using, reason or "rlock_release")
        except LockUnavailableError as error:
            return Outcome(lock, holder, f"error: {error.reason}")
        return Outcome(lock, holder, "freed" if freed else "gone")

    def _print(self, outcomes: list[Outcome], format: str) -> None:  # noqa: A002
        if format == "json":
            self.stdout.write(to_json([outcome.as_dict() for outcome in outcomes]))
        elif outcomes:
            rows = [[outcome.lock.name, str(outcome.holder), outcome.result] for outcome in outcomes]
            self.stdout.write(table(["lock", "holder", "result"], rows))
