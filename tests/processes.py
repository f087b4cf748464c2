"""Client processes that a test may pause and kill: each obeys lines on stdin and answers on stdout.

    with ClientProcess(server.url) as web:
        web.do("lock('stock').acquire()")                       # evaluated in the process's thread "main"
        answer = web.begin("lock('stock').acquire()", "other")  # in a thread of that name; a Future
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[1]
PATIENCE = 20.0


class RemoteError(Exception):
    """What the expression raised: the class's name, then the text."""


class ClientProcess:
    """A process with Django and the locks set up on the server at ``url``; ``options`` are RLOCK["default"]'s."""

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.processes", json.dumps([url, dict(options or {})])],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._answers: dict[int, Future[Any]] = {}
        self._numbers = count()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def begin(self, expression: str, thread: str = "main") -> Future[Any]:
        """Have an expression evaluated in a thread of the process; threads of other names go on meanwhile."""
        number = next(self._numbers)
        answer = self._answers[number] = Future()
        self._stdin.write(json.dumps([number, thread, expression]) + "\n")
        return answer

    def do(self, expression: str, thread: str = "main") -> Any:
        """The same, waiting for the answer. RemoteError when it raised."""
        return self.begin(expression, thread).result(PATIENCE)

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> int:
        """Let it end as a script does, at the end of its input; answers the exit status."""
        self._stdin.close()
        return self._process.wait(PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._reader.join(PATIENCE)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None and not stream.closed:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass

    @property
    def _stdin(self) -> Any:
        return self._process.stdin

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            number, error, value = json.loads(line)
            answer = self._answers.pop(number)
            if error is None:
                answer.set_result(value)
            else:
                answer.set_exception(RemoteError(error))
        for answer in self._answers.values():
            answer.cancel()


def set_up(url: str, options: dict[str, Any]) -> dict[str, Any]:
    import django
    from django.conf import settings

    settings.configure(
        SECRET_KEY="not a secret",
        CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}},
        RLOCK={"default": options},
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_rlock"],
    )
    django.setup()

    import time

    import django_rlock
    from django_rlock.drivers.identity import client_id

    locks: dict[Any, Any] = {}

    def lock(name: str, kind: str = "fair", **arguments: Any) -> Any:
        return locks.setdefault((name, kind), django_rlock.rlock(name, kind=kind, **arguments))

    return {"os": os, "sys": sys, "time": time, "threading": threading, "lock": lock, "client_id": client_id,
            "signals": django_rlock.signals, "state": {}, "asyncio": __import__("asyncio")}


def _obey(jobs: queue.SimpleQueue[tuple[int, str]], names: dict[str, Any]) -> None:
    while True:
        number, expression = jobs.get()
        error = value = None
        try:
            value = eval(expression, names)
        except Exception as raised:  # noqa: BLE001 - the test judges it
            error = f"{type(raised).__name__}: {raised}"
        _answer(number, error, value)


_stdout = threading.Lock()


def _answer(number: int, error: str | None, value: Any) -> None:
    with _stdout:
        print(json.dumps([number, error, value], default=repr), flush=True)  # noqa: T201


def main() -> None:
    names = set_up(*json.loads(sys.argv[1]))
    threads: dict[str, queue.SimpleQueue[tuple[int, str]]] = {}
    for line in sys.stdin:
        number, thread, expression = json.loads(line)
        if thread not in threads:
            threads[thread] = queue.SimpleQueue()
            threading.Thread(target=_obey, args=(threads[thread], names), name=thread, daemon=True).start()
        threads[thread].put((number, expression))


if __name__ == "__main__":
    main()
