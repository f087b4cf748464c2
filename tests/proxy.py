"""A proxy between the locks and a server, which loses, holds and cuts what a test names.

    proxy.lose_reply(scripts.FAIR_ACQUIRE)     # the server obeys, the client never hears of it

Every rule serves once, for the first command that contains its text; ``proxy.served`` counts those that did.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from pathlib import Path
from typing import Self

from django_rlock import scripts
from django_rlock.scripts import Script
from example_project.embedded import EmbeddedServer


class Rule:
    """What happens to the first command that contains ``text``."""

    def __init__(self, text: bytes, deed: str) -> None:
        self.text = text
        self.deed = deed
        self.served = threading.Event()
        self.let_go = threading.Event()


class Proxy:
    """Listens on a unix socket in ``folder``; ``upstream`` is the server's socket."""

    def __init__(self, upstream: Path, folder: Path) -> None:
        self.upstream = str(upstream)
        self.path = str(folder / "proxy.sock")
        self._rules: deque[Rule] = deque()
        self._sockets: list[socket.socket] = []
        self._server = socket.socket(socket.AF_UNIX)

    @property
    def url(self) -> str:
        return f"unix://{self.path}?db=0"

    def cut_before(self, what: Script | bytes) -> Rule:
        """Close the connection before the command reaches the server."""
        return self._add(what, "cut_before")

    def lose_reply(self, what: Script | bytes) -> Rule:
        """Let the server obey, then close the connection instead of answering."""
        return self._add(what, "lose_reply")

    def swallow_reply(self, what: Script | bytes) -> Rule:
        """Let the server obey, and never answer; the connection stays open and silent."""
        return self._add(what, "swallow_reply")

    def hold(self, what: Script | bytes) -> Rule:
        """Keep the command until ``rule.let_go`` is set, also when its client has left meanwhile."""
        return self._add(what, "hold")

    def hold_reply(self, what: Script | bytes) -> Rule:
        """Let the server obey, and keep the reply until ``rule.let_go`` is set."""
        return self._add(what, "hold_reply")

    def _add(self, what: Script | bytes, deed: str) -> Rule:
        rule = Rule(what if isinstance(what, bytes) else what.sha.encode(), deed)
        self._rules.append(rule)
        return rule

    def __enter__(self) -> Self:
        self._server.bind(self.path)
        self._server.listen(128)
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for rule in self._rules:
            rule.let_go.set()
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for each in self._sockets:
            _close(each)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                server = socket.socket(socket.AF_UNIX)
                self._sockets += client, server
                try:
                    server.connect(self.upstream)
                except OSError:
                    _close(client)
                    _close(server)
                    continue
                _Pair(self._rules, client, server).start()


class _Pair:
    """One connection. Its state is the deed that the next reply meets."""

    def __init__(self, rules: deque[Rule], client: socket.socket, server: socket.socket) -> None:
        self.rules = rules
        self.client = client
        self.server = server
        self.at_reply: Rule | None = None

    def start(self) -> None:
        threading.Thread(target=self._pump, args=(self.client, self.server, self._command), daemon=True).start()
        threading.Thread(target=self._pump, args=(self.server, self.client, self._reply), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, judge) -> None:
        with contextlib.suppress(OSError):
            while (data := source.recv(65536)) and judge(data):
                pass
        for each in (source, target):
            _close(each)

    def _command(self, data: bytes) -> bool:
        rule = next((rule for rule in self.rules if rule.text in data), None)
        if rule is not None:
            with contextlib.suppress(ValueError):
                self.rules.remove(rule)
            if rule.deed == "hold":
                rule.served.set()
                rule.let_go.wait()
            elif rule.deed == "cut_before":
                rule.served.set()
                return False
            else:
                self.at_reply = rule
        self.server.sendall(data)
        return True

    def _reply(self, data: bytes) -> bool:
        rule, self.at_reply = self.at_reply, None
        if rule is not None:
            rule.served.set()
            if rule.deed == "lose_reply":
                return False
            if rule.deed == "swallow_reply":
                return True
            rule.let_go.wait()
        self.client.sendall(data)
        return True


def _close(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()


def load_scripts(server: EmbeddedServer) -> None:
    """Have the server know all scripts, so that each call is one EVALSHA."""
    with server.client() as client:
        for each in vars(scripts).values():
            if isinstance(each, Script):
                client.script_load(each.source)
