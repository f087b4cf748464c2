"""Attributes that a ``LockedTask`` does not support, and what to use instead."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Collection
from typing import Any

from celery.app.defaults import SETTING_KEYS
from celery.app.task import Task

_FOREIGN = {
    # celery-once
    "once": "its 'keys' become lock_key='name:<argument>:…', its 'graceful' is on_locked='skip'; a run's lock needs no "
    "'timeout', since it is renewed",
    # celery-singleton
    "unique_on": "write lock_key='name:<argument>:<another>'",
    "raise_on_duplicate": "write on_locked='raise', or 'skip' where it was False",
    "lock_expiry": "leave it out: the lock is renewed while the task runs; lock_lease_time=… limits it",
    "singleton_raise_on_duplicate": "write on_locked='raise', or 'skip' where it was False",
    "singleton_lock_expiry": "leave it out: the lock is renewed while the task runs; lock_lease_time=… limits it",
    # celery-heimdall
    "heimdall": "its 'key' becomes lock_key='name:<argument>', its 'unique_raises' on_locked='raise'",
}
"""Options of other libraries, and our equivalents."""

_SETTINGS = {setting: attribute for attribute, setting in Task.from_config}
"""The app's settings for which a task has an attribute."""

_BEGINNINGS = "lock", "on_lock", "onlock", "on_queue", "onqueue", "done_marker", "donemarker"
"""How misspelt options begin; other attributes are the task's own."""


def refuse_unknown(task: type, label: str, known: Collection[str]) -> None:
    """Raise TypeError for an attribute without effect: a misspelt option, another library's option, or a setting."""
    for name, value in vars(task).items():
        if name in known:
            continue
        if name in _FOREIGN:
            raise TypeError(f"{label}: {name!r} is an option of another library; {_FOREIGN[name]}.")
        if name in SETTING_KEYS and name.startswith("task_"):
            raise TypeError(f"{label}: {name!r} is a setting of the app, which does nothing on a task; {_right(name)}.")
        if close := _meant(name, value, known):
            advice = f"Did you mean {close!r}? " if close in known else ""
            raise TypeError(f"{label}: there is no option {name!r}. {advice}Known options: {', '.join(sorted(known))}.")


def _right(setting: str) -> str:
    attribute = _SETTINGS.get(setting, setting.removeprefix("task_"))
    if hasattr(Task, attribute):
        return f"the attribute of a task is {attribute!r}"
    return "set it in the configuration"


def _meant(name: str, value: Any, known: Collection[str]) -> str | None:
    """The option that was probably meant, or the name itself if that is unknown; None if it is no misspelt option."""
    is_method = inspect.isfunction(value) and value.__name__ == name
    if is_method or not name.startswith(_BEGINNINGS):
        return None
    folded = {option.replace("_", ""): option for option in known}
    if close := difflib.get_close_matches(name.replace("_", ""), list(folded), n=1, cutoff=0.8):
        return folded[close[0]]
    return name if name.startswith("lock_") and not callable(value) else None
