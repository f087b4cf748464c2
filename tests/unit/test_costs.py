"""What calls cost, counted: a change that makes a call dearer, or cheaper, changes its figure here.

The figures are those of an uncontended acquire and release, unless their name says more. They are the same on a busy
machine. ``tests/costs.py`` has the calls.
"""

import os
import subprocess
import sys

import pytest

from benchmarks import callgrind
from example_project.embedded import EmbeddedServer
from tests.conftest import OwnServer
from tests.processes import ClientProcess

Figures = dict[str, tuple[int, int]]

MARGIN = 0.02
"""By which part a count in Python may differ from its figure, so that small changes need not touch this file."""

IN_PYTHON: dict[tuple[int, int], Figures] = {
    (3, 11): {
        "RLock, kept": (1911, 46),
        "FairLock, kept": (1926, 46),
        "ReadLock, kept": (2032, 52),
        "MultiLock of 100": (15901, 189),
        "with rlock(), the same name": (2228, 58),
        "with rlock(), a new name": (2277, 60),
        "with rlock(), nested": (4280, 118),
        "a decorated function": (2881, 83),
        "a decorated view": (3242, 97),
        "a LockedTask": (3245, 106),
        "RLock, kept, in asyncio": (2164, 67),
        "async with rlock(), a new name": (2378, 73),
    },
    (3, 13): {
        "RLock, kept": (1747, 46),
        "FairLock, kept": (1761, 46),
        "ReadLock, kept": (1857, 52),
        "MultiLock of 100": (13770, 186),
        "with rlock(), the same name": (2047, 57),
        "with rlock(), a new name": (2084, 59),
        "with rlock(), nested": (3907, 115),
        "a decorated function": (2633, 80),
        "a decorated view": (2943, 94),
        "a LockedTask": (2966, 100),
        "RLock, kept, in asyncio": (1984, 67),
        "async with rlock(), a new name": (2198, 73),
    },
}
"""How many bytecodes of the package a call executes, and how many of its frames it enters; by the version of Python."""
AT_THE_SERVER: Figures = {
    "RLock": (2, 7),
    "FairLock": (2, 8),
    "SpinLock": (2, 7),
    "FencedLock": (2, 10),
    "ReadLock": (2, 13),
    "WriteLock": (2, 11),
    "LimitedLock": (2, 14),
    "MultiLock of 10": (2, 34),
    "MultiLock of 10 readers": (2, 140),
    "a re-entry": (4, 16),
    "a refused acquire": (1, 3),
    "extend()": (1, 3),
    "locked()": (1, 2),
    "a LockedTask": (2, 8),
    "a LockedTask that is skipped": (2, 4),
    "CountDownLatch": (3, 21),
    "Semaphore": (2, 17),
    "PermitExpirableSemaphore": (2, 16),
    "two turns of a FairLock": (4, 36),
}
"""How many round trips a call takes, and how many commands its scripts run."""
INSTRUCTIONS = {"RLock": 2.21, "FairLock": 2.67, "FencedLock": 3.53, "ReadLock": 4.64}
"""How many machine instructions the embedded server executes, as a multiple of those for redis-py's lock."""
MARGIN_OF_INSTRUCTIONS = 0.04
"""Processors differ in some instructions, and the server's own timers need a few."""
MODULES = 59
"""How many modules of the package ``import django_rlock`` loads."""


def test_a_hold_that_lasts_gets_no_separate_dict(own_server: OwnServer) -> None:
    with ClientProcess(own_server().url) as process:
        assert process.do("module('tests.costs').late_bytes()") < 50  # a dict has more


def counted(server: EmbeddedServer, what: str) -> Figures:
    with ClientProcess(server.url) as process:
        found = process.do(f"module('tests.costs').{what}()")
    return {name: (figures[0], figures[1]) for name, figures in found.items()}


@pytest.mark.skipif(sys.version_info[:2] not in IN_PYTHON, reason="each Python has other bytecodes")
def test_calls_execute_as_many_bytecodes_as_their_figures_say(own_server: OwnServer) -> None:
    figures, found = IN_PYTHON[sys.version_info[:2]], counted(own_server(), "in_python")
    assert {name: found[name] for name in figures if is_changed(found[name], figures[name])} == {}
    assert found.keys() == figures.keys()


def is_changed(found: tuple[int, int], figures: tuple[int, int]) -> bool:
    return any(abs(now / figure - 1) > MARGIN for now, figure in zip(found, figures, strict=True))


def test_calls_take_as_many_round_trips_and_commands_as_their_figures_say(own_server: OwnServer) -> None:
    assert counted(own_server(), "at_the_server") == AT_THE_SERVER


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="to the server, all Pythons are alike")
@pytest.mark.skipif("RLOCK_TEST_SERVER" in os.environ, reason="each server has other instructions")
@pytest.mark.skipif(not callgrind.is_installed(), reason="valgrind counts the instructions, and is not installed")
def test_the_server_executes_as_many_instructions_as_the_figures_say() -> None:
    with callgrind.CountedServer() as server, ClientProcess(server.url) as process:
        theirs = server_instructions(server, process, "redis-py")
        found = {name: server_instructions(server, process, name) / theirs for name in INSTRUCTIONS}
    assert found == pytest.approx(INSTRUCTIONS, rel=MARGIN_OF_INSTRUCTIONS)


def server_instructions(server: callgrind.CountedServer, process: ClientProcess, name: str) -> int:
    process.do(f"module('tests.costs').make({name!r}, 5)")
    return server.instructions(lambda: process.do(f"module('tests.costs').make({name!r}, 50)"))


def test_an_import_loads_as_many_modules_as_its_figure_says() -> None:
    program = "import sys, django_rlock; print(sum(name.split('.')[0] == 'django_rlock' for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert int(done.stdout) == MODULES
