"""The fate of a lock when its holder is killed or stops, and when the server is killed, in all systems at once.

Each case has a holder and a waiter, in processes of their own, for every system; so that a case lasts as long as the
slowest of them.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from benchmarks.crew import Answers, Crew, crew
from benchmarks.results import Row, Table
from benchmarks.systems.contenders import Contender, make

WAIT, LEASE, SESSION = 35.0, 30.0, 10.0
QUICK_WAIT, QUICK_LEASE, QUICK_SESSION = 8.0, 3.0, 4.0
"""ZooKeeper makes no session shorter than two ticks of two seconds."""
SIGNALS = (("the holder is killed", signal.SIGKILL), ("the holder stops", signal.SIGSTOP))
MORE = 3.0
"""How many seconds after its limit a call is ended, and after its begin one that has none."""
QUEUED_AFTER = 0.5
"""After how many seconds all waiters surely wait; they have connected before."""
_LOOK_EVERY = 0.01


class Outcome(NamedTuple):
    """When a call ended, by the monotonic clock that all processes share, and by which error; None if it succeeded."""

    when: float
    error: str | None

    def since(self, began: float) -> Outcome:
        return self._replace(when=self.when - began)


class Watch(NamedTuple):
    """Until when the holder's client was watched, when it was warned by itself (None: it was not), and its release.

    The release came next; its time is how many seconds it took.
    """

    watched: float
    warned: float | None
    release: Outcome

    def since(self, began: float) -> Watch:
        warned = None if self.warned is None else max(0.0, self.warned - began)
        return self._replace(watched=self.watched - began, warned=warned)


class Case(NamedTuple):
    """The processes of one system."""

    holder: Crew
    waiter: Crew


def run(urls: Mapping[str, str], kill_servers: Callable[[], None], quick: bool, note: str) -> list[Table]:
    """``urls`` are the servers of the contenders, by the contenders' names. Afterwards the servers are gone."""
    terms = times(quick)
    fates = after_signals(urls, terms)
    return [
        *(Table(f"Which lock: {what}", fate_rows(fates[number], terms["wait"]), note) for what, number in SIGNALS),
        Table("Which lock: the server is killed", after_server(urls, kill_servers, terms), note),
    ]


def times(quick: bool) -> dict[str, float]:
    values = (QUICK_WAIT, QUICK_LEASE, QUICK_SESSION) if quick else (WAIT, LEASE, SESSION)
    return dict(zip(("wait", "lease", "session"), values, strict=True))


def after_signals(urls: Mapping[str, str], terms: Mapping[str, float]) -> dict[signal.Signals, dict[str, Outcome]]:
    """When the next one entered after each holder got a signal; times are seconds since then."""
    with ExitStack() as stack:
        started = {number: stack.enter_context(cases(urls, f"bench:{number.name}", terms)) for _, number in SIGNALS}
        pids = {number: all_hold(each) for number, each in started.items()}
        answers = {number: all_enter(each, terms["wait"]) for number, each in started.items()}
        time.sleep(QUEUED_AFTER)
        began = {number: send(number, pids[number]) for number in started}
        outcomes = {
            number: {name: answer()[0].since(began[number]) for name, answer in waiting.items()}
            for number, waiting in answers.items()
        }
        send(signal.SIGCONT, pids[signal.SIGSTOP])  # else they would not end by themselves
    return outcomes


def send(number: signal.Signals, pids: Iterable[int]) -> float:
    """Send processes a signal; returns when."""
    now = time.monotonic()
    for pid in pids:
        os.kill(pid, number)
    return now


def all_hold(cases: Mapping[str, Case]) -> list[int]:
    """Let the holders take their locks at once; returns their process ids."""
    return [pid for answer in [case.holder.start(hold) for case in cases.values()] for pid in answer()]


def all_enter(cases: Mapping[str, Case], wait: float) -> dict[str, Answers]:
    return {name: case.waiter.start(enter, wait) for name, case in cases.items()}


def after_server(urls: Mapping[str, str], kill_servers: Callable[[], None], terms: Mapping[str, float]) -> list[Row]:
    with cases(urls, "bench:server", terms) as started:
        all_hold(started)
        waiting = all_enter(started, terms["wait"])
        watching = {name: case.holder.start(watch, terms["wait"]) for name, case in started.items()}
        time.sleep(QUEUED_AFTER)
        killed = time.monotonic()
        kill_servers()
        rows = []
        for name in started:
            rows += server_rows(name, waiting[name]()[0].since(killed), watching[name]()[0].since(killed))
    return rows


@contextmanager
def cases(urls: Mapping[str, str], name: str, terms: Mapping[str, float]) -> Iterator[dict[str, Case]]:
    """For each system a process that is to hold a lock, and one that is to wait for it; both have connected."""
    within = terms["wait"] * 2 + 30
    with ExitStack() as stack:
        started = {
            system: Case(*(stack.enter_context(crew(1, __name__, within=within)) for _ in Case._fields))
            for system in urls
        }
        for system, case in started.items():
            for each in case:
                each.run(connect, system, urls[system], name, terms)
        yield started


def fate_rows(outcomes: Mapping[str, Outcome], wait: float) -> list[Row]:
    return [
        Row(f"{name}, until the next one enters", outcome.when, "s")
        if outcome.error is None
        else Row(f"{name}, nobody entered", outcome.when, f"s, of at most {wait:g} ({outcome.error})")
        for name, outcome in outcomes.items()
    ]


def server_rows(name: str, waiter: Outcome, holder: Watch) -> list[Row]:
    """Times are seconds since the server was killed; that of the release is how long it took."""
    warned = (
        Row(f"{name}, the holder is not warned", holder.watched, "s long")
        if holder.warned is None
        else Row(f"{name}, the holder is warned", holder.warned, "s")
    )
    return [
        Row(f"{name}, the waiter's call ends", waiter.when, f"s, by {waiter.error or 'entering'}"),
        warned,
        Row(f"{name}, the holder's release ends", holder.release.when, f"s, by {holder.release.error or 'success'}"),
    ]


# --- in the processes ---------------------------------------------------------------------------------------------

_LOCKS: list[Contender] = []


class _GiveUpError(BaseException):
    """No client's ``except Exception`` catches it."""


def _give_up(*_: object) -> None:
    raise _GiveUpError


def connect(system: str, url: str, name: str, terms: Mapping[str, Any]) -> None:
    logging.disable()  # what dies here is no news
    signal.signal(signal.SIGALRM, _give_up)
    _LOCKS.append(make(system, url, name=f"{name}:{system}", **terms))


def hold() -> int:
    """Take the lock and keep it; returns this process's number."""
    assert _LOCKS[-1].take()
    return os.getpid()


def enter(seconds: float) -> Outcome:
    """Wait for the lock, whose own limit is a number of seconds."""
    return attempt(_LOCKS[-1].take, seconds + MORE)


def watch(seconds: float) -> Watch:
    """Look whether the client is warned, for a number of seconds at most, and then release."""
    lock, give_up_at, warned = _LOCKS[-1], time.monotonic() + seconds, None
    while warned is None and time.monotonic() < give_up_at:
        time.sleep(_LOOK_EVERY)
        warned = time.monotonic() if lock.warned() else None
    watched = time.monotonic()
    return Watch(watched, warned, attempt(lock.give, MORE).since(watched))


def attempt(call: Callable[[], Any], seconds: float) -> Outcome:
    """Make a call, and end it after a number of seconds; one that returns False has waited for too long."""
    error = None
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        if call() is False:
            error = "its time limit"
    except _GiveUpError:
        error = "the benchmark, which ended it"
    except Exception as raised:  # noqa: BLE001 - which one it is differs by system
        error = type(raised).__name__
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return Outcome(time.monotonic(), error)
