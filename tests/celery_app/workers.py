"""Real workers for tests: started as processes, waited for, and ended by their process ids."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from tests.celery_app.records import wait_for

ROOT = Path(__file__).parents[2]
TEMPORARY = "RLOCK_TEST_TEMPORARY"
"""The folder in which a worker's children make temporary files; its disk may be full."""
WARM = 10.0
"""Seconds that a worker gets to end by itself."""


def use_temporary_folder(**_: object) -> None:
    """Have a child of a worker take that folder. The pool needs one too, but of its own."""
    tempfile.tempdir = os.environ.get(TEMPORARY)


class Worker:
    """A worker process in a session, and so a process group, of its own. ``options`` win over what this class sets;
    ``before`` begins its command."""

    app, settings = "tests.celery_app", "tests.celery_app.settings"
    running: ClassVar[set["Worker"]] = set()

    def __init__(
        self, queue: str, *options: str, log: Path, environ: Mapping[str, str], before: Sequence[str] = ()
    ) -> None:
        self.queue = queue
        self.hostname = f"{queue}@tests"
        self.log = log
        quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat")
        command = (sys.executable, "-m", "celery", "-A", self.app, "worker", "-Q", queue, "-n", self.hostname)
        environ = {
            **os.environ,
            **environ,
            "DJANGO_SETTINGS_MODULE": self.settings,
            "CELERY_SKIP_CHECKS": "1",
        }
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [*before, *command, *options, *quiet, "--loglevel", "INFO"],
                cwd=ROOT,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.running.add(self)

    def __enter__(self):
        try:
            wait_for("ready:" + self.hostname)
        except AssertionError as error:
            self.stop()
            raise AssertionError(self.log.read_text()) from error
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self) -> None:
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(WARM)
        self.kill()

    def kill(self) -> None:
        """End the worker and its children with SIGKILL, as the loss of a machine would."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.running.discard(self)

    def last_lines(self, number: int) -> str:
        """The end of its log."""
        return "".join(self.log.read_text(errors="replace").splitlines(keepends=True)[-number:])
