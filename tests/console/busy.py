"""A real process that takes one lock over and over, for a few milliseconds each time."""

import subprocess
import sys
from typing import Self

_PROGRAM = """
import socket, sys, threading
name, host = sys.argv[1:]
socket.gethostname = lambda: host
sys.argv = ["gunicorn"]
import django
django.setup()
from django_rlock import rlock
from django_rlock.locks.records import Work, context
from django_rlock._monitoring import recorder as history

history.COLLECT_EVERY = 1.0
pause = threading.Event()
context.set(Work({"route": "POST /buy/42/", "user": "7"}))
print("ready", flush=True)
while True:
    with rlock(name):
        pause.wait(0.005)
"""


class BusyProcess:
    """``with BusyProcess("stock:42", "web-1"):``; ends with its block."""

    def __init__(self, name: str, host: str) -> None:
        self._popen = subprocess.Popen([sys.executable, "-c", _PROGRAM, name, host], stdout=subprocess.PIPE, text=True)
        assert self._popen.stdout is not None
        assert self._popen.stdout.readline() == "ready\n"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        with self._popen as ended:
            ended.kill()

    @property
    def pid(self) -> int:
        return self._popen.pid
