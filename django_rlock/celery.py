"""Celery tasks under a lock: only one message with the same key runs at a time.

The owner's name ends with the task's id, in Redis too. So a redelivered message, after its worker died or the broker's
visibility timeout ended, can be distinguished from a duplicate: duplicates may be skipped, but redelivered messages
never are.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial, update_wrapper, wraps
from glob import escape
from types import FunctionType
from typing import TYPE_CHECKING, Any

from celery import Task
from celery.signals import worker_init
from celery.utils import uuid

from django_rlock._tasks import deliveries
from django_rlock._tasks.checks import check_worker, refuse_of_call, refuse_unknown
from django_rlock._tasks.children import follow_children
from django_rlock._tasks.messages import follow_messages
from django_rlock._tasks.naming import BODY
from django_rlock._tasks.reservations import Reservation, send_once, sent
from django_rlock._tasks.runs import Run, locks_held, run_message
from django_rlock._tasks.task import OPTIONS, AbstractTask, P, R_co, Skipped, TaskOptions
from django_rlock.locks import BaseLock
from django_rlock.locks.holds import INSPECTOR

if TYPE_CHECKING:
    from celery.result import AsyncResult

    from django_rlock.locks.infos import LockInfo

__all__ = ["LockedTask", "Skipped"]

_BEGINS = "rlock_begins"
"""An attribute of the ``__call__`` that begins a call."""


class LockedTask(AbstractTask[P, R_co]):
    """A task that runs under a lock, so that two runs with the same key never overlap::

        @shared_task(base=LockedTask, lock_key="report:<account_id>")
        def build_report(account_id): ...

    https://github.com/django-rlock/django-rlock/blob/main/docs/celery-reference.md lists the options: what each means,
    its default, and what None means. Durations are seconds.

    Work that may have begun is never skipped: a redelivered message, or a message sent by the task's own ``retry()``,
    is sent again until it can run. A task runs at least once; a task that succeeds does not run again while its success
    is remembered. While Redis is unreachable, any message is sent again, up to ``lock_max_retries`` times. A lock that
    is lost during the run fails the task with LockLostError.

    A plain call and eager mode take the lock as well; ``build_report.run(7)`` runs the body without it.

    A bad or unknown option raises KeyTemplateError, ValueError or TypeError when the app makes the task; so does
    ``apply_async()`` if the key cannot be made from the arguments. A task's own attributes must not begin with
    ``lock_``.
    """

    Request = "django_rlock._tasks.requests:LockedTaskRequest"
    Strategy = "django_rlock._tasks.requests:strategy"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__module__.startswith("celery."):
            cls._is_locked = False
            return
        cls._prepare()  # a bad option fails before Celery registers the task

    @classmethod
    def on_bound(cls, app: Any) -> None:
        super().on_bound(app)
        if not cls._is_locked:
            return
        cls._prepare()  # again: task_annotations may have changed an option, or wrapped the body
        if cls.track_started:
            # Celery would store STARTED before the call, also for a copy of a message whose task has succeeded; and
            # most backends of databases overwrite SUCCESS. So a run stores it, once it holds its lock and counts.
            cls._stores_start, cls.track_started = True, False
        if cls.store_errors_even_if_ignored is True:
            setattr(cls, "store_errors_even_if_ignored", property(_stores_errors))  # noqa: B010 - for mypy it is a bool

    @classmethod
    def _prepare(cls) -> None:
        refuse_unknown(cls, str(cls.name or cls.__name__), OPTIONS)
        _guard(cls)
        cls._rlock = TaskOptions.of(cls)

    @property
    def lock(self) -> BaseLock:
        """The lock that the running task holds. Raises RuntimeError outside a run, and in a direct call of
        ``run()``."""
        try:
            return locks_held.get({})[self.name]
        except KeyError:
            raise RuntimeError(f"Task {self.name} holds no lock: it is not running, or was called by run().") from None

    def lock_info(self, *args: Any, **kwargs: Any) -> LockInfo | None:
        """Return the holders and waiters of the lock of a run with these arguments, and in ``queued`` the messages that
        have its reservation; None if the lock is free and no message is queued.

        Arguments that the key ignores may be left out. With ``lock_scope="until_start"`` each run has a separate lock,
        so the holders of all runs that have lasted for half a second are returned. Raises LockUnavailableError if Redis
        is unreachable, and KeyTemplateError or TypeError if the key cannot be made from the arguments.
        """
        lock = self._lock_of(args, kwargs)
        return _overlapping_runs(lock) if self._rlock.scope == "until_start" else lock.info()

    def release_lock(self, *args: Any, **kwargs: Any) -> bool:
        """Free the lock of a run with these arguments, regardless of its holder; returns whether it was held.

        The run that held the lock continues until it notices, so two runs may overlap. With
        ``lock_scope="until_start"``, only the reservation of the waiting message is freed. Arguments and errors are as
        for ``lock_info()``.
        """
        lock = self._lock_of(args, kwargs)
        freed = self._rlock.scope != "run" and Reservation(self, lock.name, "", "").free()
        return lock.force_release(reason=f"release_lock() of task {self.name}") or freed

    def _lock_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BaseLock:
        return self._rlock.lock(self._rlock.naming.names_of(self, args, kwargs))

    def apply_async(
        self,
        args: Any = None,
        kwargs: dict[str, Any] | None = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        **options: Any,
    ) -> AsyncResult[R_co]:
        """Celery's method. Raises KeyTemplateError, which names the argument, if the key cannot be made from the
        arguments.

        With ``lock_scope`` ``"queue"`` or ``"until_start"`` it returns the result of the message that is already
        queued, or raises TaskQueuedError with ``on_queued="raise"``. For one call, ``on_queued`` may be ``"return"``,
        ``"raise"`` or ``"earlier"``. The result's ``was_sent`` says whether this call has sent a message. Raises
        LockUnavailableError when Redis is unreachable; then nothing was sent.
        """
        send = partial(super().apply_async, args, kwargs)
        options |= {"producer": producer, "link": link, "link_error": link_error, "shadow": shadow}
        if not self._is_locked:
            return sent(send(task_id=task_id, **options))
        naming, arguments = self._rlock.naming, (tuple(args or ()), dict(kwargs or {}))
        on_queued = self._rlock.on_queued_of(self, options)
        refuse_of_call(str(self.name), options)
        if "headers" in options:
            options["headers"] = deliveries.own_headers(self, task_id, options["headers"])
        # A bad key fails here, in the caller, rather than later in a worker.
        naming.check(self, *arguments)
        # A body that sends a message with its own id, and not as a retry, is not done when it succeeds.
        if task_id == self.request.id is not None and (options.get("retries") or 0) <= (self.request.retries or 0):
            setattr(self.request, deliveries.SENT_BY_ITSELF, True)
        # Eager mode calls the body at once, so there is no queue to keep duplicates out of.
        if self._rlock.scope == "run" or self.app.conf.task_always_eager:
            return sent(send(task_id=task_id, **options))
        task_id = task_id or uuid()
        named = partial(naming.name, self, *arguments, task_id)
        return send_once(self, named, arguments, task_id, options, send, on_queued)

    def signature_from_request(
        self, request: Any = None, args: Any = None, kwargs: Any = None, queue: str | None = None, **extra_options: Any
    ) -> Any:
        """Celery's method, for a message that is sent again. The message keeps its queue, its serializer, its
        compression, and the representations of arguments that do not change. Our headers stay beside new headers."""
        shown = {"argsrepr": args, "kwargsrepr": kwargs}
        names = ["compression", *(name for name, new in shown.items() if new is None)]
        message = self.request if request is None else request
        options: dict[str, Any] = {**deliveries.kept_options(message, names), **extra_options}
        if options.get("countdown") and queue is None:
            options |= deliveries.put_off(self.app, message, options["countdown"])
            queue = options.pop("queue", None)
        signature = super().signature_from_request(request, args, kwargs, queue, **options)
        signature.options["headers"] = deliveries.headers_of_next(message, signature.options.get("headers") or {})
        return signature


def _overlapping_runs(lock: BaseLock) -> LockInfo | None:
    """The runs of a task with one lock per message, combined into one LockInfo, with the waiting messages. These locks
    are named after ``lock`` and the message's id. Runs are known once they have lasted for half a second. Raises
    LockUnavailableError if Redis is unreachable.
    """
    info = lock.info()
    found: Iterable[LockInfo] = INSPECTOR.matching(lock.using, f"{escape(lock.name)}:*")
    runs = [each for each in found if each.holder.owner.endswith(each.name.removeprefix(lock.name))]
    if not runs:
        return info
    holders = tuple(holder for run in runs for holder in run.holders)
    return replace(runs[0], name=lock.name, key=lock.key, holders=holders, queued=info.queued if info else ())


def _stores_errors(task: LockedTask[..., Any]) -> bool:
    """Whether Celery stores an error of the run. It does not if the message was sent again, as the task may run
    elsewhere."""
    return not vars(task.request).get(deliveries.SENT_AGAIN)


worker_init.connect(check_worker, weak=False)
follow_messages()
follow_children()


# --- the lock around a body -------------------------------------------------------------------------------------------

# The lock is around ``run``, which the worker, plain calls and every ``__call__`` call. So wrappers of the task (a
# ``__call__`` of the project or of a monitoring library, ``autoretry_for``, a wrapper of the tracer) run outside the
# lock, see its errors, and cannot bypass it.
#
# A ``run`` takes the lock if it is the outermost ``run`` of a request of Celery: a message's, or the request that a
# plain call pushes. Without a request, or inside a run, it only runs the body.


def _guard(kind: type[LockedTask[..., Any]]) -> None:
    """Put the lock around a class's ``run``, and let its ``__call__`` begin a call, unless that was done before.

    Raises TypeError for a base whose ``__call__`` is never called, because it comes after Celery's own, and for a base
    that runs many messages at once.
    """
    _refuse_unreached(kind)
    _refuse_batches(kind)
    run = inspect.getattr_static(kind, "run")
    if run is not Task.run and not hasattr(run, BODY):
        setattr(kind, "run", _locked(run))  # noqa: B010 - for mypy it is a method
    definer = next(each for each in kind.__mro__ if "__call__" in vars(each))
    if definer is not Task and not hasattr(vars(definer)["__call__"], _BEGINS):
        setattr(kind, "__call__", _beginning(vars(definer)["__call__"]))  # noqa: B010


def _refuse_unreached(kind: type[LockedTask[..., Any]]) -> None:
    after = kind.__mro__[kind.__mro__.index(Task) + 1 :]
    if unreached := next((each for each in after if "__call__" in vars(each)), None):
        name, label = unreached.__name__, kind.name or kind.__name__
        raise TypeError(
            f"{label}: {name}.__call__ is never called, because Celery's Task comes before {name} among the bases; "
            f"name it first, as in 'class MyTask({name}, LockedTask)'."
        )


def _refuse_batches(kind: type[LockedTask[..., Any]]) -> None:
    # A project's own strategy is the name of a function. As a method, a strategy belongs to a base that collects the
    # messages of several calls, such as that of celery-batches.
    definer = next((each for each in kind.__mro__ if inspect.isfunction(vars(each).get("Strategy"))), None)
    if definer is not None:
        raise TypeError(
            f"{kind.name or kind.__name__}: {definer.__name__} runs many messages at once, and LockedTask locks the "
            f"run of a single message. Use {definer.__name__} alone, and take the lock in the body, by rlock()."
        )


def _locked(body: Any) -> Callable[..., Any]:
    """The ``run`` that takes the lock around a body: a function, a static method or another descriptor.

    Inspection finds the body's signature and source. But Celery's annotations of ``run`` follow ``__wrapped__`` by one
    step, which must not bypass the lock: so the body is wrapped twice, by the same code.
    """

    get: Callable[..., Any] = getattr(body, "__get__", lambda *_: body)  # a partial is not a descriptor

    def run(self: LockedTask[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        bound = get(self, type(self))
        stack: Any = self.request_stack
        requests = () if stack is None else stack.stack
        if not requests:
            return bound(*args, **kwargs)
        # Celery copies the request for a call within the body; the depth of the stack distinguishes the two.
        request, depth = requests[-1], len(requests)
        former = vars(request).get("rlock_entered")
        if former == depth:
            return bound(*args, **kwargs)
        inside = partial(bound, *args, **kwargs)
        try:
            request.rlock_entered = depth
            if former or request.called_directly:
                return Run(self, args, kwargs).execute(inside)
            return run_message(self, args, kwargs, request, inside)
        finally:
            request.rlock_entered = former  # a ``__call__`` may run the body again

    function = getattr(body, "__func__", body)
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(run, name, getattr(function, name, getattr(run, name)))
    setattr(run, BODY, body)
    if inspect.isfunction(function):
        run.__wrapped__ = function  # type: ignore[attr-defined]
        if isinstance(body, staticmethod):  # it does not pass the task on to its body
            signature = inspect.signature(function)
            task = inspect.Parameter("_rlock_task", inspect.Parameter.POSITIONAL_ONLY)
            named = signature.replace(parameters=[task, *signature.parameters.values()])
            run.__signature__ = named  # type: ignore[attr-defined]
    return update_wrapper(FunctionType(run.__code__, run.__globals__, run.__name__, None, run.__closure__), run)


def _beginning(call: Callable[..., Any]) -> Callable[..., Any]:
    """A ``__call__`` that begins a call and then calls the project's ``__call__``, which may call ``run`` directly."""

    @wraps(call)
    def begin(self: LockedTask[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        stack: Any = self.request_stack
        request = stack.top
        if request is not None and vars(request).get("rlock_entered") != len(stack):
            return call(self, *args, **kwargs)  # a message's call, or a call that a subclass has begun
        self.push_request(args=args, kwargs=kwargs)
        try:
            return call(self, *args, **kwargs)
        finally:
            self.pop_request()

    setattr(begin, _BEGINS, True)
    return begin
