"""``manage.py rlock_list``"""

from __future__ import annotations

import time
from argparse import ArgumentParser
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError

from django_rlock.console.inspection import find_locks, find_queued
from django_rlock.console.survey import HEADINGS
from django_rlock.locks.infos import LockInfo, LockState, QueuedMessage
from django_rlock.management import NOTHING_MATCHED, USAGE, output

_SCAN_HINT = " --scan also finds locks that no report names, and free locks for which messages are queued."


class Command(output.ShellCommand):
    help = (
        "Lists held locks with their holders, how long they have been held, and their waiters. "
        "Exit status: 0 listed, 1 the Redis server of an alias did not respond (the others are listed) or RLOCK is "
        "wrong, 2 wrong usage, 3 nothing matched."
    )
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("pattern", nargs="?", help="shell pattern for lock names, as in 'stock:*'")
        parser.add_argument("--using", metavar="ALIAS", help="RLOCK alias (default: all)")
        parser.add_argument("--format", choices=["table", "json", "csv"], default="table")
        parser.add_argument("--state", choices=LockState.values, help="only locks in this state")
        parser.add_argument("--host", help="only locks that this host holds")
        parser.add_argument(
            "--older-than", type=output.seconds, metavar="SECONDS", help="only locks that have been held for longer"
        )
        parser.add_argument(
            "--watch",
            type=output.pause,
            nargs="?",
            const=2.0,
            metavar="SECONDS",
            help="repeat the list every SECONDS (2), until Ctrl-C",
        )
        parser.add_argument(
            "--scan",
            action="store_true",
            help="also find locks that no report names, and locks with queued messages; reads every key of the server",
        )
        parser.add_argument(
            "--queued",
            action="store_true",
            help="list instead the messages of Celery tasks that keep others out of the queue; reads every key of the "
            "server",
        )

    def handle(self, *, format: str, watch: float | None, **options: Any) -> None:  # noqa: A002 - the option's name
        show = self._list_queued if options["queued"] else self._list
        if watch is None:
            show(format, options)
        elif format == "table":
            self._watch(watch, partial(show, format, options))
        else:
            raise CommandError(
                f"--watch shows a table; it cannot be combined with --format {format}.", returncode=USAGE
            )

    def _list(self, format: str, options: dict[str, Any]) -> None:  # noqa: A002
        try:
            output.check_usage(options["using"])
            # No report names free locks for which messages are queued.
            scan = options["scan"] or options["state"] == LockState.QUEUED
            locks, errors = find_locks(options["using"], options["pattern"], scan, with_hot=True)
        except ImproperlyConfigured as error:
            raise output.failed(error) from error
        locks = [lock for lock in locks if _is_meant(lock, options)]
        self._print(locks, format)
        if errors:
            raise output.unread(errors)
        if not locks:
            raise CommandError(f"No lock matches.{'' if scan else _SCAN_HINT}", returncode=NOTHING_MATCHED)

    def _list_queued(self, format: str, options: dict[str, Any]) -> None:  # noqa: A002
        if format == "csv":
            raise CommandError("--queued has no --format csv.", returncode=USAGE)
        about_holders = [f"--{name.replace('_', '-')}" for name in ("host", "older_than") if options[name]]
        if about_holders:
            text = f"--queued lists messages, which have no holder: leave out {', '.join(about_holders)}."
            raise CommandError(text, returncode=USAGE)
        try:
            output.check_usage(options["using"])
            found, errors = find_queued(options["using"], pattern=options["pattern"])
        except ImproperlyConfigured as error:
            raise output.failed(error) from error
        if format == "json":
            self.stdout.write(output.to_json([message.as_dict() for message in found]))
        else:
            self._print_queued(found)
        if errors:
            raise output.unread(errors)
        if not found:
            raise CommandError("No message is queued.", returncode=NOTHING_MATCHED)

    def _watch(self, every: float, show: Callable[[], None]) -> None:
        """Repeat the list. An unreachable server may be reachable in the next round; wrong usage ends the command."""
        with output.second_screen(self.stdout), suppress(KeyboardInterrupt):
            while True:
                self.stdout.write(f"{output.CLEAR if self.stdout.isatty() else ''}{time.strftime('%H:%M:%S')}")
                try:
                    show()
                except CommandError as error:
                    if error.returncode == USAGE:
                        raise
                    self.stdout.write(str(error))
                self.stdout.flush()
                time.sleep(every)

    def _print(self, locks: list[LockInfo], format: str) -> None:  # noqa: A002
        if format == "json":
            self.stdout.write(output.to_json([lock.as_dict() for lock in locks]))
        elif format == "csv":
            self.stdout.write(output.lock_csv(locks))
        elif locks:
            self.stdout.write(output.lock_table(locks, output.terminal_width(self.stdout)))
            for line in output.deadlock_lines(locks):
                self.stdout.write(line)
            self._print_queued([message for lock in locks for message in lock.queued])

    def _print_queued(self, messages: list[QueuedMessage]) -> None:
        if messages:
            rows = ([message.name, *message.row] for message in messages)
            self.stdout.write(output.table(["lock", *HEADINGS], rows, output.terminal_width(self.stdout)))


def _is_meant(lock: LockInfo, options: dict[str, Any]) -> bool:
    state, host, older_than = options["state"], options["host"], options["older_than"]
    # A hot lock has no lasting holder; ``named`` has its recent ones.
    return (
        state in {None, lock.state}
        and (host is None or host in {party.host for party in (*lock.holders, *lock.named)})
        and (older_than is None or (lock.held_for or 0.0) > older_than)
    )
