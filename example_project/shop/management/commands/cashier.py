"""A process that holds a lock until its parent ends it; the page shows how it does that."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any

from django.core.management.base import BaseCommand

from django_rlock import rlock
from example_project.shop.accident import LOCK


class Command(BaseCommand):
    help = "Takes the lock of the till, and keeps it until the standard input ends."
    requires_system_checks = ()

    def handle(self, *_: Any, **__: Any) -> None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        threading.Thread(target=_leave_when_told, daemon=True).start()
        hold_the_till()


def hold_the_till() -> None:
    print("waits", flush=True)
    with rlock(LOCK, wait_time=None):
        print("holds the lock", flush=True)
        while True:
            time.sleep(1)  # not signal.pause(): a signal that comes just before it is not handled before the next one


def _leave_when_told() -> None:
    """End this process when its input does: its parent has closed it, or has ended in whatever way."""
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)
