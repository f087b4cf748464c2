"""``manage.py rlock_list``"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from django_rlock.exceptions import LockUnavailableError
from django_rlock.inspection import iter_locks
from django_rlock.inspection.infos import LockState
from django_rlock.management.output import NOTHING_MATCHED, failed, lock_csv, lock_table, to_json
from django_rlock.settings import get_aliases


class Command(BaseCommand):
    help = (
        "Lists the locks that are held: by whom, for how long, and who waits. "
        "Exit status: 0 listed, 1 Redis did not answer, 2 wrong usage, 3 nothing matched."
    )
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("pattern", nargs="?", help="shell pattern for lock names, as in 'stock:*'")
        parser.add_argument("--using", choices=get_aliases(), help="RLOCK alias; all of them by default")
        parser.add_argument("--format", choices=["table", "json", "csv"], default="table")
        parser.add_argument("--state", choices=LockState.values, help="only locks in this state")
        parser.add_argument("--host", help="only locks that this host holds")
        parser.add_argument(
            "--scan", action="store_true", help="also find locks that no report names; looks at every key of the server"
        )

    def handle(self, *, format: str, **options: Any) -> None:  # noqa: A002 - the option's name
        try:
            locks = self._find(**options)
        except (LockUnavailableError, ImproperlyConfigured) as error:
            raise failed(error) from error
        if format == "json":
            self.stdout.write(to_json([lock.as_dict() for lock in locks]))
        elif format == "csv":
            self.stdout.write(lock_csv(locks))
        elif locks:
            self.stdout.write(lock_table(locks))
        if not locks:
            raise CommandError("No lock matches.", returncode=NOTHING_MATCHED)

    def _find(
        self, *, using: str | None, pattern: str | None, scan: bool, state: str | None, host: str | None, **_: Any
    ) -> list[Any]:
        return [
            lock
            for lock in iter_locks(using, pattern, scan)
            if state in {None, lock.state} and (host is None or host in {holder.host for holder in lock.holders})
        ]
