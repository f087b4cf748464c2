"""The demo's processes, with shells in the place of servers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from example_project import processes
from example_project.processes import Process, ProcessError
from tests.acceptance.running import has_ended
from tests.eventually import eventually

Start = Callable[[str], Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as started:

        def start(script: str) -> Process:
            process = Process("shell", ["sh", "-c", script], tmp_path, os.environ)
            started.callback(process.stop)
            return process

        yield start


def test_tells_what_it_writes_once_it_is_ready(start: Start) -> None:
    process = start('echo here > "$SHOP_READY_FILE.new" && mv "$SHOP_READY_FILE.new" "$SHOP_READY_FILE"; exec sleep 60')
    assert process.wait_until_ready() == "here\n"
    assert not process.ends_within(0)


def test_shows_the_log_of_one_that_ends_at_once(start: Start) -> None:
    process = start("echo the reason >&2; exit 3")
    with pytest.raises(ProcessError, match=r"^The shell ended at once\. Its log:\nthe reason$"):
        process.wait_until_ready()


def test_gives_up_on_one_that_is_never_ready(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "START_TIME", 0.05)
    with pytest.raises(ProcessError, match=r"^The shell was not ready within 0\.05 s\."):
        start("exec sleep 60").wait_until_ready()


def test_what_it_prints_does_not_count_as_its_end(start: Start) -> None:
    process = start("head -c 300000 /dev/zero; touch $SHOP_READY_FILE; exec sleep 60")
    process.wait_until_ready()
    assert not process.ends_within(0)


def test_may_end_in_its_own_way(start: Start, tmp_path: Path) -> None:
    # Not SIGQUIT: a shell that starts the suite with "&" makes its children ignore that.
    process = start('trap "touch bye; exit" USR2; touch "$SHOP_READY_FILE"; while :; do sleep 0.05; done')
    process.wait_until_ready()
    process.stop(signal.SIGUSR2)
    assert (tmp_path / "bye").exists()


def test_ends_children_of_one_that_does_not_care(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PATIENCE", 0.1)
    process = start('trap "" TERM; sleep 60 & echo $! > "$SHOP_READY_FILE"; wait')
    child = int(eventually(lambda: process.ready.exists() and process.ready.read_text()))
    process.stop()
    eventually(lambda: has_ended(child))
