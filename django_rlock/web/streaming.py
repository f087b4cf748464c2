"""Streaming responses keep their lock until they are closed, wherever and by whomever that is.

A lock belongs to the thread or task that took it, and the server may close the response in another one, or go on to
the next request in this one. So the hold changes its owner: from the thread to the wire name under which it is held.
"""

from __future__ import annotations

import logging
import weakref
from copy import copy
from functools import partial
from typing import Any

from django.http.response import HttpResponseBase

from django_rlock.drivers.identity import current_owner
from django_rlock.exceptions import RLockError
from django_rlock.locks import BaseLock, MultiLock
from django_rlock.locks.holds import HOLDS, Hold, key_of

logger = logging.getLogger("django_rlock.web")


def keep_while_streaming(lock: BaseLock, response: Any) -> BaseLock | None:
    """Have a streaming response give the lock back when it is closed; answers what its caller still has to.

    A lock that its owner holds more than once is not given to the response: whoever took it first still needs it.
    """
    if not isinstance(response, HttpResponseBase) or not response.streaming:
        return lock
    owner, left = current_owner(), []
    for part in lock.parts:
        hold = HOLDS.get(part, owner)
        if hold is None or hold.count > 1:
            left.append(part)
        else:
            _keep(response, hold)
    return MultiLock(*left) if left else None


def _keep(response: Any, hold: Hold) -> None:
    # Django closes these in close(), before it tells that the request has ended.
    response._resource_closers.append(partial(_give_back, hand_over(hold)))  # noqa: SLF001
    # Middleware may replace a response without closing it.
    weakref.finalize(response, _let_lease_end, hold).atexit = False


def _give_back(handle: BaseLock) -> None:
    try:
        handle.release()
    except RLockError as failure:
        # The content is sent; nobody is left to raise it to.
        logger.error("A streaming response was closed: %s", failure)  # noqa: TRY400


def hand_over(hold: Hold) -> BaseLock:
    """Take a hold from its thread or task; answers a lock that anybody can release."""
    handle: Any = copy(hold.lock)
    handle.owner = hold.owner
    HOLDS.remove(hold)
    hold.scoped = 0  # no block encloses it any more
    hold.key = key_of(handle, hold.owner)
    hold.owner_ref = None
    HOLDS.put(hold)
    # What this thread locks next must not be taken for a re-entry of that hold.
    current_owner().renew_name()
    return handle  # type: ignore[no-any-return]


def _let_lease_end(hold: Hold) -> None:
    # May run wherever Python collects garbage, so it must neither wait nor lock anything.
    hold.renewed = False
