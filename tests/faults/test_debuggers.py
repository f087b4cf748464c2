"""A debugger's breakpoint stops all threads of a process, but not those that renew its locks."""

import json
import socket
import subprocess
import sys
import threading
from contextlib import closing

import pytest

from django_rlock._core import threads
from tests.eventually import PATIENCE, UNTIL_SERVED, eventually

LEASE = 3.0


class Debugger:
    """A client of the Debug Adapter Protocol, as an editor is one."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), UNTIL_SERVED)
        self._file = self._socket.makefile("rb")
        self._sent = 0

    def ask(self, command: str, **arguments: object) -> None:
        self._sent += 1
        request = {"seq": self._sent, "type": "request", "command": command, "arguments": arguments}
        body = json.dumps(request).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))

    def until_it_stops(self) -> dict[str, int]:
        """Attach to the process, and wait until it comes to its breakpoint."""
        self.ask("initialize", adapterID="tests")
        self.ask("attach", justMyCode=False)
        self.until("initialized")
        self.ask("configurationDone")
        return self.until("stopped")

    def until(self, event: str) -> dict[str, int]:
        """Wait for an event; returns what it is about."""
        while True:
            size = 0
            while line := self._file.readline().strip():
                size = int(line.rpartition(b":")[2])
            message = json.loads(self._file.read(size))
            if message.get("event") == event:
                return message.get("body", {})

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def until_renewed(redis_client) -> None:
    end = redis_client.pexpiretime("rlock:stock:42")
    eventually(lambda: redis_client.pexpiretime("rlock:stock:42") > end, PATIENCE)


def test_a_breakpoint_inside_a_block_does_not_cost_the_lock(server, redis_client):
    pytest.importorskip("debugpy", reason="debugpy is in the dependency group test")
    command = [sys.executable, "-Xfrozen_modules=off", "-m", "tests.faults.debugged", server.url, str(LEASE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            with closing(Debugger(json.loads(process.stdout.readline())["port"])) as debugger:
                stopped = debugger.until_it_stops()
                for _ in range(2):
                    until_renewed(redis_client)
                debugger.ask("continue", threadId=stopped["threadId"])
                assert json.loads(process.stdout.readline()) == {"lost": False}
        finally:
            process.kill()


@pytest.mark.parametrize("name", ["rlock-worker", None])
def test_a_debugger_leaves_all_threads_of_the_package_alone(monkeypatch, name):
    """Those without a name, too: they open connections."""

    def look() -> None:
        thread = threading.current_thread()
        found.append([getattr(thread, each, False) for each in ("pydev_do_not_trace", "is_pydev_daemon_thread")])

    monkeypatch.setitem(sys.modules, "pydevd", threading)
    found: list[list[bool]] = []
    threads.start(look, name=name)
    assert eventually(lambda: found) == [[True, True]]
