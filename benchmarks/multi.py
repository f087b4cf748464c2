"""A hundred locks of one server taken together, compared with one lock, and with a hundred taken one by one."""

from __future__ import annotations

from benchmarks.peers import as_pair
from benchmarks.results import Row, Table, median_row
from benchmarks.stage import one_core
from benchmarks.timing import Costs, Pair, ratios, time_sync
from django_rlock import FairLock, FencedLock, LimitedLock, MultiLock, ReadLock, RLock, WriteLock
from django_rlock._transport.calls import run_sync
from django_rlock._transport.identity import thread_owner
from django_rlock._transport.registry import sync_driver
from django_rlock.locks import rlock
from django_rlock.locks.base import BaseLock
from django_rlock.locks.groups import LockGroup

LOCKS, ROUNDS, PAIRS = 100, 25, 10
QUICK_LOCKS, QUICK_ROUNDS, QUICK_PAIRS = 10, 2, 2
WALL_LIMIT = 5
KINDS = (FairLock, RLock, FencedLock, ReadLock, WriteLock, LimitedLock)
WITH_TARGET = (FairLock, RLock)


def run(quick: bool) -> list[Table]:
    sizes = (QUICK_LOCKS, QUICK_ROUNDS, QUICK_PAIRS) if quick else (LOCKS, ROUNDS, PAIRS)
    locks, rounds, pairs = sizes
    names = [f"bench:multi:{number}" for number in range(locks)]
    with one_core():
        costs = {kind: time_sync(contenders(kind, names), rounds, pairs) for kind in KINDS}
    rows = [row for kind, measured in costs.items() for row in kind_rows(kind, measured)]
    return [Table(f"{locks} locks of one server, taken and released", rows)]


def contenders(kind: type[BaseLock], names: list[str]) -> dict[str, Pair]:
    """The others are measured relative to ``one``."""
    singles = [kind(name) for name in names]

    def one_by_one() -> None:
        for lock in singles:
            lock.acquire()
        for lock in singles:
            lock.release()

    def made_per_call() -> None:
        with rlock(*names) if kind is FairLock else MultiLock(*map(kind, names)):
            pass

    group, driver = LockGroup(singles), sync_driver("default")

    def scripts_alone() -> None:
        """The two scripts without a hold or a renewal."""
        run_sync(driver.run(group.acquire_call(thread_owner().owner_id, 30.0)))
        run_sync(driver.run(group.release_call(thread_owner().owner_id)))

    return {
        "one": as_pair(kind("bench:multi:one")),
        "MultiLock": as_pair(MultiLock(*singles)),
        "the two scripts of a MultiLock": scripts_alone,
        "MultiLock made for each call": made_per_call,
        "one after another": one_by_one,
    }


def kind_rows(kind: type[BaseLock], costs: Costs) -> list[Row]:
    rows, label = [], kind.__name__
    for name in (name for name in costs if name != "one"):
        at_most = WALL_LIMIT if name == "MultiLock" and kind in WITH_TARGET else None
        figures = ratios(costs, name, "one")
        rows.append(median_row(f"{label}, {name}, wall time", figures, f"× one {label}", at_most=at_most))
    return rows
