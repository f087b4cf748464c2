"""The counts of the benchmarks: the server's commands, turns that end within their round, targets that were reached."""

from types import SimpleNamespace

import pytest

from benchmarks import contended, meter
from benchmarks.results import Row


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


@pytest.mark.parametrize(
    ("row", "reached"),
    [
        (Row("x", 1.0), None),
        (Row("x", 1.0, at_most=1.0), True),
        (Row("x", 1.1, at_most=1.0), False),
        (Row("x", 0.8, at_least=0.8), True),
        (Row("x", 0.7, at_least=0.8), False),
        (Row("x", 3.0, at_most=2.0, at_least=2.0), False),
        (Row("x", 2.0, at_most=2.0, at_least=2.0), True),
    ],
)
def test_reached(row, reached):
    assert row.reached is reached
