"""The output of the commands: tables, JSON and CSV, without control characters."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import shutil
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import combining, east_asian_width

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, OutputWrapper

from django_rlock._core.clock import LONGEST, limit_for
from django_rlock._core.text import printable
from django_rlock.console.inspection import near_names
from django_rlock.exceptions import LockUnavailableError
from django_rlock.locks.infos import LockInfo
from django_rlock.locks.options import checked_text
from django_rlock.management import ERROR, USAGE
from django_rlock.settings import get_aliases, unknown_alias

CLEAR = "\x1b[H\x1b[2J"
"""Clears a terminal's screen, and leaves its history."""
_SECOND_SCREEN, _FIRST_SCREEN = "\x1b[?1049h", "\x1b[?1049l"
INTERRUPTED, READER_GONE = 130, 141
"""The exit statuses of programs that SIGINT or SIGPIPE ends."""


class ShellCommand(BaseCommand):
    """A command that ends like other programs in a shell: without a traceback when Ctrl-C interrupts it, or when the
    reader of its output has gone."""

    def run_from_argv(self, argv: list[str]) -> None:
        if sys.stdout is None:  # the shell has closed it
            self.stdout = OutputWrapper(Path(os.devnull).open("w"))  # noqa: SIM115 - until the process ends
        for stream in sys.stdout, sys.stderr:
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # a terminal may lack a character
        try:
            try:
                super().run_from_argv(argv)
            finally:
                self.stdout.flush()
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        except BrokenPipeError:
            if sys.stdout is not None:  # Python writes the rest when it exits
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(READER_GONE)


@contextmanager
def second_screen(out: OutputWrapper) -> Iterator[None]:
    """Use a terminal's second screen inside the block, so that the first one is as before when the block ends."""
    if not out.isatty():
        yield
        return
    try:
        out.write(_SECOND_SCREEN, ending="")
        yield
    finally:
        out.write(_FIRST_SCREEN, ending="")
        out.flush()


class Field(NamedTuple):
    """A column of a table."""

    heading: str
    text: Callable[[LockInfo], object]


LOCK_FIELDS = (
    Field("lock", lambda lock: lock.name),
    Field("alias", lambda lock: lock.using),
    Field("kind", lambda lock: lock.kind or "–"),
    Field("host", lambda lock: _together(party.host for party in lock.named)),
    Field("pid", lambda lock: _together(party.pid for party in lock.named)),
    Field("place", lambda lock: _together(party.place for party in lock.named)),
    Field("doing", lambda lock: _together(party.doing for party in lock.named)),
    Field("holds", lambda lock: lock.count),
    Field("held for", lambda lock: lock.holder.held_for_text),
    Field("time left", lambda lock: lock.time_left_text),
    Field("waiting", lambda lock: lock.waiting),
    Field("state", lambda lock: f"{lock.state.value} {lock.quorum_text}".rstrip()),
    Field("owner", lambda lock: lock.holder.owner),
    Field("rate", lambda lock: lock.rate_text or "–"),
)
"""The holder column. The current holder of a hot lock is gone before anyone reads it, so recent holders are shown."""

DISPENSABLE = "place", "holds", "kind", "alias", "pid", "time left", "waiting", "state", "doing"
"""The columns that a narrow terminal omits, in this order."""
NAMES = {"alias", "doing", "host", "lock", "place", "queue", "sender", "task"}
"""The columns whose texts may be cut. A number or a state that was cut would be wrong."""
NAME_WIDTH = 32
"""The width that a lock's name keeps as long as columns can be omitted."""
OTHER_WIDTH = 12
"""The same for other names."""
PIPE_WIDTH = 200
"""The width of a table outside a terminal: one long name must not make all lines long."""


def table(headings: Sequence[str], rows: Iterable[Sequence[object]], within: int | None = None) -> str:
    """Columns as wide as their longest text. Names are shortened to ``within`` characters in all if possible, or to
    PIPE_WIDTH with None, outside a terminal."""
    lines = [[heading.upper() for heading in headings], *([printable(cell) for cell in row] for row in rows)]
    widths = [max(map(text_width, column)) for column in zip(*lines, strict=True)]
    widths = _narrowed(headings, widths, PIPE_WIDTH if within is None else within)
    return "\n".join(
        "  ".join(_fitted(cell, width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def text_width(text: str) -> int:
    """How many terminal columns a printable text takes: Chinese characters take two, combining ones none."""
    return sum(0 if combining(char) else 1 + (east_asian_width(char) in "WF") for char in text)


def _least(heading: str, width: int, is_tight: bool) -> int:
    """The least width of a column whose longest text has this width."""
    if heading not in NAMES:
        return width
    return min(width, len(heading) if is_tight else NAME_WIDTH if heading == "lock" else OTHER_WIDTH)


def _narrowed(headings: Sequence[str], widths: list[int], within: int) -> list[int]:
    """Make the widest columns of names narrower: first to their usual least width, then to the width of headings."""
    widths = list(widths)
    excess = sum(widths) + 2 * (len(widths) - 1) - within
    for is_tight in (False, True):
        least = [_least(heading, width, is_tight) for heading, width in zip(headings, widths, strict=True)]
        while excess > 0 and widths != least:
            widest = max((width, index) for index, width in enumerate(widths) if width > least[index])[1]
            widths[widest] -= 1
            excess -= 1
    return widths


def _fitted(text: str, width: int) -> str:
    """The text in this width; a longer text is cut in the middle, because names differ at their ends."""
    if text_width(text) > width:
        head = tail = ""
        # The ellipsis takes one column, and a wide character two.
        for char in reversed(text):
            if text_width(char + tail) > (width - 1) // 2:
                break
            tail = char + tail
        for char in text:
            if text_width(head + char + tail) >= width:
                break
            head += char
        text = f"{head}…{tail}"
    return text + " " * (width - text_width(text))


def lock_table(locks: Sequence[LockInfo], within: int | None = None) -> str:
    """The table of locks without the owner ids, which are long; JSON and CSV have them. A rate column is included if a
    lock is hot. More columns are omitted to fit ``within``."""
    omitted = {"owner"} if any(lock.rate for lock in locks) else {"owner", "rate"}
    columns = {
        field.heading: [printable(field.text(lock)) for lock in locks]
        for field in LOCK_FIELDS
        if field.heading not in omitted
    }
    widths = {heading: max(map(text_width, (heading, *texts))) for heading, texts in columns.items()}
    # Lines that wrap are hard to read, and so are names that are cut short. So a narrow terminal gets fewer columns.
    for dispensable in DISPENSABLE:
        if within is None or sum(_least(name, widths[name], False) + 2 for name in columns) - 2 <= within:
            break
        del columns[dispensable]
    return table([*columns], zip(*columns.values(), strict=True), within)


def deadlock_lines(locks: Iterable[LockInfo]) -> Iterator[str]:
    """The owners of each deadlock that some of the locks are part of, with the locks that they hold and wait for."""
    for deadlock in dict.fromkeys(lock.deadlock for lock in locks if lock.deadlock):
        yield "\nDeadlock:"
        yield from (f"  {printable(step)}" for step in deadlock.steps)


def terminal_width(out: Any) -> int | None:
    """The width of the terminal that a stream prints to; None if it is not a terminal."""
    return shutil.get_terminal_size().columns if out.isatty() else None


def lock_csv(locks: Iterable[LockInfo]) -> str:
    """One line for each lock, with times in seconds; a text that a spreadsheet would run as a formula is quoted."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([field.heading.replace(" ", "_") for field in LOCK_FIELDS])
    for lock in locks:
        cells = [field.text(lock) for field in LOCK_FIELDS]
        # Spreadsheets compute with numbers, not with "7.1 s".
        cells[8:10] = [lock.held_for, lock.remaining_lease]
        cells[-1] = lock.rate
        writer.writerow([_inert(cell) for cell in cells])
    return out.getvalue().rstrip("\n")


def to_json(document: list[Mapping[str, Any]]) -> str:
    return json.dumps(document, indent=2)


def _together(values: Iterable[object]) -> str:
    """Different values in their order; ``–`` for unknown values."""
    return ", ".join(dict.fromkeys(str(value or "–") for value in values))


def _inert(cell: object) -> object:
    if not isinstance(cell, str):
        return cell
    text = printable("" if cell == "–" else cell)
    # Spreadsheets run a text that begins like this as a formula, unless a quote precedes it.
    return f"'{text}" if text[:1] in {"=", "+", "-", "@"} else text


def seconds(text: str) -> float:
    """Parse an option that is a duration."""
    return _seconds(text, "a number of seconds, 0 or more")


def pause(text: str) -> float:
    """Parse an option that is the pause between repetitions."""
    value = _seconds(text, "a number of seconds from 0.1")
    if value < 0.1:
        raise ArgumentTypeError(f"must be a number of seconds from 0.1, not {text!r}")
    return value


def wait_seconds(text: str) -> float | None:
    """Parse an option that is a wait time; None waits forever."""
    return None if text == "forever" else _seconds(text, "a number of seconds, 0 or more, or 'forever'")


def _seconds(text: str, expected: str) -> float:
    value = math.nan
    with suppress(ValueError):
        value = float(text)
    if not 0 <= value <= LONGEST:
        raise ArgumentTypeError(f"must be {expected}, not {text!r}{limit_for(value)}")
    return value


def check_usage(using: str | None, names: Iterable[str] = ()) -> None:
    """Raise CommandError for an alias that RLOCK does not have, and for invalid names of locks.

    Raises ImproperlyConfigured when RLOCK itself is wrong.
    """
    if using is not None and using not in get_aliases():
        raise CommandError(str(unknown_alias(using)), returncode=USAGE)
    try:
        for name in names:
            checked_text("lock's name", name)
    except ValueError as error:
        raise CommandError(str(error), returncode=USAGE) from error


def reason(error: LockUnavailableError | ImproperlyConfigured | ValueError) -> str:
    return f"Redis did not respond: {error.reason}" if isinstance(error, LockUnavailableError) else str(error)


def did_you_mean(names: Iterable[str], using: str | None) -> str:
    """Advice that names held locks whose names resemble those of free locks; empty if there are none."""
    near = dict.fromkeys(found for name in names for found in near_names(name, using))
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""


def failed(error: LockUnavailableError | ImproperlyConfigured) -> CommandError:
    return CommandError(reason(error), returncode=ERROR)


def unread(errors: Mapping[str, LockUnavailableError | ImproperlyConfigured]) -> CommandError:
    """The error for aliases whose locks could not be read."""
    return CommandError("\n".join(_unread(alias, error) for alias, error in errors.items()), returncode=ERROR)


def _unread(alias: str, error: LockUnavailableError | ImproperlyConfigured) -> str:
    if isinstance(error, LockUnavailableError):
        return f"The Redis server of alias {alias!r} did not respond: {error.reason}"
    return str(error)
