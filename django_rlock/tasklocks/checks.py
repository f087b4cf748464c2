"""The system checks of tasks: problems that otherwise show only when a task runs."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as CheckWarning
from django.core.exceptions import ImproperlyConfigured

from django_rlock.settings import get_aliases, get_settings, unknown_alias

if TYPE_CHECKING:
    from django_rlock.celery import LockedTask

HINT = "See the documentation of django-rlock: docs/celery.md"


def check_tasks(**_: Any) -> list[CheckMessage]:
    """Check the options of tasks, if the project has imported any.

    E020: an alias that RLOCK does not have, or that has NODES although a scope needs one server; or a key that reads an
    attribute which the task does not have. W020: ``"wait"`` for longer than the soft time limit, or while messages
    queue behind the task in the worker. W021: with ``acks_late``, a hard time limit, or else a ``lock_lease_time``,
    above the visibility timeout.
    """
    if "django_rlock.celery" not in sys.modules:
        return []
    return [message for task in _locked_tasks() for message in (*_errors(task), *_doubts(task))]


def _locked_tasks() -> Iterable[LockedTask]:
    from celery import current_app

    tasks: Iterable[Any] = [task for _, task in sorted(current_app.tasks.items())]
    return [task for task in tasks if hasattr(task, "_rlock")]


def _errors(task: LockedTask) -> Iterator[CheckMessage]:
    from django_rlock.tasklocks.places import unfit_alias

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


def _doubts(task: LockedTask) -> Iterator[CheckMessage]:
    from django_rlock.tasklocks.deliveries import UNNOTICED, visibility_timeout

    conf: Any = task.app.conf
    visibility = visibility_timeout(task.app)
    if task.on_locked == "wait":
        wait = task._rlock.wait_time  # noqa: SLF001
        wait = min(math.inf if wait is None else wait, UNNOTICED * visibility if task.acks_late else math.inf)
        if task.soft_time_limit and wait >= task.soft_time_limit:
            yield _warning(task, f"waits for the lock until its soft time limit of {task.soft_time_limit:g} s ends it; "
                           f"set lock_wait_time to less", "W020")  # fmt: skip
        if conf.worker_pool == "prefork" and conf.worker_prefetch_multiplier != 1:
            yield _warning(task, "waits in its slot, where other messages wait behind it; "
                           "set worker_prefetch_multiplier to 1, or on_locked to 'retry'", "W020")  # fmt: skip
    longest = task.time_limit or task._rlock.lease_time  # noqa: SLF001
    if task.acks_late and longest and longest > visibility:
        yield _warning(task, f"may run for {longest:g} s, and the broker delivers it again after "
                       f"{visibility:g} s; set visibility_timeout to more, so that no copy waits", "W021")  # fmt: skip


def _warning(task: LockedTask, text: str, number: str) -> CheckMessage:
    return CheckWarning(f"{task.name} {text}.", hint=HINT, id=f"django_rlock.{number}")
