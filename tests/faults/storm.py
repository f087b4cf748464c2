"""A process whose main thread is interrupted thousands of times inside acquire and release, as by a soft time limit.

    python -m tests.faults.storm <url> <kind> <scenario>        prints what it saw, as JSON

A process of its own, because the signals would hit the test runner too; and without hiredis, whose ``pack_command``
crashes when a signal's handler raises in it (3.5, seen with redis-py packing an integer).
"""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

sys.modules["hiredis"] = None  # type: ignore[assignment]

from django_redis import get_redis_connection  # noqa: E402

from tests.processes import set_up  # noqa: E402 - hiredis must be out of the way first

ROUNDS = 400


class Interruption(BaseException):
    """What the signal's handler raises."""


class Storm:
    """One signal at a random moment of each action."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock
        self.armed = False
        self.raised = 0
        signal.signal(signal.SIGALRM, self._strike)

    def _strike(self, *_: object) -> None:
        if self.armed:
            self.armed = False
            self.raised += 1
            raise Interruption

    def over(self, action: Callable[[], object], longest: float) -> None:
        """Run an action, and interrupt it once within ``longest`` seconds unless it ends before."""
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, longest))
            self.armed = True
            action()
            self.armed = False
        except Interruption:
            pass

    def sweep(self, down_to: int = 0) -> None:
        """What was interrupted before its release began is held and recorded as ever, and can be released."""
        while (hold := self.hold()) is not None and hold.count > down_to:
            self.lock.release()

    def hold(self) -> Any:
        from django_rlock.drivers.identity import current_owner
        from django_rlock.locks.holds import HOLDS

        return HOLDS.get(self.lock, current_owner())

    def take_and_release(self) -> None:
        with self.lock:
            pass


def tries(storm: Storm, lock: Callable[..., Any]) -> dict[str, Any]:
    """At a lock that somebody else holds, and at one that is free."""
    taken = lock("taken")
    granted = []

    def try_both() -> None:
        if taken.acquire(blocking=False):
            granted.append(1)
        storm.take_and_release()

    for _ in range(ROUNDS):
        storm.over(try_both, 0.0008)
        storm.sweep()
    return {"granted": len(granted)}


def nesting(storm: Storm, lock: Callable[..., Any]) -> dict[str, Any]:
    """Inside a hold, whose count must come out right."""
    wrong = 0
    for _ in range(ROUNDS):
        with storm.lock:
            storm.over(storm.take_and_release, 0.0008)
            storm.sweep(down_to=1)
            wrong += not storm.lock.owned()
        wrong += storm.lock.locked()
    return {"wrong": wrong}


def waits(storm: Storm, lock: Callable[..., Any]) -> dict[str, Any]:
    """While another thread takes and releases the same lock all the time."""
    stop = threading.Event()
    served = []

    def others() -> None:
        while not stop.is_set():
            with storm.lock:
                served.append(1)
                time.sleep(0.0005)

    other = threading.Thread(target=others)
    other.start()
    for _ in range(ROUNDS // 2):
        storm.over(storm.take_and_release, 0.004)
        storm.sweep()
    stop.set()
    other.join(20)
    return {"stuck": other.is_alive(), "served": len(served)}


def main() -> None:
    url, kind, scenario = sys.argv[1:]
    lock = set_up(url, {"KIND": kind})["lock"]
    # redis-py's pool loses a place whenever it is interrupted while it makes a connection.
    get_redis_connection("default").connection_pool.max_connections = 100 + 10 * ROUNDS
    storm = Storm(lock("stock:42", kind))
    lock("stock:42", kind).acquire()
    lock("stock:42", kind).release()
    seen = globals()[scenario](storm, lambda name: lock(name, kind))

    from django_rlock.locks.holds import HOLDS, WAITS

    left = {"holds": len(HOLDS.snapshot()), "waits": len(WAITS.snapshot())}
    storm.take_and_release()  # connections and listener are still good
    print(json.dumps({"raised": storm.raised, **seen, **left}), flush=True)  # noqa: T201
    sys.stdin.read()  # until the test has looked at the server: nothing is cleaned up by ending


if __name__ == "__main__":
    main()
