"""Real processes that hold locks and wait for them, until they get another command or are killed."""

import json
import subprocess
import sys
from contextlib import suppress
from typing import Any, Self

from tests.eventually import PATIENCE

_PROGRAM = """
import json, socket, sys, threading
host, role = sys.argv[1:]
if host:
    socket.gethostname = lambda: host
sys.argv = role.split()
import django
django.setup()
from django_rlock import rlock
from django_rlock.locks.records import Work, context

locks = {}

def acquire(name, doing, options):
    context.set(None if doing is None else Work(doing))
    lock = locks[name] = rlock(name, **options)
    lock.acquire()

def wait(name, doing, options):
    threading.Thread(target=acquire, args=(name, doing, options), name="waiter", daemon=True).start()

def release(name, doing, options):
    locks[name].release()

def hand_over(name, doing, options):
    locks[name].hand_over()

print("ready", flush=True)
for line in sys.stdin:
    do, *args = json.loads(line)
    if do == "block":
        print("done", flush=True)
        acquire(*args)
    else:
        {"acquire": acquire, "wait": wait, "release": release, "hand_over": hand_over}[do](*args)
        print("done", flush=True)
"""


class Process:
    """``with Process(host="web-2") as web: web.acquire("stock:1")``; ends with its block, locks and all."""

    def __init__(self, host: str = "", role: str = "gunicorn") -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, host, role],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._popen.stdout is not None
        assert self._popen.stdout.readline() == "ready\n"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self._popen.pid

    def acquire(self, name: str, doing: dict[str, str] | None = None, **options: Any) -> None:
        self._tell("acquire", name, doing, options)

    def wait(self, name: str, doing: dict[str, str] | None = None, **options: Any) -> None:
        """Let a thread of the process wait for a lock; returns at once."""
        self._tell("wait", name, doing, options)

    def block(self, name: str, doing: dict[str, str] | None = None, **options: Any) -> None:
        """Have the main thread wait for a lock; returns at once, and the process heeds nothing until it has it."""
        self._tell("block", name, doing, options)

    def release(self, name: str) -> None:
        self._tell("release", name, None, {})

    def hand_over(self, name: str) -> None:
        self._tell("hand_over", name, None, {})

    def exit(self) -> None:
        """A clean end of the interpreter."""
        assert self._popen.stdin is not None
        with suppress(BrokenPipeError):
            self._popen.stdin.close()
        self._popen.wait(PATIENCE)

    def kill(self) -> None:
        """SIGKILL, as the kernel does it to a process that takes too much memory."""
        with self._popen as ended:
            ended.kill()

    def _tell(self, *words: Any) -> None:
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._popen.stdin.write(json.dumps(words) + "\n")
        self._popen.stdin.flush()
        assert self._popen.stdout.readline() == "done\n"
