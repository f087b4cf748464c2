"""How a worker handles a message. Only workers import this, by its name."""

from __future__ import annotations

from typing import Any

from billiard.einfo import ExceptionWithTraceback  # type: ignore[attr-defined]
from celery.exceptions import Ignore, Retry
from celery.worker.request import Request

from django_rlock.clock import monotonic
from django_rlock.tasklocks.deliveries import CONTENT_TYPE, RECEIVED
from django_rlock.tasklocks.places import PLACE, Place


class TimedRequest(Request):
    """Records when the worker received the message: it may be delivered again while it waits there.

    Leaves the message's place in the queue if the message ends without a completed run: revoked, expired, by the end of
    its process or a time limit, or by an error, which may have come before its run (``before_start``, a ``__call__``).
    It does so in the background, because the worker's other messages must not wait.
    """

    _is_requeued = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.request_dict.update({RECEIVED: monotonic(), CONTENT_TYPE: self.content_type})

    def reject(self, requeue: bool = False) -> None:
        self._is_requeued = requeue
        super().reject(requeue)

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        outcome = super().on_failure(exc_info, *args, **kwargs)
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
        if not isinstance(error, Retry | Ignore):  # it is sent again, or the run has left it
            self._leave_place()
        return outcome

    def on_timeout(self, soft: bool, timeout: float) -> None:
        super().on_timeout(soft, timeout)
        if not soft:
            self._leave_place()

    def _announce_revoked(self, *args: Any) -> None:
        super()._announce_revoked(*args)  # type: ignore[misc]
        self._leave_place()

    def _leave_place(self) -> None:
        task: Any = self.task
        place = Place.of_message(task, self.request_dict.get(PLACE), str(self.id))
        if place is not None and not self._is_requeued:
            place.leave_later()
