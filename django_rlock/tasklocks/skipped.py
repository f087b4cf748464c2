"""The result of a task that was skipped."""

from __future__ import annotations

from typing import Any

_TAKE_IT = {"json", "pickle", "application/json", "application/x-python-serialize"}
"""The serializers that can encode ``Skipped``; with others the result is None from the start."""


class Skipped:
    """The result of a task that did not run because its lock was taken; it is false, and null in JSON.

    ``lock_name`` is the lock, ``holder`` the id of the task that held it, or None if that was not a task.
    """

    __slots__ = ("holder", "lock_name")

    def __init__(self, lock_name: str, holder: str | None = None) -> None:
        self.lock_name = lock_name
        self.holder = holder

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        by = "another owner" if self.holder is None else f"task {self.holder}"
        return f"<Skipped: lock {self.lock_name!r} is held by {by}>"

    def __json__(self) -> Any:
        return None


def skipped(task: Any, lock_name: str, holder: str | None) -> Skipped | None:
    """The result of a skipped task: ``Skipped`` if the app's serializers can encode it, else None."""
    serializers = {task.app.conf.result_serializer, task.app.conf.task_serializer, task.serializer}
    return Skipped(lock_name, holder) if serializers <= _TAKE_IT else None
