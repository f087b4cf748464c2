"""A demo as a user starts it, and what is left of it afterwards."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEMO = [sys.executable, "-m", "example_project.demo"]
MANAGE = [sys.executable, "example_project/manage.py"]


class Running:
    """A command whose processes, with children and grandchildren, are recognised by the TMPDIR in their environment."""

    def __init__(self, command: list[str]) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="demo-"))  # short: the path of a unix socket must be
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**_environment(), "TMPDIR": str(self.home)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.output = ""

    def read_until(self, text: str) -> str:
        """The output up to the line that contains ``text``."""
        assert self.process.stdout is not None
        while text not in self.output:
            line = self.process.stdout.readline()
            assert line, f"ended without saying {text!r}: {self.output}"
            self.output += line
        return self.output

    def finish(self) -> tuple[int, str, str]:
        """Exit status, all output and all errors."""
        output, errors = self.process.communicate()
        return self.process.returncode, self.output + output, errors

    def left(self) -> set[str]:
        """What has not been cleaned up: files and command lines."""
        return {str(path) for path in self.home.iterdir()} | set(self.processes().values())

    def is_gone(self) -> bool:
        """Whether nothing is left, at once or after the second or two that a killed demo's watchers take."""
        pause = threading.Event()
        return any(not self.left() or pause.wait(0.1) for _ in range(150))

    def processes(self) -> dict[int, str]:
        """The command lines of all its processes that run."""
        marker = f"\0TMPDIR={self.home}".encode()  # or a folder in it
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if marker in b"\0" + (folder / "environ").read_bytes():
                    found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
            except OSError:
                pass  # it has ended, or is not ours
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        if not self.is_gone():
            for pid in self.processes():
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.home, ignore_errors=True)


def _environment() -> dict[str, str]:
    """The user's environment: without pytest-django's settings."""
    return {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}


def row(output: str, lane: str) -> list[int]:
    """A lane of the printed table: sold, sold out, refused, errors and oversold."""
    line = next(line for line in output.splitlines() if line.startswith(lane))
    return [int(number) for number in line.removeprefix(lane).split()[:5]]


def has_ended(pid: int) -> bool:
    """Also as a zombie, which some other process has yet to ask for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
