"""Every error that django_rlock raises, under one base.

The values are attributes, not only text, and each message says what happened and then what to do. An error's ``args``
are those of its class, in order, so that it survives pickling and Celery's JSON results.
"""

from __future__ import annotations

from collections.abc import Sequence


class RLockError(Exception):
    """Base of all errors of this package; ``lock_name`` is the name given by the caller, or None."""

    lock_name: str | None = None

    def __init__(self, *args: object) -> None:
        # Not through OSError, which some of them are as well: it would take the first of several for an errno.
        Exception.__init__(self)
        self.args = args

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class LockTimeoutError(RLockError, TimeoutError):
    """The lock was still taken when the wait ended.

    ``waited`` is the time spent waiting, in seconds. ``holder`` says who has the lock, where that is known.
    ``retry_after`` is the remaining lease of the holder, in seconds, or None when it has no end.
    """

    def __init__(
        self, lock_name: str, waited: float = 0.0, holder: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(lock_name, waited, holder, retry_after)
        self.lock_name = lock_name
        self.waited = waited
        self.holder = holder
        self.retry_after = retry_after

    def __str__(self) -> str:
        held_by = f"held by {self.holder}" if self.holder else "held by another owner"
        if self.retry_after is not None:
            held_by += f"; its lease ends in {self.retry_after:.1f} s unless it is renewed"
        return (
            f"Lock {self.lock_name!r} was not free within {self.waited:.1f} s: {held_by}. "
            f"Try again later, or wait longer with wait_time=."
        )


class LockNotOwnedError(RLockError, RuntimeError):
    """The lock was released or extended by somebody who does not hold it; ``owner`` is who tried.

    Where that one holds the other side of a read-write lock, ``side`` ("read" or "write") is what was asked for, and
    ``held_side`` what is held.
    """

    def __init__(
        self, lock_name: str, owner: str | None = None, side: str | None = None, held_side: str | None = None
    ) -> None:
        super().__init__(lock_name, owner, side, held_side)
        self.lock_name = lock_name
        self.owner = owner
        self.side = side
        self.held_side = held_side

    def __str__(self) -> str:
        if self.held_side:
            return (
                f"Lock {self.lock_name!r} is not held through its {self.side}_lock by this owner ({self.owner}), but "
                f"through its {self.held_side}_lock. Release that one."
            )
        return (
            f"Lock {self.lock_name!r} is not held by this owner ({self.owner}). Release it where it was acquired: in "
            f"the same thread or task, or with the same owner=."
        )


class LockUpgradeError(RLockError, RuntimeError):
    """A reader asked for the write lock of the same name, and would have waited for itself; ``owner`` is who asked."""

    def __init__(self, lock_name: str, owner: str | None = None) -> None:
        super().__init__(lock_name, owner)
        self.lock_name = lock_name
        self.owner = owner

    def __str__(self) -> str:
        return (
            f"Lock {self.lock_name!r} is held for reading by this owner ({self.owner}), who would wait for itself to "
            f"write. Release the read lock first; or take the write lock before it, since a writer may read as well."
        )


class LockLostError(RLockError, RuntimeError):
    """The lock was held, but its lease ended or somebody forced it; ``reason`` says which.

    Somebody else may have worked inside the lock since: roll back, or check what was written.
    """

    def __init__(self, lock_name: str, reason: str = "its lease ended") -> None:
        super().__init__(lock_name, reason)
        self.lock_name = lock_name
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"Lock {self.lock_name!r} was lost while it was held: {self.reason}. Another owner may have been inside "
            f"since; undo or verify the work done under it."
        )


class StaleTokenError(RLockError, RuntimeError):
    """A row refused a write, because a later holder of the lock has written it since.

    ``row`` is ``app.model:pk``, ``token`` the one that came too late (None: of an object that was loaded before the row
    had any), ``stored`` the newer one. ``lock_name`` is None where this process does not know whose token it was.
    """

    def __init__(self, lock_name: str | None, row: str, token: int | None, stored: int) -> None:
        super().__init__(lock_name, row, token, stored)
        self.lock_name = lock_name
        self.row = row
        self.token = token
        self.stored = stored

    def __str__(self) -> str:
        lock = "the lock" if self.lock_name is None else f"lock {self.lock_name!r}"
        return (
            f"{self.row} refused a write under the fencing token {self.token}: it has been written under {self.stored} "
            f"since, by a later holder of {lock}. Roll back, and begin anew with what is stored now."
        )


class PermitNotHeldError(RLockError, RuntimeError):
    """Permits were given back that are not taken; ``ids`` are all that were to be given back together."""

    def __init__(self, lock_name: str, ids: Sequence[str] = ()) -> None:
        super().__init__(lock_name, ids)
        self.lock_name = lock_name
        self.ids = tuple(ids)

    def __str__(self) -> str:
        return (
            f"Not all of the permits {', '.join(self.ids)} of semaphore {self.lock_name!r} are taken: an id is wrong, "
            f"its permit was given back before, or its lease has ended. None of them was changed."
        )


class LockUnavailableError(RLockError, ConnectionError):
    """Redis cannot be asked, or refuses: ``reason``, and what to do: ``advice``. The cause is ``__cause__``."""

    def __init__(self, lock_name: str, reason: str, advice: str | None = None) -> None:
        super().__init__(lock_name, reason, advice)
        self.lock_name = lock_name
        self.reason = reason
        self.advice = advice or "Nothing was locked; check that Redis is up and reachable."

    def __str__(self) -> str:
        return f"Lock {self.lock_name!r} is unavailable: {self.reason}. {self.advice}"


class QuorumNotReachedError(LockUnavailableError):
    """Fewer than a majority of a RedLock's ``nodes`` can be asked; ``errors`` maps the others to why."""

    def __init__(self, lock_name: str, errors: dict[str, Exception], nodes: int) -> None:
        told = "; ".join(f"{node}: {str(error).rstrip('.')}" for node, error in errors.items())
        super().__init__(
            lock_name,
            f"only {nodes - len(errors)} of {nodes} nodes voted, and {nodes // 2 + 1} must agree ({told})",
            "It is held only where a majority has it; check that the nodes are up and reachable.",
        )
        self.args = lock_name, errors, nodes
        self.errors = errors
        self.nodes = nodes


class KeyTemplateError(RLockError, ValueError):
    """A key template is wrong, or cannot take a value; ``template`` is its source."""

    def __init__(self, message: str, template: str) -> None:
        super().__init__(message, template)
        self.template = template
