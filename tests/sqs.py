"""An SQS on this machine, by moto, on a port that is free.

with Sqs() as sqs:
    sqs.port
"""

from __future__ import annotations

import subprocess
import sys
import time
from importlib.util import find_spec
from typing import Self
from urllib.request import urlopen

from example_project.embedded import free_port

START_TIMEOUT = 60.0
"""Seconds that it gets to answer."""


def missing() -> list[str]:
    """The packages that it and Kombu's transport need, and that are not installed: the group "sqs" has them."""
    return [name for name in ("boto3", "moto", "pycurl") if find_spec(name) is None]


class Sqs:
    """The server; its queues are gone when it ends."""

    def __init__(self) -> None:
        self.port = free_port()

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        give_up_at = time.monotonic() + START_TIMEOUT
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > give_up_at:
                self.__exit__()
                raise RuntimeError("moto's server did not start.")
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def _answers(self) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/moto-api/", timeout=5):
                return True
        except OSError:
            return False
