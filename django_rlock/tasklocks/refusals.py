"""Attributes that a ``LockedTask`` does not support, and their replacements."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Collection, Iterator, Mapping
from typing import Any

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
"""Options of other libraries, and our equivalents."""

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
            raise TypeError(f"{label}: there is no option {name!r}. {advice}Known options: {', '.join(sorted(known))}.")


def unread(task: type, read: Collection[str]) -> dict[str, str]:
    """The attributes of a task class that have the name of an argument of locks and are not read by its templates, and
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
    """What to write in place of an option of another library, in general and for this value."""
    here = ""
    if name == "once" and isinstance(value, Mapping):
        here = f"; here: {', '.join(_once(value))}"
    if name == "unique_on" and value:
        here = f"; here: lock_key={_key([value] if isinstance(value, str) else value)!r}"
    return _FOREIGN[name] + here


def _once(options: Mapping[str, Any]) -> Iterator[str]:
    """The options for those of celery-once."""
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
