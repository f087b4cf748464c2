"""A worker's handling of messages. Only workers import this module, by its name: it loads the worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from celery.exceptions import InvalidTaskError
from celery.worker.request import Request
from celery.worker.state import successful_requests
from celery.worker.strategy import default

from django_rlock._tasks.messages import release


class LockedTaskRequest(Request):
    """Releases the message's reservation in the two cases without a signal."""

    def acknowledge(self) -> None:
        """Handle a copy of a success that ``worker_deduplicate_successful_tasks`` does not run."""
        super().acknowledge()
        # Celery acknowledges such a copy without a run, and sends no signal.
        if self.delivery_info["redelivered"] and self.id in successful_requests:
            release(self.request_dict, str(self.id))

    def reject(self, requeue: bool = False) -> None:
        """Handle an ``eta`` that is not a time."""
        super().reject(requeue)
        if not requeue:
            release(self.request_dict, str(self.id))


def strategy(task: Any, app: Any, consumer: Any, **options: Any) -> Callable[..., None]:
    """Celery's strategy, which also rejects a message whose body is not that of a task: such a body would end every
    worker that gets the message.
    """
    handle: Callable[..., None] = default(task, app, consumer, **options)

    def receive(message: Any, body: Any, *rest: Any) -> None:
        if body is None:  # otherwise the message has Celery's older format, which Celery checks
            _check_shape(message.payload)
        handle(message, body, *rest)

    return receive


def _check_shape(body: Any) -> None:
    if isinstance(body, Mapping) and "args" in body:
        return  # both formats
    if not isinstance(body, list | tuple) or len(body) != 3:
        raise InvalidTaskError("The body of a message must be a list of three: args, kwargs and embed.")
    args, kwargs, embed = body
    if not isinstance(args, list | tuple):
        raise InvalidTaskError("The args of a message must be a list.")
    if not isinstance(kwargs, Mapping):
        raise InvalidTaskError("The kwargs of a message must be a mapping.")
    if embed and not isinstance(embed, Mapping):
        raise InvalidTaskError("The embed of a message must be a mapping.")
