"""All errors that django_rlock raises; they share a base class.

An error has its values as attributes too. Each message says what happened, and then what to do. An error's ``args`` are
the arguments of its class, in order, so the error survives pickling and Celery's JSON results.
"""

from __future__ import annotations

from collections.abc import Sequence

import redis.exceptions

from django_rlock._core.text import printable, reason_of


class RLockError(redis.exceptions.LockError):
    """Base of all errors of this package; ``lock_name`` is the name given by the caller, or None.

    The class derives from ``redis.exceptions.LockError``, so code for redis-py's lock, or for ``cache.lock()``, catches
    it as well. Like redis-py's error, it is therefore also a ``RedisError`` and a ``ValueError``.

    ``noun`` is the kind of object with that name: "lock", "semaphore", "permit of semaphore" or "latch".
    """

    lock_name: str | None = None
    noun: str = "lock"

    def __init__(self, *args: object) -> None:
        # Don't call OSError, a base of some subclasses: it would take the first of several arguments as an errno. Don't
        # call LockError either: it would take the second argument as the lock's name.
        redis.exceptions.RedisError.__init__(self)
        self.args = args

    __repr__ = Exception.__repr__  # redis-py's does not show the arguments

    def __str__(self) -> str:
        return printable(self._text())

    def _text(self) -> str:
        """The message. Names in it may contain any characters."""
        return str(self.args[0]) if self.args else ""

    @property
    def _subject(self) -> str:
        """The beginning of the message."""
        return f"{self.noun.capitalize()} {self.lock_name!r}"


KEPT_HOLDER = "nobody: kept after its release"
"""Stands for the holder of a lock that was released, and stays taken for a while."""


class LockTimeoutError(RLockError, TimeoutError):
    """The lock, semaphore or latch was still not free when the wait ended.

    ``waited`` is the time spent waiting, in seconds. ``holder`` describes the holder, if known. ``retry_after`` is the
    holder's remaining lease in seconds, or None if the lease has no end. ``option`` is the name of the option that sets
    the wait time.
    """

    def __init__(
        self,
        lock_name: str,
        waited: float = 0.0,
        holder: str | None = None,
        retry_after: float | None = None,
        noun: str = "lock",
        option: str = "wait_time",
    ) -> None:
        super().__init__(lock_name, waited, holder, retry_after, noun, option)
        self.lock_name = lock_name
        self.noun = noun
        self.option = option
        self.waited = waited
        self.holder = holder
        self.retry_after = retry_after

    @property
    def is_kept(self) -> bool:
        """Whether the lock was released, and ``at_least`` keeps it taken for another ``retry_after`` seconds."""
        return self.holder == KEPT_HOLDER

    def _text(self) -> str:
        if self.is_kept and self.retry_after is not None:
            return (
                f"{self._subject} was not free within {self.waited:.1f} s: it was released, and stays taken for "
                f"{self.retry_after:.1f} s. Try again after that, or wait longer with {self.option}=."
            )
        held_by = f"held by {self.holder}" if self.holder else "held by another owner"
        if self.retry_after is not None:
            held_by += f"; its lease ends in {self.retry_after:.1f} s unless it is renewed"
        return (
            f"{self._subject} was not free within {self.waited:.1f} s: {held_by}. "
            f"Try again later, or wait longer with {self.option}=."
        )


class LockNotOwnedError(RLockError, redis.exceptions.LockNotOwnedError, RuntimeError):
    """The lock was released or extended by an owner that does not hold it; ``owner`` is that owner.

    If that owner holds the other side of a read-write lock, ``side`` ("read" or "write") is the side that it tried to
    release or extend, and ``held_side`` is the side that it holds. ``left_by`` is the name of a task or thread of this
    process that took the lock and has ended without releasing it. ``asked_for`` is a property that only holders have,
    such as the fencing token.
    """

    def __init__(
        self,
        lock_name: str,
        owner: str | None = None,
        side: str | None = None,
        held_side: str | None = None,
        left_by: str | None = None,
        asked_for: str | None = None,
    ) -> None:
        super().__init__(lock_name, owner, side, held_side, left_by, asked_for)
        self.lock_name = lock_name
        self.owner = owner
        self.side = side
        self.held_side = held_side
        self.left_by = left_by
        self.asked_for = asked_for

    def _text(self) -> str:
        if self.asked_for:
            return (
                f"{self._subject} has no {self.asked_for} outside a hold, and this owner ({self.owner}) does not "
                f"hold it. Read it inside the block, or between acquire() and release(), in the same thread or task."
            )
        if self.held_side:
            return (
                f"This owner ({self.owner}) holds the {self.held_side}_lock of {self.lock_name!r}, but not its "
                f"{self.side}_lock. Use the {self.held_side}_lock instead."
            )
        if self.left_by:
            return (
                f"{self._subject} is not held by this owner ({self.owner}): it was acquired in "
                f"{self.left_by!r}, a task or thread that has ended. Acquire the lock in the task that releases it. "
                f"create_task(), gather() and, before Python 3.12, wait_for() run their argument in a new task; "
                f"to limit the wait, use wait_time= or asyncio.timeout()."
            )
        return (
            f"{self._subject} is not held by this owner ({self.owner}). Release it in the thread or task that acquired "
            f"it, or with the same owner=, and once for each acquire. force_release() ends all holds."
        )


class LockUpgradeError(RLockError, RuntimeError):
    """The holder of a read lock tried to take the write lock of the same name: a deadlock. ``owner`` is the reader."""

    def __init__(self, lock_name: str, owner: str | None = None) -> None:
        super().__init__(lock_name, owner)
        self.lock_name = lock_name
        self.owner = owner

    def _text(self) -> str:
        return (
            f"This owner ({self.owner}) holds the read lock of {self.lock_name!r}; to wait for its write lock would be "
            f"a deadlock. Release the read lock first, or take the write lock before the read lock."
        )


class LockLostError(RLockError, redis.exceptions.LockNotOwnedError, RuntimeError):
    """The lock or permit was held, but its lease ended or it was released by force; ``reason`` says which.

    Another owner may have held the lock since: roll back, or check what was written. The class derives from redis-py's
    ``LockNotOwnedError``, which redis-py raises when a lock is released after its lease ended.
    """

    def __init__(self, lock_name: str, reason: str = "its lease ended", noun: str = "lock") -> None:
        super().__init__(lock_name, reason, noun)
        self.lock_name = lock_name
        self.noun = noun
        self.reason = reason

    def _text(self) -> str:
        return (
            f"{self._subject} was lost while it was held: {self.reason}. Another owner may have held it since: "
            f"undo or verify the work done under it."
        )


class StaleTokenError(RLockError, RuntimeError):
    """A row refused a write, because a later holder of the lock has already written the row.

    ``row`` is ``app.model:pk``. ``token`` is the token of the late write, or None if its object was loaded before the
    row had a token. ``stored`` is the newer token. ``lock_name`` is None if this process does not know the token's
    lock.
    """

    def __init__(self, lock_name: str | None, row: str, token: int | None, stored: int) -> None:
        super().__init__(lock_name, row, token, stored)
        self.lock_name = lock_name
        self.row = row
        self.token = token
        self.stored = stored

    def _text(self) -> str:
        lock = "the lock" if self.lock_name is None else f"lock {self.lock_name!r}"
        return (
            f"{self.row} refused a write with the fencing token {self.token}: a later holder of {lock} has already "
            f"written it with token {self.stored}. Roll back, and start again from the stored row."
        )


class PermitNotHeldError(RLockError, RuntimeError):
    """A release named permits that are not taken; ``ids`` are all permits of that release."""

    noun = "semaphore"

    def __init__(self, lock_name: str, ids: Sequence[str] = ()) -> None:
        super().__init__(lock_name, ids)
        self.lock_name = lock_name
        self.ids = tuple(ids)

    def _text(self) -> str:
        return (
            f"Not all of the permits {', '.join(self.ids)} of {self.noun} {self.lock_name!r} are taken: an id is "
            f"wrong, or its permit was already released, or its lease has ended. No permit was changed."
        )


class LockUnavailableError(RLockError, ConnectionError):
    """Redis is unreachable or refuses a command: ``reason`` says why, ``advice`` what to do. See also ``__cause__``."""

    def __init__(self, lock_name: str, reason: str, advice: str | None = None, noun: str = "lock") -> None:
        super().__init__(lock_name, reason, advice, noun)
        self.lock_name = lock_name
        self.noun = noun
        self.reason = reason
        self.advice = advice or "Nothing was changed. Check that Redis is up and reachable."

    def _text(self) -> str:
        return f"{self._subject} is unavailable: {self.reason}. {self.advice}"


class QuorumNotReachedError(LockUnavailableError):
    """Fewer than a majority of a RedLock's ``nodes`` replied; ``errors`` maps the others' names to their errors."""

    def __init__(self, lock_name: str, errors: dict[str, Exception], nodes: int) -> None:
        reasons = "; ".join(f"{node}: {reason_of(error)}" for node, error in errors.items())
        super().__init__(
            lock_name,
            f"only {nodes - len(errors)} of {nodes} nodes voted, and {nodes // 2 + 1} must agree ({reasons})",
            "The lock is held only if a majority grants it. Check that the nodes are up and reachable.",
        )
        self.args = lock_name, errors, nodes
        self.errors = errors
        self.nodes = nodes


class TaskQueuedError(RLockError):
    """A task was not sent, because the task ``task_id`` with the same key is already queued or running."""

    def __init__(self, lock_name: str, task_id: str) -> None:
        super().__init__(lock_name, task_id)
        self.lock_name = lock_name
        self.task_id = task_id

    def _text(self) -> str:
        return (
            f"The task was not sent: task {self.task_id} with the same key ({self.lock_name!r}) is already queued or "
            f"running. Wait for that task, or remove on_queued='raise' to get its result."
        )


class KeyTemplateError(RLockError, ValueError):
    """A key template is malformed, or does not accept a value; ``template`` is its source."""

    def __init__(self, message: str, template: str) -> None:
        super().__init__(message, template)
        self.template = template
