"""The stack of a holder in this process, for an operator who asks where it hangs.

A process that has reported a hold listens on a channel of its own. It writes the answer to a key that lasts for half a
minute: file, line and function of each call, but no values and no source.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from django_rlock.callbacks import log
from django_rlock.connections import SERVER_ERRORS
from django_rlock.drivers.bridges import stack_of
from django_rlock.drivers.identity import client_id
from django_rlock.drivers.listening.waiters import ListenerWaiter
from django_rlock.drivers.room import commands_to, listener
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.records import Hold
from django_rlock.settings import get_settings

logger = logging.getLogger("django_rlock.reports")

KEEP = 30.0
"""How long an answer is kept, in seconds."""
MAX_CALLS = 200
"""The innermost calls of a stack that are told."""
_MOST_ASKED = 10


def stack_channel(client: str) -> str:
    """Where a process is asked. It begins as the wake-up channels do, so that it needs no further right to subscribe.
    Payload: a list of the lock's key, the owner there, and the ``request``."""
    return f"rlock_wake:stack:{client}"


def stack_key(request: str) -> str:
    """The key of the answer, a string: a list of its lines."""
    return f"rlock_stack:{request}"


class Stacks:
    """What this process was asked, and has not answered yet; ``ring`` wakes the thread that answers."""

    def __init__(self, ring: Callable[[], object]) -> None:
        self._ring = ring
        self._asked: deque[tuple[str, str]] = deque(maxlen=_MOST_ASKED)
        self.heard: dict[str, ListenerWaiter] = {}

    def listen(self, using: str) -> None:
        """Heed what is asked through the server of an alias."""
        self.heard[using] = listener(using).call_at(stack_channel(client_id()), partial(self._hear, using))

    def _hear(self, using: str, message: str) -> None:
        if message:
            self._asked.append((using, message))
            self._ring()

    def answer(self) -> None:
        """Answer all that was asked."""
        while self._asked:
            using, message = self._asked.popleft()
            with suppress(ValueError, TypeError, RecursionError):  # forged
                key, owner, request = map(str, json.loads(message))
                if (hold := _hold(key, owner)) is not None:
                    _write(using, stack_key(request), _lines(hold))


def shows_stack(hold: object) -> bool:
    """Whether this process tells the stack of a hold's owner."""
    return isinstance(hold, Hold) and get_settings(hold.lock.using).show_stacks


def _hold(key: str, owner: str) -> Hold | None:
    holds = (hold for hold in HOLDS.snapshot() if hold.lock.key == key and owner in (hold.owner_id, hold.hash_field))
    return next(filter(shows_stack, holds), None)


def _lines(hold: Hold) -> list[str]:
    if hold.owner.is_named:
        return [f"{hold.owner_id!r} is a name, which belongs to no thread or task."]
    return stack_of(hold.owner)[-MAX_CALLS:] or [f"{hold.place!r} has ended, or is not known."]


def _write(using: str, key: str, lines: list[str]) -> None:
    try:
        commands_to(using, "reports").run([(key, ("SET", key, json.dumps(lines), "PX", round(KEEP * 1000)))])
    except SERVER_ERRORS as error:
        log(logger, logging.INFO, "The stack that an operator asked for was not written: %s", error)
