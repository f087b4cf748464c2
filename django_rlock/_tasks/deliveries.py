"""Messages that are delivered more than once: each task id succeeds in one run, and has at most one pending copy.

A broker delivers a message again if its worker died, and if it was not acknowledged within the visibility timeout, even
if it still runs or waits in a worker. So a message that finds its lock taken is not left unacknowledged: it is sent
again as a copy that starts later, and then acknowledged. The server remembers by the task's id

* that the body has succeeded (``rlock_done``), after how many of the task's own retries; and later that Celery has done
  everything that follows the body: it has stored the outcome, sent the callbacks and the rest of the chain, counted the
  member of a chord, and called the handlers. Only then has the message succeeded: a later copy ends at once. A copy
  that comes in between waits, and runs again if the process has died meanwhile: nobody else would do the rest. A
  further retry runs: a ``__call__`` or a handler of the project may send it after the body has succeeded;
* the pending copy (``rlock_copy``): any other copy ends at once.

A copy is ``<retries>:<token>``, with a new token each time it is sent. It is sent first and recorded afterwards; until
then, its headers list the copies that may be the recorded one. So at whatever point a process dies, exactly one
remaining copy counts. If the record could not be read, the same copy is sent again, because another copy would not be
recorded. A retry by the task itself replaces the copies of earlier attempts.
"""

from __future__ import annotations

import enum
import math
import re
import uuid
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

from celery import Task
from celery.app.task import Context
from celery.utils.quorum_queues import detect_quorum_queues
from kombu import Exchange, Queue
from kombu.serialization import registry  # type: ignore[attr-defined]

from django_rlock._core.clock import monotonic
from django_rlock._core.process import MadeOnce
from django_rlock._redis import keys, scripts
from django_rlock._tasks.deaths import BROKERS_COUNT, DEATHS, RETURNED, limit_of
from django_rlock._transport.calls import REMEMBERED, ScriptCall, run_flow
from django_rlock._transport.identity import client_id, new_number
from django_rlock._transport.registry import sync_driver
from django_rlock._transport.worker import SLOWEST_TICK, clean_up
from django_rlock.locks.options import milliseconds
from django_rlock.locks.redlock import AskTask, NoteTask
from django_rlock.settings import get_settings

DEFAULT_VISIBILITY = 3600.0
"""The visibility timeout of kombu's Redis transport if the app sets none, in seconds."""
_SHORTEST_VISIBILITY = 1.0
"""The shortest visibility timeout of any app, in seconds. A run that waited for less than half of it does not need the
setting."""
_KEPT_VISIBILITY = "rlock_visibility"
"""An attribute of an app: its visibility timeout, since Celery's settings are slow to read. Runs need it, when an app's
settings do not change any more."""
UNNOTICED = 0.45
"""The share of its visibility timeout that a message may wait in a worker, so that the broker delivers no copy
meanwhile."""
MARKED_FOR = 3
"""How many visibility timeouts a success is remembered, unless the task sets a time."""
SETTLING = 30.0
"""How long Celery may take after a successful body to finish the rest, in seconds; after that the process is assumed to
have died."""
DELIVERY_PATIENCE = 1.0
"""How long to retry a record while Redis is unreachable, in seconds."""

RETRIES, COPY, TOKEN, PARENTS = "rlock_retries", "rlock_copy", "rlock_token", "rlock_parents"
WAITED = "rlock_waited"
"""Headers of a message that was sent again: how often it was sent; whether another delivery may have run; its own
token, and the tokens of its predecessors, which may still be recorded; and how long it has waited for the lock in
workers' slots, in seconds."""
RECEIVED = "rlock_received"
"""Set in the request of a run: when the worker received the message, in monotonic seconds."""
CONTENT_TYPE = "rlock_content_type"
"""Set likewise: the content type of the message, which names its serializer."""
SENT_BY_ITSELF = "rlock_sent_by_itself"
"""Set in the request of a run that sent a message with its own id, and not as a retry: success does not end that."""
SUCCEEDED = "rlock_succeeded"
"""Set in the request of a run whose body's success was recorded, or may have been: its delivery."""
SENT_AGAIN = "rlock_sent_again"
"""Set in the request of a run whose message was sent again."""
_DELAY = re.compile(r"^(?:[01]\.){28}")
"""The prefix that RabbitMQ's delay puts before a routing key: the number of seconds in binary."""
_OF_DELIVERY = frozenset(
    {RETRIES, COPY, TOKEN, PARENTS, WAITED, RECEIVED, CONTENT_TYPE, DEATHS, RETURNED, BROKERS_COUNT}
)
"""The headers about a delivery, which its copies get anew."""


class Standing(enum.Enum):
    """The state of a delivery, given the record of its task."""

    COUNTS = "it will run"
    SETTLING = "its body has succeeded, and its result may be about to be stored"
    DONE = "its task has succeeded"
    SUPERSEDED = "another copy is pending"


class Delivery:
    """One delivery of a task's message. ``using`` is the alias that stores the task's record.

    ``retries`` counts the task's own retries, ``lock_retries`` how often the message was sent again. ``has_begun`` is
    whether the task may already have run, so that it must not be skipped; ``is_copy`` is whether another delivery may
    be running now. ``waited`` is how long earlier deliveries waited for the lock in workers' slots, in seconds.
    """

    lock_retries = 0
    waited = 0.0
    _token = ""
    _parents: Sequence[str] = ()

    def __init__(self, task: Task[..., Any], message: Context, using: str, done_marker_time: float | None) -> None:
        self.message = message
        self._task = task
        self._using = using
        self._done_marker_time = done_marker_time
        self.retries = int(message.retries or 0)
        self._is_redelivered = bool((message.delivery_info or {}).get("redelivered"))
        ours = vars(message).get
        self.is_copy = bool(ours(COPY)) or self._is_redelivered
        self.has_begun = self.is_copy or self.retries > 0
        if token := ours(TOKEN):  # it was sent again
            self._token = str(token)
            self._parents = list(ours(PARENTS) or ())
            self.lock_retries = int(ours(RETRIES) or 0)
            self.waited = float(ours(WAITED) or 0)
        self._received: float | None = ours(RECEIVED)
        self._returned: int | None = ours(RETURNED)
        self._known: str | None = None

    @MadeOnce
    def _key(self) -> str:
        return f"{get_settings(self._using).key_prefix}{self.message.id}"

    @property
    def queue(self) -> str:
        """The routing key of the queue that delivered the message."""
        return own_routing_key(self.message)

    # --- what is known -----------------------------------------------------------------------------------------------

    @MadeOnce
    def visibility(self) -> float:
        """After how many seconds the broker delivers the message again."""
        app: Any = self._task.app
        kept = vars(app).get(_KEPT_VISIBILITY)
        if kept is None:
            kept = visibility_timeout(app)
            setattr(app, _KEPT_VISIBILITY, kept)
        return float(kept)

    @property
    def unnoticed(self) -> float:
        """How long the message may wait in a worker before the broker delivers it again, in seconds."""
        return self.visibility * UNNOTICED

    def left_of(self, wait_time: float | None) -> float:
        """The rest of a wait time, in seconds; None waits forever."""
        return math.inf if wait_time is None else max(0.0, wait_time - self.waited)

    @MadeOnce
    def _marked_for(self) -> float:
        return MARKED_FOR * self.visibility if self._done_marker_time is None else self._done_marker_time

    @property
    def may_be_a_copy(self) -> bool:
        """Whether another delivery may exist, so that the record of the task must be read."""
        if self.has_begun or self._token or self._returned:
            return True
        if self._received is None:  # the worker's main process has not noted it, as with another class of requests
            return bool(self._task.acks_late)
        # It may have been in the worker for so long that the broker has delivered it to another worker.
        waited = monotonic() - self._received
        return waited > _SHORTEST_VISIBILITY / 2 and waited > self.visibility / 2

    def standing(self) -> Standing:
        """Read, by one command, what to do with the delivery. Raises LockUnavailableError if Redis is unreachable."""
        question = AskTask(str(self._task.name), scripts.TASK_READ, self._key, (self.retries,))
        marked_ms, copy, is_done = run_call(self._using, question)
        self._known = copy.decode()
        if is_done:
            return Standing.DONE
        if marked_ms >= 0 and self._marked_for - marked_ms / 1000 < SETTLING:
            return Standing.SETTLING
        return Standing.COUNTS if self._counts(self._known) else Standing.SUPERSEDED

    def _counts(self, known: str) -> bool:
        """Whether this is the pending copy, or its successor. The first delivery of a message always counts."""
        if not known or not (self._token or self._is_redelivered):
            return True
        retries, _, token = known.partition(":")
        # A retry by the task itself comes after all copies of its earlier attempts.
        if int(retries) != self.retries:
            return self.retries > int(retries)
        return token in {self._token, *self._parents}

    @MadeOnce
    def deaths(self) -> int:
        """How often brokers have taken the message and its predecessors back, mostly because their process had died."""
        returned = int(self._is_redelivered) if self._returned is None else self._returned
        return int(vars(self.message).get(DEATHS) or 0) + returned

    @property
    def is_counted(self) -> bool:
        """Whether the next delivery will count this one: it is the first of its message, or the broker counts."""
        return not self._is_redelivered or self._returned is not None

    def most_deaths(self, option: int | None) -> float:
        """After how many deaths the message is rejected for good; infinite without a limit."""
        return limit_of(self._task.app, self.queue, option)

    @property
    def keeps_outcome(self) -> bool:
        """Whether Celery stores the outcome; the message's option takes precedence over the task's."""
        ignored = vars(self.message).get("ignore_result")
        return not (self._task.ignore_result if ignored is None else ignored)

    # --- what is noted -----------------------------------------------------------------------------------------------

    def note_run(self) -> None:
        """Invalidate copies of attempts before this retry by the task itself."""
        if self._known and int(self._known.partition(":")[0]) < self.retries:
            self._expect(self._token)

    @property
    def is_remembered(self) -> bool:
        """Whether the success will be recorded."""
        if SENT_BY_ITSELF in vars(self.message):
            return False
        return (bool(self._task.acks_late) or self.may_be_a_copy) and bool(self._marked_for)

    @MadeOnce
    def _success(self) -> str:
        """The record of the success of this run, which differs from that of any other run of the message."""
        # Not a random number: the body may have seeded ``random``, and uuid4() takes a system call.
        return f"{self.retries}.{_decimal(client_id())}{new_number()}"

    def note_success(self) -> None:
        """Record that the body has succeeded, so that no copy runs while Celery does what follows."""
        setattr(self.message, SUCCEEDED, self)
        run_call(self._using, self._success_call(milliseconds(self._marked_for)))

    def note_done(self) -> None:
        """Record in the background that nothing is left to do, so that later copies end at once."""
        args = milliseconds(self._marked_for), f"+{self._success}"
        call = NoteTask(str(self._task.name), scripts.TASK_FINISH, keys.success_keys(self._key), args)
        now = monotonic()
        # The worker is about to acknowledge the message. So the record can wait to be sent with others, unless a copy
        # may exist already.
        begins_by = 0.0 if self.may_be_a_copy else now + SLOWEST_TICK
        clean_up(self._using, call, now + self._marked_for, begins_by=begins_by)

    def delete_success(self) -> None:
        """Delete the success before the broker delivers the message again. Raises LockUnavailableError if Redis is
        unreachable; then the success is deleted later."""
        call = self._success_call(0)
        # A late copy of note_success() may be executed after this call, so the call is repeated.
        clean_up(self._using, call, monotonic() + REMEMBERED, again=True)
        run_call(self._using, call)

    def _success_call(self, kept_ms: int) -> ScriptCall:
        return NoteTask(str(self._task.name), scripts.TASK_DONE, self._key, (self._success, kept_ms))

    def next_copy(self, is_copy: bool, waited: float) -> dict[str, Any]:
        """The headers of the copy that follows this delivery. A copy that continues to wait is not a retry."""
        # The copy is sent first and recorded afterwards. Until then the record still names one of its parents, so
        # exactly one copy counts, wherever this process dies.
        token, parents = uuid.uuid4().hex, self._parents
        if self._known is not None:
            parents = [self._token, self._known.partition(":")[2]]
        elif self._token:
            token = self._token  # without the record, another token could not be recorded: the same copy is sent again
        retries = self.lock_retries + (not waited)
        return {RETRIES: retries, COPY: is_copy, TOKEN: token, PARENTS: parents, WAITED: waited, DEATHS: self.deaths}

    def note_copy(self, headers: dict[str, Any]) -> None:
        """Record that only this copy counts, unless another one was recorded since ``standing()``."""
        if self._known is not None:
            self._expect(headers[TOKEN])

    def _expect(self, token: str) -> None:
        kept = milliseconds(2 * self.visibility + REMEMBERED)
        args = f"{self.retries}:{token}", self._known or "", kept
        run_call(self._using, NoteTask(str(self._task.name), scripts.TASK_EXPECT, keys.task_keys(self._key)[1:], args))


@lru_cache(maxsize=1)
def _decimal(client: str) -> str:
    """A client id as a decimal number, because version 0.1.0 compares successes to numbers of retries."""
    return str(int(client.replace("-", ""), 16))


def run_call(using: str, call: ScriptCall) -> list[Any]:
    """Run a script on an alias's server; returns its reply. Raises LockUnavailableError after DELIVERY_PATIENCE."""
    driver = sync_driver(using)
    _, *reply = run_flow(driver.run, (call, driver.now() + DELIVERY_PATIENCE))
    return reply


def kept_options(message: Context, names: Collection[str]) -> dict[str, Any]:
    """The options that Celery loses when a message is sent again: the serializer, and the named options, from the
    message's headers.
    """
    known = vars(message)
    options = {name: known[name] for name in names if known.get(name)}
    if serializer := registry.type_to_name.get(known.get(CONTENT_TYPE)):
        options["serializer"] = serializer
    return options


def headers_of_next(message: Context, headers: Mapping[str, Any]) -> dict[str, Any]:
    """The headers of a message that is sent again: ours, also where it gets new ones, except for the headers about this
    delivery, so that its copies and its deaths are counted anew."""
    ours = {name: value for name, value in (message.headers or {}).items() if name.startswith("rlock_")}
    return {name: value for name, value in {**ours, **headers}.items() if name not in _OF_DELIVERY}


def visibility_timeout(app: Any) -> float:
    """After how many seconds the broker delivers an unacknowledged message again."""
    return float((app.conf.broker_transport_options or {}).get("visibility_timeout") or DEFAULT_VISIBILITY)


def own_headers(task: Task[..., Any], task_id: str | None, headers: dict[str, Any] | None) -> dict[str, Any] | None:
    """The headers of a message to send, without our headers of another message, which the body may have passed on."""
    running = task.request.id  # None if a worker's main process sends the message of a lost child again
    # A message that is sent again under its own id keeps them: they say which copy it is.
    if not headers or (task_id is not None and running in {None, task_id}):
        return headers
    return {name: value for name, value in headers.items() if not name.startswith("rlock_")}


def own_routing_key(message: Context) -> str:
    """The key that routed a message to its queue, without the prefix of RabbitMQ's delay."""
    return _DELAY.sub("", (message.delivery_info or {}).get("routing_key") or "")


def put_off(app: Any, message: Context, seconds: float) -> dict[str, Any]:
    """The options that delay a copy of a message; empty with most brokers.

    With quorum queues, RabbitMQ itself delays messages behind topic exchanges, for a whole number of seconds, at least
    one. Celery would route such a message by the default queue's key; a queue with the message's own key replaces it.
    """
    driver = app.connection_for_write().transport.driver_type
    if not detect_quorum_queues(app, driver)[0]:
        return {}
    later = {"countdown": max(1, math.ceil(seconds))}
    info = message.delivery_info or {}
    key, exchange = info.get("routing_key") or "", info.get("exchange") or ""
    own_key = own_routing_key(message)
    types = {queue.exchange.name: queue.exchange.type for queue in app.amqp.queues.values() if queue.exchange}
    if own_key == key and types.get(exchange, "direct") == "direct":
        return later
    return {**later, "queue": Queue(own_key, Exchange(exchange, type="topic"), routing_key=own_key)}
