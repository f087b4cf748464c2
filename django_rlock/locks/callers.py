"""The code around a call of a lock's method: a call that it interrupts, a job of a thread pool.

A signal handler, ``__del__`` or a receiver of signals may run inside a call, in its thread and so for its owner. While
a call takes or releases a lock, what its owner holds is not known, so a nested call for the same lock is refused.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, TypeVar

from django_rlock.callbacks import log
from django_rlock.drivers.base import run_flow
from django_rlock.drivers.bridges import is_blocked_on_caller, whereabouts
from django_rlock.drivers.identity import Owner
from django_rlock.drivers.jobs import Job, running_job
from django_rlock.locks.blocks import leave_interrupted
from django_rlock.locks.holds import HOLDS, INSPECTOR, NOTHING, Before
from django_rlock.locks.kinds import Named
from django_rlock.locks.records import Key, Line, key_of

if TYPE_CHECKING:
    from django_rlock.locks.base import BaseLock

logger = logging.getLogger("django_rlock.locks")

Flow = TypeVar("Flow", bound=Callable[..., object])

PACKAGE = str(Path(__file__).parent.parent) + os.sep
_BETWEEN = 5
"""How many frames there are at least between ``calling_line`` and the project's code: to look at one costs time."""
_calls: set[CodeType] = set()
"""Of the flows that take or release a lock: their argument ``lock``."""


def a_call(flow: Flow) -> Flow:
    """Mark a flow that no other one for the same lock and owner may interrupt."""
    _calls.add(flow.__code__)
    return flow


def refuse_nested(lock: BaseLock) -> bool:
    """Raise RuntimeError if the running flow interrupts one for the same lock and owner; returns whether it interrupts
    any.
    """
    names = {(part.using, part.name) for part in lock.parts}
    frame = _current_frame(1)
    while frame is not None and frame.f_code is not run_flow.__code__:
        frame = frame.f_back  # the running flow's own
    interrupts = False
    while frame is not None:
        if frame.f_code in _calls:
            interrupts = True
            other = frame.f_locals["lock"]
            if other.owner == lock.owner and any((part.using, part.name) in names for part in other.parts):
                raise RuntimeError(
                    f"A signal handler, a __del__ method or a receiver of signals takes or releases lock {lock.name!r} "
                    f"inside a call that does so for the same owner. Let it set a flag for the interrupted code, or "
                    f"start a thread that takes the lock."
                )
        frame = frame.f_back
    return interrupts


_current_frame: Callable[[int], FrameType | None] = sys._getframe


def refuse_deadlock(lock: Named, owner: Owner, is_patient: bool) -> None:
    """Before an owner waits for a lock, without a limit if it ``is_patient``: raise RuntimeError if the holder goes on
    only when the running code ends, and the watchdog renews its lease until then.
    """
    if lock.noun != Named.noun:
        return
    for holder in [each.owner for each in HOLDS.held_against(lock) if each.renewed]:
        if holder is not owner and is_blocked_on_caller(holder, is_patient):
            raise RuntimeError(
                f"Lock {lock.name!r} is held by {whereabouts(holder)}, which waits until {owner.place!r} has ended. So "
                f"{owner.place!r} would wait for the lock for ever. Take it on one side only, or with the same owner= "
                f"on both."
            )


def calling_line() -> Line:
    """The line of the project's code that takes a lock now. Called by the flow that takes it."""
    frame = sys._getframe(_BETWEEN)
    while (code := frame.f_code).co_filename.startswith(PACKAGE) and frame.f_back is not None:
        frame = frame.f_back
    return code, frame.f_lasti


def describe_holder(lock: Named) -> str | None:
    """The holder in a line; if it is in this process, with where it is now."""
    here = next((whereabouts(each.owner) for each in HOLDS.held_against(lock)), None)
    return ", in this process: ".join(filter(None, (INSPECTOR.holder(lock), here))) or None


def give_back_at_job_end(lock: BaseLock, owner: Owner) -> None:
    """Before a pool's thread takes a lock: make sure that the end of its job releases locks that are still held.

    Raises RuntimeError if the job is nothing but the call that takes the lock.
    """
    job = running_job(owner)
    if job is None:
        return
    parts = {key_of(part, owner): part for part in lock.parts}
    new = [key for key in parts if key not in job.at_end]
    before = HOLDS.before(new, lock._depth)
    for key in new:
        job.at_end[key] = partial(_give_back, job, lock, parts[key], key, before.get(key, NOTHING))


def _give_back(job: Job, lock: BaseLock, part: BaseLock, key: Key, former: Before) -> None:
    for _ in range(lock._depth(key)[0] - former.depth):
        hold = HOLDS.at(key)
        if hold is None or (job.is_of_request and hold.context is not None):
            return  # at the end of the request the middleware gives it back
        log(
            logger, logging.WARNING,
            "Lock %r was still held when a job of the pool's thread %r ended; it is released now. Use 'with', release "
            "the lock in the same job, or use owner=.",
            part.name, hold.place,
        )  # fmt: skip
        leave_interrupted(lock, part, hold, former.blocks)
