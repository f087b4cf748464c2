"""Celery tasks under locks: what a run costs the worker, compared with other libraries, and its commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from benchmarks import stage
from benchmarks.results import Row, Table, median_row
from benchmarks.timing import rotated
from django_rlock import rlock
from example_project.embedded import EmbeddedServer

TASKS, ROUNDS, DUPLICATES = 200, 9, 10_000
QUICK_TASKS, QUICK_ROUNDS, QUICK_DUPLICATES = 10, 1, 20
PROCESSES = 4
"""How many processes drain the duplicates."""
WARM_UP = 5
"""After this many tasks the processes are connected, and the server knows the scripts."""
RATIO_LIMIT, RUN_LIMIT, SKIP_LIMIT = 1.15, 2.1, 2.1
"""The tenth of a command is for the process reports."""
PATIENCE = 120.0
"""How long a worker may take for the tasks that it was sent, in seconds."""
ROOT = Path(__file__).parents[1]
_BROKER = "RLOCK_BENCH_BROKER"
_PLAIN, _PLAIN_LATE = "plain", "plain, acks_late"
_NAMES = {
    "two round trips, raw socket": "raw",
    "LockedTask": "locked",
    "LockedTask, acks_late": "locked_late",
    "celery-once": "once",
    "celery-singleton": "singleton",
    _PLAIN: "plain",
    _PLAIN_LATE: "plain_late",
}
_LATE = {"LockedTask, acks_late"}
"""Those that are compared with the plain task whose message is acknowledged as late as theirs."""
_WHOSE = {"worker": "cpu time of the worker", "both": "cpu time of the worker and the sender"}
"""What is timed. Some libraries take their locks where a task is sent."""


class _Cost(NamedTuple):
    """CPU seconds."""

    worker: float
    both: float


def run(quick: bool) -> list[Table]:
    with EmbeddedServer(port=0) as broker:
        os.environ[_BROKER] = broker.url
        bench = _Bench(broker)
        if quick:
            return [bench.cpu(QUICK_TASKS, QUICK_ROUNDS), bench.commands(QUICK_TASKS, QUICK_DUPLICATES)]
        return [bench.cpu(TASKS, ROUNDS), bench.commands(TASKS, DUPLICATES)]


class _Bench:
    def __init__(self, broker: EmbeddedServer) -> None:
        from benchmarks import celery_app  # its import reads the environment

        self._tasks: Any = celery_app
        self._broker = broker.client()
        self._sent = 0

    # --- CPU time ----------------------------------------------------------------------------------------------------

    def cpu(self, tasks: int, rounds: int) -> Table:
        """All contenders in turn on one worker, so that a busy machine slows them all equally."""
        costs: dict[str, list[_Cost]] = {name: [] for name in _NAMES}
        with _worker(1) as worker:
            self._wait()  # until it has started
            for number in range(-1, rounds):  # the first round warms up
                for name in rotated(list(_NAMES), number):
                    cost = self._cost(worker, _NAMES[name], tasks)
                    if number >= 0:
                        costs[name].append(cost)
        rows = [*_ratios(costs, "worker", RATIO_LIMIT), *_ratios(costs, "both")]
        for whose, described in _WHOSE.items():
            spent = [1e6 * getattr(cost, whose) / tasks for cost in costs[_PLAIN]]
            rows.append(median_row(f"a plain task, {described}", spent, "µs"))
        return Table("Celery: an empty task in a prefork worker of one process", rows)

    def _cost(self, worker: subprocess.Popen[bytes], name: str, tasks: int) -> _Cost:
        """What a number of tasks cost the worker with its child, and this process, which sends them."""
        processes = [worker.pid, *_children(worker.pid)]
        worker_began, sender_began = _cpu_time(processes), time.process_time()
        self._send(name, tasks)
        sender = time.process_time() - sender_began
        self._wait()
        spent = _cpu_time(processes) - worker_began
        return _Cost(spent, spent + sender)

    def _send(self, name: str, tasks: int, key: int | None = None) -> None:
        """Send tasks of one key, or each with its own."""
        with self._tasks.app.producer_pool.acquire() as producer:
            for _ in range(tasks):
                self._sent += 1
                getattr(self._tasks, name).apply_async([self._sent if key is None else key], producer=producer)

    def _wait(self) -> None:
        """Wait until a worker of one process has done all that was sent."""
        name = uuid4().hex
        self._tasks.tell.delay(name)
        if self._broker.blpop([name], timeout=PATIENCE) is None:
            raise TimeoutError(f"The worker was not done within {PATIENCE:g} s.")

    # --- commands ----------------------------------------------------------------------------------------------------

    def commands(self, tasks: int, duplicates: int) -> Table:
        """The commands that clients send to the locks' server, including those of process reports."""
        with _worker(1):
            run, late = (self._sent_for("locked", tasks), self._sent_for("locked_late", tasks))
            with rlock("bench:0"):
                skip = self._sent_for("locked", tasks, key=0)
        rows = [
            Row("a run", run, at_most=RUN_LIMIT),
            Row("a run, acks_late, with its marker", late, at_most=RUN_LIMIT + 1),
            Row("a skip", skip, at_most=SKIP_LIMIT),
            Row(f"each of {duplicates:,} duplicates", self._drained(duplicates), at_most=SKIP_LIMIT),
        ]
        return Table(f"Celery: commands to the server of the locks; {PROCESSES} processes drain the duplicates", rows)

    def _sent_for(self, name: str, tasks: int, key: int | None = None) -> float:
        """Commands for each of a number of tasks, of one key or each with its own."""
        self._send(name, WARM_UP, key)
        self._wait()
        with stage.monitored() as counts:
            self._send(name, tasks, key)
            self._wait()
        return counts.by_clients.total() / tasks

    def _drained(self, duplicates: int) -> float:
        """Commands for each message that is queued when the processes start; all have one key, whose lock is taken."""
        self._send("locked", duplicates, key=0)
        with rlock("bench:0"), stage.monitored() as counts, _worker(PROCESSES):
            give_up_at = time.monotonic() + PATIENCE
            while self._broker.llen("celery") or self._broker.hlen("unacked"):
                if time.monotonic() > give_up_at:
                    raise TimeoutError(f"The duplicates were not drained within {PATIENCE:g} s.")
                time.sleep(0.05)
        return counts.by_clients.total() / duplicates


def _ratios(costs: Mapping[str, Sequence[_Cost]], whose: str, limit: float | None = None) -> list[Row]:
    """What each contender costs, relative to a plain task in the same round."""
    rows = []
    for name in _NAMES:
        if name in (_PLAIN, _PLAIN_LATE):
            continue
        plain = _PLAIN_LATE if name in _LATE else _PLAIN
        pairs = zip(costs[name], costs[plain], strict=True)
        ratios = [getattr(mine, whose) / getattr(theirs, whose) for mine, theirs in pairs]
        at_most = limit if name.startswith("LockedTask") else None
        rows.append(median_row(f"{name}, {_WHOSE[whose]}", ratios, f"× {plain}", at_most=at_most))
    return rows


@contextmanager
def _worker(processes: int) -> Iterator[subprocess.Popen[bytes]]:
    """A prefork worker, which ends with the block after it has finished what it has begun."""
    celery = [sys.executable, "-W", "ignore", "-m", "celery", "-A", "benchmarks.celery_app"]
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "ERROR"]
    environ = {**os.environ, "C_FORCE_ROOT": "1"}
    started = subprocess.Popen(
        [*celery, "worker", "-c", str(processes), *quiet],
        cwd=ROOT,
        env=environ,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield started
    finally:
        started.terminate()
        try:
            started.wait(PATIENCE)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _cpu_time(pids: Iterable[int]) -> float:
    """The CPU seconds that all threads of some processes have used so far, including threads that have ended."""
    return sum(time.clock_gettime(~pid << 3 | 2) for pid in pids)  # how Linux numbers the clocks of processes
