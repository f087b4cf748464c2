"""Finds mistakes in the options of tasks: when the app makes a task, and by system checks, which show what would
otherwise appear only when a task runs."""

from __future__ import annotations

import difflib
import inspect
import logging
import math
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as CheckWarning
from django.core.exceptions import ImproperlyConfigured

from django_rlock._web.http import import_views
from django_rlock.settings import get_aliases, get_settings, unknown_alias

if TYPE_CHECKING:
    from django_rlock._tasks.task import AbstractTask

logger = logging.getLogger("django_rlock.checks")

HINT = "See the documentation of django-rlock: docs/celery.md"
_SKIP = "CELERY_SKIP_CHECKS"
"""Celery's environment variable."""


def check_tasks(**_: Any) -> list[CheckMessage]:
    """Check the options of tasks, if the project uses Celery.

    E020: an alias that RLOCK does not have, or that has NODES although a scope needs one server; or a key that reads an
    attribute which the task does not have. W020: ``"wait"`` for longer than the soft time limit, or while messages
    queue behind the task in the worker. W021: with ``acks_late``, a hard time limit, or else a ``lock_lease_time``,
    above the visibility timeout. W022: an attribute that is called like an argument of locks. W023: the app's settings
    for another library, of which it has no task any more.
    """
    import_views()
    if "celery" in sys.modules:
        _import_tasks()
    return _found() if "django_rlock.celery" in sys.modules else []


def check_worker(**_: Any) -> None:
    """Log the problems in a worker that has imported its tasks: Celery runs the checks, but does not show their
    messages."""
    if not os.environ.get(_SKIP):
        for message in _found():
            logger.log(message.level, "%s", message)


def _import_tasks() -> None:
    """Import the tasks that the project's app discovers, as a worker does when it starts."""
    from celery import current_app

    # The project's tasks are registered only when they are imported, and manage.py may have imported none.
    loader: Any = current_app.loader
    if loader.worker_initialized:
        return  # it is importing them
    with _no_checks():
        loader.import_default_modules()


@contextmanager
def _no_checks() -> Iterator[None]:
    """Keep Celery from running all checks again, including this one, before it imports tasks."""
    former = os.environ.get(_SKIP)
    os.environ[_SKIP] = "1"
    try:
        yield
    finally:
        if former is None:
            del os.environ[_SKIP]
        else:
            os.environ[_SKIP] = former


def _found() -> list[CheckMessage]:
    from celery import current_app

    registered: list[Any] = [task for _, task in sorted(current_app.tasks.items())]
    tasks: list[AbstractTask[..., Any]] = [task for task in registered if getattr(task, "_is_locked", False)]
    found = [message for task in tasks for message in (*_errors(task), *_doubts(task))]
    return [*found, *_leftovers()] if tasks else found


def _leftovers() -> Iterator[CheckMessage]:
    from celery import current_app

    conf: Any = current_app.conf
    in_use = {base.__module__.partition(".")[0] for task in current_app.tasks.values() for base in type(task).__mro__}
    for library, names in _LEFTOVERS.items():
        for name in names if library not in in_use else ():
            if conf.get(name) is not None:
                text = f"The app's setting {name} is for {library}, which no task uses; remove it, or set it in RLOCK."
                yield CheckWarning(text, hint=HINT, id="django_rlock.W023")


def _errors(task: AbstractTask[..., Any]) -> Iterator[CheckMessage]:
    from django_rlock._tasks.reservations import unfit_alias

    known: list[str] | None = None
    has_nodes = False
    with suppress(ImproperlyConfigured):  # which another check reports, once
        known = get_aliases()
        has_nodes = task.lock_using in known and get_settings(task.lock_using).nodes is not None
    if known is not None and task.lock_using not in known:
        text = f"{task.name}: lock_using: {unknown_alias(task.lock_using)}"
        yield Error(text, hint=HINT, id="django_rlock.E020")
    missing = sorted(name for name in task._rlock.naming.attributes() if not hasattr(task, name))  # noqa: SLF001
    for name in missing:
        text = f"{task.name}: lock_key reads <self.{name}>, and the task has no attribute {name!r}."
        yield Error(text, hint=HINT, id="django_rlock.E020")
    if task.lock_scope != "run" and has_nodes:
        yield Error(unfit_alias(task), hint=HINT, id="django_rlock.E020")


def _doubts(task: AbstractTask[..., Any]) -> Iterator[CheckMessage]:
    from django_rlock._tasks.deliveries import UNNOTICED, visibility_timeout

    conf: Any = task.app.conf
    visibility = visibility_timeout(task.app)
    # Celery 5.6.0 does not give a task the limits of its app.
    soft_limit = task.soft_time_limit or conf.task_soft_time_limit
    if task.on_locked == "wait":
        wait = task._rlock.wait_time  # noqa: SLF001
        wait = min(math.inf if wait is None else wait, UNNOTICED * visibility if task.acks_late else math.inf)
        if soft_limit and wait >= soft_limit:
            yield _warning(task, f"waits for the lock until its soft time limit of {soft_limit:g} s ends it; "
                           f"set lock_wait_time to less", "W020")  # fmt: skip
        if conf.worker_pool == "prefork" and conf.worker_prefetch_multiplier != 1:
            yield _warning(task, "waits in its slot, where other messages wait behind it; "
                           "set worker_prefetch_multiplier to 1, or on_locked to 'retry'", "W020")  # fmt: skip
    for name, option in _unread(type(task), task._rlock.naming.attributes()).items():  # noqa: SLF001
        yield _warning(
            task, f"has an attribute {name!r}, which changes no lock; the option is called {option!r}", "W022"
        )
    longest = task.time_limit or conf.task_time_limit or task._rlock.lease_time  # noqa: SLF001
    if task.acks_late and longest and longest > visibility:
        yield _warning(task, f"may run for {longest:g} s, and the broker delivers it again after "
                       f"{visibility:g} s; set visibility_timeout to more, so that no copy waits", "W021")  # fmt: skip


def _warning(task: AbstractTask[..., Any], text: str, number: str) -> CheckMessage:
    return CheckWarning(f"{task.name} {text}.", hint=HINT, id=f"django_rlock.{number}")


# --- options of other libraries, and misspelt ones --------------------------------------------------------------------

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

_TASK_SPELLINGS = {
    "key": "lock_key",
    "wait_time": "lock_wait_time",
    "lease_time": "lock_lease_time",
    "using": "lock_using",
    "kind": "lock_kind",
}
"""Arguments of locks and decorators, and the names of the tasks' options."""

_LEFTOVERS = {
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


def _unread(task: type, read: Collection[str]) -> dict[str, str]:
    """The attributes of a task class that are named like arguments of locks but that its templates do not read, with
    the options that were probably meant.
    """
    return {name: option for name, option in _TASK_SPELLINGS.items() if hasattr(task, name) and name not in read}


def refuse_of_call(label: str, options: Mapping[str, Any]) -> None:
    """Raise TypeError for an option of ``apply_async()`` that only tasks have: Celery would ignore it."""
    for name, value in options.items():
        if name in _FOREIGN:
            raise TypeError(f"{label}: {name!r} is an option of another library; {_instead(name, value)}, on the task.")
        if name.startswith(_BEGINNINGS) or name in _TASK_SPELLINGS:
            option = _TASK_SPELLINGS.get(name, "lock_key" if name == "lock" else name)
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
