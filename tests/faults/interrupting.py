"""Helpers for tests of interruptions: an exception at any call, as a signal's handler would raise it."""

import gc
import itertools
import sys
from pathlib import Path

import django_rlock
from django_rlock import FairLock, FencedLock, MultiLock, ReadLock, ReadWriteLock, RLock, WriteLock
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.watchdog import lose
from tests.apart import ApartLock
from tests.background import settle
from tests.faults.storm import is_swallowed
from tests.operators import free_by_force


class Interruption(BaseException):
    """As KeyboardInterrupt."""


def raise_interruption(*_: object) -> None:
    raise Interruption


def at_call(number, strike, is_spared=is_swallowed):
    """Have something done at the calls that follow, at one of them, as a signal's handler would do it.

    End it by ``sys.setprofile(None)``, and by ``gc.enable()``: see ``opcode_watch``.
    """
    made = itertools.count(1)

    def count(frame, event, _argument):
        if event in {"call", "c_return"} and not is_spared(frame) and next(made) == number:
            strike()

    gc.disable()
    sys.setprofile(count)


def is_interrupted(action, number, strike=raise_interruption, is_spared=is_swallowed):
    """Whether an action was interrupted, by what is done at one of its calls; not when it makes fewer of them."""
    try:
        at_call(number, strike, is_spared)
        action()
    except Interruption:
        return True
    finally:
        sys.setprofile(None)
        gc.enable()
    return False


def interruptions(action, is_spared=is_swallowed):
    """Interrupt an action at one of its calls, each time at a later one, until it ends before.

    An interruption may be dropped by Python, where it ends a generator. Whatever Python complains of is an error, such
    as a coroutine that was made and not awaited.
    """
    struck = []

    def strike() -> None:
        struck.append(True)
        raise_interruption()

    for number in itertools.count(1):
        is_interrupted(action, number, strike, is_spared)
        if not struck:
            return
        struck.clear()
        yield number


def outside_of(*files):
    """Spares what is not in these files of the package, because other tests interrupt it."""
    known = [f"/{path.relative_to(PACKAGE.parent)}" for path in PACKAGE.rglob("*.py")]
    assert [file for file in files if not any(path.endswith(f"/{file}") for path in known)] == []
    return lambda frame: is_swallowed(frame) or not frame.f_code.co_filename.endswith(files)


PACKAGE = Path(django_rlock.__file__).parent

MAKERS = {
    "rlock": lambda: RLock("stock:42"),
    "fair": lambda: FairLock("stock:42"),
    "fenced": lambda: FencedLock("stock:42"),
    "read": lambda: ReadWriteLock("stock:42").read_lock,
    "write": lambda: ReadWriteLock("stock:42").write_lock,
    "multi": lambda: MultiLock(*[FairLock(f"account:{number}") for number in range(3)]),
    "multi, of several kinds": lambda: MultiLock(
        FairLock("account:1"), FencedLock("account:2"), ReadLock("account:3"), WriteLock("account:4")
    ),
    "multi, by several scripts": lambda: MultiLock(FairLock("account:1"), RLock("account:2"), ApartLock("account:3")),
}
"""Locks whose parts all have a hold of their own."""


def block_of(lock):
    """Enter a lock's block and leave it."""
    with lock:
        pass


def lose_hold_of(lock):
    """Acquire a lock, and have it freed by force; the loss is noted, and not reported."""
    lock.acquire()
    for part in lock.parts:
        free_by_force(part.name)
    for hold in HOLDS.snapshot():
        lose(hold, "it was freed by force")
    settle()


def interrupted_once(monkeypatch):
    """A function to put in place of another one. It undoes that, and raises."""

    def be_interrupted(*_):
        monkeypatch.undo()
        raise Interruption

    return be_interrupted


def is_entered_once(lock):
    """Whether this process holds nothing but that lock, once."""
    return [(hold.lock.name, hold.count) for hold in HOLDS.snapshot()] == [(lock.name, 1)]
