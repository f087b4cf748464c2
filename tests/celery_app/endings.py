"""Tasks that end in each way in which a message may end, before their run or in it."""

import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from celery.exceptions import Ignore, Reject, Retry

from django_rlock.celery import LockedTask
from tests.celery_app import app
from tests.celery_app.records import inside, record, wait_for
from tests.celery_app.tasks import LATER, soon


class Ends(LockedTask[..., Any]):
    """A task that ends in a way, and at a point, that its message names."""

    WAYS: ClassVar[dict[str, Callable[[], object]]] = {
        "error": lambda: _raise(ConnectionError()),
        "ignore": lambda: _raise(Ignore()),
        "reject": lambda: _raise(Reject("not now", requeue=False)),
        "requeue": lambda: _raise(Reject("later", requeue=True)),
        "retry": lambda: _raise(Retry("by hand")),
        "soft limit": lambda: signal.raise_signal(signal.SIGUSR1),  # Celery's signal, to Celery's handler
        "death": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "exit": lambda: _raise(SystemExit(1)),
    }

    def end(self, point, log, how):
        """End if it is the time to; once, where the message comes again."""
        if how.startswith(f"{point}: ") and record(f"{log}:tries", how) == 1:
            self.WAYS[how.removeprefix(f"{point}: ").removesuffix(", gated")]()

    def before_start(self, task_id, args, kwargs):
        self.end("before it", *args)

    def __call__(self, *args, **kwargs):
        self.end("in a call", *args)
        result = super().__call__(*args, **kwargs)
        self.end("after its body", *args)
        return result

    def on_success(self, retval, task_id, args, kwargs):
        self.end("in on_success", *args)

    def after_return(self, status, retval, task_id, args, kwargs, einfo):
        self.end("in after_return", *args)


def _raise(error: BaseException) -> None:
    raise error


def ends(self, log, how):
    with inside(log, self.request.id):
        if how.endswith("gated"):
            wait_for(f"{log}:go")
        if how == "retries unheard" and self.request.retries == 0:
            self.retry(countdown=LATER, throw=False)
        self.end("in its body", log, how)
    return f"done {log}"


ending = partial(app.task, base=Ends, bind=True, lock_key="work:<log>", lock_scope="queue", **soon)
ends_early = ending(name="ends_early")(ends)
ends_late = ending(name="ends_late", acks_late=True)(ends)
ends_late_and_keeps_nothing = ending(name="ends_late_and_keeps_nothing", acks_late=True, ignore_result=True)(ends)
ends_and_returns = ending(name="ends_and_returns", acks_late=True, reject_on_worker_lost=True)(ends)
ends_at_its_limit = ending(name="ends_at_its_limit", acks_late=True, time_limit=1)(ends)
ends_at_its_limit_and_returns = ending(
    name="ends_at_its_limit_and_returns", acks_late=True, time_limit=1, acks_on_failure_or_timeout=False
)(ends)
ends_and_is_retried = ending(name="ends_and_is_retried", retry_on_worker_lost=True, default_retry_delay=LATER)(ends)
ends_with_its_own_request = ending(name="ends_with_its_own_request", Request="celery.worker.request:Request")(ends)
