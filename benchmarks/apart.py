"""Clients in separate processes: each without the threads of others, some without hiredis, Redisson on a JVM.

Each line of a process's standard input is a number of pairs to make, and its answer is the CPU and the wall time that
they took, in nanoseconds. ``main`` is this process in Python; in Java it is ``Pairs.java``.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import portalocker
from django_redis import get_redis_connection

from benchmarks import stage
from benchmarks.contended import take_and_give_each, take_turns
from benchmarks.crew import crew
from benchmarks.peers import LEASE, as_pair
from benchmarks.redisson import UnavailableError, build
from benchmarks.results import Row, Table, median_row
from benchmarks.timing import KINDS, Cost, Costs, Pair, ratios, rotated, time_pairs
from benchmarks.uncontended import BASE, Limits, ratio_rows
from django_rlock import FairLock, RLock

ROUNDS, PAIRS, WARM_UP_PAIRS = 20, 100, 5_000
QUICK_ROUNDS, QUICK_PAIRS, QUICK_WARM_UP_PAIRS = 2, 5, 5
"""A JVM compiles what it has run some thousand times."""
PLAIN_LIMITS: Limits = {"cpu": 0.45, "wall": None}
NO_LIMITS: Limits = {"cpu": None, "wall": None}
REDISSON = "4.7.0"
CLIENTS, TURN_ROUNDS, SECONDS = 8, 7, 1.5
QUICK_CLIENTS, QUICK_TURN_ROUNDS, QUICK_SECONDS = 2, 1, 1.0
WITHOUT_HIREDIS = "import sys; sys.modules['hiredis'] = None"
PORTALOCKER, SHARE = "portalocker", 25
"""It starts and ends a thread for each pair, so it makes only one pair for so many of others."""


def run(quick: bool) -> list[Table]:
    sizes = (QUICK_ROUNDS, QUICK_PAIRS, QUICK_WARM_UP_PAIRS) if quick else (ROUNDS, PAIRS, WARM_UP_PAIRS)
    with_hiredis = {name: _python(name) for name in (BASE, "RLock", "FairLock", PORTALOCKER)}
    plain = {name: _python(name, WITHOUT_HIREDIS) for name in (BASE, "RLock")}
    title = "Uncontended acquire + release, sync, each client in a separate process"
    tables = [
        Table(title, ratio_rows(timed(with_hiredis, *sizes), NO_LIMITS)),
        Table(f"{title}, without hiredis", ratio_rows(timed(plain, *sizes), PLAIN_LIMITS)),
    ]
    try:
        program = build(REDISSON)
    except UnavailableError as error:
        return [*tables, Table("Beside Redisson on a JVM", [], note=str(error))]
    return [*tables, *beside_redisson(program, quick, sizes)]


def beside_redisson(program: Path, quick: bool, sizes: tuple[int, int, int]) -> list[Table]:
    commands = {f"Redisson's {kind}": _java(program, "Pairs", kind) for kind in ("RLock", "FairLock")}
    costs = timed(commands | {name: _python(name) for name in ("RLock", "FairLock")}, *sizes)
    rows = [
        median_row(f"{name}, {kind} time", ratios(costs, name, f"Redisson's {name}", kind), f"× Redisson's {name}")
        for name in ("RLock", "FairLock")
        for kind in KINDS
    ]
    clients, rounds, seconds = (
        (QUICK_CLIENTS, QUICK_TURN_ROUNDS, QUICK_SECONDS) if quick else (CLIENTS, TURN_ROUNDS, SECONDS)
    )
    return [
        Table(f"Uncontended acquire + release beside Redisson {REDISSON} on a warm JVM", rows),
        Table(f"{clients} clients, one lock, 1 ms inside", hand_overs(program, clients, rounds, seconds)),
    ]


def hand_overs(program: Path, clients: int, rounds: int, seconds: float) -> list[Row]:
    """Our clients are processes; Redisson's are threads of one JVM, each with a client and a name of its own."""
    speed = []
    with crew(clients, "benchmarks.contended") as started, process(_java(program, "Turns", str(clients))) as redisson:
        started.run(take_and_give_each)
        for number in range(-1, rounds):  # the first round warms up
            begin = time.monotonic() + 0.1
            ours = sum(seen.acquired for seen in started.run(take_turns, "FairLock", begin, begin + seconds))
            [theirs] = ask(redisson, round(seconds * 1000))
            if number >= 0:
                speed.append(ours / theirs)
    return [median_row("FairLock, throughput", speed, "× Redisson's FairLock")]


def timed(commands: Mapping[str, Sequence[str]], rounds: int, pairs: int, warm_up: int) -> Costs:
    """The times of the processes, one after another in each round, all on the server's core."""
    costs: Costs = {name: [] for name in commands}
    with ExitStack() as stack:
        started = {name: stack.enter_context(process(command)) for name, command in commands.items()}
        for name, each in started.items():
            ask(each, 1 if name == PORTALOCKER else warm_up)
        server = int(stage.observer().info("server")["process_id"])
        stack.enter_context(stage.one_core(server, *(each.pid for each in started.values())))
        for number in range(rounds):
            for name in rotated(list(started), number):
                share = SHARE if name == PORTALOCKER else 1
                cpu, wall = ask(started[name], max(pairs // share, 1))
                costs[name].append(Cost(cpu * share, wall * share))
    return costs


def _python(name: str, before: str = "pass") -> list[str]:
    return [sys.executable, "-c", f"{before}; from benchmarks.apart import main; main({name!r})"]


def _java(program: Path, main: str, argument: str) -> list[str]:
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    return ["java", quiet, "-cp", f"{program / 'classes'}:{program / 'lib'}/*", f"interop.{main}", argument]


@contextmanager
def process(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that answers lines."""
    with subprocess.Popen(command, text=True, bufsize=1, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        try:
            yield started
        finally:
            started.kill()


def ask(process: subprocess.Popen[str], number: int) -> list[int]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{number}\n")
    answer = process.stdout.readline()
    if not answer:
        raise RuntimeError(f"The process of a benchmark has ended: {process.args!r}")
    return [int(word) for word in answer.split()]


# --- in the processes ---------------------------------------------------------------------------------------------


def pair_of(name: str) -> Pair:
    if name == PORTALOCKER:
        return as_pair(portalocker.RedisLock("bench:portalocker", connection=get_redis_connection()))
    if name == BASE:
        return as_pair(get_redis_connection().lock("bench:redis-py", timeout=LEASE))
    return as_pair({"RLock": RLock, "FairLock": FairLock}[name](f"bench:{name}"))


def main(name: str) -> None:
    stage.configure()
    pair = pair_of(name)
    for line in sys.stdin:
        cost = time_pairs(pair, int(line))
        print(round(cost.cpu * 1e9), round(cost.wall * 1e9), flush=True)
