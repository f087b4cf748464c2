"""Which way messages went in the broker, by the log of all that it wrote: its AOF, which is never rewritten."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

Trail = list[tuple[str, str]]
SENT, NOTED, DROPPED = "sent", "noted as delivered", "dropped from the notes"


def trails(folder: Path) -> dict[str, Trail]:
    """What happened to the messages of each task, in order: what, and the delivery's tag.

    ``folder`` is that of the server.
    """
    found: dict[str, Trail] = defaultdict(list)
    tasks: dict[str, str] = {}
    for path in sorted((folder / "appendonlydir").glob("*.incr.aof"), key=lambda path: int(path.name.split(".")[-3])):
        with path.open("rb") as file:
            for name, *args in _commands(file):
                if name in {b"LPUSH", b"RPUSH"} and args[1].startswith(b"{"):
                    _note(found, tasks, SENT, args[1])
                elif name == b"HSET" and args[0] == b"unacked":
                    _note(found, tasks, NOTED, json.dumps(json.loads(args[2])[0]).encode())
                elif name == b"HDEL" and args[0] == b"unacked":
                    tag = args[1].decode()
                    found[tasks.get(tag, "")].append((DROPPED, tag))
    return found


def _note(found: dict[str, Trail], tasks: dict[str, str], what: str, payload: bytes) -> None:
    message = json.loads(payload)
    task_id, tag = message["headers"].get("id", ""), message["properties"]["delivery_tag"]
    tasks[tag] = task_id
    found[task_id].append((what, tag))


def _commands(file: BinaryIO) -> Iterator[list[bytes]]:
    while head := file.readline():
        if not head.startswith(b"*"):  # an annotation
            continue
        args = []
        for _ in range(int(head[1:])):
            size = int(file.readline()[1:] or 0)
            args.append(file.read(size))
            file.read(2)
        yield [args[0].upper(), *args[1:]]


def was_lost_at_delivery(trail: Trail) -> bool:
    """Whether a message was taken from the queue without a record of who has it."""
    open_tags: dict[str, str] = {}
    for what, tag in trail:
        if what == DROPPED:
            open_tags.pop(tag, None)
        else:
            open_tags[tag] = what
    return SENT in open_tags.values()
