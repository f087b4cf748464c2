"""The part of a ``LockedTask``, which is in a higher layer, that the modules of this package use: its options, and the
result of a run that was skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from celery.app.task import Context
from celery.canvas import Signature, signature
from celery.contrib.django.task import DjangoTask

from django_rlock.locks.options import Duration, KindName
from django_rlock.settings import DEFAULT_ALIAS

if TYPE_CHECKING:
    _Task = DjangoTask
else:

    class _Task(DjangoTask):
        def __class_getitem__(cls, _parameters: object) -> type:
            return cls  # Celery has an alias from 5.7 on, which its decorators refuse as a base


P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class AbstractTask(_Task[P, R_co]):
    """The options of a task, as its class states them, and what was made of them. ``LockedTask`` describes them."""

    lock_key: str | list[str] | Callable[..., str | list[str]] | None = None
    lock_wait_time: Duration = 0
    lock_lease_time: Duration | None = None
    lock_at_least: Duration | None = None
    lock_max_hold_time: Duration | None = None
    lock_permits: int | None = None
    on_locked: str | Callable[..., Any] = "skip"
    on_skipped: str | None = None
    lock_retry_delay: Duration = 1
    lock_retry_max_delay: Duration = 60
    lock_max_retries: int | None = None
    lock_using: str = DEFAULT_ALIAS
    lock_kind: KindName | None = None
    done_marker_time: Duration | None = None
    lock_scope: str = "run"
    lock_queue_time: Duration = 3600
    on_queued: str = "return"

    _rlock: Any
    """Its ``TaskOptions``."""
    _stores_start = False
    """Whether ``track_started`` is set, by the task or the app."""

    _is_locked = True
    """False for a task of Celery's own, such as ``celery.chord_unlock``, which an app makes of its ``task_cls``."""


OPTIONS = frozenset(
    {name for name in AbstractTask.__annotations__ if name.startswith("lock_")}
    | {"on_locked", "on_skipped", "on_queued", "done_marker_time"}
)
"""The names of a task's options."""

_TAKE_IT = {"json", "pickle", "application/json", "application/x-python-serialize"}
"""The serializers that can encode ``Skipped``; with others the result is None from the start."""
REPLACED = "another message has replaced it"
"""Why a message was dropped that another one has replaced."""


class Skipped:
    """The result of a task that did not run because its lock was taken, or because another message has replaced its
    own; it is false, and null in JSON.

    ``lock_name`` is the lock, ``holder`` the id of the task that held it, or None if that was not a task.
    ``is_replaced`` says that another message has replaced the task's; then there is no ``holder``.
    """

    __slots__ = ("holder", "is_replaced", "lock_name")

    def __init__(self, lock_name: str, holder: str | None = None, is_replaced: bool = False) -> None:
        self.lock_name = lock_name
        self.holder = holder
        self.is_replaced = is_replaced

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"<Skipped: {REPLACED if self.is_replaced else held_by(self.lock_name, self.holder)}>"

    def __json__(self) -> Any:
        return None


def held_by(lock_name: str, holder: str | None, other: str | None = None) -> str:
    """The reason why a task was skipped; ``holder`` as in ``Skipped``, ``other`` describes a holder that is not a
    task."""
    return f"lock {lock_name!r} is held by " + (other or "another owner" if holder is None else f"task {holder}")


def skipped(task: Any, lock_name: str, holder: str | None, is_replaced: bool = False) -> Skipped | None:
    """The result of a skipped task: ``Skipped`` if the app's serializers can encode it, otherwise None."""
    serializers = {task.app.conf.result_serializer, task.app.conf.task_serializer, task.serializer}
    return Skipped(lock_name, holder, is_replaced) if serializers <= _TAKE_IT else None


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
