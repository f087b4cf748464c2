"""One call of a task under its lock, and the alternatives if the lock is taken."""

from __future__ import annotations

import logging
import math
import os
import random
import time
import uuid
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

from celery.app.task import Context
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded
from celery.states import RETRY, STARTED

from django_rlock._core.callbacks import log
from django_rlock._core.foreign import is_test
from django_rlock._core.interruptions import run_when_dropped
from django_rlock._core.text import reason_of
from django_rlock._tasks.children import erase, note_of, write
from django_rlock._tasks.deliveries import SENT_AGAIN, Delivery, Standing
from django_rlock._tasks.holders import Holders, label
from django_rlock._tasks.reservations import Reservation, logged, mark_of
from django_rlock._tasks.task import REPLACED, Skipped, end_chain, held_by, skipped
from django_rlock._transport.identity import thread_owner
from django_rlock.exceptions import LockTimeoutError, LockUnavailableError, RLockError
from django_rlock.locks import BaseLock
from django_rlock.locks.holds import HOLDS, INSPECTOR
from django_rlock.locks.records import Hold, Work, context
from django_rlock.locks.transactions import released_at_end
from django_rlock.settings import get_settings
from django_rlock.signals import LockSignal, task_deduplicated, task_deferred, task_skipped

if TYPE_CHECKING:
    from celery.canvas import Signature

    from django_rlock._tasks.task import AbstractTask

logger = logging.getLogger("django_rlock.celery")

_NO_RETRY = "Eager mode cannot send messages again: the task ends as after its last retry"
_RESEND_PAUSES = 0.1, 1.0
"""The pauses between attempts to send a message again, in seconds."""

locks_held: ContextVar[Mapping[str, BaseLock]] = ContextVar("rlock_task_locks")
"""The lock of each task that runs in this context, by the task's name."""


def run_message(
    task: AbstractTask[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    request: Context,
    body: Callable[[], Any],
) -> Any:
    """Run the body as ``Run.execute`` does.

    A message with an outcome releases its reservation before the outcome is stored, so that code that reads the outcome
    can send the next message. In all other cases the worker's signals release the reservation, see ``requests``.
    """
    reservation = Reservation.of_request(task, request)
    try:
        run = Run(task, args, kwargs, request, reservation)
        result = run.execute(body)
    except _ReplacedError:
        result = run.skip_replaced()
    except Exception as error:
        is_outcome = not _is_retried(task, error) and not isinstance(error, Retry | Reject | Ignore)
        if reservation is not None and is_outcome:
            reservation.release()
        raise
    if reservation is not None:
        reservation.release()
    return result


def _is_retried(task: AbstractTask[..., Any], error: BaseException) -> bool:
    """Whether ``autoretry_for``, which wraps the lock, will send the message again because of an error."""
    retried: Any = getattr(task, "autoretry_for", ())
    never: Any = getattr(task, "dont_autoretry_for", ())
    return isinstance(error, tuple(retried)) and not isinstance(error, (Ignore, Retry, *never))


class Rejected(Reject, Ignore):
    """Rejects a message. ``autoretry_for``, which wraps the lock, does not catch Ignore."""


class _ReplacedError(Exception):
    """Another message has replaced this one."""


class Run:
    """One call of a task. ``request`` is Celery's, or None for a plain call; ``reservation`` is its message's
    reservation in the queue, if it has one.
    """

    def __init__(
        self,
        task: AbstractTask[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        request: Context | None = None,
        reservation: Reservation | None = None,
    ) -> None:
        self.task = task
        self.options = task._rlock  # noqa: SLF001
        options = self.options
        self.task_id = "" if request is None else str(request.id)
        self.delivery: Delivery | None = None
        self._reservation = reservation
        self._is_eager = request is not None and bool(request.is_eager)
        if request is not None and not self._is_eager:
            self.delivery = Delivery(task, request, options.using, options.done_marker_time)
        self.lock = options.lock(self._names(args, kwargs))
        self.lock.wait_time = self._wait_time(self.delivery)
        self._is_to_tell_wait = self.delivery is None and self.lock.wait_time is None
        if self._is_to_tell_wait:
            self.lock.wait_time = 0.0  # first try once, to log why the caller waits

    @property
    def mark(self) -> str:
        """The mark by which senders find the run, if the scope needs it."""
        if self.options.scope != "queue":
            return ""
        return mark_of(self.task) if self._reservation is None else self._reservation.mark

    def _names(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
        """The names of the locks. Runs with ``"until_start"`` may overlap, but not the copies of one message."""
        names = self.options.naming.names(self.task, args, kwargs, self.task_id)
        if self.options.scope != "until_start":
            return names
        return [f"{name}:{self.task_id or uuid.uuid4()}" for name in names]

    def _wait_time(self, delivery: Delivery | None) -> float | None:
        """How long to wait in the slot: a copy does not wait for the run of its original, and no message waits until
        the broker delivers it again."""
        if delivery is None:
            return self.options.wait_time_without_message(self._is_eager)
        wait_time = delivery.left_of(self.options.wait_time)
        if not wait_time:
            return 0.0
        if delivery.is_copy and Holders(self.lock).has(self.task_id):
            return 0.0
        if self.task.acks_late:
            wait_time = min(wait_time, delivery.unnoticed)
        return None if wait_time == math.inf else wait_time

    def _is_to_wait_on(self, delivery: Delivery) -> bool:
        """Whether the wait ended early, to keep the broker from delivering the message again."""
        left = delivery.left_of(self.options.wait_time)
        return self.lock.wait_time is not None and self.lock.wait_time < left

    def execute(self, body: Callable[[], Any]) -> Any:
        """Run the body under the lock; if the lock cannot be taken, do what the options say instead."""
        stage, lock = "taking", self.lock
        if lock.wait_time != 0:  # a replaced message must not keep its slot while it waits
            self._end_if_replaced()
        try:
            with _Surroundings(self):
                lock.enter(describe=False)
                try:
                    self._begin()
                    stage = "running"
                    result = body()
                    stage = "releasing"
                    self._note_success()
                except BaseException as error:
                    # autoretry_for sends the message again only after this lock was released.
                    if stage == "running" and _is_retried(self.task, error):
                        self._keep_out_others()
                    lock._exit_block(type(error), error, None, warns=False)  # noqa: SLF001
                    raise
                lock._exit_block(None, None, None, warns=False)  # noqa: SLF001
        except LockTimeoutError as error:
            if stage == "running":
                raise
            return self._when_taken(error, body)
        except LockUnavailableError as error:
            if stage == "releasing":
                self.log(logging.ERROR, "has done its work, but: %s", error)
                return result
            if stage == "running" or self.delivery is None:
                raise
            raise self._when_unavailable(self.delivery, error) from error
        return result

    def _begin(self) -> None:
        """Check, once the lock is held, whether the work is done or belongs to another copy of the message."""
        delivery = self.delivery
        if delivery is None:
            return
        if delivery.may_be_a_copy:
            standing = self._end_if_settled(delivery)
            if standing is Standing.SETTLING:
                raise self._sent_anew(delivery, RLockError(standing.value), self._delay(delivery), is_copy=True)
            if delivery.deaths:
                self._end_if_poison(delivery)
            delivery.note_run()
        if self._reservation is not None and self._reservation.begin() and not delivery.retries:
            raise _ReplacedError
        if self.task._stores_start and delivery.keeps_outcome:  # noqa: SLF001
            self._store(delivery.message, {"pid": os.getpid(), "hostname": delivery.message.hostname}, STARTED)

    def _end_if_poison(self, delivery: Delivery) -> None:
        """Reject a message for good whose processes have died too often; else see that this death is counted."""
        most = delivery.most_deaths(self.options.max_deaths)
        if delivery.deaths > most:
            reason = f"its process has died, or returned its message, {delivery.deaths} times"
            self.log(logging.ERROR, "is rejected for good: %s", reason)
            raise Rejected(reason, requeue=False)
        if most < math.inf and not delivery.is_counted:
            raise self._sent_anew(delivery, RLockError("its process has died"), 0, is_copy=True)

    def _note_success(self) -> None:
        """Record the success while the lock is still held, so that no copy can run before that."""
        if self.delivery is not None and self.delivery.is_remembered and not self.lock.lost:
            try:
                self.delivery.note_success()
            except LockUnavailableError as error:
                self.log(logging.ERROR, "has done its work, which could not be recorded: %s", error)

    def _keep_out_others(self) -> None:
        """Take the reservation again, while the lock is held, for a message that ``autoretry_for`` is about to send
        again: so other senders always find the lock or the reservation."""
        if self._reservation is not None and self.delivery is not None:
            self._reservation.reserve_again(self.delivery.queue)

    # --- another message is to run instead ---------------------------------------------------------------------------

    def _end_if_replaced(self) -> None:
        """Raise _ReplacedError if another message has replaced this one, whose work has not begun."""
        if self._reservation is not None and self.delivery is not None and not self.delivery.retries:
            with logged(self.task):
                if self._reservation.is_replaced():
                    raise _ReplacedError

    def skip_replaced(self) -> Skipped | None:
        """Return the result of a message that another message has replaced."""
        self._report(task_deduplicated, "was dropped: %s", REPLACED)
        return skipped(self.task, self.lock.name, None, is_replaced=True)

    # --- the lock is taken -------------------------------------------------------------------------------------------

    def _when_taken(self, error: LockTimeoutError, body: Callable[[], Any]) -> Any:
        self._end_if_replaced()
        found = Holders(self.lock)
        # A worker that was killed as a whole has not freed the locks of its children.
        if found.frees_the_dead():
            return self.execute(body)
        delivery, on_locked = self.delivery, self.options.on_locked
        if self._is_to_tell_wait:
            return self._wait_on(error, body)
        if delivery is not None:
            error.waited += delivery.waited
            has_begun = delivery.has_begun or found.has(self.task_id)
            if has_begun or (on_locked == "skip" and found.seems_dead(self.options, error)):
                self._end_if_settled(delivery)
                # The holder may be about to release the lock, or may be dead: in both cases, retry at the end of the
                # lease.
                countdown = min(self._delay(delivery), math.inf if error.retry_after is None else error.retry_after)
                raise self._sent_anew(delivery, error, countdown, is_copy=has_begun) from error
            if self._is_to_wait_on(delivery):
                self._end_if_settled(delivery)
                raise self._sent_anew(delivery, error, 0, waited=error.waited) from error
            if (on_locked == "retry" and self._may_retry(delivery)) or (
                on_locked == "skip" and self.options.runs_again
            ):
                self._end_if_settled(delivery)
                raise self._sent_anew(delivery, error, self._delay(delivery)) from error
        if on_locked == "skip":
            return self._skipped(error, found)
        error = _described(error, self.lock)
        if callable(on_locked):
            return on_locked(self.task, error)
        if self._is_eager and on_locked == "retry":
            self.log(logging.WARNING, "%s: %s", _NO_RETRY, error)
            error.add_note(f"{_NO_RETRY}.")
        raise error

    def _wait_on(self, error: LockTimeoutError, body: Callable[[], Any]) -> Any:
        described = _described(error, self.lock)
        text = "waits without limit, because a plain call has no message to send again: %s"
        self.log(logging.WARNING if self._is_eager or is_test() else logging.INFO, text, described)
        self._is_to_tell_wait, self.lock.wait_time = False, None
        return self.execute(body)

    def _skipped(self, error: LockTimeoutError, found: Holders) -> Skipped | None:
        waited = f" and was not free within {error.waited:.1f} s" if error.waited >= 0.05 else ""
        other = None if found.first_task else found.describe(str(error.lock_name))
        self._report(task_skipped, "was skipped: %s", held_by(self.lock.name, found.first_task, other) + waited)
        result = skipped(self.task, self.lock.name, found.first_task)
        if self.delivery is not None and self.options.on_skipped == "stop_chain":
            end_chain(self.task, self.delivery.message, result)
        return result

    def _when_unavailable(self, delivery: Delivery, error: LockUnavailableError) -> Exception:
        """The exception that neither runs the task without the lock nor loses its message."""
        if delivery.has_begun or self._may_retry(delivery):
            return self._sent_anew(delivery, error, self._delay(delivery), delivery.has_begun)
        return error

    def _end_if_settled(self, delivery: Delivery) -> Standing:
        """Raise Ignore for a copy that is not needed: it is acknowledged, and the task's state does not change."""
        try:
            standing = delivery.standing()
        except LockUnavailableError as error:
            raise self._when_unavailable(delivery, error) from error
        if standing in {Standing.DONE, Standing.SUPERSEDED}:
            if standing is Standing.SUPERSEDED and self._reservation is not None:
                self._reservation.hand_on()
            self._report(task_deduplicated, "was dropped: %s", standing.value)
            raise Ignore(standing.value)
        return standing

    # --- sending again -----------------------------------------------------------------------------------------------

    def _may_retry(self, delivery: Delivery) -> bool:
        limit = self.options.max_retries
        return limit is None or delivery.lock_retries < limit

    def _delay(self, delivery: Delivery) -> float:
        """How long the message waits in a worker's memory, in seconds; the broker must not redeliver it meanwhile."""
        delay = min(self.options.delay(delivery.lock_retries), delivery.unnoticed)
        return delay * random.uniform(0.5, 1.0)  # noqa: S311 - jitter

    def _sent_anew(
        self, delivery: Delivery, error: RLockError, countdown: float, is_copy: bool = False, waited: float = 0.0
    ) -> Exception:
        """Send the message again with all its options, and return the exception that reports this to the worker.

        ``Task.retry`` is not used: it counts against the task's own ``max_retries``, and without a broker it discards
        the message.
        """
        message = delivery.message
        # Before the message is sent, because the copy may succeed at once. Not for a copy, whose task may be running.
        if not is_copy and delivery.keeps_outcome:
            self._store(message, error, RETRY)
        signature = self.task.signature_from_request(message, countdown=countdown, retries=message.retries)
        headers = delivery.next_copy(is_copy, waited)
        signature.options["headers"] |= headers
        if failure := self._failure_to_send(signature):
            return self._unsent(error, failure, is_copy)
        try:
            delivery.note_copy(headers)
        except LockUnavailableError as unavailable:
            self.log(logging.WARNING, "is sent again, which could not be recorded: %s", unavailable)
        self._report(task_deferred, "was sent again: %s", error)
        message.ignore_result = True  # so that Celery stores no state now
        setattr(message, SENT_AGAIN, True)
        return Retry(exc=error, when=signature.options["countdown"], sig=signature)

    def _failure_to_send(self, signature: Signature[Any]) -> Exception | None:
        """Send a message; returns the error if that fails. Only errors that Celery has not retried are retried."""
        failure: Exception
        for pause in (*_RESEND_PAUSES, None):
            try:
                signature.apply_async()
            except (self.task.OperationalError, SoftTimeLimitExceeded) as error:
                return error
            except Exception as error:  # noqa: BLE001 - each broker and serializer has its own errors
                failure = error
                if pause is not None:
                    time.sleep(pause)
            else:
                return None
        return failure

    def _unsent(self, error: RLockError, failure: Exception, is_copy: bool) -> Exception:
        """The exception for a message that could not be sent again.

        The broker redelivers an unacknowledged message. An acknowledged message fails now.
        """
        self.log(logging.WARNING, "could not be sent again: %s", reason_of(failure))
        # A copy must not fail: that would become the outcome of its task, which may be running elsewhere.
        if is_copy or self.task.acks_late:
            return Rejected(error, requeue=True)
        error.add_note(f"The message could not be sent again: {reason_of(failure)}")
        return failure if isinstance(failure, SoftTimeLimitExceeded) else error

    def _store(self, message: Context, outcome: object, state: str) -> None:
        """Store the task's state. If that fails, the task continues, because its work matters more."""
        try:
            self.task.backend.store_result(self.task_id, outcome, state, request=message)
        except SoftTimeLimitExceeded:
            raise
        except Exception as failure:  # noqa: BLE001 - each backend has its own errors
            self.log(logging.WARNING, "continues, but its state %s could not be stored: %s", state, failure)

    def _report(self, signal: LockSignal, text: str, reason: object) -> None:
        self.log(logging.INFO, text, reason)
        signal.notify(self.lock, task=self.task, task_id=self.task_id, reason=str(reason))

    def log(self, level: int, text: str, *args: object) -> None:
        log(logger, level, "Task %s[%s] " + text, self.task.name, self.task_id, *args)


class _Surroundings:
    """The block in which a run acquires and holds its lock: the task's ``self.lock`` is set, the worker's main process
    knows which lock to free, and for a message the owner's name ends with the task's id, which the reports show, too.

    At the end, the block releases locks that the thread acquired inside and did not release, for example because a time
    limit interrupted the body, or the run between acquire and release.

    A hold with a lease time chosen by the body continues, as after ``rlock(name, lease_time=60).acquire()``.
    """

    __slots__ = ("_about", "_before", "_inside", "_label", "_note", "_outside", "_owner", "_run", "is_entered")

    def __init__(self, run: Run) -> None:
        self._run = run
        self._owner = owner = thread_owner()
        self._before = {hold: (_count(hold), hold.scoped) for hold in HOLDS.of(owner)} if HOLDS else {}
        self._outside = locks_held.get({}), context.get(), owner.label
        task, lock, options = run.task, run.lock, run.options
        self._inside = {**self._outside[0], task.name: lock}
        self._about: Work | None = None
        self._label = ""
        if task_id := run.task_id:
            self._label = f":{label(task_id, run.mark)}"
            if get_settings(options.using).record_context:
                self._about = Work({"task": str(task.name), "task_id": task_id})
        self._note = note_of(task_id, lock, options.kind)
        self.is_entered = False

    def __enter__(self) -> None:
        self.is_entered = True
        if self._label:
            self._owner.label = self._label
        locks_held.set(self._inside)
        if self._about is not None:
            context.set(self._about)
        if self._note is not None:
            write(self._note)

    @run_when_dropped
    def __exit__(self, *_: object) -> None:
        owner = self._owner
        if thread_owner() is owner:  # the block may be dropped in another thread
            locks, about, former = self._outside
            if locks_held.get({}) is self._inside:
                locks_held.set(locks)
            if self._about is not None and context.get() is self._about:
                context.set(about)
            if HOLDS:
                self._release_left()
            if self._label:
                owner.label = former
        if self._note is not None:
            erase(self._note)
        self.is_entered = False

    def _release_left(self) -> None:
        own = HOLDS.of_lock(self._run.lock, self._owner)
        for hold in HOLDS.of(self._owner):
            count, blocks = self._before.get(hold, (0, 0))
            left = _count(hold) - count
            if left > 0 and (hold.renewed or hold in own):
                self._release(hold, left)
                hold.scoped = min(hold.scoped, blocks)

    def _release(self, hold: Hold, times: int) -> None:
        lock: Any = hold.lock
        log = partial(self._run.log, logging.WARNING)
        log("did not release lock %r, which is released now.", lock.name)
        for _ in range(times):
            if hold not in HOLDS:
                return
            try:
                lock.release()
            except RLockError as error:
                log("could not release it: %s", error)


def _count(hold: Hold) -> int:
    """The count of a hold, without the entries that the end of a transaction releases."""
    return hold.count - released_at_end(hold.key)


def _described(error: LockTimeoutError, lock: BaseLock | None = None) -> LockTimeoutError:
    """The error with the name of the task's option; with ``lock``, also with the holder."""
    parts = () if lock is None else lock.parts
    taken = next((part for part in parts if part.name == error.lock_name), None)
    holder = None if taken is None else INSPECTOR.holder(taken)
    return LockTimeoutError(str(error.lock_name), error.waited, holder, error.retry_after, error.noun, "lock_wait_time")
