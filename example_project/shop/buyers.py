"""The buyers: as many threads as there are buyers, who all send their request at the same moment, over real HTTP."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection, HTTPException
from queue import SimpleQueue
from urllib.parse import urlsplit

OUTCOMES = {201: "sold", 409: "sold_out", 423: "refused"}
"""What the status of an answer means to a buyer; any other, or none at all, is an error."""

PATIENCE = 120.0
"""Seconds that a buyer waits for the answer."""


def send_buyers(url: str, paths: Mapping[int, str]) -> Iterator[tuple[int, str]]:
    """Send each buyer to a path of the site at ``url``; yields buyers and their outcomes as they are decided."""
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
            connection.connect()  # before the start; without success the request below tries again
        start.wait()
        try:
            connection.request("POST", path)
            return OUTCOMES.get(connection.getresponse().status, "error")
        except (OSError, HTTPException):
            return "error"
