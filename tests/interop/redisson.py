"""The Java program in ``java/`` as an object: Redisson's clients in a JVM of ours, which obeys the tests.

jvm = Redisson(build("4.7.0"))
alice = jvm.thread("alice", Address(["redis://127.0.0.1:6379"]))
alice.do(lock("stock"), "lock", 10, "MINUTES")
waiting = jvm.thread("bob", address).begin(lock("stock"), "lock")  # a Future
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from tests.eventually import PATIENCE, UNTIL_SERVED

_OPTIONS = [
    "-Xmx256m",
    "-XX:+UseSerialGC",  # small, and so is the compiler that runs at once: it lives for seconds
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
]

Target = Sequence[Sequence[Any]]
"""The calls on a client that make an object, as ``[["getLock", "stock"]]``."""


def lock(name: str) -> Target:
    return [["getLock", name]]


def fair_lock(name: str) -> Target:
    return [["getFairLock", name]]


def spin_lock(name: str) -> Target:
    return [["getSpinLock", name]]


def fenced_lock(name: str) -> Target:
    return [["getFencedLock", name]]


def read_lock(name: str) -> Target:
    return [["getReadWriteLock", name], ["readLock"]]


def write_lock(name: str) -> Target:
    return [["getReadWriteLock", name], ["writeLock"]]


def multi_lock(*locks: Target) -> Target:
    return [["getMultiLock", locks]]


def semaphore(name: str) -> Target:
    return [["getSemaphore", name]]


def expirable_semaphore(name: str) -> Target:
    return [["getPermitExpirableSemaphore", name]]


def latch(name: str) -> Target:
    return [["getCountDownLatch", name]]


class JavaError(Exception):
    """What the Java method threw: the class's simple name, then its message; then the same of its causes."""


class Address(NamedTuple):
    """Where a client connects: one server, some nodes of a cluster, or the sentinel of a service.

    ``watchdog`` is its timeout in milliseconds. ``options`` are other setters of Redisson's configuration and their
    values, as ``("setSubscriptionMode", "SLAVE")``; the value for ``setNameMapper`` is a prefix,
    and for ``setCodec`` the name of a class.
    """

    nodes: tuple[str, ...]
    mode: Literal["single", "cluster", "sentinel"] = "single"
    service: str = ""
    watchdog: int = 30_000
    options: tuple[tuple[str, str], ...] = ()


class Redisson:
    """The process. Each address gets one client, which stays for all tests; a thread's name makes its owner."""

    def __init__(self, program: Path) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end()
        self._log_read = 0
        command = ["java", *_OPTIONS, "-cp", f"{program / 'classes'}:{program / 'lib'}/*", "interop.Main"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, bufsize=1
        )
        self._numbers = count()
        self._answers: dict[int, Future[Any]] = {}
        self._reader = threading.Thread(target=self._read, name="redisson-answers", daemon=True)
        self._reader.start()

    def thread(self, name: str, address: Address) -> JavaThread:
        """A thread of the JVM, and in it a client for this address."""
        return JavaThread(self, name, address)

    def begin(self, thread: str, address: Address, calls: Target) -> Future[Any]:
        number = next(self._numbers)
        answer = self._answers[number] = Future()
        command = {"id": number, "thread": thread, "client": address._asdict(), "calls": calls}
        self._pipe.write(json.dumps(command) + "\n")
        return answer

    def complaints(self) -> str:
        """What the clients have logged since the last call, from level WARN on."""
        told = os.pread(self._log.fileno(), 65536, self._log_read)  # the process writes at the file's own position
        self._log_read += len(told)
        return told.decode(errors="replace")

    def kill(self) -> None:
        """Let it die in the middle of what it does."""
        self._process.kill()
        self._process.wait(PATIENCE)

    def end(self) -> None:
        self._pipe.close()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise
        finally:
            self._reader.join(PATIENCE)
            self._log.close()

    @property
    def _pipe(self) -> IO[str]:
        assert self._process.stdin is not None
        return self._process.stdin

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as answers:
            for line in answers:
                told = json.loads(line)
                answer = self._answers.pop(told["id"])
                if told["error"] is None:
                    answer.set_result(told["value"])
                else:
                    answer.set_exception(JavaError(told["error"]))
        for answer in self._answers.values():
            answer.cancel()


class JavaThread:
    """An owner on the other side: a thread that makes the calls that it is given, one after the other."""

    def __init__(self, process: Redisson, name: str, address: Address) -> None:
        self._process = process
        self._name = name
        self._address = address

    def begin(self, target: Target, method: str, *arguments: Any) -> Future[Any]:
        """Call a method; JavaError, as the future's outcome, when it throws."""
        return self._process.begin(self._name, self._address, [*target, [method, *arguments]])

    def do(self, target: Target, method: str, *arguments: Any) -> Any:
        """The same, waiting for the result."""
        return self.begin(target, method, *arguments).result(UNTIL_SERVED)

    def sleeps(self) -> bool:
        """Whether it sleeps until a message or a time comes, for what it was told to wait for."""
        return self._process.begin(self._name, self._address, []).result(UNTIL_SERVED) == "TIMED_WAITING"
