"""A process that holds a lock is killed while another one waits for it, and the page shows what happens."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any, Self

from django.conf import settings
from django_redis import get_redis_connection

from django_rlock import rlock

LOCK = "till"

EVENTS = "shop:accident"
"""The story, in Redis, because other processes serve the page."""

KEEP = 10 * 60
"""After how many seconds Redis forgets the story."""


def kill_a_holder() -> None:
    """Start a process that takes the lock and one that waits for it, kill the first, and wait for the second."""
    with Story() as story, start_cashier() as holder:
        wait_until(holder, "holds the lock")
        story.tell(f"Process {holder.pid} holds the lock.")
        with start_cashier() as waiter:
            wait_until(waiter, "waits")
            story.tell(f"Process {waiter.pid} waits for it.")
            holder.kill()  # SIGKILL, to the process id of our own child
            killed = story.tell(f"Process {holder.pid} is killed by SIGKILL. It releases nothing.", "killed")
            wait_until(waiter, "holds the lock")
            waited = story.seconds - killed
            story.tell(f"Process {waiter.pid} holds the lock, {waited:.1f} s after the kill.", "over")


def start_cashier() -> subprocess.Popen[str]:
    """Start a process that takes the lock, and keeps it until its standard input ends."""
    command = [sys.executable, str(settings.FOLDER / "manage.py"), "cashier"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def wait_until(cashier: subprocess.Popen[str], line: str) -> None:
    """Return when the process has printed this line. RuntimeError when it ends without."""
    if not any(printed.strip() == line for printed in cashier.stdout or ()):
        raise RuntimeError(f"Process {cashier.pid} has ended; its errors are in the log.")


class Story:
    """What happens, line by line."""

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        get_redis_connection().delete(EVENTS)
        self.tell("Two processes start, one after the other.")
        return self

    def __exit__(self, _type: object, error: object, _traceback: object) -> None:
        if error:
            self.tell("That did not work; the worker's log says why.", "over")

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._started

    def tell(self, text: str, phase: str = "busy") -> float:
        """Add a line, after which the phase is busy, killed or over. Returns the seconds since the beginning."""
        event = {"at": f"{(seconds := self.seconds):.1f} s", "text": text, "phase": phase}
        with get_redis_connection().pipeline() as pipeline:
            pipeline.rpush(EVENTS, json.dumps(event)).expire(EVENTS, KEEP).execute()
        return seconds


def state_of_accident() -> dict[str, Any]:
    """The lines so far, the phase (idle before the first line), and the rest of a dead holder's lease, in seconds."""
    events = [json.loads(event) for event in get_redis_connection().lrange(EVENTS, 0, -1)]
    phase = events[-1]["phase"] if events else "idle"
    lease = rlock(LOCK).remaining_lease() if phase == "killed" else None
    return {"phase": phase, "events": events, "lease": lease}
