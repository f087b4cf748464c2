"""The system checks of tasks: problems that otherwise appear only when a task runs."""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as CheckWarning
from django.core.exceptions import ImproperlyConfigured

from django_rlock._tasks.options import LEFTOVERS, unread
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


def check_worker() -> None:
    """Log the problems in a worker that has imported its tasks: Celery runs the checks, but does not show their
    messages."""
    if not os.environ.get(_SKIP):
        for message in _found():
            logger.log(message.level, "%s", message)


def _import_tasks() -> None:
    """Import the tasks that the project's app discovers, as a worker does when it starts."""
    from celery import current_app

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
    tasks = _locked_tasks()
    found = [message for task in tasks for message in (*_errors(task), *_doubts(task))]
    return [*found, *_leftovers()] if tasks else found


def _leftovers() -> Iterator[CheckMessage]:
    from celery import current_app

    conf: Any = current_app.conf
    in_use = {base.__module__.partition(".")[0] for task in current_app.tasks.values() for base in type(task).__mro__}
    for library, names in LEFTOVERS.items():
        for name in names if library not in in_use else ():
            if conf.get(name) is not None:
                text = f"The app's setting {name} is for {library}, which no task uses; remove it, or set it in RLOCK."
                yield CheckWarning(text, hint=HINT, id="django_rlock.W023")


def _locked_tasks() -> list[AbstractTask[..., Any]]:
    from celery import current_app

    tasks: list[Any] = [task for _, task in sorted(current_app.tasks.items())]
    return [task for task in tasks if getattr(task, "_is_locked", False)]


def _errors(task: AbstractTask[..., Any]) -> Iterator[CheckMessage]:
    from django_rlock._tasks.reservations import unfit_alias

    if not _is_known(task.lock_using):
        text = f"{task.name}: lock_using: {unknown_alias(task.lock_using)}"
        yield Error(text, hint=HINT, id="django_rlock.E020")
    missing = sorted(name for name in task._rlock.naming.attributes() if not hasattr(task, name))  # noqa: SLF001
    for name in missing:
        text = f"{task.name}: lock_key reads <self.{name}>, and the task has no attribute {name!r}."
        yield Error(text, hint=HINT, id="django_rlock.E020")
    if task.lock_scope != "run" and _has_nodes(task.lock_using):
        yield Error(unfit_alias(task), hint=HINT, id="django_rlock.E020")


def _has_nodes(using: str) -> bool:
    try:
        return using in get_aliases() and get_settings(using).nodes is not None
    except ImproperlyConfigured:
        return False


def _is_known(using: str) -> bool:
    try:
        return using in get_aliases()
    except ImproperlyConfigured:
        return True  # another check reports it, once


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
    for name, option in unread(type(task), task._rlock.naming.attributes()).items():  # noqa: SLF001
        yield _warning(
            task, f"has an attribute {name!r}, which changes no lock; the option is called {option!r}", "W022"
        )
    longest = task.time_limit or conf.task_time_limit or task._rlock.lease_time  # noqa: SLF001
    if task.acks_late and longest and longest > visibility:
        yield _warning(task, f"may run for {longest:g} s, and the broker delivers it again after "
                       f"{visibility:g} s; set visibility_timeout to more, so that no copy waits", "W021")  # fmt: skip


def _warning(task: AbstractTask[..., Any], text: str, number: str) -> CheckMessage:
    return CheckWarning(f"{task.name} {text}.", hint=HINT, id=f"django_rlock.{number}")
