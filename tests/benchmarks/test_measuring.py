"""What the benchmarks count: CPU time by module, the server's commands, turns that end within their round.

And what they arrange: cores that stay awake.
"""

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import contended, meter, stage


@pytest.fixture
def busy_elsewhere():
    """A thread that is busy in another module than this one."""
    end = threading.Event()
    source = "def work(end):\n    while not end.is_set():\n        sum(range(1000))\n"
    names: dict[str, Any] = {"__name__": "elsewhere"}
    exec(source, names)
    thread = threading.Thread(target=names["work"], args=(end,))
    thread.start()
    yield
    end.set()
    thread.join()


@pytest.fixture
def busy_here():
    end = threading.Event()

    def work():
        while not end.is_set():
            sum(range(1000))

    thread = threading.Thread(target=work)
    thread.start()
    yield
    end.set()
    thread.join()


def test_cpu_time_of_other_threads_is_counted_by_module(busy_here, busy_elsewhere):
    here, nowhere = meter.watch(0.3, __name__), meter.watch(0.1, "nobody.works.here")
    assert 0 < here.inside < here.cpu
    assert nowhere.cpu > 0
    assert nowhere.inside == 0


def test_the_thread_that_watches_is_not_counted():
    assert meter.watch(0.1, __name__).inside == 0


def test_the_server_counts_commands_in_scripts_as_well(own_server, monkeypatch):
    server = own_server(None)
    monkeypatch.setenv("RLOCK_BENCH_URL", server.url)
    with server.client() as client:
        script = client.script_load("for number = 1, 100 do redis.call('ping') end")
        counting = meter.Meter()
        client.evalsha(script, 0)
        spent = counting.spent()
    assert spent.scripts == 1
    assert spent.commands >= 101
    assert spent.server_cpu >= 0


def test_a_turn_that_ends_after_its_round_does_not_count(monkeypatch):
    times = {1: 2.0, 2: 5.0, 3: 10.1}
    given: list[int] = []
    clock = SimpleNamespace(monotonic=lambda: times.get(len(given), 1.0), sleep=lambda seconds: None)
    monkeypatch.setattr(contended, "time", clock)
    monkeypatch.setitem(contended.CONTENDERS, "slow", lambda: (lambda wait: True, lambda: given.append(1)))
    assert contended.take_turns("slow", 1.0, 10.0).acquired == 2
    assert len(given) == 3


@pytest.mark.skipif(not os.access(stage.LATENCY_FILE, os.W_OK), reason="only root may keep Linux's cores awake")
def test_cores_stay_awake_during_the_block():
    with stage.cores_awake() as awake:
        assert awake
        assert latency_allowed() == 0
        assert stage.LATENCY_FILE in open_files()
    assert stage.LATENCY_FILE not in open_files()


def latency_allowed():
    """The microseconds that waking a core may take, of all that processes ask for."""
    with stage.LATENCY_FILE.open("rb", buffering=0) as file:
        return int.from_bytes(file.read(4), "little")


def open_files():
    return {entry.resolve() for entry in Path("/proc/self/fd").iterdir()}


def test_who_may_not_keep_cores_awake_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(stage, "LATENCY_FILE", tmp_path / "missing")
    with stage.cores_awake() as awake:
        assert not awake
