"""The result of a skipped task, and of the tasks of its chain that do not run because of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from celery.app.task import Context
from celery.canvas import Signature, signature

_TAKE_IT = {"json", "pickle", "application/json", "application/x-python-serialize"}
"""The serializers that can encode ``Skipped``; with others the result is None from the start."""


class Skipped:
    """The result of a task that did not run because its lock was taken, or because another message has replaced its
    own; it is false, and null in JSON.

    ``lock_name`` is the lock, ``holder`` the id of the task that held it, or None if that was not a task.
    """

    __slots__ = ("holder", "lock_name")

    def __init__(self, lock_name: str, holder: str | None = None) -> None:
        self.lock_name = lock_name
        self.holder = holder

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"<Skipped: {held_by(self.lock_name, self.holder)}>"

    def __json__(self) -> Any:
        return None


def held_by(lock_name: str, holder: str | None, other: str | None = None) -> str:
    """The reason why a task was skipped; ``holder`` as in ``Skipped``, ``other`` describes a holder that is not a
    task."""
    return f"lock {lock_name!r} is held by " + (other or "another owner" if holder is None else f"task {holder}")


def skipped(task: Any, lock_name: str, holder: str | None) -> Skipped | None:
    """The result of a skipped task: ``Skipped`` if the app's serializers can encode it, otherwise None."""
    serializers = {task.app.conf.result_serializer, task.app.conf.task_serializer, task.serializer}
    return Skipped(lock_name, holder) if serializers <= _TAKE_IT else None


def end_chain(task: Any, message: Context, result: Skipped | None) -> None:
    """End the chain of a message: its other tasks do not run, but get a result, because callers may wait for it."""
    rest: Any = message.chain or ()
    message.chain = None
    for step in _tasks_of(signature(each, app=task.app) for each in rest):
        options = step.options
        known = task.app.tasks.get(step.task, task)
        request = Context(
            id=options["task_id"],
            group=options.get("group_id"),
            group_index=options.get("group_index"),
            chord=options.get("chord"),
            task=step.task,
            args=step.args,
            kwargs=step.kwargs,
            ignore_result=options.get("ignore_result", known.ignore_result),
        )
        known.backend.mark_as_done(request.id, result, request)


def _tasks_of(steps: Iterable[Signature[Any]]) -> Iterator[Signature[Any]]:
    """The tasks of a canvas, each with the id of its result. The header of a chord goes before its body."""
    for step in steps:
        if parts := getattr(step, "tasks", ()):
            yield from _tasks_of(parts)
            yield from _tasks_of([body] if (body := getattr(step, "body", None)) is not None else ())
        elif "task_id" in step.options:
            yield step
