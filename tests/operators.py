"""Forced releases by an operator: neither in the thread nor in the task of its holder."""

from __future__ import annotations

import threading

from django_rlock import rlock
from tests.eventually import UNTIL_SERVED


def free_by_force(name: str) -> None:
    """Free a lock, whoever holds it."""
    operator = threading.Thread(target=rlock(name).force_release)
    operator.start()
    operator.join(UNTIL_SERVED)
    assert not operator.is_alive()
