"""How much of a server a crowd of processes needs: a small model, for numbers of your own.

    python -m benchmarks.sizing --processes 100000 --pairs 5000 --handovers 500 --held 20000 --waiting 2000
    python -m benchmarks.sizing --costs out.json ...    # of `make bench ARGS="capacity --json out.json"`

A server does everything in one thread. Each thing costs it what it takes where one look at the sockets finds many
commands. Besides, each look costs it something. A server that is mostly idle wakes up for each command, a busy one
finds all that have come meanwhile: so its use grows quickly at first, and with the work later.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

TITLE = "Capacity: the CPU time that a server needs"
USE = 0.6
"""The share of its core that a server should use at most, so that commands do not queue."""
REPORT_BEAT, ALIVE_TIME, HEARTBEAT_SHARE = 5.0, 10.0, 0.3
"""Seconds between two signs of life of a report; WAITER_ALIVE_TIME, and the share of it between those of waiters."""
MOST_REPORTS = 1.0
"""How often a process writes its report at most, per second."""


@dataclass(frozen=True)
class Costs:
    """What things cost. Times are microseconds, of the server's CPU where nothing else is said.

    ``wake`` is for each time that the server wakes up; what comes within ``together`` by the clock needs no other.
    ``idle`` is the share of a core that a server uses without clients. ``latency`` is the time by the clock that one
    hot lock needs from holder to holder. ``connection`` is the memory in bytes of one that has nothing to do.
    """

    pair: float
    handover: float
    renewal: float
    report: float
    heartbeat: float
    wake: float
    together: float
    idle: float
    latency: float
    connection: float

    @classmethod
    def read(cls, file: Path) -> Self:
        """Those that the benchmark wrote with ``--json``; LookupError if it did not measure them."""
        for table in json.loads(file.read_text(encoding="utf-8"))["tables"]:
            if table["title"] == TITLE:
                return cls.of_rows(table["rows"])
        raise LookupError(f"The benchmark 'capacity' is not in {file}.")

    @classmethod
    def of_rows(cls, rows: Sequence[Mapping[str, Any]]) -> Self:
        found = {row["what"]: row["details"]["µs"] if "µs" in row["details"] else row["figure"] for row in rows}
        return cls(**{field.name: found[LABELS[field.name]] for field in fields(cls)})


LABELS = {
    "pair": "acquire + release",
    "handover": "hand-over to a waiter",
    "renewal": "renewal of a hold",
    "report": "report of a process",
    "heartbeat": "sign of life of a waiter",
    "wake": "waking up",
    "together": "what comes within this time is done together",
    "idle": "a server without clients",
    "latency": "one hot lock, from holder to holder",
    "connection": "memory of a connection",
}
"""The rows of the benchmark's table."""
HERE = Costs(
    pair=38, handover=83, renewal=16, report=10, heartbeat=21, wake=102, together=1830,
    idle=0.0014, latency=1090, connection=1235,
)  # fmt: skip
"""What the run in docs/design/capacity.md measured."""
PACKETS = {"pair": 2, "handover": 2, "renewal": 1, "report": 1, "heartbeat": 1}
"""What a client sends for each."""


@dataclass(frozen=True)
class Load:
    """What all processes together do. ``pairs`` and ``handovers`` are per second, the others at any moment.

    A hold counts as ``held`` when it lasts longer than a third of its ``lease``, a process as ``reporting`` when it has
    held or waited for half a second; None is one for each that is held or waited for.
    """

    processes: int = 1
    pairs: float = 0.0
    handovers: float = 0.0
    held: float = 0.0
    waiting: float = 0.0
    reporting: float | None = None
    lease: float = 30.0

    def rates(self) -> dict[str, float]:
        """How often per second each thing happens that has a cost."""
        renewals = self.held / (self.lease / 3)
        reporting = min(self.processes, self.held + self.waiting) if self.reporting is None else self.reporting
        return {
            "pair": self.pairs,
            "handover": self.handovers,
            "renewal": renewals,
            "report": reporting / REPORT_BEAT + min(reporting * MOST_REPORTS, renewals),
            "heartbeat": self.waiting / (ALIVE_TIME * HEARTBEAT_SHARE),
        }


@dataclass(frozen=True)
class Needs:
    """What a load needs: ``work`` is in cores without the time for waking up, ``use`` what one server shows, with it.

    A use of 1 or more is more than one can serve. ``servers`` are masters of a cluster, each used as USE says, over
    which the names are spread evenly. ``connections`` and ``memory``, in bytes, are those of each.
    """

    work: float
    use: float
    servers: int
    connections: int
    memory: float


def needs(load: Load, costs: Costs = HERE) -> Needs:
    """What a load needs. Each process has one connection for commands, and one for notifications once it has waited."""
    rates = load.rates()
    servers = 1
    while use_of({what: rate / servers for what, rate in rates.items()}, costs) > USE:
        servers += 1
    connections = 2 * load.processes
    memory = connections * costs.connection
    return Needs(work_of(rates, costs), use_of(rates, costs), servers, connections, memory)


def work_of(rates: Mapping[str, float], costs: Costs) -> float:
    """The share of a core for things that happen at these rates per second, without the time for waking up."""
    return sum(rate * getattr(costs, what) for what, rate in rates.items()) / 1e6


def use_of(rates: Mapping[str, float], costs: Costs) -> float:
    """The share of a core that a server uses for things that happen at these rates per second."""
    packets = sum(rate * PACKETS[what] for what, rate in rates.items())
    return costs.idle + work_of(rates, costs) + waking(packets, costs.wake, costs.together)


def waking(packets: float, wake: float, together: float) -> float:
    """The share of a core for waking up: each time is followed by some in which all that comes is done at once."""
    return wake / 1e6 * packets / (1 + together / 1e6 * packets)


def fit_waking(slow: tuple[float, float], quick: tuple[float, float]) -> tuple[float, float]:
    """``wake`` and ``together`` from two rates of packets, the lower one first, and the shares that waking up took.

    The reverse of the share is linear in that of the rate. Measurements that contradict it give a ``together`` of 0.
    """
    (rate, share), (higher, larger) = slow, quick
    slope = (1 / share - 1 / larger) / (1 / rate - 1 / higher)
    if slope <= 0 or 1 / share <= slope / rate:
        return 1e6 * share / rate, 0.0
    return 1e6 / slope, 1e6 * (1 / share / slope - 1 / rate)


def handovers_of(inside: float, costs: Costs = HERE) -> float:
    """How often per second one hot lock changes hands, if each holder works for ``inside`` seconds."""
    return 1 / (inside + costs.latency / 1e6)


def most(load_of: Callable[[float], Load], costs: Costs = HERE) -> float:
    """How much of something one server carries, used as USE says; ``load_of`` is the load of so much, and grows."""
    low, high = 0.0, 1e9
    while high - low > max(1e-6, low * 1e-6):
        middle = (low + high) / 2
        low, high = (low, middle) if use_of(load_of(middle).rates(), costs) > USE else (middle, high)
    return low


HELP = {
    "processes": "all that use the locks",
    "pairs": "uncontended acquires and releases, per second, of all processes together",
    "handovers": "locks that are got after a wait, per second, by all together",
    "held": "locks that are held for longer than a third of the lease, at any moment",
    "waiting": "those who wait, at any moment",
    "reporting": "processes that hold or wait for more than half a second; None: one for each hold and wait",
    "lease": "WATCHDOG_TIMEOUT, in seconds",
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sizing", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--costs", type=Path, metavar="FILE", help="JSON of your own run of the benchmark")
    for name, default in asdict(Load()).items():
        kind = int if isinstance(default, int) else float
        parser.add_argument(f"--{name}", type=kind, default=default, metavar="N", help=f"{HELP[name]} ({default})")
    options = vars(parser.parse_args(arguments))
    file = options.pop("costs")
    try:
        costs = Costs.read(file) if file else HERE
    except (LookupError, OSError, ValueError) as error:
        parser.error(str(error))
    found = needs(Load(**options), costs)
    print(f"work for a busy server      {found.work:.3g} cores")
    print(f"use of one server           {found.use:.0%}" + (" – more than it has" if found.use >= 1 else ""))
    print(f"servers, used to {USE:.0%}        {found.servers}")
    print(f"connections to each         {found.connections:,}, {found.memory / 2**20:,.0f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
