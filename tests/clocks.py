"""Clocks of a process that a test sets, or stops, as those of a machine that is suspended or paused by its host."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.processes import ClientProcess

PRELOADS = "RLOCK_TEST_PRELOADS_CLOCKS"
SOURCE = Path(__file__).parent / "faults" / "suspending.c"


def build(folder: Path) -> Path | None:
    """The library that a process is to preload; None where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    library = folder / "suspending.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"], check=True)
    return library


def preloading(library: Path) -> dict[str, str]:
    """The environment of a process that preloads it."""
    return {"LD_PRELOAD": str(library), PRELOADS: "1"}


def kernels_clock() -> partial[float]:
    """The kernel's CLOCK_MONOTONIC, whatever the clocks of this process are; a call returns seconds."""
    return partial(time.clock_gettime, time.CLOCK_MONOTONIC_RAW if PRELOADS in os.environ else time.CLOCK_MONOTONIC)


class Clocks:
    """The clocks of the processes that use a file: ahead of this process's by some seconds each."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._ahead = [0.0, 0.0, 0.0]
        file.write_bytes(bytes(24))

    def move(self, monotonic: float = 0.0, boottime: float = 0.0, wall: float = 0.0) -> None:
        self._ahead = [at + by for at, by in zip(self._ahead, (monotonic, boottime, wall), strict=True)]
        with self.file.open("r+b") as file:
            file.write(struct.pack("3q", *(int(ahead * 1e9) for ahead in self._ahead)))

    def suspend(
        self,
        process: ClientProcess,
        seconds: float,
        *,
        paused_machine: bool = False,
        last: Callable[[float], object] = time.sleep,
    ) -> None:
        """Suspend a process's machine; if it is a virtual one that its host pauses, only the wall clock goes on."""
        process.pause()
        began = time.monotonic()
        try:
            last(seconds)
        finally:
            stood = time.monotonic() - began
            self.move(monotonic=-stood, boottime=-stood if paused_machine else 0.0)
            process.resume()
