"""Greenlets of gevent that hold a lock each and leave the others little time: how many locks are lost.

Runs in a process of its own, because gevent must patch before anything else is imported:

    python -m benchmarks.greenlets <number of greenlets> <lease>
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from benchmarks.results import Row, Table

GREENLETS, LEASE = 300, 10.0
QUICK_GREENLETS, QUICK_LEASE = 20, 1.0
TURN = 0.0003
"""How long a greenlet computes before it lets others run, in seconds."""
LEASES = 1.5
"""How many leases they hold their locks."""


def run(quick: bool) -> list[Table]:
    count, lease = (QUICK_GREENLETS, QUICK_LEASE) if quick else (GREENLETS, LEASE)
    command = [sys.executable, "-m", "benchmarks.greenlets", str(count), str(lease)]
    seen = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return [
        Table(
            f"{count} greenlets that hold a lock each, and compute for 0.3 ms at a time",
            [
                Row(f"locks lost within {LEASES * lease:g} s", seen["lost"], at_most=0),
                Row("until a greenlet runs again, at most", seen["gap"], "s"),
            ],
        )
    ]


def main() -> None:
    """Hold the locks, and print how many were lost, and how long a greenlet did not run at most."""
    import gevent
    from gevent import monkey

    monkey.patch_all()
    from benchmarks import stage
    from django_rlock import rlock

    count, lease = int(sys.argv[1]), float(sys.argv[2])
    stage.configure()
    stage.set_leases(lease)

    def hold(number: int) -> tuple[bool, float]:
        lock = rlock(f"bench:stock:{number}")
        lock.acquire()
        gap = max(waits_of_a_greenlet(time.monotonic() + LEASES * lease, gevent.sleep))
        return lock.lost, gap

    seen = [each.get() for each in [gevent.spawn(hold, number) for number in range(count)]]
    print(json.dumps({"lost": sum(lost for lost, _ in seen), "gap": max(gap for _, gap in seen)}))


def waits_of_a_greenlet(until: float, let_others_run: Callable[[], object]) -> Iterator[float]:
    """Compute, and let others run, until a monotonic time; yields how long the others took each time, in seconds."""
    while (now := time.monotonic()) < until:
        while time.monotonic() < now + TURN:
            pass
        began = time.monotonic()
        let_others_run()
        yield time.monotonic() - began


if __name__ == "__main__":
    main()
