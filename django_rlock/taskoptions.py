"""The options of a ``LockedTask``, checked once when the app makes the task."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from hashlib import blake2b
from types import MethodType
from typing import TYPE_CHECKING, Any

from kombu.utils.json import dumps

from django_rlock.arguments import Arguments
from django_rlock.exceptions import KeyTemplateError
from django_rlock.keytemplates import KeyTemplate, check_names
from django_rlock.locks import KINDS
from django_rlock.locks.durations import lease_seconds, wait_seconds

if TYPE_CHECKING:
    from django_rlock.celery import LockedTask

Naming = Callable[["LockedTask", tuple[Any, ...], dict[str, Any]], list[str]]
"""Answers the names of a run's locks."""

ON_LOCKED = ("skip", "retry", "wait", "raise")
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """What ``LockedTask`` describes. Durations are seconds."""

    names: Naming
    wait_time: float | None
    lease_time: float | None
    on_locked: str | Callable[..., Any]
    retry_delay: float
    retry_max_delay: float
    max_retries: int | None
    using: str
    kind: str | None

    @classmethod
    def of(cls, task: type[LockedTask]) -> TaskOptions:
        """The options of a task class. KeyTemplateError, ValueError or TypeError for a bad one."""
        on_locked = inspect.getattr_static(task, "on_locked")  # not bound to the class or a task
        if not callable(on_locked) and on_locked not in ON_LOCKED:
            raise ValueError(f"{task.name}: on_locked must be one of {ON_LOCKED} or a function, not {on_locked!r}.")
        if task.lock_kind not in (None, *KINDS):
            raise ValueError(f"{task.name}: lock_kind must be one of {(*KINDS, None)}, not {task.lock_kind!r}.")
        wait_time = wait_seconds(task.lock_wait_time)
        return cls(
            names=_naming(task),
            wait_time=wait_time or None if on_locked == "wait" else wait_time,
            lease_time=lease_seconds(task.lock_lease_time),
            on_locked=on_locked,
            retry_delay=_delay(task, "lock_retry_delay"),
            retry_max_delay=_delay(task, "lock_retry_max_delay"),
            max_retries=_count(task, "lock_max_retries"),
            using=task.lock_using,
            kind=task.lock_kind,
        )

    def delay(self, retries: int) -> float:
        """How long to wait before the next retry, after so many."""
        return min(self.retry_max_delay, self.retry_delay * 2.0 ** min(retries, 64))

    def wait_time_without_message(self) -> float | None:
        """How long to wait where there is no message to send again: as long as the retries would take."""
        if self.on_locked != "retry" or self.wait_time is None:
            return self.wait_time
        if self.max_retries is None:
            return None
        return self.wait_time + sum(map(self.delay, range(self.max_retries)))


def _delay(task: type[LockedTask], option: str) -> float:
    value = getattr(task, option)
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
        raise ValueError(f"{task.name}: {option} must be a number of seconds above 0, not {value!r}.")
    return float(seconds)


def _count(task: type[LockedTask], option: str) -> int | None:
    value: Any = getattr(task, option)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise ValueError(f"{task.name}: {option} must be 0 or more, or None for no limit, not {value!r}.")
    return value


# --- the name of the lock --------------------------------------------------------------------------------------------


def _naming(task: type[LockedTask]) -> Naming:
    key: Any = inspect.getattr_static(task, "lock_key")
    if key is None:
        return _naming_by_digest(_arguments(task))
    if isinstance(key, str):
        return _naming_by_template(task, KeyTemplate.parse(key), _arguments(task))
    if isinstance(key, list | tuple) and key:
        return _naming_by_all([_naming_by_template(task, KeyTemplate.parse(each), _arguments(task)) for each in key])
    if callable(key):
        return _naming_by_function(key)
    raise TypeError(f"{task.name}: lock_key must be a template, a list of them, a function or None, not {key!r}.")


def _naming_by_all(namings: list[Naming]) -> Naming:
    return lambda task, args, kwargs: [name for each in namings for name in each(task, args, kwargs)]


def _naming_by_function(function: Callable[..., Any]) -> Naming:
    def names(task: LockedTask, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
        named = function(task, *args, **kwargs)
        return list(named) if isinstance(named, list | tuple | set) else [named]

    return names


def _naming_by_template(task: type[LockedTask], template: KeyTemplate, arguments: Arguments) -> Naming:
    if arguments.names is not None:
        error = check_names(template, [*arguments.names, "task", "self"], f"task {task.name}")
        if error is not None:
            raise KeyTemplateError(error, template=template.source)

    def names(task: LockedTask, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
        own = {"task": {"name": task.name, "id": task.request.id}, "self": task}
        return [template.render(own | arguments.of_call(args, kwargs))]

    return names


def _naming_by_digest(arguments: Arguments) -> Naming:
    def names(task: LockedTask, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
        named = arguments.of_call(args, kwargs)
        try:
            text = dumps(named, sort_keys=True)
        except (TypeError, ValueError) as error:
            raise KeyTemplateError(
                f"{task.name}: without a lock_key all arguments make the key, and these are not JSON ({error}); "
                f"give it a lock_key, such as '{task.name}:<id>'.",
                template="",
            ) from error
        return [f"{task.name}:{blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()}"]

    return names


def _arguments(task: type[LockedTask]) -> Arguments:
    """What a message fills: the parameters of the body, without the task that ``bind=True`` puts in front."""
    run: Any = inspect.getattr_static(task, "run")
    return Arguments(run.__func__ if isinstance(run, staticmethod) else MethodType(run, task))
