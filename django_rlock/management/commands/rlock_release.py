"""``manage.py rlock_release``"""

from __future__ import annotations

import getpass
import sys
import time
from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError

from django_rlock._core.text import printable
from django_rlock.console.inspection import (
    find_locks,
    find_named,
    find_queued,
    force_release,
    take_survey,
)
from django_rlock.console.reading import MOST_AHEAD
from django_rlock.console.rows import SILENT_AFTER
from django_rlock.console.survey import free_reservations, with_queued
from django_rlock.exceptions import LockUnavailableError
from django_rlock.locks.infos import Holder, LockInfo, QueuedMessage
from django_rlock.management import ERROR, NOTHING_MATCHED, USAGE, output
from django_rlock.settings import get_aliases

Found = tuple[LockInfo, Holder | QueuedMessage]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for one hold, or for one queued message of a Celery task: ``would free``, ``freed``, ``gone`` (the
    owner no longer held the lock, or the message has ended), or an error's text.
    """

    found: Found
    result: str

    def as_dict(self) -> dict[str, Any]:
        lock, has_it = self.found
        if isinstance(has_it, QueuedMessage):
            return {**has_it.as_dict(), "holder": _described(has_it), "result": self.result}
        return {
            "name": lock.name,
            "using": lock.using,
            "owner": has_it.owner,
            "holder": str(has_it),
            "silent": has_it.silent,
            "result": self.result,
        }


class Command(output.ShellCommand):
    help = (
        "Frees locks of other owners, each only if the owner that was found still holds it; for NAME also the "
        "reservations of Celery tasks' queued messages. NAME and --pattern add locks, other conditions exclude locks. "
        "After a deploy: rlock_release --dead --no-input. After celery purge: rlock_release --queue QUEUE --no-input. "
        "Exit status: 0 freed, or nothing is dead; 1 an error; 2 wrong usage; 3 nothing matched."
    )
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("names", nargs="*", metavar="NAME", help="locks to free")
        parser.add_argument("--using", metavar="ALIAS", help="RLOCK alias (default: all)")
        parser.add_argument("--owner", help="only locks that this owner holds: its whole id, as in JSON")
        parser.add_argument("--dead", action="store_true", help="only locks of processes that no longer report")
        parser.add_argument("--fail-empty", action="store_true", help="exit with 3 if --dead finds nothing")
        parser.add_argument("--host", help="only locks of processes on this host")
        parser.add_argument("--pattern", help="locks whose names match a shell pattern, as in 'stock:*'")
        parser.add_argument(
            "--queue", help="reservations of all messages in this queue, and no locks; reads every key of the server"
        )
        parser.add_argument("--dry-run", action="store_true", help="say what would be freed, and free nothing")
        parser.add_argument(
            "--no-input", "--noinput", action="store_false", dest="interactive", help="do not ask first"
        )
        parser.add_argument("--reason", default="", help="why, for the log and the history")
        parser.add_argument("--format", choices=["table", "json"], default="table")

    def handle(self, *, dry_run: bool, interactive: bool, format: str, **options: Any) -> None:  # noqa: A002
        self._check_usage(options, ask=interactive and not dry_run)
        try:
            found, errors = self._find(**options)
        except (LockUnavailableError, ImproperlyConfigured) as error:
            raise output.failed(error) from error
        if found and interactive and not dry_run:
            self._ask(found)
        outcomes = [self._free(each, dry_run, options["reason"]) for each in found]
        self._print(outcomes, format)
        if errors:
            raise output.unread(errors)
        if failures := sum(outcome.result.startswith("error") for outcome in outcomes):
            raise CommandError(f"{failures} of {len(outcomes)} could not be freed.", returncode=ERROR)
        # After a deploy it is the usual case that nothing is dead.
        if not found and not (options["dead"] and not options["fail_empty"]):
            meant = output.did_you_mean(options["names"], options["using"])
            raise CommandError(f"No lock matches; nothing was freed.{meant}", returncode=NOTHING_MATCHED)

    def _check_usage(self, options: dict[str, Any], *, ask: bool) -> None:
        if not any(options[name] for name in ("names", "owner", "dead", "host", "pattern", "queue")):
            raise CommandError("Name the locks: NAME, --pattern, --owner, --host, --dead or --queue.", returncode=USAGE)
        about_holders = [f"--{name}" for name in ("owner", "host", "dead") if options[name]]
        if options["queue"] is not None and about_holders:
            text = f"--queue is about messages, which have no holder: leave out {', '.join(about_holders)}."
            raise CommandError(text, returncode=USAGE)
        if ask and not (sys.stdin and sys.stdin.isatty()):
            raise CommandError("There is no terminal to ask on: add --no-input, or --dry-run.", returncode=USAGE)

    def _find(
        self,
        *,
        names: list[str],
        using: str | None,
        pattern: str | None,
        owner: str | None,
        dead: bool,
        host: str | None,
        queue: str | None,
        **_: Any,
    ) -> tuple[list[Found], dict[str, LockUnavailableError | ImproperlyConfigured]]:
        output.check_usage(using, names)
        if dead:
            self._await_silence(using)
        if queue is not None:
            messages, errors = find_queued(using, names or None, pattern)
            return [(with_queued([], [each])[0], each) for each in messages if each.queue == queue], errors
        locks, errors = find_locks(using, pattern) if pattern or not names else ([], {})
        # find_locks() knows only locks that have been reported; a name is read from the server.
        if names:
            named, others = find_named(names, using)
            errors |= others
            _refuse_ambiguous(named)
            listed = {(lock.using, lock.name) for lock in locks}
            locks += [lock for lock in named if (lock.using, lock.name) not in listed]
        found: list[Found] = [
            (lock, holder)
            for lock in locks
            for holder in lock.holders
            if owner in {None, holder.owner} and host in {None, holder.host} and (holder.silent or not dead)
        ]
        # These options are about holders, which messages lack.
        if owner is host is None and not dead:
            found += [(lock, message) for lock in locks for message in lock.queued]
        return found, errors

    def _await_silence(self, using: str | None) -> None:
        """If the server's clock has been set back, wait until it is known which processes are dead: living processes
        send heartbeats meanwhile."""
        if ahead := take_survey(using).ahead:
            wait = SILENT_AFTER + MOST_AHEAD
            self.stderr.write(
                f"The server's clock has been set back, so that {len(ahead)} processes seem to have reported in the "
                f"future. Waiting for {wait:.0f} s to see which of them still report."
            )
            time.sleep(wait)

    def _ask(self, found: list[Found]) -> None:
        several = len(get_aliases()) > 1
        for lock, has_it in found:
            under = f" (alias {lock.using})" if several else ""
            alive = isinstance(has_it, Holder) and not has_it.silent
            text = f"{lock.name}{under}  held by {_described(has_it)}{'  (alive)' if alive else ''}"
            self.stderr.write(printable(text))
        which = f"these {len(found)} locks" if len(found) > 1 else "this lock"
        self.stderr.write(f"Free {which}? [y/N] ", ending="")
        self.stderr.flush()
        if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
            raise CommandError("Nothing was freed.", returncode=ERROR)

    def _free(self, found: Found, dry_run: bool, why: str) -> Outcome:
        lock, has_it = found
        if dry_run:
            return Outcome(found, "would free")
        try:
            if isinstance(has_it, QueuedMessage):
                freed = bool(free_reservations([has_it]))
            else:
                freed = force_release(lock.name, has_it.owner, lock.using, why, by=_operator())
        except (LockUnavailableError, ImproperlyConfigured, ValueError) as error:  # such as a name that is too long
            return Outcome(found, f"error: {output.reason(error)}")
        return Outcome(found, "freed" if freed else "gone")

    def _print(self, outcomes: list[Outcome], format: str) -> None:  # noqa: A002
        if format == "json":
            self.stdout.write(output.to_json([outcome.as_dict() for outcome in outcomes]))
        elif outcomes:
            rows = [
                [each.found[0].name, each.found[0].using, _described(each.found[1]), each.result] for each in outcomes
            ]
            self.stdout.write(output.table(["lock", "alias", "holder", "result"], rows))


def _refuse_ambiguous(locks: Sequence[LockInfo]) -> None:
    """Raise CommandError if a name is held under several aliases: only one of these locks may be meant."""
    under = defaultdict[str, list[str]](list)
    for lock in locks:
        under[lock.name].append(lock.using)
    for name, aliases in under.items():
        if len(aliases) > 1:
            raise CommandError(
                f"Lock {name!r} is held under the aliases {', '.join(aliases)}: name one by --using.", returncode=USAGE
            )


def _described(has_it: Holder | QueuedMessage) -> str:
    return f"queued message {has_it.task_id} of {has_it.task}" if isinstance(has_it, QueuedMessage) else str(has_it)


def _operator() -> str:
    try:
        return f"{getpass.getuser()} with rlock_release"
    except (KeyError, OSError):  # a container's user without a name
        return "rlock_release"
