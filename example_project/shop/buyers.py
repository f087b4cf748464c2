"""The buyers: one thread for each, which all send their request at the same moment, over real HTTP."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection, HTTPException
from queue import SimpleQueue
from urllib.parse import urlsplit

OUTCOMES = {201: "sold", 409: "sold_out", 423: "refused"}
"""The meaning of a response's status for a buyer; any other status, or no response, is an error."""

PATIENCE = 120.0
"""How long a buyer waits for the response, in seconds."""


def send_buyers(url: str, paths: Mapping[int, str]) -> Iterator[tuple[int, str]]:
    """Send each buyer to a path of the site at ``url``; yields buyers with their outcomes as they are decided."""
    answers: SimpleQueue[tuple[int, str]] = SimpleQueue()
    start = threading.Barrier(len(paths))

    def buy(buyer: int) -> None:
        answers.put((buyer, _outcome(url, paths[buyer], start)))

    threads = [threading.Thread(target=buy, args=[buyer], daemon=True) for buyer in paths]
    for thread in threads:
        thread.start()
    for _thread in threads:
        yield answers.get()


def _outcome(url: str, path: str, start: threading.Barrier) -> str:
    connection = HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE)
    with contextlib.closing(connection):
        with contextlib.suppress(OSError):
            connection.connect()  # before the start; if this fails, the request below tries again
        start.wait()
        try:
            connection.request("POST", path)
            return OUTCOMES.get(connection.getresponse().status, "error")
        except (OSError, HTTPException):
            return "error"
