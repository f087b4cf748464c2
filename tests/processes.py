"""Client processes that a test may pause and kill: each obeys lines on stdin and answers on stdout.

    with ClientProcess(server.url) as web:
        web.do("lock('stock').acquire()")                       # evaluated in the process's thread "main"
        answer = web.begin("lock('stock').acquire()", "other")  # in a thread of that name; a Future

They are forked from one process that has imported everything, since importing Django takes a second.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from functools import cache
from itertools import count
from pathlib import Path
from typing import IO, Any, Self

from tests.eventually import PATIENCE, UNTIL_SERVED, eventually

ROOT = Path(__file__).parents[1]
MAIN_THREAD = ""
"""In place of the name of a thread: the main thread, which reads no further expression meanwhile."""


def _is_stopped(thread: Path) -> bool:
    return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T"


class RemoteError(Exception):
    """What the expression raised: the class's name, then the text."""


class ClientProcess:
    """A process with Django and the locks set up on the server at ``url``; ``options`` are RLOCK["default"]'s.

    ``environment`` is added to that of this process.
    """

    def __init__(
        self, url: str, options: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        nursery = _nursery(tuple((environment or {}).items()))
        self.pid, self._stdin, self._stdout = nursery.bear([url, dict(options or {})])
        self._handle = os.pidfd_open(self.pid)
        self._answers: dict[int, Future[Any]] = {}
        self._numbers = count()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def begin(self, expression: str, thread: str = "main") -> Future[Any]:
        """Have an expression evaluated in a thread of the process; threads of other names go on meanwhile."""
        number = next(self._numbers)
        answer = self._answers[number] = Future()
        self._stdin.write(json.dumps([number, thread, expression]) + "\n")
        return answer

    def do(self, expression: str, thread: str = "main") -> Any:
        """The same, waiting for the result. RemoteError when it raised."""
        return self.begin(expression, thread).result(UNTIL_SERVED)

    def run(self, program: str, **names: Any) -> None:
        """Run a program in its main thread, to its end."""
        self.begin(f"exec({program!r}, {names!r})", MAIN_THREAD).result(PATIENCE)

    def pause(self) -> None:
        """Stop all its threads; it returns when none runs any more."""
        self._signal(signal.SIGSTOP)
        eventually(lambda: all(map(_is_stopped, Path(f"/proc/{self.pid}/task").iterdir())))

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._signal(signal.SIGKILL)
        self._wait()

    def end(self) -> None:
        """Let it end as a script does, at the end of its input."""
        self._stdin.close()
        self._wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._reader.join(PATIENCE)
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        self._stdout.close()
        os.close(self._handle)

    def _signal(self, number: int) -> None:
        signal.pidfd_send_signal(self._handle, number)

    def _wait(self) -> None:
        if not select.select([self._handle], [], [], PATIENCE)[0]:
            raise TimeoutError("The process did not end.")

    def _read(self) -> None:
        for line in self._stdout:
            number, error, value = json.loads(line)
            answer = self._answers.pop(number)
            if error is None:
                answer.set_result(value)
            else:
                answer.set_exception(RemoteError(error))
        for answer in self._answers.values():
            answer.cancel()


class _Nursery:
    """The process that the others are forked from. It ends with this one, when its socket is closed."""

    def __init__(self, environment: Iterable[tuple[str, str]]) -> None:
        self._socket, theirs = socket.socketpair()
        self._mutex = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.processes"],
                cwd=ROOT,
                env={**os.environ, **dict(environment)},
                stdin=theirs.fileno(),
                start_new_session=True,  # Ctrl-C is for us
            )
        atexit.register(self._end)

    def _end(self) -> None:
        self._socket.close()
        self._process.wait(PATIENCE)

    def bear(self, arguments: list[Any]) -> tuple[int, IO[str], IO[str]]:
        """The pid of a new process, its standard input and its standard output."""
        their_input, our_output = os.pipe()
        our_input, their_output = os.pipe()
        with self._mutex:
            socket.send_fds(self._socket, [json.dumps(arguments).encode()], [their_input, their_output])
            pid = int(self._socket.recv(32))
        os.close(their_input)
        os.close(their_output)
        return pid, os.fdopen(our_output, "w", buffering=1), os.fdopen(our_input)


@cache
def _nursery(environment: tuple[tuple[str, str], ...]) -> _Nursery:
    return _Nursery(environment)


def set_up(url: str, options: dict[str, Any]) -> dict[str, Any]:
    """Set up Django, and return the names that expressions may use."""
    import django
    from django.conf import settings

    settings.configure(
        SECRET_KEY="not a secret", INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_rlock"]
    )
    django.setup()
    return configure(url, options)


def configure(url: str, options: dict[str, Any]) -> dict[str, Any]:
    """Set the server and the options, before anything has used them."""
    from django.conf import settings

    settings.CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}}
    settings.RLOCK = {"default": options}

    import asyncio
    import importlib
    import time

    import django_rlock

    locks: dict[Any, Any] = {}

    def lock(name: str, kind: Any = "fair", **arguments: Any) -> Any:
        return locks.setdefault((name, kind), django_rlock.rlock(name, kind=kind, **arguments))

    return {
        "asyncio": asyncio,
        "lock": lock,
        "module": importlib.import_module,
        "signals": django_rlock.signals,
        "state": {},
        "time": time,
    }


def _obey_jobs(jobs: queue.SimpleQueue[tuple[int, str]], names: dict[str, Any]) -> None:
    while True:
        _obey(*jobs.get(), names)


def _obey(number: int, expression: str, names: dict[str, Any]) -> None:
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


def _nurse() -> None:
    """Fork a process for each request on standard input; the child returns, with its arguments in the environment."""
    from django.core.cache import caches  # noqa: F401 - imported once for all

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=os.dup(0)) as requests:
        while True:
            message, files, *_ = socket.recv_fds(requests, 65536, 2)
            if not message:
                os._exit(0)
            if pid := os.fork():
                requests.send(str(pid).encode())
                for each in files:
                    os.close(each)
                continue
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for target, each in enumerate(files):
                os.dup2(each, target)
                os.close(each)
            _obey_all(configure(*json.loads(message)))
            return


def _obey_all(names: dict[str, Any]) -> None:
    threads: dict[str, queue.SimpleQueue[tuple[int, str]]] = {}
    for line in open(0, closefd=False):  # noqa: SIM115 - sys.stdin is the parent's
        number, thread, expression = json.loads(line)
        if thread == MAIN_THREAD:
            _obey(number, expression, names)
            continue
        if thread not in threads:
            threads[thread] = queue.SimpleQueue()
            threading.Thread(target=_obey_jobs, args=(threads[thread], names), name=thread, daemon=True).start()
        threads[thread].put((number, expression))


if __name__ == "__main__":
    set_up("unix:///nowhere", {})
    _nurse()
