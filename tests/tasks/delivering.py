"""A worker's deliveries of a message, one after another: each runs in a process of its own, which may be killed at a
point that the test names."""

import os
import signal
import traceback
import warnings
from collections.abc import Callable
from typing import Any

from celery.app.trace import trace_task_ret
from celery.signals import after_task_publish, before_task_publish, task_postrun, task_received, task_success

from django_rlock._core import process
from django_rlock._tasks.requests import LockedTaskRequest
from django_rlock.signals import lock_released
from tests.celery_app import app, records, tasks
from tests.forking import fork, in_child


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _at(signal: Any) -> Callable[[Any], object]:
    return lambda _: signal.connect(die, weak=False)


def _in(owner: Callable[[Any], object], method: str) -> Callable[[Any], object]:
    return lambda task: setattr(owner(task), method, die)


POINTS: dict[str, Callable[[Any], object]] = {
    "in its body": lambda _: setattr(tasks, "inside", die),
    "in the release": _at(lock_released),
    "in the publish": _at(before_task_publish),
    "after the publish": _at(after_task_publish),
    "between body and store": _in(lambda task: task.backend, "store_result"),
    "between store and count": _in(lambda task: task.backend, "on_chord_part_return"),
    "in on_success": _in(type, "on_success"),
    "in task_success": _at(task_success),
    "in after_return": _in(type, "after_return"),
}
"""Where a process may die, mostly once the body has succeeded. Each prepares this process to die there in a run of a
task."""


def sent(queue: str) -> Any:
    """The next message of a queue, as a worker gets it."""
    with app.connection_for_read() as connection:
        found = connection.SimpleQueue(queue).get(timeout=records.WAIT)
        found.ack()
        return found


def runs(message: Any, redelivered: bool = False, **headers: object) -> str:
    """Run the task of a message in another process; ``headers`` are those that the broker adds. Returns how it ended,
    as ``task_postrun`` says."""
    in_child(lambda: _run(message, redelivered, headers))
    return str(records.wait_for(f"ended:{message.headers['id']}"))


def dies(message: Any, point: str, redelivered: bool = False, **headers: object) -> None:
    """Run the task of a message in another process, which is killed at a point."""
    if (pid := fork()) == 0:
        try:
            POINTS[point](app.tasks[message.headers["task"]])
            _run(message, redelivered, headers)
        except BaseException:  # noqa: BLE001 - it would end pytest in this process
            traceback.print_exc()
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), f"The process has not come to die {point}."


def _run(message: Any, redelivered: bool, headers: dict[str, object]) -> None:
    warnings.simplefilter("ignore")  # in a worker they are no errors
    app._after_fork()  # type: ignore[attr-defined]
    app.set_current()
    task_postrun.connect(_tell_end, weak=False)
    message.delivery_info["redelivered"] = redelivered
    message.headers.update(headers)
    request = LockedTaskRequest(message, app=app)
    task_received.send(sender=None, request=request)
    body = request.body, request.content_type, request.content_encoding
    trace_task_ret(request.name, request.id, request.request_dict, *body, app=app)
    process.finish()


def _tell_end(task_id: str, state: str, **_: object) -> None:
    records.record(f"ended:{task_id}", state)
