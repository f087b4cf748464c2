"""Celery tasks under a lock: of the messages with one key, one runs at a time.

The owner of the lock ends in the task's id, in Redis too. So a message that was delivered again, because its worker
died or the broker's visibility timeout ran out, is told from a duplicate: duplicates may be skipped, it never is.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

import redis
from celery.app.task import Context
from celery.contrib.django.task import DjangoTask
from celery.exceptions import Reject, Retry

from django_rlock.drivers.identity import thread_owner
from django_rlock.exceptions import LockTimeoutError, LockUnavailableError, RLockError
from django_rlock.inspection import read_states
from django_rlock.locks import BaseLock, Duration, rlock
from django_rlock.locks.holds import HOLDS, Hold, context
from django_rlock.settings import DEFAULT_ALIAS, get_settings
from django_rlock.signals import task_skipped
from django_rlock.taskoptions import TaskOptions

if TYPE_CHECKING:
    _DjangoTask = DjangoTask[..., Any]
else:
    _DjangoTask = DjangoTask

__all__ = ["LockedTask"]

logger = logging.getLogger("django_rlock.celery")

_RETRIES, _COPY = "rlock_retries", "rlock_copy"  # message headers, see _Run

_locks: ContextVar[Mapping[str, BaseLock]] = ContextVar("rlock_task_locks")


class LockedTask(_DjangoTask):
    """A task that runs under a lock, so that two runs with the same key never overlap::

        @shared_task(base=LockedTask, lock_key="report:<account_id>")
        def build_report(account_id): ...

    ``lock_key`` is a template over the arguments, ``<task.name>``, ``<task.id>`` and ``<self.attribute>``; a list of
    them, which locks all or none; or a function that gets the task and the arguments and returns the name, or a list.
    None takes the task's name and all arguments.

    ``on_locked`` says what to do when the lock is still taken after ``lock_wait_time`` seconds (0 tries once):

    * ``"skip"``: the task ends normally with None, so chains and chords go on;
    * ``"retry"``: the message is sent again, after ``lock_retry_delay`` seconds, then twice as many, up to
      ``lock_retry_max_delay``; after ``lock_max_retries`` times (None: no limit) LockTimeoutError. It has its own
      count: the task's ``max_retries`` is for the task's own errors;
    * ``"wait"``: waits in the worker's slot, as long as it takes or for the ``lock_wait_time`` given; then
      LockTimeoutError;
    * ``"raise"``: LockTimeoutError, so the task fails;
    * a function: gets the task and the LockTimeoutError; what it returns is the result.

    ``lock_lease_time`` seconds bound how long the lock is held; None renews it while the worker lives.
    ``lock_using`` is the RLOCK alias, ``lock_kind`` the kind of lock (None: the alias's).

    A message that is delivered again waits by being sent again, without limit, while another copy of it holds the
    lock, and then runs: a task runs at least once, and twice if the first run was not known to have ended. Any message
    is sent again while Redis cannot be asked, up to ``lock_max_retries`` times. A lock that is lost during the run
    fails the task with LockLostError.

    A plain call, ``build_report(7)``, and eager mode take the lock as well; having no message to send again, they wait
    instead of retrying. ``build_report.run(7)`` is the body without the lock.

    KeyTemplateError, ValueError or TypeError for a bad or unknown option, when the app makes the task. Attributes of
    the task's own must not begin with ``lock_``.
    """

    lock_key: str | list[str] | Callable[..., str | list[str]] | None = None
    lock_wait_time: Duration = 0
    lock_lease_time: Duration | None = None
    on_locked: str | Callable[..., Any] = "skip"
    lock_retry_delay: Duration = 1
    lock_retry_max_delay: Duration = 60
    lock_max_retries: int | None = None
    lock_using: str = DEFAULT_ALIAS
    lock_kind: str | None = None

    _rlock: TaskOptions

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _refuse_unknown_options(cls)
        cls._rlock = TaskOptions.of(cls)  # a bad option fails before Celery registers the task

    @classmethod
    def on_bound(cls, app: Any) -> None:
        super().on_bound(app)
        cls._rlock = TaskOptions.of(cls)  # task_annotations may have changed an option

    @property
    def lock(self) -> BaseLock:
        """The lock that the running task holds. RuntimeError outside of a run, and under ``run()``."""
        try:
            return _locks.get({})[self.name]
        except KeyError:
            raise RuntimeError(f"Task {self.name} holds no lock: it does not run, or by its run() only.") from None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        request = self.request
        # Only the first call under a request is the message's; others are plain calls from within the body.
        if request.called_directly or request.get("rlock_entered"):
            return _Run(self, args, kwargs).execute(partial(super().__call__, *args, **kwargs))
        request.rlock_entered = True  # type: ignore[attr-defined]
        with _reported(self, str(request.id)), thread_owner().labelled(str(request.id)):
            return _Run(self, args, kwargs, request).execute(partial(self.run, *args, **kwargs))


def _refuse_unknown_options(cls: type[LockedTask]) -> None:
    """A misspelt option would pass for an attribute of the task's own, and do nothing."""
    for name, value in vars(cls).items():
        if name.startswith("lock_") and not hasattr(LockedTask, name) and not callable(value):
            known = ", ".join(option for option in vars(LockedTask) if option.startswith("lock_"))
            raise TypeError(
                f"{cls.name or cls.__name__}: there is no option {name!r}. Known options: on_locked, {known}."
            )


class _Run:
    """One call of a task. ``request`` is Celery's, None for a plain call.

    Two headers go with a message that is sent again: how often, and whether it is a copy, of which another may run or
    have died while it ran. A copy that never ran, as after a warm shutdown, cannot be told from one that did.
    """

    def __init__(
        self, task: LockedTask, args: tuple[Any, ...], kwargs: dict[str, Any], request: Context | None = None
    ) -> None:
        self.task = task
        self.options = options = task._rlock  # noqa: SLF001
        self.message = None if request is None or request.is_eager else request
        self.task_id = "" if request is None else str(request.id)
        self.lock = rlock(
            *options.names(task, args, kwargs),
            wait_time=options.wait_time if self.message else options.wait_time_without_message(),
            lease_time=options.lease_time,
            using=options.using,
            kind=options.kind,
        )

    def execute(self, body: Callable[[], Any]) -> Any:
        """Run the body under the lock; when there is no lock to be had, what is to be done instead."""
        stage = "taking"
        try:
            with self._nothing_left(), _shown(self.task, self.lock), self.lock:
                stage = "running"
                self._forget_retries()
                result = body()
                stage = "releasing"
        except LockTimeoutError as error:
            if stage == "running":
                raise
            return self._when_taken(error)
        except LockUnavailableError as error:
            if stage == "releasing":
                self._log(logging.ERROR, "has done its work, but: %s", error)
                return result
            if stage == "running" or self.message is None:
                raise
            raise self._when_unavailable(self.message, error) from error
        return result

    def _when_taken(self, error: LockTimeoutError) -> Any:
        on_locked, message = self.options.on_locked, self.message
        if message is not None and (_is_known_copy(message) or self._copy_is_inside()):
            # Its holder may be about to release, or dead: then the lease's end is the time to come.
            countdown = min(self._delay(message), math.inf if error.retry_after is None else error.retry_after)
            raise self._sent_again(message, error, countdown, is_copy=True) from error
        if message is not None and on_locked == "retry" and self._may_retry(message):
            raise self._sent_again(message, error, self._delay(message)) from error
        if on_locked == "skip":
            self._log(logging.INFO, "was skipped: %s", error)
            task_skipped.send_robust(sender=type(self.lock), lock=self.lock, task=self.task, task_id=self.task_id)
            return None
        if callable(on_locked):
            return on_locked(self.task, error)
        raise error

    def _when_unavailable(self, message: Context, error: LockUnavailableError) -> Exception:
        """What to raise so that the task neither runs without the lock nor is lost."""
        is_copy = _is_known_copy(message)
        if is_copy or self._may_retry(message):
            return self._sent_again(message, error, self._delay(message), is_copy)
        return error

    # --- sending again -----------------------------------------------------------------------------------------------

    def _copy_is_inside(self) -> bool:
        """Whether the lock's owner has this task's id; also when nobody knows, as skipping could lose work."""
        try:
            return any(self.task_id in _task_ids(part) for part in self.lock.parts)
        except (redis.RedisError, OSError):
            return True

    def _may_retry(self, message: Context) -> bool:
        limit = self.options.max_retries
        return limit is None or _retries(message) < limit

    def _delay(self, message: Context) -> float:
        return self.options.delay(_retries(message)) * random.uniform(0.5, 1.0)  # noqa: S311 - jitter

    def _sent_again(self, message: Context, error: RLockError, countdown: float, is_copy: bool = False) -> Exception:
        """Send the message again with all it had, and answer what tells the worker so.

        Not by ``Task.retry``: that counts against the task's own ``max_retries``, and without a broker it throws the
        message away.
        """
        signature = self.task.signature_from_request(message, countdown=countdown, retries=message.retries)
        headers = {**(signature.options.get("headers") or {}), _RETRIES: _retries(message) + 1, _COPY: is_copy}
        try:
            signature.set(headers=headers).apply_async()
        except self.task.OperationalError:
            # The broker is away too. What is not acknowledged yet, it delivers again; of all else, the error tells.
            return Reject(error, requeue=True) if self.task.acks_late else error
        return Retry(exc=error, when=countdown, sig=signature)  # type: ignore[arg-type] # numbers.Real

    def _forget_retries(self) -> None:
        """Let a ``retry()`` of the body's own count anew."""
        if self.message is not None and self.message.headers:
            headers = self.message.headers.items()
            self.message.headers = {name: value for name, value in headers if name not in {_RETRIES, _COPY}}

    # --- leaving -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _nothing_left(self) -> Iterator[None]:
        """Release what the thread took since and did not give back, be it that a time limit struck at a bad moment.

        A lease that the body chose runs on, as after ``rlock(name, lease_time=60).acquire()``.
        """
        owner = thread_owner()
        before = {hold: hold.count for hold in HOLDS.of(owner)}
        try:
            yield
        finally:
            own = self.lock.holds_of(owner)
            for hold in HOLDS.of(owner):
                if hold.count > before.get(hold, 0) and (hold.renewed or hold in own):
                    self._give_back(hold, before.get(hold, 0))

    def _give_back(self, hold: Hold, count: int) -> None:
        lock: Any = hold.lock
        self._log(logging.WARNING, "did not release lock %r; it is released now.", lock.name)
        while hold in HOLDS and hold.count > count:
            try:
                lock.release()
            except RLockError as error:
                self._log(logging.WARNING, "could not release it: %s", error)

    def _log(self, level: int, text: str, *args: object) -> None:
        logger.log(level, "Task %s[%s] " + text, self.task.name, self.task_id, *args)  # noqa: G003 - a constant


def _task_ids(lock: BaseLock) -> set[str]:
    """The ids of the tasks that hold a lock."""
    state = read_states([lock.key], lock.using).get(lock.key)
    owners = () if state is None else (field.removesuffix(lock.field("")) for field in state.holds)
    return {label for owner in owners for label in owner.split(":", 2)[2:]}


def _retries(message: Context) -> int:
    return int(message.get(_RETRIES) or 0)


def _is_known_copy(message: Context) -> bool:
    """Whether the broker or an earlier run says that the message was delivered before."""
    return bool(message.get(_COPY) or (message.delivery_info or {}).get("redelivered"))


@contextmanager
def _shown(task: LockedTask, lock: BaseLock) -> Iterator[None]:
    """Be the task's ``self.lock``."""
    token = _locks.set({**_locks.get({}), task.name: lock})
    try:
        yield
    finally:
        _locks.reset(token)


@contextmanager
def _reported(task: LockedTask, task_id: str) -> Iterator[None]:
    """Name the task in the process report, unless the alias's RECORD_CONTEXT is off."""
    if not get_settings(task.lock_using).record_context:
        yield
        return
    token = context.set({"task": task.name, "task_id": task_id})
    try:
        yield
    finally:
        context.reset(token)
