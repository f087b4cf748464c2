"""Loads that the model's numbers were not taken from, and how far its predictions are from what they need."""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from benchmarks import stage
from benchmarks.capacity import packets
from benchmarks.capacity.raw import drive, links
from benchmarks.capacity.units import HotLock
from benchmarks.crew import Crew
from benchmarks.meter import Meter
from benchmarks.results import Row, median_row
from benchmarks.sizing import PACKETS, Costs, Load, handovers_of, use_of
from django_rlock import FairLock, LockTimeoutError

SHARES = {"pair": 0.6, "renewal": 0.15, "report": 0.15, "heartbeat": 0.1}
"""What the connections of a crowd send."""
SEQUELS = {
    "pair": packets.fair_pair,
    "renewal": packets.renewal,
    "report": packets.report,
    "heartbeat": packets.heartbeat,
}
SLOW_TURN = 0.004
"""How long a holder of the hot lock works, in seconds: not what its latency was taken from."""
LEASE, NAMES = 3.0, 10
"""The lease of what the processes hold, and how many locks they wait for."""


class Seen(NamedTuple):
    """What happened at which rates per second, and the share of a core that the server used for it."""

    rates: dict[str, float]
    share: float


def error_row(what: str, seen: Sequence[Seen], costs: Costs) -> Row:
    """The errors of the model's predictions, in per cent of what was measured."""
    predicted = [use_of(each.rates, costs) for each in seen]
    return compared(what, predicted, [each.share for each in seen], 100, "% of a core")


def hot_row(seen: Sequence[HotLock], costs: Costs) -> Row:
    """The same for the turns of one hot lock."""
    predicted = [handovers_of(SLOW_TURN, costs)] * len(seen)
    what = f"one hot lock, {SLOW_TURN * 1000:g} ms inside"
    return compared(what, predicted, [1 / each.seconds for each in seen], 1, "hand-overs a second")


def compared(what: str, predicted: Sequence[float], measured: Sequence[float], scale: float, unit: str) -> Row:
    errors = [(mine / real - 1) * 100 for mine, real in zip(predicted, measured, strict=True)]
    details = {
        f"predicted, {unit}": statistics.median(predicted) * scale,
        f"measured, {unit}": statistics.median(measured) * scale,
    }
    return replace(median_row(what, errors, "% more than measured"), details=details)


def crowd_name(connections: int, rate: float | None) -> str:
    speed = "as fast as one program sends" if rate is None else f"{rate:,.0f} packets a second"
    return f"{connections:,} connections, {speed}"


def crowd(url: str, connections: int, rate: float | None, seconds: float) -> Seen:
    """A crowd that sends a mixture, each connection one thing: at random times, or as fast as it can (None)."""
    kinds = random.Random(connections).choices(list(SHARES), list(SHARES.values()), k=connections)
    with links(url, connections, lambda number: SEQUELS[kinds[number]](number)) as opened:
        meter = Meter()
        sent = drive(opened, seconds, rate)
        spent = meter.spent()
    return Seen(
        {what: kinds.count(what) / connections * sent.rate / PACKETS[what] for what in SHARES}, spent.server_share
    )


class Done(NamedTuple):
    """What a process did: pairs, and whether it waits for a lock."""

    pairs: int
    waits: bool


def settle_all(started: Crew, held: int) -> None:
    """Let real processes hold some locks, and each wait for one."""
    stage.plant("bench:taken:", NAMES, 3600)
    started.run(settle, held)
    time.sleep(LEASE)  # reports are written, and renewals spread


def processes(started: Crew, size: int, rate: float, held: int, seconds: float) -> Seen:
    """Those processes take locks of their own, each at a rate per second."""
    meter = Meter()
    done: list[Done] = started.run(live, rate, time.monotonic() + seconds)
    spent = meter.spent()
    pairs, waiting = sum(each.pairs for each in done) / spent.seconds, sum(each.waits for each in done)
    load = Load(processes=size, pairs=pairs, held=held * size, waiting=waiting, lease=LEASE)
    return Seen(load.rates(), spent.server_share)


# --- in the processes ---------------------------------------------------------------------------------------------

_WAITERS: list[threading.Thread] = []


def settle(held: int) -> None:
    """Take locks that are kept, and begin to wait for one that another owner holds."""
    stage.set_leases(LEASE)
    identity = random.SystemRandom().randrange(10**12)
    for number in range(held):
        FairLock(f"bench:kept:{identity}:{number}").acquire()
    waiter = threading.Thread(target=wait, args=(identity,), daemon=True)
    waiter.start()
    _WAITERS.append(waiter)


def wait(identity: int) -> None:
    with suppress(LockTimeoutError):
        FairLock(f"bench:taken:{identity % NAMES}").acquire(wait_time=60)


def live(rate: float, until: float) -> Done:
    """Take and release a lock of its own at a rate per second, until a monotonic time."""
    chance, pairs = random.Random(), 0
    lock = FairLock(f"bench:own:{chance.random()}")
    due = time.monotonic() + chance.expovariate(rate)
    while due < until:
        time.sleep(max(0.0, due - time.monotonic()))
        lock.acquire()
        lock.release()
        pairs += 1
        due += chance.expovariate(rate)
    return Done(pairs, any(waiter.is_alive() for waiter in _WAITERS))
