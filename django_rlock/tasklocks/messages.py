"""Follows a message through a worker, by the worker's signals."""

from __future__ import annotations

from typing import Any

from celery.signals import task_postrun
from celery.states import SUCCESS

from django_rlock.tasklocks.deliveries import SUCCEEDED


@task_postrun.connect(weak=False)
def _after_run(task: Any, state: str | None, **_: Any) -> None:
    delivery = vars(task.request).get(SUCCEEDED)
    if state == SUCCESS and delivery is not None:
        delivery.note_stored()
