"""In which calls the holder of a lock is: the question, and the answer of its process."""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from django_rlock._core import threads
from django_rlock._core.callbacks import log
from django_rlock._core.clock import monotonic
from django_rlock._transport.bridges import stack_of
from django_rlock._transport.calls import unavailable
from django_rlock._transport.connections import SERVER_ERRORS, is_cluster
from django_rlock._transport.identity import client_id, new_request
from django_rlock._transport.registry import commands_to, listener
from django_rlock._transport.subscriber import ListenerWaiter
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.infos import Holder, LockInfo
from django_rlock.locks.records import Hold
from django_rlock.settings import get_settings, server_aliases

# --- stacks -----------------------------------------------------------------------------------------------------------

# The stack of a holder in this process, for an operator who asks where it hangs.
#
# A process that has reported a hold listens on a channel of its own. It writes the answer to a key that lasts for
# half a minute: file, line and function of each call, but no values and no source.

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


# --- stacks -----------------------------------------------------------------------------------------------------------

# Asks the process that holds a lock where it is.

ANSWER_WITHIN = 3.0
"""How long a process has to answer, in seconds."""
_PAUSE = 0.05
MAX_LINES = 250


def holder_stack(lock: LockInfo, holder: Holder) -> list[str] | None:
    """The calls of the thread or task that holds a lock, the innermost last: file, line and function of each.

    None when its process does not answer within ANSWER_WITHIN seconds: it is paused or cut off, has SHOW_STACKS off, or
    is a Java client. LockUnavailableError when Redis is unreachable.
    """
    return threads.elsewhere(_ask, lock, holder)


def _ask(lock: LockInfo, holder: Holder) -> list[str] | None:
    request = new_request()
    channel, message = stack_channel(holder.client), json.dumps([lock.key, holder.owner, request])
    until, servers, errors = monotonic() + ANSWER_WITHIN, server_aliases(lock.using), []
    for using in servers:
        publish = "SPUBLISH" if is_cluster(using) else "PUBLISH"
        try:
            commands_to(using, "reports").run([(channel, (publish, channel, message))])
        except SERVER_ERRORS as error:
            errors.append(error)
    if len(errors) == len(servers):
        raise unavailable(lock.name, errors[0]) from errors[0]
    while monotonic() < until:
        for using in servers:
            if lines := _read(using, stack_key(request)):
                return lines
        time.sleep(_PAUSE)
    return None


def _read(using: str, key: str) -> list[str] | None:
    with suppress(*SERVER_ERRORS, ValueError, RecursionError):
        (text,) = commands_to(using, "reports").run([(key, ("GET", key))])
        lines = json.loads(text or "null")
        return list(map(str, lines[:MAX_LINES])) if isinstance(lines, list) else None
    return None
