"""Records of holds, and of the deeds of the nemesis: lines of JSON, one file for each process.

All times are those of ``now``, which the processes of a machine share. A line is written by one call, so a process that
is killed leaves whole lines behind.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from tests.clocks import kernels_clock

now = kernels_clock()
"""The time in seconds, by a clock that the nemesis leaves alone."""
ALONE, READ, PERMIT = "alone", "read", "permit"
"""How a hold goes with others of its name: with none; with readers; with as many as there are permits."""
FORGETS = "forgets"
"""The effect of what makes a server forget locks, or end their leases early."""
NODE_FORGETS = "a node forgets"
"""The effect of what makes a RedLock's node forget, which knows that it did: no overlap is explained by it."""
STEPS_BACK = "steps back"
"""The effect of a clock that is set back."""
DOUBTS = "doubts"
"""The effect of clocks that are wrong: holders ask, and count a hold as lost if they get no reply in time."""
WIRE = "wire"
"""The place of what is done to commands and replies on their way, whatever server they are for."""
ENDS = "end a process"
"""The deed after which a process, which the event names, holds nothing any more."""
LATE = 30.0
"""How long after its sending a command without a reply may still be executed, in seconds."""


@dataclass(slots=True)
class Hold:
    """What an owner took: from when until when it was promised to it. ``names`` are those of all members.

    ``until`` is as long as the lock itself said that it was held, or, of a holder who could not ask any more, as the
    lease ran of which it knew. ``told`` is when it was told of a loss before that lease ended, and ``known_at`` when it
    last was told of none. ``lease`` is the longest that it was given; inf has no end.
    """

    id: str
    kind: str
    place: str
    names: tuple[str, ...]
    mode: str
    amount: int
    limit: int
    owner: str
    asked: float
    got: float
    until: float
    known_at: float
    lease: float
    token: int | None = None
    told: float | None = None
    left: bool = False
    deadline: float = math.inf

    @property
    def process(self) -> str:
        return self.owner.partition(".")[0]

    def __str__(self) -> str:
        end = "" if self.left else ", not given back"
        told = f", told of its loss at {self.told:.4f}" if self.told else ""
        return f"{self.kind} {self.owner} {self.got:.4f}…{self.until:.4f} (lease {self.lease:.1f} s{end}{told})"


@dataclass(frozen=True)
class Event:
    """What the nemesis did, or a worker who frees by force: ``name`` is the lock that it was done to, None for all."""

    deed: str
    place: str
    began: float
    ended: float
    effect: str | None = None
    name: str | None = None

    def __str__(self) -> str:
        return f"{self.deed} ({self.place}{f', {self.name}' if self.name else ''}) {self.began:.4f}…{self.ended:.4f}"


@dataclass(frozen=True)
class Wrong:
    """What a worker saw that must not be; of a name between two times, where forgetting would explain it."""

    what: str
    at: float
    place: str | None = None
    since: float = 0.0


@dataclass
class History:
    """All that was recorded."""

    holds: list[Hold] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    wrongs: list[Wrong] = field(default_factory=list)


class Log:
    """Where a process writes."""

    def __init__(self, folder: Path, process: str) -> None:
        self._file = os.open(folder / f"{process}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, line: str, **fields: Any) -> None:
        os.write(self._file, (json.dumps({"line": line, **fields}) + "\n").encode())

    def event(self, deed: str, place: str, began: float, **fields: Any) -> None:
        """What has just been done."""
        self.write("event", deed=deed, place=place, began=began, ended=now(), **fields)

    def wrong(self, what: str, place: str | None = None, since: float = 0.0) -> None:
        self.write("wrong", what=what, at=now(), place=place, since=since)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)


def read(folder: Path) -> History:
    """All that the processes have written into a folder."""
    history = History()
    for path in sorted(folder.glob("*.jsonl")):
        _read_process(history, lines_of(path))
    history.holds.sort(key=lambda hold: hold.got)
    history.events.sort(key=lambda event: event.began)
    _end_with_their_processes(history)
    return history


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    """What one process has written."""
    with path.open() as file:
        for line in file:
            if line.endswith("\n"):  # the last one may be on its way
                yield json.loads(line)


def _read_process(history: History, lines: Iterator[dict[str, Any]]) -> None:
    holds: dict[str, Hold] = {}
    freeing: dict[str, Event] = {}
    for fields in lines:
        line = fields.pop("line")
        if line == "got":
            deadline = fields.pop("deadline")
            hold = Hold(
                **{**fields, "names": tuple(fields["names"])}, until=deadline, deadline=deadline, known_at=fields["got"]
            )
            holds[hold.id] = hold
            history.holds.append(hold)
        elif line == "event":
            history.events.append(Event(**fields))
        elif line == "freeing":
            number = fields.pop("id")
            freeing[number] = Event(**fields, ended=fields["began"] + LATE, effect=FORGETS)
        elif line == "freed":
            freeing[fields["id"]] = replace(freeing[fields["id"]], ended=fields["ended"])
        elif line == "wrong":
            history.wrongs.append(Wrong(**fields))
        else:
            _go_on(holds[fields["id"]], line, fields)
    history.events += freeing.values()


def _go_on(hold: Hold, line: str, fields: dict[str, Any]) -> None:
    """What a later line says of a hold."""
    at = fields["at"]
    if line == "seen":
        hold.known_at, hold.deadline = at, fields["deadline"]
        hold.until = hold.deadline
        hold.lease = max(hold.lease, fields["lease"])
    elif line == "changing":  # it may end at any time from now on
        hold.until = hold.deadline = min(at, hold.deadline)
    elif line == "leaving":
        hold.until, hold.left = min(at, hold.until), True
    elif line == "lost" and hold.told is None and at < hold.deadline:
        hold.told = at
        hold.until = min(hold.until, hold.known_at)


def _end_with_their_processes(history: History) -> None:
    """A process that ends by itself releases its locks; those of a worker's child are freed by others."""
    ended = {event.name: event.began for event in history.events if event.deed == ENDS}
    for hold in history.holds:
        if (began := ended.get(hold.process)) is not None:
            hold.until = min(hold.until, max(began, hold.got))
            if hold.told is not None and hold.told > began:
                hold.told = None  # by itself
