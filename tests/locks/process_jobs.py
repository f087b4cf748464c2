"""Jobs of the pools of processes: ``python -m tests.locks.process_jobs METHOD URL``.

A program of its own, since a forked child gets the threads' locks of the process that it is forked from.
"""

from __future__ import annotations

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

from tests.faults.children import set_up


def begin(url: str) -> None:
    """Keep a lock as long as the process lives."""
    set_up(url)
    from django_rlock import RLock

    RLock("process").acquire()


def leave(name: str) -> bool:
    from django_rlock import RLock

    return RLock(name).acquire(wait_time=0) is True  # to return just that is refused


def visit(name: str) -> int:
    """How often the lock is held inside."""
    from django_rlock import RLock

    with RLock(name, wait_time=0) as lock:
        return lock.hold_count()


def take(name: str) -> bool:
    from django_rlock import RLock

    return RLock(name).acquire()


def check(run: Any) -> None:
    assert run(leave, "job")
    assert run(visit, "job") == 1, "the next job is inside what another one has left held"
    assert run(visit, "process") == 2, "the process has lost what it took as it began"
    with pytest.raises(RuntimeError, match="does nothing else"):
        run(take, "job")


def main(method: str, url: str) -> None:
    context: Any = multiprocessing.get_context(method)
    with ProcessPoolExecutor(1, context, begin, (url,)) as executor:
        check(lambda function, name: executor.submit(function, name).result())
    with context.Pool(1, begin, (url,)) as pool:
        check(lambda function, name: pool.apply(function, (name,)))


if __name__ == "__main__":
    main(*sys.argv[1:])
