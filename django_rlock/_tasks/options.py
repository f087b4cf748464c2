"""The options of a ``LockedTask``, checked once when the app makes the task; and options that it does not support."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django_rlock._tasks.naming import Naming, body_of, misfit
from django_rlock.locks import KINDS, BaseLock, LimitedLock, rlock
from django_rlock.locks.options import (
    Duration,
    KindName,
    hold_seconds,
    keep_seconds,
    lease_seconds,
    limited_kind,
    wait_seconds,
)

if TYPE_CHECKING:
    from django_rlock._tasks.task import AbstractTask


# --- options ----------------------------------------------------------------------------------------------------------

# The options of a ``LockedTask``.

ON_LOCKED = ("skip", "retry", "wait", "raise")
SCOPES = ("run", "queue", "until_start")
ON_QUEUED = ("return", "raise", "again", "earlier", "replace")
ON_QUEUED_ONCE = ("return", "raise", "earlier")


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """The options that ``LockedTask`` describes. Durations are in seconds."""

    naming: Naming
    wait_time: float | None
    lease_time: float | None
    of_lock: Mapping[str, Any]
    """The options that are set and that the lock itself has, besides its alias and its kind."""
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
    def of(cls, task: type[AbstractTask[..., Any]]) -> TaskOptions:
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
        of_lock = {
            "lease_time": _seconds(task, "lock_lease_time", lease_seconds),
            "at_least": _seconds(task, "lock_at_least", keep_seconds),
            "max_hold_time": _seconds(task, "lock_max_hold_time", hold_seconds),
            "permits": task.lock_permits,
        }
        return cls(
            naming=Naming(task),
            wait_time=wait_time or None if on_locked == "wait" else wait_time,
            lease_time=of_lock["lease_time"],
            of_lock={name: value for name, value in of_lock.items() if value is not None},
            on_locked=on_locked,
            on_skipped=task.on_skipped,
            retry_delay=_delay(task, "lock_retry_delay"),
            retry_max_delay=_delay(task, "lock_retry_max_delay"),
            max_retries=_count(task, "lock_max_retries"),
            done_marker_time=_seconds(task, "done_marker_time", wait_seconds),
            using=task.lock_using,
            kind=task.lock_kind if task.lock_permits is None else limited_kind(task.lock_kind),
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
        made = rlock(*names, using=self.using, kind=self.kind, **self.of_lock)
        if sources := self.naming.sources:
            templates = dict(zip(names, sources, strict=True))
            for part in made.parts:
                part.template = templates[part.name]
        return made

    def delay(self, retries: int) -> float:
        """How long to wait before the next retry, in seconds, after a number of retries."""
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


def _check_body(task: type[AbstractTask[..., Any]]) -> None:
    run: Any = body_of(task)
    if inspect.iscoroutinefunction(getattr(run, "__func__", run)):
        raise TypeError(
            f"{task.name}: Celery runs no coroutines, so the body of a task must not be 'async def'. Put the coroutine "
            f"into a function of its own, and call that by asgiref.sync.async_to_sync()."
        )


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
    if scope != "run" and isinstance(inspect.getattr_static(task, "lock_key"), list | tuple):
        raise TypeError(f"{task.name}: lock_scope={scope!r} takes one lock_key, not a list of them.")


def _check_permits(task: type[AbstractTask[..., Any]]) -> None:
    if task.lock_permits is None:
        return
    if task.lock_scope != "run":
        raise ValueError(f"{task.name}: lock_permits needs lock_scope='run', as the others let one message wait.")
    try:
        LimitedLock("permits", permits=task.lock_permits, at_least=task.lock_at_least)
        limited_kind(task.lock_kind)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{task.name}: lock_permits: {error}") from None


def _on_locked(task: type[AbstractTask[..., Any]]) -> str | Callable[..., Any]:
    on_locked: Any = inspect.getattr_static(task, "on_locked")  # unbound
    if callable(on_locked):
        if error := misfit(on_locked, 2):
            raise TypeError(f"{task.name}: on_locked is called as function(task, error); {error}.")
    elif on_locked not in ON_LOCKED:
        raise ValueError(f"{task.name}: on_locked must be one of {ON_LOCKED} or a function, not {on_locked!r}.")
    return on_locked  # type: ignore[no-any-return]


def _seconds(
    task: type[AbstractTask[..., Any]], option: str, checked: Callable[[Duration | None], float | None]
) -> float | None:
    try:
        return checked(getattr(task, option))
    except (TypeError, ValueError) as error:
        raise type(error)(f"{task.name}: {option}: {error}") from None


def _delay(task: type[AbstractTask[..., Any]], option: str) -> float:
    value = getattr(task, option)
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
        raise ValueError(f"{task.name}: {option} must be a number of seconds above 0, not {value!r}.")
    return float(seconds)


def _count(task: type[AbstractTask[..., Any]], option: str) -> int | None:
    value: Any = getattr(task, option)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise ValueError(f"{task.name}: {option} must be 0 or more, or None for no limit, not {value!r}.")
    return value


# --- refusals ---------------------------------------------------------------------------------------------------------

# Attributes that a ``LockedTask`` does not support, and their replacements.

_QUEUED = "write lock_scope='queue', on_queued='raise', or on_queued='return' where it was False"
_EXPIRY = (
    "remove it: the lock of a run is renewed; lock_queue_time=… limits how long a message that does not start counts"
)
_FOREIGN = {
    # celery-once
    "once": "write lock_scope='queue', and on_queued='return' for 'graceful', else on_queued='raise'; its 'keys' "
    "become lock_key='name:<argument>:…', its 'timeout' lock_queue_time; a run's lock is renewed",
    "default_timeout": _EXPIRY,
    "unlock_before_run": "write lock_scope='until_start'",
    "once_backend": "locks live where RLOCK says",
    "once_config": "RLOCK in Django's settings has the options",
    # celery-singleton
    "unique_on": "write lock_scope='queue', lock_key='name:<argument>:<another>'",
    "raise_on_duplicate": _QUEUED,
    "lock_expiry": _EXPIRY,
    "singleton_raise_on_duplicate": _QUEUED,
    "singleton_lock_expiry": _EXPIRY,
    "singleton_backend_class": "locks live where RLOCK says",
    "singleton_backend_kwargs": "locks live where RLOCK says",
    "singleton_backend_url": "locks live where RLOCK says",
    "singleton_key_prefix": "write KEY_PREFIX in RLOCK",
    # celery-heimdall
    "heimdall": "write lock_scope='queue', and on_queued='raise' for 'unique_raises'; its 'key' becomes "
    "lock_key='name:<argument>'",
}
"""Options of other libraries, and their equivalents."""

_OF_LOCKS = {
    "key": "lock_key",
    "wait_time": "lock_wait_time",
    "lease_time": "lock_lease_time",
    "using": "lock_using",
    "kind": "lock_kind",
}
"""Arguments of locks and decorators, and the names of the tasks' options."""

LEFTOVERS = {
    "celery_once": ("ONCE",),
    "celery_singleton": (
        "singleton_backend_class",
        "singleton_backend_kwargs",
        "singleton_backend_url",
        "singleton_key_prefix",
        "singleton_lock_expiry",
        "singleton_raise_on_duplicate",
    ),
}
"""The settings of an app that only another library reads, by its module."""

_BEGINNINGS = "lock", "on_lock", "onlock", "on_queue", "onqueue", "done_marker", "donemarker"
"""How misspelt options begin; other attributes are the task's own."""


def refuse_unknown(task: type, label: str, known: Collection[str]) -> None:
    """Raise TypeError for an attribute without effect: a misspelt option, another library's option, or a setting."""
    from celery.app.defaults import SETTING_KEYS  # the checks load this module where Celery may be missing

    for name, value in vars(task).items():
        if name in known:
            continue
        if name in _FOREIGN:
            raise TypeError(f"{label}: {name!r} is an option of another library; {_instead(name, value)}.")
        if name == "lock":
            raise TypeError(f"{label}: 'lock' is the lock of the running task; the option is called 'lock_key'.")
        if name in SETTING_KEYS and name.startswith("task_"):
            raise TypeError(f"{label}: {name!r} is a setting of the app, with no effect on a task; {_right(name)}.")
        if close := _meant(name, value, known):
            advice = f"Did you mean {close!r}? " if close in known else ""
            raise TypeError(f"{label}: unknown option {name!r}. {advice}Known options: {', '.join(sorted(known))}.")


def unread(task: type, read: Collection[str]) -> dict[str, str]:
    """The attributes of a task class that are named like arguments of locks but that its templates do not read, with
    the options that were probably meant.
    """
    return {name: option for name, option in _OF_LOCKS.items() if hasattr(task, name) and name not in read}


def refuse_of_call(label: str, options: Mapping[str, Any]) -> None:
    """Raise TypeError for an option of ``apply_async()`` that only tasks have: Celery would ignore it."""
    for name, value in options.items():
        if name in _FOREIGN:
            raise TypeError(f"{label}: {name!r} is an option of another library; {_instead(name, value)}, on the task.")
        if name.startswith(_BEGINNINGS) or name in _OF_LOCKS:
            option = _OF_LOCKS.get(name, "lock_key" if name == "lock" else name)
            raise TypeError(f"{label}: {name!r} is not an option of a call; set {option!r} on the task.")


def _instead(name: str, value: Any) -> str:
    """Advice for an option of another library, in general and for this value."""
    here = ""
    if name == "once" and isinstance(value, Mapping):
        here = f"; here: {', '.join(_once(value))}"
    if name == "unique_on" and value:
        here = f"; here: lock_key={_key([value] if isinstance(value, str) else value)!r}"
    return _FOREIGN[name] + here


def _once(options: Mapping[str, Any]) -> Iterator[str]:
    """The equivalents of celery-once's options."""
    yield "lock_scope='until_start'" if options.get("unlock_before_run") else "lock_scope='queue'"
    yield "on_queued='return'" if options.get("graceful") else "on_queued='raise'"
    if "keys" in options:
        yield f"lock_key={_key(options['keys'])!r}"
    if "timeout" in options:
        yield f"lock_queue_time={options['timeout']!r}"


def _key(arguments: Collection[str]) -> str:
    return ":".join(["name", *(f"<{argument}>" for argument in arguments)])


def _right(setting: str) -> str:
    from celery.app.task import Task

    attributes = {name: attribute for attribute, name in Task.from_config}
    attribute = attributes.get(setting, setting.removeprefix("task_"))
    if hasattr(Task, attribute):
        return f"the attribute of a task is {attribute!r}"
    return "set it in the configuration"


def _meant(name: str, value: Any, known: Collection[str]) -> str | None:
    """The option that was probably meant, or the name itself if unknown; None if it is not a misspelt option."""
    is_method = inspect.isfunction(value) and value.__name__ == name
    if is_method or not name.startswith(_BEGINNINGS):
        return None
    folded = {option.replace("_", ""): option for option in known}
    if close := difflib.get_close_matches(name.replace("_", ""), list(folded), n=1, cutoff=0.8):
        return folded[close[0]]
    return name if name.startswith("lock_") and not callable(value) else None
