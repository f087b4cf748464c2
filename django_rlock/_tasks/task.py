"""The part of a ``LockedTask``, which is in a higher layer, that the modules of this package use: its options, and the
result of a run that was skipped."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from celery.app.task import Context
from celery.canvas import Signature, signature
from celery.contrib.django.task import DjangoTask

from django_rlock._tasks.naming import Naming, body_of, misfit
from django_rlock.locks import TERMS, BaseLock, LockTerms, named_lock
from django_rlock.locks.options import MILLISECOND, Duration, KindName, duration
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
    """The options of a task, as its class states them, and their parsed form. ``LockedTask`` describes them."""

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
    lock_max_deaths: int | None = None
    lock_using: str = DEFAULT_ALIAS
    lock_kind: KindName | None = None
    done_marker_time: Duration | None = None
    lock_scope: str = "run"
    lock_queue_time: Duration = 3600
    on_queued: str = "return"

    _rlock: TaskOptions
    _stores_start = False
    """Whether ``track_started`` is set, by the task or the app."""

    _is_locked = True
    """False for a task of Celery's own, such as ``celery.chord_unlock``, which an app makes of its ``task_cls``."""


OPTIONS = frozenset(
    {name for name in AbstractTask.__annotations__ if name.startswith("lock_")}
    | {"on_locked", "on_skipped", "on_queued", "done_marker_time"}
)
"""The names of a task's options."""

TASK_ON_LOCKED = ("skip", "retry", "wait", "raise")
SCOPES = ("run", "queue", "until_start")
ON_QUEUED = ("return", "raise", "again", "earlier", "replace")
ON_QUEUED_ONCE = ("return", "raise", "earlier")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TaskOptions(LockTerms):
    """The options that ``LockedTask`` describes. Durations are in seconds."""

    naming: Naming
    on_locked: str | Callable[..., Any]
    on_skipped: str | None
    retry_delay: float
    retry_max_delay: float
    max_retries: int | None
    max_deaths: int | None
    done_marker_time: float | None
    scope: str
    on_queued: str
    queue_time: float

    @classmethod
    def of(cls, task: type[AbstractTask[..., Any]]) -> TaskOptions:
        """Read the options of a task class. Raises KeyTemplateError, ValueError or TypeError for a bad one."""
        run: Any = body_of(task)
        if inspect.iscoroutinefunction(getattr(run, "__func__", run)):
            raise TypeError(
                f"{task.name}: Celery runs no coroutines, so the body of a task must not be 'async def'. Put the "
                f"coroutine into a separate function, and call that by asgiref.sync.async_to_sync()."
            )
        if task.on_skipped not in (None, "stop_chain"):
            raise ValueError(f"{task.name}: on_skipped must be 'stop_chain' or None, not {task.on_skipped!r}.")
        _check_scope(task)
        on_locked = _on_locked(task)
        given = {name: getattr(task, f"lock_{name}") for name in TERMS}
        terms = LockTerms.checked(lambda name: f"{task.name}: lock_{name}", **given)
        # The default is 0, which for "wait" means to wait without limit.
        terms["wait_time"] = terms["wait_time"] or (None if on_locked == "wait" else 0.0)
        return cls(
            **terms,
            naming=Naming(task),
            on_locked=on_locked,
            on_skipped=task.on_skipped,
            retry_delay=_delay(task, "lock_retry_delay"),
            retry_max_delay=_delay(task, "lock_retry_max_delay"),
            max_retries=_count(task, "lock_max_retries"),
            max_deaths=_count(task, "lock_max_deaths"),
            done_marker_time=_seconds(task, "done_marker_time", "None means three visibility timeouts"),
            scope=task.lock_scope,
            on_queued=task.on_queued,
            queue_time=_delay(task, "lock_queue_time"),
        )

    def on_queued_of(self, task: AbstractTask[..., Any], options: dict[str, Any]) -> str:
        """Remove ``on_queued`` from the options of a call and return it. A call may choose only values that concern its
        sender alone."""
        chosen = options.pop("on_queued", None)
        if chosen is None:
            return self.on_queued
        if self.scope == "run" or chosen not in ON_QUEUED_ONCE:
            raise ValueError(
                f"{task.name}: on_queued for one call must be one of {ON_QUEUED_ONCE}, with a lock_scope other than "
                f"'run'; not {chosen!r} with {self.scope!r}."
            )
        return str(chosen)

    @property
    def runs_again(self) -> bool:
        """Whether a message that is sent during a run will run after it."""
        return self.on_queued in {"again", "replace"}

    def lock(self, names: Sequence[str]) -> BaseLock:
        """The lock of a run, with the given names."""
        made = named_lock(*names, **self.of_lock)
        if sources := self.naming.sources:
            templates = dict(zip(names, sources, strict=True))
            for part in made.parts:
                part.template = templates[part.name]
        return made

    def delay(self, retries: int) -> float:
        """How long to wait before the next retry, in seconds, after a number of retries."""
        # The exponent is limited, because a float overflows at 2 ** 1024.
        return min(self.retry_max_delay, self.retry_delay * 2.0 ** min(retries, 64))

    def wait_time_without_message(self, is_eager: bool) -> float | None:
        """How long to wait if the task cannot be sent again: as long as all retries would take in a plain call, and as
        long as the last retry would wait in eager mode.
        """
        if is_eager or self.on_locked != "retry" or self.wait_time is None:
            return self.wait_time
        if self.max_retries is None:
            return None
        return self.wait_time + sum(map(self.delay, range(self.max_retries)))


def _check_scope(task: type[AbstractTask[..., Any]]) -> None:
    scope, on_queued = task.lock_scope, task.on_queued
    if scope not in SCOPES:
        raise ValueError(f"{task.name}: lock_scope must be one of {SCOPES}, not {scope!r}.")
    if on_queued not in ON_QUEUED:
        raise ValueError(f"{task.name}: on_queued must be one of {ON_QUEUED}, not {on_queued!r}.")
    if scope == "run" and on_queued != "return":
        raise ValueError(f"{task.name}: on_queued={on_queued!r} needs lock_scope='queue'.")
    if scope == "until_start" and on_queued == "again":
        raise ValueError(f"{task.name}: on_queued='again' is for lock_scope='queue'; 'until_start' always does this.")
    if scope == "until_start" and task.lock_at_least is not None:
        raise ValueError(
            f"{task.name}: lock_at_least has no effect with lock_scope='until_start', whose runs do not exclude each "
            f"other."
        )
    if scope != "run" and task.lock_permits is not None:
        raise ValueError(f"{task.name}: lock_permits needs lock_scope='run', as the others let one message wait.")
    if scope != "run" and isinstance(inspect.getattr_static(task, "lock_key"), list | tuple):
        raise TypeError(f"{task.name}: lock_scope={scope!r} takes one lock_key, not a list of them.")


def _on_locked(task: type[AbstractTask[..., Any]]) -> str | Callable[..., Any]:
    on_locked: Any = inspect.getattr_static(task, "on_locked")  # unbound
    if callable(on_locked):
        if error := misfit(on_locked, 2):
            raise TypeError(f"{task.name}: on_locked is called as function(task, error); {error}.")
    elif on_locked not in TASK_ON_LOCKED:
        raise ValueError(f"{task.name}: on_locked must be one of {TASK_ON_LOCKED} or a function, not {on_locked!r}.")
    return on_locked  # type: ignore[no-any-return]


def _seconds(task: type[AbstractTask[..., Any]], option: str, none: str = "", least: float = 0.0) -> float | None:
    return duration(f"{task.name}: {option}", none, least)(getattr(task, option))


def _delay(task: type[AbstractTask[..., Any]], option: str) -> float:
    seconds = _seconds(task, option, least=MILLISECOND)
    if seconds is None:
        raise ValueError(f"{task.name}: {option} must be a number of seconds above 0, not None.")
    return seconds


def _count(task: type[AbstractTask[..., Any]], option: str) -> int | None:
    value: Any = getattr(task, option)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise ValueError(f"{task.name}: {option} must be 0 or more, or None for no limit, not {value!r}.")
    return value


# --- the result of a skipped run --------------------------------------------------------------------------------------

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
