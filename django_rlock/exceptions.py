"""Every error that django_rlock raises, under one base.

The values are attributes, not only text, and each message says what happened and then what to do.
All errors survive pickling, so a Celery result backend can carry them.
"""

from __future__ import annotations

from typing import Any


class RLockError(Exception):
    """Base of all errors of this package; ``lock_name`` is the name given by the caller, or None."""

    def __init__(self, message: str, *, lock_name: str | None = None) -> None:
        super().__init__(message)
        self.lock_name = lock_name

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception's own __reduce__ calls the class with args alone, which keyword-only parameters refuse.
        return _rebuild, (type(self), self.args, self.__dict__.copy())


def _rebuild(cls: type[RLockError], args: tuple[Any, ...], state: dict[str, Any]) -> RLockError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class LockTimeoutError(RLockError, TimeoutError):
    """The lock was still taken when the wait ended.

    ``waited`` is the time spent waiting, in seconds. ``holder`` says who has the lock, where that is
    known. ``retry_after`` is the remaining lease of the holder, in seconds, or None when it has no end.
    """

    def __init__(
        self,
        lock_name: str,
        *,
        waited: float = 0.0,
        holder: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        held_by = f"held by {holder}" if holder else "held by another owner"
        if retry_after is not None:
            held_by += f"; its lease ends in {retry_after:.1f} s unless it is renewed"
        super().__init__(
            f"Lock {lock_name!r} was not free within {waited:.1f} s: {held_by}. "
            f"Try again later, or wait longer with wait_time=.",
            lock_name=lock_name,
        )
        self.waited = waited
        self.holder = holder
        self.retry_after = retry_after


class LockNotOwnedError(RLockError, RuntimeError):
    """The lock was released or extended by somebody who does not hold it; ``owner`` is who tried."""

    def __init__(self, lock_name: str, *, owner: str | None = None) -> None:
        super().__init__(
            f"Lock {lock_name!r} is not held by this owner ({owner}). Release it where it was acquired: in the "
            f"same thread or task, or with the same owner=.",
            lock_name=lock_name,
        )
        self.owner = owner


class LockLostError(RLockError, RuntimeError):
    """The lock was held, but its lease ended or somebody forced it; ``reason`` says which.

    Somebody else may have worked inside the lock since: roll back, or check what was written.
    """

    def __init__(self, lock_name: str, *, reason: str = "its lease ended") -> None:
        super().__init__(
            f"Lock {lock_name!r} was lost while it was held: {reason}. Another owner may have been inside since; "
            f"undo or verify the work done under it.",
            lock_name=lock_name,
        )
        self.reason = reason


class LockUnavailableError(RLockError, ConnectionError):
    """Redis cannot be asked, or refuses; the lock is not acquired. The cause is ``__cause__``."""

    def __init__(self, lock_name: str, *, reason: str, advice: str | None = None) -> None:
        super().__init__(
            f"Lock {lock_name!r} is unavailable: {reason}. "
            f"{advice or 'Nothing was locked; check that Redis is up and reachable.'}",
            lock_name=lock_name,
        )
        self.reason = reason


class KeyTemplateError(RLockError, ValueError):
    """A key template is wrong, or cannot take a value; ``template`` is its source."""

    def __init__(self, message: str, *, template: str) -> None:
        super().__init__(message)
        self.template = template
