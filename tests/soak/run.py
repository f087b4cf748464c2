"""One soak: start everything, run the nemesis, let all workers have last turns, look for leaks, check."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.soak.checker import Verdict, check
from tests.soak.crew import Crew
from tests.soak.deeds import DEEDS, Scene
from tests.soak.leaks import close, left_by_ended_processes, left_on_servers
from tests.soak.nemesis import COMPILER, LIBFAKETIME, Nemesis
from tests.soak.records import Log, read
from tests.soak.servers import Servers

CONTROL_LASTS = 1.0
"""Seconds without locks, after which the checker looks."""
MOST_CONTROLS = 10


@dataclass
class Report:
    """The outcome of a soak. ``folder`` has the records of one that did not pass."""

    seed: str
    seconds: float
    deeds: Counter[str]
    skipped: list[str]
    failed: list[str]
    met: Counter[str]
    stuck: list[str]
    leaks: dict[str, Any]
    verdict: Verdict
    folder: Path | None = None

    @property
    def passed(self) -> bool:
        return not (self.verdict.violations or self.leaks or self.stuck)

    def __str__(self) -> str:
        holds = self.verdict.holds
        lines = [
            f"seed {self.seed}, {self.seconds:.0f} s: {self.deeds.total()} deeds of {len(self.deeds)} kinds",
            f"{holds.total()} holds, {holds.total() / self.seconds:.0f} a second",
            f"{len(self.verdict.violations)} violations, {self.verdict.known.total()} known",
            f"holds: {counts(holds)}",
            f"met: {counts(self.met)}",
            f"deeds: {counts(self.deeds)}",
            f"known: {counts(self.verdict.known)}",
        ]
        if self.skipped:
            lines.append(f"skipped: {', '.join(self.skipped)}")
        lines += [f"failed: {text}" for text in self.failed]
        lines += [f"STUCK: {text}" for text in self.stuck]
        lines += [f"LEFT: {place}: {what}" for place, what in self.leaks.items()]
        lines += [f"VIOLATION: {violation}" for violation in self.verdict.violations]
        if self.folder:
            lines.append(f"records and stacks: {self.folder}")
        return "\n".join(lines)


def counts(counter: Counter[str]) -> str:
    """In words."""
    return ", ".join(f"{number} {what}" for what, number in sorted(counter.items())) or "none"


@dataclass
class _Left:
    stuck: list[str] = field(default_factory=list)
    leaks: dict[str, Any] = field(default_factory=dict)


def soak(seed: str, seconds: float, workers: int = 4) -> Report:
    """All of it. It ends by itself: ``seconds``, and then as long as everything takes to come to rest."""
    with temporary_folder() as folder, ExitStack() as stack:
        log = stack.enter_context(Log(folder, "nemesis"))
        servers = Servers(stack, folder)
        settings = [servers.settings(past_proxies) for past_proxies in (True, False)]
        crew = stack.enter_context(Crew(workers, seed, folder, settings))
        found = {LIBFAKETIME: servers.library, COMPILER: crew.library}
        skipped = [deed for deed in DEEDS if deed.needs and found[deed.needs] is None]
        deeds = [deed for deed in DEEDS if deed not in skipped]
        nemesis = Nemesis(Scene(log, threading.Event(), servers, crew), deeds, seed)
        nemesis.rage(seconds)
        left = _come_to_rest(crew, servers)
        report = Report(
            seed=seed,
            seconds=seconds,
            deeds=nemesis.done,
            skipped=[f"{deed.name} (without {deed.needs})" for deed in skipped],
            failed=nemesis.failed,
            met=crew.met,
            stuck=left.stuck,
            leaks=left.leaks,
            verdict=check(read(folder)),
        )
        if not report.passed:
            report.folder = keep(folder)
        return report


def _come_to_rest(crew: Crew, servers: Servers) -> _Left:
    left = _Left(stuck=crew.let_have_last_turns())
    if left.stuck:
        left.stuck += servers.pair_now()
    crew.note_met()
    clients = servers.clients()
    try:
        if not left.stuck:
            left.leaks |= {name: each for name, each in crew.left().items() if each}
            left.leaks |= left_on_servers(clients)
        for worker in crew.workers:
            worker.kill()
        left.leaks |= left_by_ended_processes(clients)
    finally:
        close(clients)
    return left


def control(seed: str) -> Verdict:
    """What the checker says of locks that do not lock."""
    with temporary_folder() as folder, Crew(2, seed, folder, [{}], control=True) as crew:
        for _ in range(MOST_CONTROLS):
            time.sleep(CONTROL_LASTS)
            if (verdict := check(read(folder))).violations:
                break
        for worker in crew.workers:
            worker.kill()
        return verdict


@contextmanager
def temporary_folder(prefix: str = "rlock-soak-") -> Iterator[Path]:
    """For records; it is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def keep(folder: Path) -> Path:
    """A copy of it that stays."""
    kept = Path(tempfile.mkdtemp(prefix=f"{folder.name}-kept-"))
    shutil.copytree(folder, kept, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock"))
    return kept
