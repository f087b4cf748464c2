"""What the commands print: tables for people, JSON and CSV for programs; never a control character."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError

from django_rlock.exceptions import LockUnavailableError
from django_rlock.inspection.infos import LockInfo

ERROR, USAGE, NOTHING_MATCHED = 1, 2, 3
"""Exit statuses."""


class Field(NamedTuple):
    """A column of a table."""

    heading: str
    text: Callable[[LockInfo], object]


LOCK_FIELDS = (
    Field("lock", lambda lock: lock.name),
    Field("alias", lambda lock: lock.using),
    Field("kind", lambda lock: lock.kind or "–"),
    Field("host", lambda lock: lock.holder.host or "–"),
    Field("pid", lambda lock: lock.holder.pid or "–"),
    Field("place", lambda lock: lock.holder.place or "–"),
    Field("doing", lambda lock: lock.holder.doing or "–"),
    Field("holds", lambda lock: lock.count),
    Field("held for", lambda lock: lock.holder.held_for_text),
    Field("time left", lambda lock: lock.time_left_text),
    Field("waiting", lambda lock: lock.waiting),
    Field("state", lambda lock: f"{lock.state.value} {lock.quorum_text}".rstrip()),
    Field("owner", lambda lock: lock.holder.owner),
)


def printable(text: object) -> str:
    """A text that moves no cursor and colours nothing: control characters are written as escapes."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in str(text))


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns as wide as their longest text."""
    lines = [[heading.upper() for heading in headings], *([printable(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def lock_table(locks: Iterable[LockInfo]) -> str:
    """Without the owner, which is long; JSON and CSV have it."""
    fields = LOCK_FIELDS[:-1]
    return table([field.heading for field in fields], ([field.text(lock) for field in fields] for lock in locks))


def lock_csv(locks: Iterable[LockInfo]) -> str:
    """One line for each lock, times in seconds; a text that a spreadsheet would run as a formula is quoted."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([field.heading.replace(" ", "_") for field in LOCK_FIELDS])
    for lock in locks:
        cells = [field.text(lock) for field in LOCK_FIELDS]
        cells[8:10] = [lock.held_for, lock.remaining_lease]
        writer.writerow([_inert(cell) for cell in cells])
    return out.getvalue().rstrip("\n")


def to_json(document: list[Mapping[str, Any]]) -> str:
    return json.dumps(document, indent=2)


def _inert(cell: object) -> object:
    if not isinstance(cell, str):
        return cell
    text = printable("" if cell == "–" else cell)
    return f"'{text}" if text[:1] in {"=", "+", "-", "@"} else text


def failed(error: LockUnavailableError | ImproperlyConfigured) -> CommandError:
    text = f"Redis did not answer: {error.reason}" if isinstance(error, LockUnavailableError) else str(error)
    return CommandError(text, returncode=ERROR)
