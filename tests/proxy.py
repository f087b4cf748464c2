"""A proxy between the locks and a server, which loses, holds and cuts what a test names.

    proxy.lose_reply(scripts.FAIR_ACQUIRE)     # the server obeys, the client never hears of it

Every rule serves once, for the first command that contains its text; ``proxy.served`` counts those that did.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from django_rlock._redis import scripts
from django_rlock._redis.scripts import Script
from example_project.embedded import EmbeddedServer

_COMMAND = re.compile(rb"(?:\A|\r\n)\*\d+\r\n")


class Rule:
    """What happens to the first command that contains ``text``."""

    def __init__(self, text: bytes, deed: str, reply: bytes = b"", change: Callable[[bytes], bytes] = bytes) -> None:
        self.text = text
        self.change = change
        self.reply = reply
        self.deed = deed
        self.served = threading.Event()
        self.let_go = threading.Event()
        self.obeyed = threading.Event()


class Proxy:
    """Listens on a unix socket in ``folder``; ``upstream`` is the server's socket."""

    def __init__(self, upstream: Path, folder: Path) -> None:
        self.upstream = str(upstream)
        self.path = str(folder / "proxy.sock")
        self._added: list[Rule] = []
        self.rules: deque[Rule] = deque()
        self.change: Callable[[bytes], bytes] = bytes
        """What becomes of all replies, but for those that a rule changes."""
        self._open: set[socket.socket] = set()
        self._pairs: list[_Pair] = []
        self._server = socket.socket(socket.AF_UNIX)
        self._is_over = False

    @property
    def url(self) -> str:
        return f"unix://{self.path}?db=0"

    def cut_before(self, what: Script | bytes) -> Rule:
        """Close the connection before the command reaches the server."""
        return self._add(what, "cut_before")

    def lose_reply(self, what: Script | bytes) -> Rule:
        """Let the server execute it, then close the connection instead of replying."""
        return self._add(what, "lose_reply")

    def swallow_reply(self, what: Script | bytes) -> Rule:
        """Let the server execute it, and never reply; the connection stays open and silent."""
        return self._add(what, "swallow_reply")

    def hold(self, what: Script | bytes) -> Rule:
        """Keep the command until ``rule.let_go`` is set, also when its client has left meanwhile."""
        return self._add(what, "hold")

    def copy_late(self, what: Script | bytes) -> Rule:
        """Close the client's connection, so that it sends the command again; the server gets this one when
        ``rule.let_go`` is set, and has obeyed it when ``rule.obeyed`` is.
        """
        return self._add(what, "copy_late")

    def hold_reply(self, what: Script | bytes) -> Rule:
        """Let the server obey, and keep the reply until ``rule.let_go`` is set."""
        return self._add(what, "hold_reply")

    def refuse(self, what: Script | bytes, error: str) -> Rule:
        """Reply with an error, to this command and to all further ones of its connection; the server gets none."""
        return self._add(what, "refuse", b"-%b\r\n" % error.encode())

    def change_reply(self, what: Script | bytes, change: Callable[[bytes], bytes]) -> Rule:
        """Let the server obey, and bring what ``change`` makes of its reply."""
        return self._add(what, "change_reply", change=change)

    def forget_connections(self) -> None:
        """Bring nothing more on the connections that are open, as a firewall does that has forgotten them."""
        for pair in self._pairs:
            pair.is_forgotten = True

    def withdraw(self, rule: Rule) -> None:
        """Let go what the rule holds; if it has not served by now it never will."""
        with contextlib.suppress(ValueError):
            self.rules.remove(rule)
        rule.let_go.set()

    def _add(self, what: Script | bytes, deed: str, reply: bytes = b"", **options: Any) -> Rule:
        rule = Rule(what if isinstance(what, bytes) else what.sha.encode(), deed, reply, **options)
        self._added.append(rule)
        self.rules.append(rule)
        return rule

    def __enter__(self) -> Self:
        self._server.bind(self.path)
        self._server.listen(128)
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._is_over = True
        self._close_all()  # before what is held is let go: the server is another test's then
        for rule in self._added:
            rule.let_go.set()

    def _close_all(self) -> None:
        for each in list(self._open):
            self.close(each)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                self._open.add(client)
                try:
                    pair = _Pair(self, client, self.connect())
                    self._pairs.append(pair)
                    pair.start()
                except OSError:
                    self.close(client)
                if self._is_over:  # it came as all of them were closed
                    self._close_all()

    def connect(self) -> socket.socket:
        """A connection to the server, closed with the proxy."""
        server = socket.socket(socket.AF_UNIX)
        self._open.add(server)
        try:
            server.connect(self.upstream)
        except OSError:
            self.close(server)
            raise
        return server

    def close(self, each: socket.socket) -> None:
        """Close a socket of the proxy, and wake the thread that reads from it."""
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
        self._open.discard(each)


class _Pair:
    """One connection. Its state is the deed that the next reply meets."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self.proxy = proxy
        self.client = client
        self.server = server
        self.at_reply: Rule | None = None
        self.refusal = b""
        self.is_forgotten = False

    def start(self) -> None:
        threading.Thread(target=self._pump, args=(self.client, self.server, self._command), daemon=True).start()
        threading.Thread(target=self._pump, args=(self.server, self.client, self._reply), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, judge) -> None:
        with contextlib.suppress(OSError):
            while (data := source.recv(65536)) and (self.is_forgotten or judge(data)):
                pass
        for each in (source, target):
            self.proxy.close(each)

    def _command(self, data: bytes) -> bool:
        rules = self.proxy.rules
        rule = next((rule for rule in list(rules) if rule.text in data), None)
        if rule is not None:
            with contextlib.suppress(ValueError):
                rules.remove(rule)
            if rule.deed == "hold":
                rule.served.set()
                rule.let_go.wait()
            elif rule.deed == "copy_late":
                self._send_late(rule, data)
                return False
            elif rule.deed == "refuse":
                self.refusal = rule.reply
                rule.served.set()
            elif rule.deed == "cut_before":
                rule.served.set()
                return False
            else:
                self.at_reply = rule
        if self.refusal:
            self.client.sendall(self.refusal * len(_COMMAND.findall(data)))
        else:
            self.server.sendall(data)
        return True

    def _send_late(self, rule: Rule, data: bytes) -> None:
        """Over a connection of its own: this one may be closed by a late reply to an earlier command."""
        copy = self.proxy.connect()
        try:
            rule.served.set()
            self.proxy.close(self.client)
            rule.let_go.wait()
            copy.sendall(data)
            copy.shutdown(socket.SHUT_WR)
            while copy.recv(65536):
                pass
        finally:
            self.proxy.close(copy)
        rule.obeyed.set()

    def _reply(self, data: bytes) -> bool:
        rule, self.at_reply = self.at_reply, None
        if rule is None:
            data = self.proxy.change(data)
        else:
            rule.served.set()
            if rule.deed == "lose_reply":
                return False
            if rule.deed == "swallow_reply":
                return True
            if rule.deed == "hold_reply":
                rule.let_go.wait()
            data = rule.change(data)
        self.client.sendall(data)
        return True


def load_scripts(server: EmbeddedServer) -> None:
    """Load all scripts into the server, so that each call is one EVALSHA."""
    with server.client() as client:
        for each in vars(scripts).values():
            if isinstance(each, Script):
                client.script_load(each.source)
