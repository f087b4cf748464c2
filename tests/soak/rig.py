"""The parts that a soak and a campaign share beside nemesis, records and checker: workers, the report, the command."""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar

from tests.soak.checker import Verdict, Violation
from tests.soak.nemesis import Nemesis

MOST_SHOWN = 20
"""Violations that a report spells out."""


class Killable(Protocol):
    def kill(self) -> None: ...


W = TypeVar("W", bound=Killable)


class Crew(Generic[W]):
    """Worker processes. Each is stopped, killed and replaced by the next."""

    def __init__(self, size: int) -> None:
        self.made = 0
        self.workers: list[W] = []
        try:
            for place in range(size):
                self.workers.append(self.make(place))
        except BaseException:
            self.__exit__()
            raise

    def make(self, place: int, before: Sequence[str] = (), **environ: str) -> W:
        """Start a worker; ``before`` begins its command."""
        raise NotImplementedError

    def replace(self, place: int, before: Sequence[str] = (), **environ: str) -> None:
        """Put a new worker where one has ended."""
        self.workers[place] = self.make(place, before, **environ)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            with contextlib.suppress(Exception):
                worker.kill()


@dataclass
class Report:
    """How much was done, and what was wrong. ``folder`` has the records and logs of a run that did not pass."""

    title: str
    counts: dict[str, Counter[str]]
    notes: list[str]
    wrong: list[str]
    violations: list[Violation] = field(default_factory=list)
    folder: Path | None = None

    @property
    def passed(self) -> bool:
        return not (self.wrong or self.violations)

    def __str__(self) -> str:
        lines = [self.title, *(_in_words(what, counter) for what, counter in self.counts.items()), *self.notes]
        lines += [f"{len(self.violations)} violations"]
        lines += [f"VIOLATION: {violation}" for violation in self.violations[:MOST_SHOWN]]
        lines += self.wrong
        if self.folder:
            lines.append(f"records, stacks and logs: {self.folder}")
        return "\n".join(lines)


def report(
    folder: Path,
    nemesis: Nemesis,
    seconds: float,
    verdict: Verdict,
    wrong: list[str],
    notes: Sequence[str] = (),
    **more: Counter[str],
) -> Report:
    """The report of a run; the records of one that did not pass are kept."""
    counts = {"deeds": nemesis.done, "holds": verdict.holds, "known": verdict.known, **more}
    notes = [*notes, *(f"failed: {text}" for text in nemesis.failed)]
    found = Report(f"seed {nemesis.seed}, {seconds:.0f} s", counts, notes, wrong, verdict.violations)
    if not found.passed:
        found.folder = Path(tempfile.mkdtemp(prefix=f"{folder.name}-kept-"))
        shutil.copytree(folder, found.folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock"))
    return found


def _in_words(what: str, counter: Counter[str]) -> str:
    each = ", ".join(f"{number} {name}" for name, number in sorted(counter.items()))
    return f"{what}: {counter.total()} of {len(counter)} kinds: {each}"


@contextmanager
def temporary_folder(what: str) -> Iterator[Path]:
    """For records; it is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix=f"rlock-{what}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def command(name: str, description: str, workers: int) -> argparse.ArgumentParser:
    """The parser of a command that runs the rig. SIGTERM ends all that was started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    parser = argparse.ArgumentParser(prog=f"python -m tests.{name}", description=description)
    parser.add_argument("--seconds", type=float, default=600, help="how long the nemesis rages (600)")
    parser.add_argument("--seed", default=str(random.randrange(10**6)), help="of all that is left to chance (any)")
    parser.add_argument("--workers", type=int, default=workers, help=f"processes ({workers})")
    return parser


def say(text: object) -> None:
    print(text, flush=True)  # noqa: T201
