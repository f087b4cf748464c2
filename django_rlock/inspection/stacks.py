"""Asks the process that holds a lock where it is."""

from __future__ import annotations

import json
import time
from contextlib import suppress

from django_rlock import threads
from django_rlock.clock import monotonic
from django_rlock.connections import SERVER_ERRORS, is_cluster
from django_rlock.drivers.identity import new_request
from django_rlock.drivers.retrying import unavailable
from django_rlock.drivers.room import commands_to
from django_rlock.inspection.infos import Holder, LockInfo
from django_rlock.reports.stacks import stack_channel, stack_key
from django_rlock.settings import server_aliases

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
