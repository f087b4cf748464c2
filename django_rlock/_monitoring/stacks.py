"""The call stack of a lock's holder: the request, and the reply of the holder's process."""

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
from django_rlock._redis.keys import stack_channel, stack_key
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

# The stack of a holder in this process, for an operator who wants to know where it hangs.
#
# A process that has reported a hold subscribes to its own channel. It writes the reply to a key that expires after half
# a minute: file, line and function of each call, but no values and no source.

logger = logging.getLogger("django_rlock.reports")

KEEP = 30.0
"""How long a reply is kept, in seconds."""
MAX_CALLS = 200
"""The largest number of calls in a reply: the innermost ones."""
_MOST_ASKED = 10


class Stacks:
    """The requests to this process without a reply yet; ``wake`` wakes the thread that replies."""

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._asked: deque[tuple[str, str]] = deque(maxlen=_MOST_ASKED)
        self.channels: dict[str, ListenerWaiter] = {}

    def listen(self, using: str) -> None:
        """Subscribe to requests on the server of an alias."""
        self.channels[using] = listener(using).call_at(stack_channel(client_id()), partial(self._receive, using))

    def _receive(self, using: str, message: str) -> None:
        # A list of the lock's key, its owner, and the name of the reply.
        if message:
            self._asked.append((using, message))
            self._wake()

    def answer(self) -> None:
        """Reply to all requests."""
        while self._asked:
            using, message = self._asked.popleft()
            with suppress(ValueError, TypeError, RecursionError):  # forged
                key, owner, request = map(str, json.loads(message))
                if (hold := _hold(key, owner)) is not None:
                    _write(using, stack_key(request), _lines(hold))


def shows_stack(hold: object) -> bool:
    """Whether this process shows the stack of a hold's owner."""
    return isinstance(hold, Hold) and get_settings(hold.lock.using).show_stacks


def _hold(key: str, owner: str) -> Hold | None:
    holds = (hold for hold in HOLDS.snapshot() if hold.lock.key == key and owner in (hold.owner_id, hold.hash_field))
    return next(filter(shows_stack, holds), None)


def _lines(hold: Hold) -> list[str]:
    if hold.owner.is_named:
        return [f"{hold.owner_id!r} is a name that does not belong to a thread or task."]
    return stack_of(hold.owner)[-MAX_CALLS:] or [f"{hold.place!r} has ended, or is unknown."]


def _write(using: str, key: str, lines: list[str]) -> None:
    try:
        commands_to(using, "reports").run([(key, ("SET", key, json.dumps(lines), "PX", round(KEEP * 1000)))])
    except SERVER_ERRORS as error:
        log(logger, logging.INFO, "The stack that an operator asked for was not written: %s", error)


# --- stacks -----------------------------------------------------------------------------------------------------------

# Requests the stack from the process that holds a lock.

ANSWER_WITHIN = 3.0
"""The time for a process to reply, in seconds."""
_PAUSE = 0.05
MAX_LINES = 250


def holder_stack(lock: LockInfo, holder: Holder) -> list[str] | None:
    """The call stack of the thread or task that holds a lock, the innermost call last: file, line and function of each
    call.

    None if its process does not reply within ANSWER_WITHIN seconds: it is paused or disconnected, its SHOW_STACKS
    setting is off, or it is a Java client. Raises LockUnavailableError if Redis is unreachable.
    """
    return threads.run_in_thread(_ask, lock, holder)


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
