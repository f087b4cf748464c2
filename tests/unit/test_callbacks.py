"""The thread for callbacks."""

import threading

from django_rlock._core import callbacks
from django_rlock._core.callbacks import Callbacks
from tests.eventually import PATIENCE, eventually


def test_what_waits_behind_a_slow_callback_is_bounded(monkeypatch, caplog):
    """What is dropped is counted, and logged once the slow one has returned."""
    monkeypatch.setattr(callbacks, "MOST_POSTED", 3)
    begun, goes_on, called = threading.Event(), threading.Event(), list[int]()

    def slow() -> None:
        begun.set()
        goes_on.wait(PATIENCE)

    calls = Callbacks()
    calls.post(slow)
    assert begun.wait(PATIENCE)
    for number in range(5):
        calls.post(called.append, number)
    goes_on.set()
    eventually(lambda: len(called) == 3)
    assert called == [0, 1, 2]
    assert "2 log records, metrics and callbacks were dropped" in caplog.text


def test_a_call_that_another_thread_has_taken_is_not_waited_for(monkeypatch):
    """No thread can be started, but one that was started just before does the work."""
    calls, called = Callbacks(), list[int]()

    def start(function, name):
        calls._queue.get()
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr("django_rlock._core.threads.start", start)
        calls.post(called.append, 1)
    calls.post(called.append, 2)
    eventually(lambda: called == [2])
