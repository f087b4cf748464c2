"""A worker's deliveries of a message, one after another: each runs in a process of its own, which may be killed at a
point that the test names."""

import os
import signal
import warnings
from collections.abc import Callable
from typing import Any

from celery.app.trace import trace_task_ret
from celery.signals import after_task_publish, before_task_publish, task_success

from django_rlock._core import process
from django_rlock._core.clock import monotonic
from django_rlock._tasks.deliveries import RECEIVED
from django_rlock.signals import lock_released
from tests.celery_app import app, records
from tests.forking import fork, in_child


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _at(signal: Any) -> Callable[[Any], object]:
    return lambda _: signal.connect(die, weak=False)


def _in(owner: Callable[[Any], object], method: str) -> Callable[[Any], object]:
    return lambda task: setattr(owner(task), method, die)


POINTS: dict[str, Callable[[Any], object]] = {
    "in the release": _at(lock_released),
    "in the publish": _at(before_task_publish),
    "after the publish": _at(after_task_publish),
    "between body and store": _in(lambda task: task.backend, "store_result"),
    "between store and count": _in(lambda task: task.backend, "on_chord_part_return"),
    "in on_success": _in(type, "on_success"),
    "in task_success": _at(task_success),
    "in after_return": _in(type, "after_return"),
}
"""Where a process may die once the body has succeeded: each prepares this process to die there in a run of a task."""


def sent(queue: str) -> Any:
    """The next message of a queue, as a worker gets it."""
    with app.connection_for_read() as connection:
        found = connection.SimpleQueue(queue).get(timeout=records.WAIT)
        found.ack()
        return found


def runs(message: Any, redelivered: bool = False) -> None:
    """Run the task of a message in another process."""
    in_child(lambda: _run(message, redelivered))


def dies(message: Any, point: str, redelivered: bool = False) -> None:
    """Run the task of a message in another process, which is killed at a point."""
    if (pid := fork()) == 0:
        try:
            POINTS[point](app.tasks[message.headers["task"]])
            _run(message, redelivered)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), f"The process has not come to die {point}."


def _run(message: Any, redelivered: bool) -> None:
    warnings.simplefilter("ignore")  # in a worker they are no errors
    app._after_fork()  # type: ignore[attr-defined]
    app.set_current()
    request = {
        **message.headers,
        "delivery_info": {**message.delivery_info, "redelivered": redelivered},
        RECEIVED: monotonic(),
    }
    body = message.body, message.content_type, message.content_encoding
    trace_task_ret(request["task"], request["id"], request, *body, app=app)
    process.end()
