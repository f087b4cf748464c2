"""The worker processes: each is stopped, killed and replaced by the next."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.clocks import Clocks, build, preloading
from tests.processes import ClientProcess
from tests.soak.rig import Crew

LAST_TURNS = 180.0
"""How long all workers may take to get everything once more when all is well, in seconds; leases are shorter."""
LONG = 120.0
"""How long a process may take to reply, in seconds: a machine may be busy."""


class Worker:
    """One process; with ``library``, by clocks of its own."""

    def __init__(self, name: str, folder: Path, library: Path | None, **arguments: Any) -> None:
        self.name = name
        self._clocks = Clocks(folder / f"{name}.clocks")
        self._process = ClientProcess("unix:///nowhere", environment=preloading(library) if library else None)
        clocks = str(self._clocks.file) if library else None
        self.pid = self.call("begin", name, folder=str(folder), clocks=clocks, **arguments)

    def call(self, function: str, *args: Any, **kwargs: Any) -> Any:
        """Call a function of ``workers`` in the process."""
        given = json.dumps([args, kwargs])
        expression = f"module('tests.soak.workers').run({function!r}, {given!r})"
        return self._process.begin(expression).result(LONG)

    def pause(self) -> None:
        self._process.pause()

    def resume(self) -> None:
        self._process.resume()

    def suspend(self, seconds: float, last: Callable[[float], None], *, paused_machine: bool = False) -> None:
        """Suspend its machine, or pause it if it is a virtual one."""
        self._clocks.suspend(self._process, seconds, paused_machine=paused_machine, last=last)

    def set_clock(self, step: float) -> None:
        """Set its wall clock."""
        self._clocks.move(wall=step)

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._process.__exit__()

    def end(self) -> None:
        """Let it end as a program does; its locks are released."""
        self._process.end()
        self._process.__exit__()

    def show_stacks(self) -> None:
        """Make it write down where its threads are."""
        os.kill(self.pid, signal.SIGUSR1)


class SoakCrew(Crew[Worker]):
    """``settings`` are those of each worker in turn: some go through proxies."""

    def __init__(
        self, size: int, seed: str, folder: Path, settings: Sequence[dict[str, Any]], control: bool = False
    ) -> None:
        self._seed = seed
        self._folder = folder
        self._settings = settings
        self._control = control
        self.library = build(folder)
        self.met: Counter[str] = Counter()
        super().__init__(size)

    def make(self, place: int, before: Sequence[str] = (), **environ: str) -> Worker:
        name = f"w{self.made}"
        self.made += 1
        settings = self._settings[place % len(self._settings)]
        options = {"seed": f"{self._seed}/{name}", "settings": settings, "control": self._control}
        return Worker(name, self._folder, self.library, **options)

    def let_have_last_turns(self) -> list[str]:
        """Let all workers take everything once more, and end; returns what the late ones did after LAST_TURNS."""
        for worker in self.workers:
            worker.call("have_last_turns")
        give_up_at = time.monotonic() + LAST_TURNS
        while waiting := [at for worker in self.workers for at in worker.call("served")]:
            if time.monotonic() > give_up_at:
                for worker in self.workers:
                    worker.show_stacks()
                break
            time.sleep(0.05)
        return waiting

    def left(self) -> dict[str, dict[str, Any]]:
        """What each process has left."""
        return {worker.name: worker.call("left") for worker in self.workers}

    def note_met(self) -> None:
        """Count what the processes of now have met."""
        for worker in self.workers:
            self.met.update(worker.call("met"))
