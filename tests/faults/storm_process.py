"""Runs a storm beside servers of its own, and sees whether it passed, stopped, broke off or went wrong."""

from __future__ import annotations

import json
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

import redis

from example_project.embedded import EmbeddedServer
from tests.eventually import eventually
from tests.faults.storm import COUNTERS, LINE_EVERY

ROOT = Path(__file__).parents[2]
PATIENCE = 20.0
"""A process that prints no line for so long has stopped, in seconds; a waiter that missed its wake-up looks later."""
BETWEEN_DUMPS = 1.0
"""Seconds, after which a thread that goes on stands somewhere else."""
NODES = 3
"""Servers of a RedLock."""
STAYS = re.compile(r"(redisson_lock_token|rlock_(alive|requests|settled|tombstone)):|rlock_(histor(y:|ies$)|recent:)")
_NUMBER_STAYS = re.compile(rf"{STAYS.pattern}|rlock:\w+$")
"""Keys that are no lock, and the numbers of semaphores."""


class BrokenOffError(Exception):
    """The process ended before its time; the text is its standard error."""


class StoppedError(Exception):
    """The process goes on no more; the text is where its threads stood."""


class Watched:
    """A process that prints lines, and is ended when it prints none for ``patience`` seconds."""

    def __init__(self, command: Sequence[str], patience: float = PATIENCE) -> None:
        self.patience = patience
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
        )
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._reader.join()  # before its file is closed
        with self._process:
            pass
        self._errors.close()

    def line(self) -> str:
        """The next line. StoppedError when there is none in time, BrokenOffError when there are no more."""
        try:
            line = self._lines.get(timeout=self.patience)
        except queue.Empty:
            raise StoppedError(self._dump()) from None
        if not line:
            self._process.wait()
            raise BrokenOffError(self._stderr())
        return line.decode()

    def end(self) -> None:
        """Close its input and wait for its end. StoppedError when it does not, BrokenOffError when it fails."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            status = self._process.wait(self.patience)
        except subprocess.TimeoutExpired:
            raise StoppedError(self._dump()) from None
        if status:
            raise BrokenOffError(f"exit status {status}\n{self._stderr()}")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(b"")

    def _dump(self) -> str:
        """Have faulthandler write down twice where all threads stand, and end the process."""
        self._process.send_signal(signal.SIGUSR1)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(BETWEEN_DUMPS)
        self._process.send_signal(signal.SIGABRT)
        self._process.wait()
        return self._stderr()

    def _stderr(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")


class Outcome(NamedTuple):
    """How a storm ended: ``passed``, ``stopped``, ``broke off`` or ``went wrong``, and the text that shows it."""

    how: str
    text: str
    raised: int

    @property
    def passed(self) -> bool:
        return self.how == "passed"


def run_storm(
    kind: str,
    *,
    interruptions: int,
    company: str = "crowd",
    hiredis: bool = True,
    python: str = sys.executable,
    patience: float = PATIENCE,
) -> Outcome:
    """One process of a number of interruptions, whose connections are cut now and then."""
    with ExitStack() as stack:
        servers = [stack.enter_context(EmbeddedServer()) for _ in range(NODES if kind == "redlock" else 1)]
        clients = [stack.enter_context(server.client()) for server in servers]
        command = [python, "-m", "tests.faults.storm", kind, *(server.url for server in servers)]
        command += ["--interruptions", str(interruptions), "--company", company]
        command += [] if hiredis else ["--without-hiredis"]
        stays = _NUMBER_STAYS if kind in COUNTERS else STAYS
        return _watch(stack.enter_context(Watched(command, patience)), clients, stays)


def _watch(storm: Watched, clients: Sequence[redis.Redis], stays: re.Pattern[str]) -> Outcome:
    raised = 0
    try:
        for message in _messages(storm):
            if "seen" in message:
                break
            if "raised" in message:
                raised = message["raised"]
                _cut_connections(clients, raised)
        wrong = {name: value for name, value in message["seen"].items() if value}
        wrong |= _left(clients, stays)
        storm.end()
    except StoppedError as stopped:
        return Outcome("stopped", str(stopped), raised)
    except BrokenOffError as broken:
        return Outcome("broke off", str(broken), raised)
    return Outcome("went wrong" if wrong else "passed", json.dumps(wrong, indent=1), raised)


def _messages(storm: Watched) -> Iterator[dict[str, Any]]:
    while True:
        yield json.loads(storm.line())


def _cut_connections(clients: Sequence[redis.Redis], raised: int) -> None:
    """Close all connections but our own; the listener's too each third time."""
    for client in clients:
        client.client_kill_filter(_type="normal", skipme=True)
        if raised // LINE_EVERY % 3 == 0:
            client.client_kill_filter(_type="pubsub", skipme=True)


def _left(clients: Sequence[redis.Redis], stays: re.Pattern[str]) -> dict[str, list[str]]:
    """The keys that stay for longer than cleaning up takes."""

    def left() -> list[str]:
        keys = {str(key) for client in clients for key in client.scan_iter()}
        return sorted(key for key in keys if not stays.match(key))

    try:
        eventually(lambda: not left())
    except AssertionError:
        return {"left": left()}
    return {}
