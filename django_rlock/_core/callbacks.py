"""The thread in which the package logs, measures and calls back: receivers of ``lock_lost``, and ``on_lost``.

Code that keeps locks alive must not wait for a user's function, nor for a mutex of ``logging`` or of a metrics exporter
that an interrupted caller left locked. So the threads that renew and listen, and callers during acquire and release,
hand such work over to this thread. A slow function delays only the functions after it. Each function sees the context
variables of the code that handed it over, so a filter of log records finds the request's id.
"""

from __future__ import annotations

import logging
import queue
import sys
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any

from django_rlock._core import threads
from django_rlock._core.process import Owned, between_forks, on_exit
from django_rlock._core.text import printable

MOST_POSTED = 10_000
"""How many calls may be queued; when full, new ones are dropped, and their number is logged."""

logger = logging.getLogger("django_rlock.callbacks")


class Callbacks:
    """Calls functions one after another, in a thread that starts with the first."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Context, Callable[..., object], tuple[Any, ...]]] = queue.SimpleQueue()
        self._instance = threads.SingleInstance()
        self._runs = False
        self._dropped = 0

    def post(self, function: Callable[..., object], *args: Any) -> None:
        """Call a function soon, in the caller's context. Exceptions from it are logged."""
        if self._queue.qsize() >= MOST_POSTED:
            self._dropped += 1
            return
        self._queue.put((copy_context(), function, args))
        if not self._runs:
            try:
                threads.start(self._run, name="rlock-callbacks")
            except RuntimeError:  # interpreter exit, or no threads left
                with suppress(queue.Empty):  # a thread that has just started took the call
                    self._call(*self._queue.get(block=False))

    def flush(self, within: float) -> bool:
        """Wait until everything posted has been called, for at most ``within`` seconds; returns whether it was."""
        if self._queue.empty() and not self._runs:
            return True
        done = threads.AutoResetEvent()
        self.post(done.set)
        return done.wait(within)

    def _run(self) -> None:
        if not self._instance.enter():
            return  # another thread already runs
        self._runs = True
        while True:
            call = self._queue.get()
            with between_forks():
                self._call(*call)
                if self._dropped:
                    dropped, self._dropped = self._dropped, 0
                    logger.error(
                        "%d log records, metrics and callbacks were dropped: a callback takes too long.", dropped
                    )

    def _call(self, context: Context, function: Callable[..., object], args: tuple[Any, ...]) -> None:
        try:
            context.run(function, *args)
        except BaseException:  # SystemExit too: it would stop all callbacks
            logger.exception("A callback failed: %r", function)


_callbacks = Owned("callbacks", Callbacks, outlives_settings=True)


def post(function: Callable[..., object], *args: Any) -> None:
    """Call a function soon, in the thread for callbacks, and in the caller's context. Exceptions from it are logged."""
    _callbacks.value.post(function, *args)


def flush(within: float) -> bool:
    """Wait until everything posted has been called, for at most ``within`` seconds; returns whether it was."""
    return _callbacks.value.flush(within)


def is_logged(log_to: logging.Logger, level: int) -> bool:
    """Whether a record of this level would be logged."""
    # Like isEnabledFor(), which sometimes takes logging's mutex.
    return level >= log_to.getEffectiveLevel() and level > log_to.manager.disable


def log(log_to: logging.Logger, level: int, message: str, *args: Any) -> None:
    """Log from a thread that must not block; the record carries the caller's time and thread, and
    is handled in the caller's context."""
    if not is_logged(log_to, level):
        return
    frame = sys._getframe(1)  # noqa: SLF001 - as logging itself finds its caller
    code = frame.f_code
    # An exception would keep its frames, and with them what is released when it is dropped, for as long as the record.
    args = tuple([printable(arg) if isinstance(arg, str | BaseException) else arg for arg in args])
    record = log_to.makeRecord(log_to.name, level, code.co_filename, frame.f_lineno, message, args, None, code.co_name)
    post(log_to.handle, record)


on_exit("callbacks", flush)
