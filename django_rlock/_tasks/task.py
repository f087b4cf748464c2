"""The part of a ``LockedTask``, which is in a higher layer, that the modules of this package use."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from celery.contrib.django.task import DjangoTask

from django_rlock.locks.options import Duration, KindName

if TYPE_CHECKING:
    _Task = DjangoTask
else:

    class _Task(DjangoTask):
        def __class_getitem__(cls, _parameters: object) -> type:
            return cls  # Celery has an alias from 5.7 on, which its decorators refuse as a base


P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class AbstractTask(_Task[P, R_co]):
    """The options of a task, as its class states them, and what was made of them."""

    lock_key: str | list[str] | Callable[..., str | list[str]] | None
    lock_wait_time: Duration
    lock_lease_time: Duration | None
    lock_at_least: Duration | None
    lock_max_hold_time: Duration | None
    lock_permits: int | None
    on_locked: str | Callable[..., Any]
    on_skipped: str | None
    lock_retry_delay: Duration
    lock_retry_max_delay: Duration
    lock_max_retries: int | None
    lock_using: str
    lock_kind: KindName | None
    done_marker_time: Duration | None
    lock_scope: str
    lock_queue_time: Duration
    on_queued: str

    _rlock: Any
    """Its ``TaskOptions``."""
    _stores_start: bool
    _is_locked: bool
