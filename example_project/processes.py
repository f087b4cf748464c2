"""Processes that end when we do, however we end, each with a log file."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, cast

from example_project.embedded import WATCHER

START_TIME = 60.0
"""How long a process may take until it is ready, in seconds; a busy machine may need that."""

PATIENCE = 5.0
"""How long a process may take to end by itself, in seconds."""


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ProcessError(RuntimeError):
    """A process did not start, or ended too early; the message includes the end of its log."""


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Postpone stop signals until the end of this block, so that no process starts without being recorded."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are handled in the main thread
        return
    came: list[int] = []
    handlers = [signal.signal(number, lambda number, _frame: came.append(number)) for number in STOP_SIGNALS]
    try:
        yield
    finally:
        for number, handler in zip(STOP_SIGNALS, handlers, strict=True):
            signal.signal(number, handler)
        for missed in came:
            signal.raise_signal(missed)


class Process:
    """A command that runs in ``folder`` until ``stop()``, or until this process ends.

    It gets the name of a file in SHOP_READY_FILE, and writes the file once it is ready.
    """

    def __init__(self, name: str, command: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.ready = folder / f"{name}.ready"
        watcher = [sys.executable, "-I", "-S", str(WATCHER), str(os.getpid()), str(folder)]
        with self.log.open("ab") as log:
            # In a session of its own: Ctrl-C is for us, and stop() can end everything that the command has started.
            self._watcher = subprocess.Popen(
                [*watcher, *command],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**env, "SHOP_READY_FILE": str(self.ready)},
                start_new_session=True,
            )
        # The command and its children inherit this end of the pipe, so it closes when all of them have ended.
        self._pipe = cast("IO[bytes]", self._watcher.stdout)
        self.pid = int(self._pipe.readline() or 0)

    def ends_within(self, seconds: float) -> bool:
        """Whether the command and all its children have ended, or do so within ``seconds``."""
        deadline = time.monotonic() + seconds
        while select.select([self._pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            if not os.read(self._pipe.fileno(), 65536):
                return True
        return False

    def wait_until_ready(self) -> str:
        """Return what the command has written into its file. Raises ProcessError when it ends, or after START_TIME."""
        deadline = time.monotonic() + START_TIME
        while not self.ready.exists():
            if self.ends_within(0.02):
                raise self.error("ended at once")
            if time.monotonic() > deadline:
                raise self.error(f"was not ready within {START_TIME:g} s")
        return self.ready.read_text()

    def error(self, what: str) -> ProcessError:
        """An error with the end of the log."""
        lines = self.log.read_text(errors="replace").splitlines()[-20:]
        return ProcessError("\n".join([f"The {self.name} {what}. Its log:", *lines]))

    def stop(self, how: int = signal.SIGTERM) -> None:
        """Send the signal ``how`` to the command, and kill what is left after PATIENCE seconds."""
        if self._pipe.closed:
            return
        with self._watcher as watcher:
            if not self.ends_within(0):
                os.kill(self.pid, how)  # the watcher keeps the pid from being given to another process
                self.ends_within(PATIENCE)
            with contextlib.suppress(ProcessLookupError, PermissionError):  # the latter on macOS for a zombie
                os.killpg(watcher.pid, signal.SIGKILL)
