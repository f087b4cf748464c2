"""The code around a call of a lock's method: a job of a thread pool, which must leave nothing held behind."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from django_rlock.callbacks import log
from django_rlock.drivers.identity import Owner
from django_rlock.drivers.jobs import Job, running_job
from django_rlock.locks.holds import HOLDS, NOTHING, Before
from django_rlock.locks.records import Key, key_of

if TYPE_CHECKING:
    from django_rlock.locks.base import BaseLock

logger = logging.getLogger("django_rlock.locks")


def give_back_at_job_end(lock: BaseLock, owner: Owner) -> None:
    """Before a pool's thread takes a lock: see to it that the end of its job gives back what is still held then.

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
            "Lock %r was still held when a job of the pool's thread %r ended; it is given back. Take it by 'with', or "
            "release it in the same job, or give it an owner=.",
            part.name, hold.place,
        )  # fmt: skip
        lock._leave_interrupted(part, hold, former.blocks)
