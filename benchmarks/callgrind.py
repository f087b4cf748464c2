"""A server whose machine instructions valgrind counts. Their number is the same on a busy machine."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable

from example_project.embedded import EmbeddedServer


def is_installed() -> bool:
    """Whether valgrind is installed."""
    return shutil.which("valgrind") is not None and shutil.which("vgdb") is not None


class CountedServer(EmbeddedServer):
    """A server that callgrind, a tool of valgrind, runs: some fifty times as slow."""

    def instructions(self, call: Callable[[], object]) -> int:
        """How many instructions the server executes while a call runs, in this process or another."""
        self._tell("zero")
        call()
        self._tell("dump")
        [written] = self.folder.glob("counted.*")
        counted = re.search(r"^summary: (\d+)", written.read_text(), re.MULTILINE)
        written.unlink()
        assert counted is not None
        return int(counted[1])

    def _tell(self, command: str) -> None:
        subprocess.run(["/usr/bin/env", "vgdb", f"--pid={self.pid}", command], check=True, capture_output=True)

    def _program(self) -> list[str]:
        counting = ["--tool=callgrind", f"--callgrind-out-file={self.folder}/counted"]
        return ["valgrind", "--quiet", *counting, *super()._program()]
