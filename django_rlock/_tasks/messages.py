"""Follows a message through a worker to its end, by the worker's signals.

Only the end of a message releases its reservation. So the reservation stays if the message will be delivered again: if
it was rejected and requeued, if it was sent again (the copy inherits the reservation), and if the process died, until
the worker has decided what to do with the message. The signals of the worker's main process release the reservation in
the background, because other messages must not wait.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

from celery import signals
from celery.exceptions import Reject, TimeLimitExceeded
from celery.states import REJECTED, SUCCESS

from django_rlock._core.callbacks import log
from django_rlock._core.clock import monotonic
from django_rlock._tasks import deliveries
from django_rlock._tasks.deaths import DEATHS, RETURNED, returned_before
from django_rlock._tasks.reservations import RESERVATION, Reservation, is_header, release_later
from django_rlock.exceptions import LockUnavailableError

logger = logging.getLogger("django_rlock.celery")

_HEADER_TYPES: Mapping[str, Any] = {
    **dict.fromkeys((deliveries.RETRIES, deliveries.COPY, DEATHS, RETURNED), int),
    deliveries.WAITED: int | float,
    **dict.fromkeys((deliveries.RECEIVED, deliveries.CONTENT_TYPE), object),
}
"""The types of our headers' values. A broker may keep the two last ones, which are set anew."""
_received: WeakValueDictionary[str, Any] = WeakValueDictionary()
"""The worker's requests of messages with reservations, by their ids: some of Celery's signals lack the request."""


def _note_arrival(request: Any, **_: Any) -> None:
    """Record when the worker received the message: it may be delivered again while it waits there."""
    # task_received is sent in the worker's main process, whose request_dict then reaches the child that runs the task.
    if hasattr(request.task, "_rlock"):
        headers = request.request_dict
        # A header that is called like ours, and that no sender makes, would be trusted by the run.
        for name in [each for each in headers if each.startswith("rlock_") and not _is_ours(each, headers[each])]:
            del headers[name]
            text = "Header %s of message %s is ignored: no sender makes such a header."
            log(logger, logging.WARNING, text, name, request.id)
        request.request_dict.update({deliveries.RECEIVED: monotonic(), deliveries.CONTENT_TYPE: request.content_type})
        if (returned := returned_before(request.message)) is not None:
            request.request_dict[RETURNED] = returned
        if RESERVATION in request.request_dict:
            _received[request.id] = request


def _is_ours(name: str, value: Any) -> bool:
    if name == RESERVATION:
        return is_header(value)
    if name == deliveries.PARENTS:
        return isinstance(value, list | tuple) and all(map(_is_token, value))
    return _is_token(value) if name == deliveries.TOKEN else isinstance(value, _HEADER_TYPES.get(name, ()))


def _is_token(value: object) -> bool:
    return isinstance(value, str) and value.isascii()


# --- where the task runs ---------------------------------------------------------------------------------------------


def _after_run(task: Any, retval: Any, state: str | None, **_: Any) -> None:
    """Handle the end of a run, or an error before the run."""
    # task_postrun is sent in the process of the run, before the worker acknowledges or rejects the message. Of all
    # signals only this one comes after success, failure, Retry, Ignore and Reject alike.
    known = vars(task.request)
    delivery: deliveries.Delivery | None = known.get(deliveries.SUCCEEDED)
    # on_success() and after_return() may reject a message after a success: then the signal is sent with that state,
    # while their error passes.
    error = retval if state == REJECTED else sys.exc_info()[1]
    is_requeued = isinstance(error, Reject) and error.requeue  # type: ignore[attr-defined]
    if is_requeued and task.acks_late:  # the broker delivers it again
        if delivery is not None:
            _run_again(task, delivery)
        return
    if (
        state == SUCCESS and delivery is not None and sys.exc_info()[1] is None
    ):  # else something that follows has failed
        delivery.note_done()
    if state is None:  # the process is ending, or Celery has failed: the main process decides
        return
    if RESERVATION in known and hasattr(task, "_rlock") and (reservation := Reservation.of_request(task, task.request)):
        reservation.release()


def _run_again(task: Any, delivery: deliveries.Delivery) -> None:
    """Prepare the next run of a message that was rejected after its body had succeeded."""
    try:
        delivery.delete_success()
    except LockUnavailableError as error:
        text = "Task %s[%s] is to run again, but its success could not be forgotten yet: %s"
        log(logger, logging.ERROR, text, task.name, delivery.message.id, error)
    if reservation := Reservation.of_request(task, delivery.message):
        reservation.reserve_again(delivery.queue)


# Celery itself has failed, perhaps before it made the request of a run, so that task_postrun was not sent.
def _after_internal_error(task_id: str, request: Mapping[str, Any] | None, **_: Any) -> None:
    release(request, task_id)


# --- in the worker's main process ------------------------------------------------------------------------------------


def _after_revocation(request: Any, **_: Any) -> None:
    """Handle a message that was revoked or has expired."""
    release(vars(request), request.id)


def _after_failure(sender: Any, task_id: str, exception: Any, **_: Any) -> None:
    """Handle the end of a process, or a time limit."""
    # An ordinary failure sends this signal, too, in the process of the run. A child of a prefork worker knows no
    # request; in other pools the message has ended as well, so its reservation may be released twice.
    request = _received.get(task_id)
    if request is not None and not (isinstance(exception, TimeLimitExceeded) and _survives_time_limit(sender)):
        release(request.request_dict, task_id)


def _survives_time_limit(task: Any) -> bool:
    acks = getattr(task, "acks_on_timeout", None)
    return bool(task.acks_late) and not (task.acks_on_failure_or_timeout if acks is None else acks)


def _after_cancellation(sender: Any, request: Any, reason: Any = None, **_: Any) -> None:
    """Handle a run that a shutdown ends."""
    # Only a shutdown sends task_retry without a reason. Whatever Celery's log says, the message is delivered again
    # only with acks_late.
    if reason is None and not sender.acks_late:
        release(vars(request), request.id)


def _after_refusal(message: Any, **_: Any) -> None:
    """Handle a message whose task or serializer this worker does not know."""
    release(message.headers, (message.headers or {}).get("id", ""))


def _watch_decoding(sender: Any, **_: Any) -> None:
    """Handle messages whose bodies cannot be decoded. Celery sends no signal for them.

    ``sender`` is the worker's consumer.
    """
    on_decode_error = sender.on_decode_error

    def refuse(message: Any, error: Exception) -> None:
        on_decode_error(message, error)
        _after_refusal(message)

    sender.on_decode_error = refuse


def release(headers: Mapping[str, Any] | None, task_id: str) -> None:
    if headers and RESERVATION in headers:
        release_later(headers[RESERVATION], task_id)


def follow_messages() -> None:
    """Connect the signals by which workers tell what becomes of a message."""
    for signal, receiver in (
        (signals.task_received, _note_arrival),
        (signals.task_postrun, _after_run),
        (signals.task_internal_error, _after_internal_error),
        (signals.task_revoked, _after_revocation),
        (signals.task_failure, _after_failure),
        (signals.task_retry, _after_cancellation),
        (signals.task_unknown, _after_refusal),
        (signals.task_rejected, _after_refusal),
        (signals.worker_ready, _watch_decoding),
    ):
        signal.connect(receiver, weak=False)
