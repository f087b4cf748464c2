"""Processes that take one FairLock in turn, and are killed, paused and disconnected meanwhile; who was inside when?

    python -m tests.faults.kills [--strikes N] [--workers N] [--seed N] ...

Each writes down when it found that it held the lock. All read one clock, so no two of these spans may overlap.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Self

from django_rlock import FairLock, RLockError
from django_rlock.locks.holds import HOLDS
from example_project.embedded import EmbeddedServer
from tests.eventually import eventually
from tests.processes import ClientProcess

OPTIONS = {"WATCHDOG_TIMEOUT": 4.0, "WAITER_ALIVE_TIME": 5.0, "CLAIM_TIME": 2.0}
STRIKES = ("kill", "pause", "long pause", "long pause", "disconnect", "deafen", "stall")
"""What happens to a process, or to the server."""
GOES_ON = 2000
"""What the processes write between two strikes at least, in bytes: some dozens of holds."""
PAUSES = {"pause": (0.01, 1.5), "long pause": (1.8, 5.0)}
"""How long a process is stopped, in seconds: below the claim time, and about it and beyond it."""
LONG_HOLD, LONG_HOLDS = 3.0, 0.01
"""How long some holds last, in seconds, which have to be renewed; and how many of them."""


class Span(NamedTuple):
    """From when to when a process found again and again that it held the lock; and whether it had not asked."""

    begin: float
    end: float
    worker: str
    believed: bool


class Outcome(NamedTuple):
    """What happened, and the spans that overlap."""

    strikes: Counter[str]
    spans: list[Span]
    overlaps: list[tuple[Span, Span]]

    @property
    def believed(self) -> int:
        return sum(span.believed for span in self.spans)

    def __str__(self) -> str:
        struck = ", ".join(f"{times} × {kind}" for kind, times in self.strikes.items())
        return f"{len(self.spans)} holds, {self.believed} of them believed; {struck}; {len(self.overlaps)} overlaps"


def run(strikes: int, workers: int, seed: float) -> Outcome:
    """A number of strikes, each after the processes have made progress, and their results."""
    with EmbeddedServer() as server, tempfile.TemporaryDirectory() as directory:
        with Nemesis(server, Path(directory), workers, seed) as nemesis:
            for _ in range(strikes):
                nemesis.strike()
            nemesis.go_on()
        spans = sorted(spans_in(Path(directory)))
    return Outcome(nemesis.struck, spans, overlaps_of(spans))


class Nemesis:
    """Starts the processes and strikes at them, at times and in ways that only the seed knows."""

    def __init__(self, server: EmbeddedServer, directory: Path, workers: int, seed: float) -> None:
        self.struck: Counter[str] = Counter()
        self._url = server.url
        self._client = server.client()
        self._directory = directory
        self._random = random.Random(seed)
        self._started = 0
        self._workers = [self._start() for _ in range(workers)]
        self._paused: dict[ClientProcess, float] = {}

    def __enter__(self) -> Self:
        self.go_on()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.__exit__()
        self._client.close()

    def _start(self) -> ClientProcess:
        self._started += 1
        log = self._directory / f"{self._started}"
        log.touch()
        worker = ClientProcess(self._url, OPTIONS)
        worker.begin(f"__import__('tests.faults.kills', fromlist=['']).work({str(log)!r}, {self._random.random()})")
        return worker

    def go_on(self) -> None:
        """Wait until some holds have been taken after now."""
        size = self._written()

        def goes_on() -> bool:
            self._resume()
            return self._written() > size + GOES_ON

        eventually(goes_on)

    def _written(self) -> int:
        return sum(log.stat().st_size for log in self._directory.iterdir())

    def _resume(self) -> None:
        now = time.monotonic()
        for worker, until in list(self._paused.items()):
            if now >= until:
                worker.resume()
                del self._paused[worker]

    def strike(self) -> None:
        kind = self._random.choice(STRIKES)
        self.struck[kind] += 1
        match kind:
            case "kill":
                self._kill(self._random.randrange(len(self._workers)))
            case "pause" | "long pause":
                worker = self._random.choice(self._workers)
                worker.pause()
                self._paused[worker] = time.monotonic() + self._random.uniform(*PAUSES[kind])
            case "disconnect":
                self._client.client_kill_filter(_type="normal", skipme=True)
            case "deafen":
                self._client.client_kill_filter(_type="pubsub", skipme=True)
            case "stall":
                self._client.client_pause(self._random.randrange(1000), all=True)
        self.go_on()

    def _kill(self, number: int) -> None:
        worker = self._workers[number]
        self._paused.pop(worker, None)
        worker.__exit__()
        self._workers[number] = self._start()


def spans_in(directory: Path) -> list[Span]:
    """What the processes wrote down. A killed one may have begun a line."""
    spans: dict[tuple[str, int], Span] = {}
    for log in directory.iterdir():
        for line in log.read_text().splitlines():
            with suppress(ValueError):
                number, now, believed = json.loads(line)
                span = spans.get((log.name, number))
                spans[log.name, number] = Span(span.begin if span else now, now, log.name, believed)
    return list(spans.values())


def overlaps_of(spans: Sequence[Span]) -> list[tuple[Span, Span]]:
    """Those that begin before the one before them has ended."""
    return [(one, other) for one, other in pairwise(spans) if other.begin < one.end]


# --- in the processes ------------------------------------------------------------------------------------------------


def work(log: str, seed: float) -> None:
    """Take the lock for ever, and write down when it is held."""
    choice = random.Random(seed)
    lock = FairLock("stock:42")
    out = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    number = 0
    while True:
        with suppress(RLockError), lock:
            number += 1
            believed = HOLDS.snapshot()[0].is_unconfirmed
            leave_at = time.monotonic() + (LONG_HOLD if choice.random() < LONG_HOLDS else choice.random() * 0.002)
            while True:
                now = time.monotonic()
                if lock.lost:  # asked after the clock, so it was held then
                    break
                os.write(out, json.dumps([number, now, believed]).encode() + b"\n")
                if now >= leave_at:
                    break
                time.sleep(0.0005)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.kills", description="Kills and pauses, and overlaps.")
    parser.add_argument("--strikes", type=int, default=500, help="how often something happens (500)")
    parser.add_argument("--workers", type=int, default=8, help="processes (8)")
    parser.add_argument("--seed", type=float, default=1, help="chooses what happens when (1)")
    options = parser.parse_args(arguments)
    outcome = run(options.strikes, options.workers, options.seed)
    print(outcome, *outcome.overlaps, sep="\n")  # noqa: T201
    return bool(outcome.overlaps)


if __name__ == "__main__":
    sys.exit(main())
