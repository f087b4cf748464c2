"""The options of a ``LockedTask``, checked once when the app makes the task."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django_rlock.locks import KINDS, BaseLock, LimitedLock, rlock
from django_rlock.locks.durations import Duration, hold_seconds, keep_seconds, lease_seconds, wait_seconds
from django_rlock.locks.options import KindName, limited_kind, note_templates
from django_rlock.tasklocks.naming import Naming, body_of, misfit

if TYPE_CHECKING:
    from django_rlock.celery import LockedTask

ON_LOCKED = ("skip", "retry", "wait", "raise")
SCOPES = ("run", "queue", "until_start")
ON_QUEUED = ("return", "raise", "again", "earlier", "replace")
ON_QUEUED_ONCE = ("return", "raise", "earlier")


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """The options of ``LockedTask``, where they are described. Durations are seconds."""

    naming: Naming
    wait_time: float | None
    lease_time: float | None
    at_least: float | None
    max_hold_time: float | None
    permits: int | None
    on_locked: str | Callable[..., Any]
    on_skipped: str | None
    retry_delay: float
    retry_max_delay: float
    max_retries: int | None
    done_marker_time: float | None
    using: str
    kind: KindName | None
    scope: str
    on_queued: str
    queue_time: float

    @classmethod
    def of(cls, task: type[LockedTask[..., Any]]) -> TaskOptions:
        """Read the options of a task class. Raises KeyTemplateError, ValueError or TypeError for a bad one."""
        _check_body(task)
        if task.lock_kind not in (None, *KINDS):
            raise ValueError(f"{task.name}: lock_kind must be one of {(*KINDS, None)}, not {task.lock_kind!r}.")
        if task.on_skipped not in (None, "stop_chain"):
            raise ValueError(f"{task.name}: on_skipped must be 'stop_chain' or None, not {task.on_skipped!r}.")
        _check_scope(task)
        _check_permits(task)
        on_locked = _on_locked(task)
        wait_time = _seconds(task, "lock_wait_time", wait_seconds) or 0.0
        return cls(
            naming=Naming(task),
            wait_time=wait_time or None if on_locked == "wait" else wait_time,
            lease_time=_seconds(task, "lock_lease_time", lease_seconds),
            at_least=_seconds(task, "lock_at_least", keep_seconds),
            max_hold_time=_seconds(task, "lock_max_hold_time", hold_seconds),
            on_locked=on_locked,
            on_skipped=task.on_skipped,
            retry_delay=_delay(task, "lock_retry_delay"),
            retry_max_delay=_delay(task, "lock_retry_max_delay"),
            max_retries=_count(task, "lock_max_retries"),
            done_marker_time=_seconds(task, "done_marker_time", wait_seconds),
            using=task.lock_using,
            permits=task.lock_permits,
            kind=task.lock_kind if task.lock_permits is None else limited_kind(task.lock_kind),
            scope=task.lock_scope,
            on_queued=task.on_queued,
            queue_time=_delay(task, "lock_queue_time"),
        )

    def on_queued_of(self, task: LockedTask[..., Any], options: dict[str, Any]) -> str:
        """Take ``on_queued`` out of the options of one call, which may choose what its sender alone decides."""
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
        """Whether a message sent during a run is to run after it."""
        return self.on_queued in {"again", "replace"}

    def lock(self, names: Sequence[str], **times: Any) -> BaseLock:
        """The lock of a run, with the given names and times."""
        made = rlock(
            *names,
            using=self.using,
            kind=self.kind,
            max_hold_time=self.max_hold_time,
            permits=self.permits,
            **times,
        )
        note_templates(made, dict(zip(names, self.naming.sources, strict=False)))  # a function's names have none
        return made

    def delay(self, retries: int) -> float:
        """How long to wait before the next retry, in seconds, after a number of retries."""
        return min(self.retry_max_delay, self.retry_delay * 2.0 ** min(retries, 64))

    def wait_time_without_message(self, is_eager: bool) -> float | None:
        """How long to wait if there is no message to send again: in a plain call as long as all retries would take, in
        eager mode as before the last retry.
        """
        if is_eager or self.on_locked != "retry" or self.wait_time is None:
            return self.wait_time
        if self.max_retries is None:
            return None
        return self.wait_time + sum(map(self.delay, range(self.max_retries)))


def _check_body(task: type[LockedTask[..., Any]]) -> None:
    run: Any = body_of(task)
    if inspect.iscoroutinefunction(getattr(run, "__func__", run)):
        raise TypeError(
            f"{task.name}: Celery runs no coroutines, so the body of a task must not be 'async def'. Put the coroutine "
            f"into a function of its own, and call that by asgiref.sync.async_to_sync()."
        )


def _check_scope(task: type[LockedTask[..., Any]]) -> None:
    scope, on_queued = task.lock_scope, task.on_queued
    if scope not in SCOPES:
        raise ValueError(f"{task.name}: lock_scope must be one of {SCOPES}, not {scope!r}.")
    if on_queued not in ON_QUEUED:
        raise ValueError(f"{task.name}: on_queued must be one of {ON_QUEUED}, not {on_queued!r}.")
    if scope == "run" and on_queued != "return":
        raise ValueError(f"{task.name}: on_queued={on_queued!r} needs lock_scope='queue'.")
    if scope == "until_start" and on_queued == "again":
        raise ValueError(
            f"{task.name}: on_queued='again' is for lock_scope='queue'; with 'until_start' that is always so."
        )
    if scope == "until_start" and task.lock_at_least is not None:
        raise ValueError(
            f"{task.name}: lock_at_least has no effect with lock_scope='until_start', whose runs do not exclude each "
            f"other."
        )
    if scope != "run" and isinstance(inspect.getattr_static(task, "lock_key"), list | tuple):
        raise TypeError(f"{task.name}: lock_scope={scope!r} takes one lock_key, not a list of them.")


def _check_permits(task: type[LockedTask[..., Any]]) -> None:
    if task.lock_permits is None:
        return
    if task.lock_scope != "run":
        raise ValueError(f"{task.name}: lock_permits needs lock_scope='run', as the others let one message wait.")
    try:
        LimitedLock("permits", permits=task.lock_permits, at_least=task.lock_at_least)
        limited_kind(task.lock_kind)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{task.name}: lock_permits: {error}") from None


def _on_locked(task: type[LockedTask[..., Any]]) -> str | Callable[..., Any]:
    on_locked: Any = inspect.getattr_static(task, "on_locked")  # not bound to the class or a task
    if callable(on_locked):
        if error := misfit(on_locked, 2):
            raise TypeError(f"{task.name}: on_locked is called as function(task, error); {error}.")
    elif on_locked not in ON_LOCKED:
        raise ValueError(f"{task.name}: on_locked must be one of {ON_LOCKED} or a function, not {on_locked!r}.")
    return on_locked  # type: ignore[no-any-return]


def _seconds(
    task: type[LockedTask[..., Any]], option: str, checked: Callable[[Duration | None], float | None]
) -> float | None:
    try:
        return checked(getattr(task, option))
    except (TypeError, ValueError) as error:
        raise type(error)(f"{task.name}: {option}: {error}") from None


def _delay(task: type[LockedTask[..., Any]], option: str) -> float:
    value = getattr(task, option)
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
        raise ValueError(f"{task.name}: {option} must be a number of seconds above 0, not {value!r}.")
    return float(seconds)


def _count(task: type[LockedTask[..., Any]], option: str) -> int | None:
    value: Any = getattr(task, option)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise ValueError(f"{task.name}: {option} must be 0 or more, or None for no limit, not {value!r}.")
    return value
