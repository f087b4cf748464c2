"""The cost of a stretch of time: CPU time of this process and the server, commands, and where threads spend it."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from benchmarks.stage import observer

_SAMPLE_EVERY = 0.005


class Spent(NamedTuple):
    """``cpu`` is this process's. ``commands`` are all that the server ran, ``scripts`` the scripts among them."""

    seconds: float
    cpu: float
    server_cpu: float
    commands: float
    scripts: float

    @property
    def share(self) -> float:
        """The share of a core that this process used."""
        return self.cpu / self.seconds

    @property
    def server_share(self) -> float:
        """The share of a core that the server used."""
        return self.server_cpu / self.seconds

    @property
    def rates(self) -> dict[str, float]:
        """Details for a row of commands per second."""
        return {"scripts": self.scripts / self.seconds, "the server, % of a core": self.server_share * 100}


class Meter:
    """Counts from the moment when it is made."""

    def __init__(self) -> None:
        self._client = observer()
        self._began = self._read()

    def spent(self) -> Spent:
        """What was spent until now."""
        return Spent(*(now - then for now, then in zip(self._read(), self._began, strict=True)))

    def _read(self) -> Spent:
        cpu, stats, calls = (self._client.info(section) for section in ("cpu", "stats", "commandstats"))
        scripts = calls.get("cmdstat_evalsha", {}).get("calls", 0)
        server_cpu = cpu["used_cpu_user"] + cpu["used_cpu_sys"]
        return Spent(time.monotonic(), time.process_time(), server_cpu, stats["total_commands_processed"], scripts)


def rest(seconds: float) -> Spent:
    """What it costs while this thread does nothing for a while."""
    meter = Meter()
    time.sleep(seconds)
    return meter.spent()


# ---- where the other threads spend their time ---------------------------------------------------------------------


@dataclass
class Watched:
    """Seconds of CPU time that the other threads of this process used, and those ``inside`` of one module."""

    seconds: float
    cpu: float = 0.0
    inside: float = 0.0


def watch(seconds: float, module: str) -> Watched:
    """Sample the other threads for a while, every few milliseconds.

    The time that a thread has used since the last sample counts for ``module``, the name of a package or the beginning
    of one, if that is anywhere in its stack.
    """
    seen, last, end = Watched(seconds), _clocks(_other_threads()), time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(_SAMPLE_EVERY)
        frames = _other_threads()
        now = _clocks(frames)
        for thread, clock in now.items():
            used = clock - last.get(thread, clock)
            seen.cpu += used
            if used and any(name.startswith(module) for name in _modules(frames[thread])):
                seen.inside += used
        last = now
    return seen


def _other_threads() -> dict[int, FrameType]:
    """The current frame of each of them."""
    mine = threading.get_ident()
    return {thread: frame for thread, frame in sys._current_frames().items() if thread != mine}


def _clocks(threads: Iterable[int]) -> dict[int, float]:
    """The seconds of CPU time that each has used so far."""
    return {thread: time.clock_gettime(time.pthread_getcpuclockid(thread)) for thread in threads}


def _modules(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        yield frame.f_globals.get("__name__", "")
        frame = frame.f_back


def resident() -> int:
    """How many bytes of memory this process uses; 0 if there is no /proc."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0
