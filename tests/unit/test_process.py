"""What a process owns is made once, whichever threads are the first to ask for it."""

import math
import sys
import threading
import time

import pytest

from django_rlock import rlock
from django_rlock import settings as settings_module
from django_rlock._core import callbacks, process, threads
from django_rlock._core.callbacks import Callbacks
from django_rlock._core.clock import monotonic
from django_rlock._core.process import remembered
from django_rlock._monitoring.reporter import Reporter, _reporter
from django_rlock._transport import registry, servers, worker
from django_rlock._transport.identity import current_owner
from django_rlock._transport.worker import BackgroundWorker
from django_rlock.locks.records import Hold, key_of
from tests.eventually import PATIENCE, eventually, in_threads

TOGETHER = 4


@pytest.fixture(autouse=True)
def own_hooks(monkeypatch) -> None:
    """What the tests register is forgotten after them. The project's own hooks of forks are left out: nothing forks
    here, and threads that they have the process forget would listen on."""
    own = {event: {stage: list(each) for stage, each in stages.items()} for event, stages in process._hooks.items()}
    own["fork"] = {stage: [] for stage in process.STAGES}
    monkeypatch.setattr(process, "_hooks", own)


def forget() -> None:
    process._run("settings")


def ask_together(function):
    """What each of some threads gets that call a function at the same time."""
    start, got = threading.Barrier(TOGETHER), []

    def ask() -> None:
        start.wait(PATIENCE)
        got.append(function())

    in_threads(*[ask] * TOGETHER)
    assert len(got) == TOGETHER
    return got


def test_threads_that_are_first_get_the_same_one():
    making = threading.Barrier(TOGETHER)

    @remembered("drivers")
    def make(name: str) -> object:
        making.wait(PATIENCE)  # until all of them are here
        return object()

    assert len(set(ask_together(lambda: make("x")))) == 1


@pytest.mark.parametrize("event", ["settings", "fork"])
def test_another_is_made_after_a_change(event):
    @remembered("drivers")
    def make(name: str) -> object:
        return object()

    before = make("x")
    assert make("x") is before
    process._run(event)
    assert make("x") is not before


def test_what_is_being_made_during_a_change_is_made_again():
    made: list[object] = []

    @remembered("drivers")
    def make(name: str) -> object:
        made.append(object())
        if len(made) == 1:
            forget()
        return made[-1]

    assert make("x") is made[1] is make("x")


def test_what_cannot_be_made_is_tried_again():
    tries: list[int] = []

    @remembered("drivers")
    def make(name: str) -> object:
        tries.append(1)
        if len(tries) == 1:
            raise LookupError
        return object()

    with pytest.raises(LookupError):
        make("x")
    assert make("x") is make("x")


QUORUM = {"quorum": {"NODES": ["redis://127.0.0.1:1", "redis://127.0.0.1:2", "redis://127.0.0.1:3"]}}


@pytest.mark.parametrize(
    ("using", "get"),
    [
        ("default", settings_module.get_settings),
        ("default", registry.sync_driver),
        ("default", registry.async_driver),
        ("default", registry.background_driver),
        ("default", registry.listener),
        ("default", servers.source),
        ("default", servers.server),
        ("quorum#1", servers.node_client),
        ("quorum", registry.sync_driver),
        ("quorum", registry.async_driver),
        ("quorum", registry.background_driver),
    ],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_drivers_and_connections(settings, using, get):
    for _ in range(20):
        settings.RLOCK = dict(QUORUM)  # forgets those that are there
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            got = ask_together(lambda: get(using))
        finally:
            sys.setswitchinterval(interval)
        assert len({id(each) for each in got}) == 1


# --- the exit ---------------------------------------------------------------------------------------------------------


def test_blocked_hooks_share_the_time_of_the_exit(monkeypatch):
    """No thread does what they wait for."""
    began, waits = time.monotonic(), list[float]()

    class AutoResetEvent(threads.AutoResetEvent):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            return False

    its, reporter, calls = BackgroundWorker("default"), Reporter(), Callbacks()
    its._began = reporter._began = calls._runs = True
    monkeypatch.setattr(worker.WORKERS, "value", {"default": its})
    monkeypatch.setattr(_reporter, "value", reporter)
    monkeypatch.setattr(callbacks._callbacks, "value", calls)
    monkeypatch.setattr(threads, "AutoResetEvent", AutoResetEvent)
    monkeypatch.setattr(process, "monotonic", lambda: began + sum(waits))
    process.finish()
    assert len(waits) == 3
    assert all(waits)
    assert sum(waits) <= 2


def test_a_hold_that_is_found_while_the_report_is_written_is_reported() -> None:
    rounds = []

    class Busy(Reporter):
        def round(self, _now: float) -> float:
            self.inbox.clear()
            rounds.append(True)
            if len(rounds) == 1:
                self.notify(hold())
            return math.inf

    def hold() -> Hold:
        lock, owner = rlock("stock:1"), current_owner()
        return Hold(key_of(lock, owner), lock, owner, "x", monotonic())

    reporter = Busy()
    reporter.notify(hold())
    try:
        eventually(lambda: len(rounds) == 2)
    finally:
        reporter.stop()


def test_what_was_counted_is_looked_at_although_an_earlier_call_was_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before it woke the thread, which then sleeps without limit."""
    woken: list[bool] = []
    reporter = Reporter()
    reporter.recorder.noted = reporter.recorder.urgent = True
    monkeypatch.setattr(reporter, "_wake", lambda: woken.append(True))
    reporter.counted(True)
    assert woken
    reporter.wakes_at = 0.0
    reporter.counted(True)
    assert len(woken) == 1
