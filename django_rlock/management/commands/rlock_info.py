"""``manage.py rlock_info``"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError

from django_rlock._core.text import printable
from django_rlock.console.history import ReportedSpan
from django_rlock.console.inspection import find_named, holder_stack, number_at
from django_rlock.console.reading import listed_aliases
from django_rlock.console.survey import HEADINGS
from django_rlock.console.timeline import Timeline, read_timeline
from django_rlock.exceptions import LockUnavailableError
from django_rlock.locks.infos import LockInfo, Party, clock_text, duration_text
from django_rlock.management import NOTHING_MATCHED, output

_MOST_OF_A_CROWD = 10
"""The number of waiters to list below a list of their processes."""


class Command(output.ShellCommand):
    help = (
        "Describes one lock: who holds it, its work and for how long, who waits, which messages of Celery tasks "
        "are queued for it, and who held it in the last day, also if it is free. "
        "Without --using, it looks under all aliases. "
        "Exit status: 0 it is held or queued for, 1 Redis did not answer or RLOCK is wrong, "
        "2 wrong usage, 3 it is free."
    )
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME", help="the lock's name")
        parser.add_argument("--using", metavar="ALIAS", help="RLOCK alias (default: all)")
        parser.add_argument("--format", choices=["text", "json"], default="text")
        parser.add_argument("--stack", action="store_true", help="show the call stack of each holder")

    def handle(self, *, name: str, using: str | None, format: str, stack: bool, **_: Any) -> None:  # noqa: A002
        try:
            output.check_usage(using, [name])
            infos, errors = find_named([name], using)
            if format == "json":
                self.stdout.write(output.to_json([_document(info, stack) for info in infos]))
            else:
                width = output.terminal_width(self.stdout)
                texts = ("\n".join(_text(info, stack, width)) for info in infos)
                self.stdout.write("\n\n".join([*texts, *_past_of(name, using, infos, errors, width)]))
            if errors:
                raise output.unread(errors)
            if not infos:
                raise CommandError(_not_held(name, using), returncode=NOTHING_MATCHED)
        except (LockUnavailableError, ImproperlyConfigured) as error:
            raise output.failed(error) from error


def _text(info: LockInfo, with_stack: bool, width: int | None) -> Iterator[str]:
    yield from _lines(info, width)
    yield from _timeline_lines(read_timeline(info.using, info.name, info), width)
    for holder in info.holders if with_stack else ():
        yield f"\nstack of {holder}, innermost call last"
        stack = holder_stack(info, holder)
        if stack is None:
            yield "  no reply: the process is paused or disconnected, has SHOW_STACKS off, or is a Java client"
        yield from (f"  {printable(line)}" for line in stack or ())


def _past_of(
    name: str, using: str | None, infos: Sequence[LockInfo], errors: Collection[str], width: int | None
) -> Iterator[str]:
    """The timelines of a name under the aliases under which it is free."""
    # A name may be held under one alias, and have a past under others.
    aliases = listed_aliases() if using is None else [using]
    for alias in sorted(set(aliases) - {*errors, *(info.using for info in infos)}):
        if lines := [*_timeline_lines(read_timeline(alias, name, None), width)]:
            yield "\n".join([f"lock    {printable(name)}", f"alias   {alias}", "state   free", *lines])


def _timeline_lines(timeline: Timeline, within: int | None) -> Iterator[str]:
    if not timeline.listed:
        return
    yield (
        f"\nlongest hold {duration_text(timeline.longest_hold)}, longest wait {duration_text(timeline.longest_wait)}, "
        f"longest queue {timeline.longest_queue}, gave up {timeline.gave_up}, lost {len(timeline.lost)}, "
        f"freed by force {len(timeline.freed)}"
    )
    headings = ["until", "what", "for", "process", "pid", "place", "doing", "reason"]
    yield output.table(headings, map(_past, timeline.listed), within)


def _past(past: ReportedSpan) -> list[object]:
    if past.what != "freed":
        return [clock_text(past.at), past.verb, duration_text(past.seconds), *_party(past), past.reason or "–"]
    reason = ": ".join(filter(None, [past.by, past.reason])) or "–"
    return [clock_text(past.at), "freed by force", "–", *_party(past), reason]


def _not_held(name: str, using: str | None) -> str:
    """The error text for a name under which no lock is held."""
    for alias in listed_aliases() if using is None else [using]:
        if (number := number_at(name, alias)) is not None:
            return f"{name!r} is not a lock: its key holds the number {number}, as a semaphore's or a latch's does."
    return f"Lock {name!r} is free.{output.did_you_mean([name], using)}"


def _lines(info: LockInfo, within: int | None) -> Iterator[str]:
    facts = {
        "lock": info.name,
        "alias": info.using,
        "kind": info.kind or "–",
        "key": info.key,
        "state": f"{info.state.value} {info.quorum_text}".rstrip(),
        "lease": f"{duration_text(info.remaining_lease)} left of {duration_text(info.lease)}",
    }
    for heading, text in facts.items():
        yield f"{heading:<8}{printable(text)}"
    yield from output.deadlock_lines([info])
    if info.holders:
        headings = ["holder", "pid", "place", "doing", "holds", "held for", "owner"]
        holders = ([*_party(each), each.count, each.held_for_text, each.owner] for each in info.holders)
        yield "\n" + output.table(headings, holders, within)
    if info.rate is not None:
        yield f"\nacquired {info.rate_text}, last by"
        yield output.table(["holder", "pid", "place", "doing"], map(_party, info.recent), within)
    if info.crowds:
        crowds = ([each.host or "–", each.pid or "–", each.count, each.waited_text] for each in info.crowds)
        yield "\n" + output.table(["waiting process", "pid", "waiters", "longest wait"], crowds, within)
    if info.waiters:
        first = info.waiters[: _MOST_OF_A_CROWD if info.crowds else None]
        waiters = ([*_party(waiter), waiter.waited_text] for waiter in first)
        yield "\n" + output.table(["waiter", "pid", "place", "doing", "waits for"], waiters, within)
        if info.waiting > len(first):
            yield f"and {info.waiting - len(first)} more"
    if info.queued:
        yield "\n" + output.table(HEADINGS, (message.row for message in info.queued), within)
    if info.nodes:
        shown = {None: "does not respond", "": "free"}
        nodes = ([node, shown.get(owner, owner)] for node, owner in info.nodes.items())
        yield "\n" + output.table(["node", "owner"], nodes, within)


def _document(info: LockInfo, with_stacks: bool) -> dict[str, Any]:
    document = info.as_dict() | {"timeline": read_timeline(info.using, info.name, info).as_dict()}
    if with_stacks:
        for entry, holder in zip(document["holders"], info.holders, strict=True):
            entry["stack"] = holder_stack(info, holder)
    return document


def _party(party: Party) -> list[object]:
    return [party.host or "–", party.pid or "–", party.place or "–", party.doing or "–"]
