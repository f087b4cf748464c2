"""Processes that end when we do, however that happens, each with a log file."""

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
"""Seconds that a process gets until it is ready; a busy machine may need many."""

PATIENCE = 5.0
"""Seconds that a process gets to end by itself."""


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ProcessError(RuntimeError):
    """A process did not start, or ended before its time; the message ends with its log."""


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Put a signal to stop off until the end of this block, so that a process cannot start without our noting it."""
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
            # Its session is its own: Ctrl-C is for us, and stop() can end all that the command has started.
            self._watcher = subprocess.Popen(
                [*watcher, *command],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**env, "SHOP_READY_FILE": str(self.ready)},
                start_new_session=True,
            )
        # The command inherits its end of this pipe, and so do its children: it ends when they all have ended.
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
        """What the command has written into its file. ProcessError when it ends instead, or after START_TIME."""
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
        """Ask the command to end with the signal ``how``, and end what is left after PATIENCE seconds."""
        if self._pipe.closed:
            return
        with self._watcher as watcher:
            if not self.ends_within(0):
                os.kill(self.pid, how)  # the watcher keeps the pid from being given to another process
                self.ends_within(PATIENCE)
            with contextlib.suppress(ProcessLookupError, PermissionError):  # the latter is macOS's for a zombie
                os.killpg(watcher.pid, signal.SIGKILL)
