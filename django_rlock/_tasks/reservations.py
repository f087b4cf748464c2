"""Uniqueness reservations: of a task with ``lock_scope="queue"`` or ``"until_start"``, only one message with the same
key is queued.

A message's reservation is a key in Redis, named after the lock, the task and the broker, with the value ``<token>:<task
id>`` and a description for operators. The sender reserves the key for a short time before it sends the message, because
it may die in between. Once the message is sent, the reservation is kept for ``lock_queue_time``. Until then other
senders wait, and do not drop their message in favour of this one. So a stale reservation, left by a dead sender or a
lost reply, never suppresses a message. docs/design/tasks.md has the table of states. The token is also a header of the
message. It makes late commands harmless: a sender does not prolong a reservation that its message has already released,
and an expired message does not remove the reservation of another message.

The reservation never replaces the lock: it does not allow a run, and exclusion does not depend on it. A run takes the
lock first and then releases the reservation, because from then on senders find the run by the lock itself: its owner's
name contains a mark of the task, and the id. So freeing the lock of a dead process also ends its effect on senders. A
message that is acknowledged late outlives the process; it keeps its reservation to the end.
"""

from __future__ import annotations

import json
import logging
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import cache
from hashlib import blake2b
from socket import gethostname
from typing import TYPE_CHECKING, Any, NamedTuple

from celery.utils.time import maybe_iso8601, maybe_make_aware
from django.core.exceptions import ImproperlyConfigured
from kombu.utils.url import url_to_parts

from django_rlock._core.callbacks import log
from django_rlock._core.clock import monotonic
from django_rlock._core.foreign import message_options
from django_rlock._redis import keys, scripts
from django_rlock._tasks.deliveries import COPY, TOKEN, run_call
from django_rlock._tasks.holders import TaskHolder, seems_dead
from django_rlock._transport import calls
from django_rlock._transport.identity import new_request
from django_rlock._transport.worker import clean_up
from django_rlock.exceptions import LockUnavailableError, TaskQueuedError
from django_rlock.locks import BaseLock, named_lock
from django_rlock.locks.kinds import owner_id_in
from django_rlock.locks.options import checked_text, milliseconds
from django_rlock.settings import get_settings
from django_rlock.signals import task_deduplicated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery.app.task import Context
    from celery.result import AsyncResult

    from django_rlock._tasks.task import AbstractTask

logger = logging.getLogger("django_rlock.celery")

Header = Sequence[str]
RESERVATION = "rlock_place"
"""The header of a message that has a reservation: its token, the alias of its lock, the mark of its task, the lock's
name."""
_OBJECT = "rlock_place_object"
"""The attribute of a message's request that holds its reservation."""
SENDING = 5.0
"""How long a reservation lasts while its message is being sent, in seconds; another sender waits no longer."""
_UNSENT = "?"
"""The first character of the value of a reservation whose message is not sent yet."""
_LOOK_PAUSES = 0.005, 0.2
"""How long another sender waits before it checks again, at first and at most, in seconds; it doubles each time."""
_MARK_BYTES = 5
_RELEASED_WITHIN = 3600.0
"""How long to retry to release a reservation while Redis is unreachable, in seconds."""

_warned_tasks: set[str] = set()
"""The tasks for which a warning about parts of a canvas was logged."""


class Reservation:
    """The uniqueness reservation of one message, as seen by the sender or the worker."""

    def __init__(
        self, task: AbstractTask[..., Any], lock_name: str, task_id: str, token: str, mark: str | None = None
    ) -> None:
        self._task = task
        self.task_id = task_id
        self._options = options = task._rlock  # noqa: SLF001
        self.mark = mark or mark_of(task)
        self._value = f"{token}:{task_id}"
        self.header = [token, options.using, self.mark, lock_name]
        self.lock: BaseLock = options.lock([lock_name])
        self._key = keys.reservation_key(self.lock.key, self.mark)
        self._made = self._value
        self._is_released = False

    @classmethod
    def of_request(cls, task: AbstractTask[..., Any], request: Context) -> Reservation | None:
        """The reservation of a running message, if it has one; the same object each time."""
        found = vars(request)
        if RESERVATION in found and _OBJECT not in found:
            found[_OBJECT] = cls.of_header(task, found[RESERVATION], str(request.id))
        return found.get(_OBJECT)

    @classmethod
    def of_header(cls, task: AbstractTask[..., Any], header: Header, task_id: str) -> Reservation:
        token, _, mark, lock_name = header
        return cls(task, lock_name, task_id, token, mark)

    def reserve(self, queue: str = "", starts_in: float = 0.0, replaces: str = "") -> str | None:
        """Make the reservation, or return the id of the task that has it or runs. Waits while another message is being
        sent.

        ``replaces`` says which message gives up its reservation once this one has been sent: ``"earlier"`` a message
        that starts later, ``"replace"`` any waiting message. Raises LockUnavailableError if Redis is unreachable.
        """
        if get_settings(self._options.using).nodes is not None:
            raise ImproperlyConfigured(unfit_alias(self._task))
        mark = f"@{self.mark}:" if self._options.scope == "queue" and not self._options.runs_again else ""
        pause, longest = _LOOK_PAUSES
        while True:
            known, run, left_ms = self._try_to_reserve(mark, queue, starts_in, replaces)
            if known == _UNSENT + self._value:
                return None
            # A run that is dead, or seems so, must not suppress a message: it may never end.
            if run:
                holder = TaskHolder.of(owner_id_in(run, self.lock))
                if holder is not None and not holder.is_gone and not seems_dead(self._options, left_ms / 1000):
                    return holder.task_id
                mark = ""  # the run has ended; from now on only the reservation counts
            elif not known.startswith(_UNSENT):
                return known.partition(":")[2]
            else:
                time.sleep(pause)
                pause = min(2 * pause, longest)

    def reserve_again(self, queue: str = "") -> None:
        """Make the reservation, unless another message has it, for a message that is sent again, perhaps from within
        its run."""
        with logged(self._task):
            self._try_to_reserve("", queue)
            self._is_released = False

    def send(self, options: dict[str, Any], send: Callable[..., AsyncResult[Any]]) -> AsyncResult[Any]:
        """Send the message, which has the reservation; if that fails, release it."""
        try:
            result = send(task_id=self.task_id, **options)
        except BaseException:
            self.release(calls.UNSENT)
            raise
        self.keep_in_queue(options)
        return result

    def keep_in_queue(self, options: Mapping[str, Any]) -> None:
        """Keep the reservation of a message that was sent. If that fails, the reservation expires soon, and another
        message may be sent."""
        with logged(self._task):
            self.keep(_time_in_queue(self._task, options), _starts_in(self._task, options))

    def keep(self, seconds: float, starts_in: float = 0.0) -> None:
        """Keep the reservation for a number of seconds from now, if this message still has it. If this object has made
        it, a run of the message may have made it again meanwhile, for a retry: then it stays as it is."""
        self._change(milliseconds(seconds), milliseconds(starts_in), self._made)

    def begin(self) -> bool:
        """Release the reservation, because the run holds the lock; but keep it for a message that outlives the process.

        Returns whether another message has replaced this one.
        """
        # If the process dies, its lock is freed, but the broker delivers this message again: only the reservation still
        # keeps out duplicates then.
        if self._task.acks_late and self._options.scope == "queue" and not self._options.runs_again:
            return self._change(milliseconds(self._options.queue_time), calls.RUNS).is_replaced
        self._is_released = True
        return self._change(0, calls.RUNS).is_replaced

    def is_replaced(self) -> bool:
        """Whether another message has replaced this one."""
        return self._change(calls.ASKS, calls.RUNS).is_replaced

    def release(self, state: str = calls.RUNS) -> None:
        """Release the reservation, if this message still has it; in the background if Redis is unreachable. With
        ``UNSENT``, the message that was to be replaced gets the reservation back."""
        if self._is_released:
            return
        self._is_released = True
        try:
            self._change(0, state)
        except BaseException as error:  # a soft time limit, too: the reservation must not stay until its time is up
            release_later(self.header, self.task_id, state)
            if not isinstance(error, LockUnavailableError):
                raise

    def hand_on(self) -> None:
        """Do not release the reservation: it now belongs to another copy of the message, which has been sent."""
        self._is_released = True

    def free(self) -> bool:
        """Free the reservation from the message that has it and from a message that is about to get it; returns whether
        it was taken."""
        freed = False
        for _ in ("the former reservation", "the reservation"):
            if known := self._change(0, calls.RUNS).known:
                self._value = known  # by its value, because this command may be executed late
                freed = self._change(0, calls.RUNS).is_done or freed
        return freed

    def _try_to_reserve(
        self, mark: str, queue: str, starts_in: float = 0.0, replaces: str = ""
    ) -> tuple[str, str, int]:
        sender = f"{gethostname()}:{os.getpid()}"
        about = {"lock": self.lock.name, "task": str(self._task.name), "queue": queue, "sender": sender}
        reservation, reservations, former, _ = keys.reservation_change_keys(self.lock.key, self._key)
        all_keys = reservation, self.lock.key, reservations, former, keys.requests_key(self.lock.key)
        args = milliseconds(SENDING), mark, json.dumps(about), milliseconds(starts_in), replaces
        queueing = calls.Template(scripts.TASK_QUEUE, (*args, milliseconds(calls.REMEMBERED)), all_keys)
        request = f"{new_request()} {self._value}"
        call = calls.ScriptCall(self.lock.name, queueing, self.lock.key, request)
        known, run, left_ms = run_call(self._options.using, call)
        record = known.decode()
        value = record.partition("\n")[0]
        if value.removeprefix(_UNSENT) == self._value:
            self._made = record
        return value, run.decode(), left_ms

    def _change(self, ms: int | str, starts: int | str, value: str = "") -> _Changed:
        call = calls.reservation_call(self.lock.name, self.lock.key, self._key, value or self._value, ms, starts)
        done, known, replaced = run_call(self._options.using, call)
        return _Changed(bool(done), known.decode().partition("\n")[0].removeprefix(_UNSENT), bool(replaced))


class _Changed(NamedTuple):
    """The outcome of a change of a reservation: whether this message had the reservation, otherwise the reservation's
    current value or ""; and whether another message has replaced this one."""

    is_done: bool
    known: str
    is_replaced: bool


def is_header(value: object) -> bool:
    """Whether a message's header may be that of a reservation."""
    if not isinstance(value, list | tuple) or len(value) != 4 or not all(isinstance(each, str) for each in value):
        return False
    token, _, mark, lock_name = value
    with suppress(ValueError):
        return (token + mark).isascii() and bool(checked_text("lock's name", lock_name))
    return False


def release_later(header: Header, task_id: str, state: str = calls.RUNS) -> None:
    """Release a message's reservation in the background, if the message still has it; its task need not be known
    here."""
    if not is_header(header):
        return
    token, using, mark, lock_name = header
    try:
        lock = named_lock(lock_name, using=using)
    except ImproperlyConfigured as error:
        log(logger, logging.WARNING, "The reservation of message %s is not released: %s", task_id, error)
        return
    call = calls.reservation_call(
        lock.name, lock.key, keys.reservation_key(lock.key, mark), f"{token}:{task_id}", 0, state
    )
    clean_up(using, call, monotonic() + _RELEASED_WITHIN)


def mark_of(task: AbstractTask[..., Any]) -> str:
    """A mark that the owners of all runs of a task share, unless their messages come from different brokers."""
    conf: Any = task.app.conf
    options = conf.broker_transport_options or {}
    prefix = options.get("global_keyprefix") or options.get("queue_name_prefix") or ""
    urls = conf.broker_write_url or ""
    return _mark(str(task.name), urls if isinstance(urls, str) else ";".join(urls), str(prefix))


@cache
def _mark(name: str, urls: str, prefix: str) -> str:
    # Without passwords. ``parse_url`` would refuse a unix socket's URL with ``virtual_host``.
    brokers = sorted(
        f"{parts.hostname}:{parts.port}/{parts.path}{parts.query.get('virtual_host', '')}"
        for parts in map(url_to_parts, filter(None, urls.split(";")))
    )
    return blake2b("\n".join([name, prefix, *brokers]).encode(), digest_size=_MARK_BYTES).hexdigest()


def unfit_alias(task: AbstractTask[..., Any]) -> str:
    """The error text for an alias with several nodes."""
    needs = f"{task.name}: lock_scope={task.lock_scope!r} needs an alias with one server or one cluster"
    return f"{needs}, and {task.lock_using!r} has NODES."


# --- sending ---------------------------------------------------------------------------------------------------------


def send_once(
    task: AbstractTask[..., Any],
    lock_name: Callable[[], str],
    args: tuple[tuple[Any, ...], dict[str, Any]],
    task_id: str,
    options: dict[str, Any],
    send: Callable[..., AsyncResult[Any]],
    on_queued: str,
) -> AsyncResult[Any]:
    """Send a message, unless another message with its key waits or runs: then return the result of that message, or
    raise TaskQueuedError. The result's ``was_sent`` says whether this message was sent.
    """
    headers: Mapping[str, Any] = options.get("headers") or {}
    if RESERVATION in headers:
        return sent(_send_again(task, headers[RESERVATION], task_id, _queue_of(task, args, options), options, send))
    # A message that is sent again is always sent, even if its first sender made no reservation.
    if options.get("retries") or TOKEN in headers or _is_of_a_canvas(task, options):
        return sent(send(task_id=task_id, **options))
    reservation = Reservation(task, lock_name(), task_id, uuid.uuid4().hex)
    replaces = on_queued if on_queued in {"earlier", "replace"} else ""
    other = reservation.reserve(_queue_of(task, args, options), _starts_in(task, options), replaces)
    if other is None:
        return sent(reservation.send({**options, "headers": {**headers, RESERVATION: reservation.header}}, send))
    if on_queued == "raise":
        raise TaskQueuedError(reservation.lock.name, other)
    reason = f"task {other} waits or runs with its key"
    log(logger, logging.INFO, "Task %s was not sent: %s", task.name, reason)
    task_deduplicated.notify(reservation.lock, task=task, task_id=other, reason=reason)
    return sent(task.AsyncResult(other), was_sent=False)


def _send_again(
    task: AbstractTask[..., Any],
    header: Header,
    task_id: str,
    queue: str,
    options: dict[str, Any],
    send: Callable[..., AsyncResult[Any]],
) -> AsyncResult[Any]:
    """Send a message again for a worker or the task's own retry(): in any case, whichever message has its reservation.

    If the message is running here, the copy inherits its reservation, so it does not release the reservation.
    """
    reservation = Reservation.of_header(task, header, task_id)
    if options["headers"].get(COPY):
        # Another delivery may be running, and about to release the reservation: it must not be made again.
        result = send(task_id=task_id, **options)
        reservation.keep_in_queue(options)
    else:
        reservation.reserve_again(queue)
        result = reservation.send(options, send)
    running = Reservation.of_request(task, task.request)
    if running is not None and running.header == reservation.header:
        running.hand_on()
    return result


def sent(result: AsyncResult[Any], was_sent: bool = True) -> AsyncResult[Any]:
    """The result, with ``was_sent``: whether this call has sent its message."""
    result.was_sent = was_sent  # type: ignore[attr-defined]
    return result


def _queue_of(
    task: AbstractTask[..., Any], args: tuple[tuple[Any, ...], dict[str, Any]], options: Mapping[str, Any]
) -> str:
    """The name of the queue of a message, for operators who list reservations; "" if unknown."""
    app: Any = task.app
    try:
        routed = app.amqp.router.route({**message_options(task), **options}, task.name, *args)
    except Exception:  # noqa: BLE001 - the project's router failed; Celery will raise the same error
        return ""
    queue = routed.get("queue") or routed.get("routing_key") or ""
    return str(getattr(queue, "name", queue))


def _is_of_a_canvas(task: AbstractTask[..., Any], options: Mapping[str, Any]) -> bool:
    """Whether other tasks wait for this message: a chord, a group, the rest of a chain, a callback, a replaced task."""
    parts = "group_id", "chord", "link", "replaced_task_nesting"
    if not any(map(options.get, parts)) and options.get("chain") is None:
        return False
    if task.name not in _warned_tasks:
        _warned_tasks.add(task.name)
        log(
            logger,
            logging.WARNING,
            "Task %s is part of a chord, group or chain, or has a callback, so other tasks wait for each message: such "
            "messages are always sent, and only their runs are locked.",
            task.name,
        )
    return True


def _time_in_queue(task: AbstractTask[..., Any], options: Mapping[str, Any]) -> float:
    """The longest time for which a message may wait from now on, in seconds."""
    expires = options.get("expires", task.expires)
    longest = float("inf") if expires is None else max(_seconds_until(task, expires), 1.0)
    queue_time: float = task._rlock.queue_time  # noqa: SLF001
    return min(_starts_in(task, options) + queue_time, longest)


def _starts_in(task: AbstractTask[..., Any], options: Mapping[str, Any]) -> float:
    """The shortest time for which a message has to wait, in seconds."""
    return max(0.0, *(_seconds_until(task, options.get(name)) for name in ("eta", "countdown")))


def _seconds_until(task: AbstractTask[..., Any], moment: float | str | datetime | None) -> float:
    if moment is None or isinstance(moment, int | float):
        return float(moment or 0)
    when: Any = maybe_iso8601(moment)
    return float((maybe_make_aware(when, task.app.timezone) - task.app.now()).total_seconds())


@contextmanager
def logged(task: AbstractTask[..., Any]) -> Iterator[None]:
    """Log that Redis is unreachable, if only a reservation is affected."""
    try:
        yield
    except LockUnavailableError as error:
        log(logger, logging.WARNING, "The reservation of a message of task %s: %s", task.name, error)
