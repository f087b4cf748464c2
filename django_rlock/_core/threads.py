"""The package's threads, and how callers notify them even if a signal may interrupt the caller at any bytecode.

An exception from a signal handler can come between any two bytecodes of the main thread, even after a mutex was
acquired and before the block that releases it is entered. So callers take no mutex that another thread waits for,
including those in ``threading.Event``, ``Condition``, ``queue.Queue`` and ``Thread.start``. Instead they make one call
into C: append to a deque, put into a SimpleQueue, release a raw lock that belongs to one waiter, or start a raw thread.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import math
import re
import sys
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import filterfalse
from operator import methodcaller
from types import FrameType
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")

SIGNALS_WITHIN = 1.0
"""After how many seconds of a long sleep the main thread looks for signals by itself."""


raw_lock = _thread.allocate_lock
"""Returns a lock whose ``with`` statement a signal handler cannot leave without releasing it, because ``__exit__`` is a
call into C. It may stay locked where the handler raises before the block begins."""


class AutoResetEvent:
    """Wakes the one thread that waits for it. It stays set until that thread has woken."""

    __slots__ = ("_gate",)

    def __init__(self) -> None:
        self._gate = _thread.allocate_lock()
        self._gate.acquire()

    def set(self) -> None:
        with contextlib.suppress(RuntimeError):  # it is set already
            self._gate.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until it is set (True) or for ``timeout`` seconds (False); None means no time limit."""
        return self._gate.acquire(True, -1 if timeout is None else min(max(timeout, 0.0), _thread.TIMEOUT_MAX))

    def wait_for_long(self, timeout: float | None = None) -> bool:
        """The same for a sleep of minutes. A signal that comes just before a thread sleeps is not handled before it
        wakes, so the main thread wakes now and then.
        """
        left = math.inf if timeout is None else timeout
        if _thread.get_ident() == threading.main_thread().ident:
            while left > SIGNALS_WITHIN:
                if self.wait(SIGNALS_WITHIN):
                    return True
                left -= SIGNALS_WITHIN
        return self.wait(None if left == math.inf else left)

    @property
    def is_set(self) -> bool:
        """Whether it was set, and nothing has woken since."""
        return not self._gate.locked()

    def clear(self) -> bool:
        """Reset it; returns whether it was set."""
        return self._gate.acquire(False)


class SingleInstance:
    """Lets one thread at a time do something: of several that try to enter, the others are refused until it leaves."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()

    def enter(self) -> bool:
        """Whether the caller may do it; it must exit in the end. Never blocks."""
        return self._lock.acquire(False)

    def exit(self) -> None:
        with contextlib.suppress(RuntimeError):  # it has exited already
            self._lock.release()

    @property
    def is_entered(self) -> bool:
        return self._lock.locked()


def start(function: Callable[..., object], *args: Any, name: str | None = None) -> None:
    """Run ``function`` in a daemon thread. Raises RuntimeError when no thread is left, or at the interpreter's exit.

    Only long-lived threads get a ``name``: it registers them with ``threading``, which never forgets such threads. A
    debugger registers all.
    """
    # Not by Thread.start(), which takes a mutex shared by all threads of the process.
    if name is None and "pydevd" not in sys.modules:
        _thread.start_new_thread(function, args)
    else:
        _thread.start_new_thread(_run_registered, (name, function, args))


def _run_registered(name: str | None, function: Callable[..., object], args: tuple[Any, ...]) -> None:
    thread: Any = threading.current_thread()
    thread.name = name or thread.name
    # At a breakpoint, pydevd (of VS Code and PyCharm) stops all threads without these attributes. The watchdog must go
    # on, or the lock of the code at the breakpoint would be lost.
    thread.pydev_do_not_trace = thread.is_pydev_daemon_thread = True
    function(*args)


class Call:
    """A function that another thread calls, and its outcome. ``notify`` is called there at the end."""

    __slots__ = ("_event", "_function", "_notify", "error", "value")

    def __init__(self, function: Callable[[], object], notify: Callable[[], object] | None = None) -> None:
        self._event = AutoResetEvent()
        self._function = function
        self._notify = notify or self._event.set
        self.error: BaseException | None = None
        self.value: Any = None

    def start(self) -> Self:
        """Run it in a separate thread, or in this one if no thread can be started."""
        try:
            start(self.run)
        except RuntimeError:  # no threads left, or the interpreter exits
            self.run()
        return self

    def run(self) -> None:
        try:
            self.value = self._function()
        except BaseException as error:  # noqa: BLE001 - for the caller
            self.error = error
        self._notify()

    def wait(self, timeout: float | None = None) -> bool:
        return self._event.wait(timeout)

    @property
    def outcome(self) -> Any:
        """Its value, or its exception."""
        return self.value if self.error is None else self.error

    def result(self) -> Any:
        """Its value; raises its exception."""
        return value_of(self.outcome)


def snapshot(table: Iterable[T]) -> list[T]:
    """The present items of a table that other threads may change: of a deque, list or set, or of the keys, values or
    items of a dict. No other code may loop over such a table.
    """
    while True:
        try:
            return list(table)
        except RuntimeError as error:  # changed in the middle: without the GIL, or by a finalizer
            if "during iteration" not in str(error):  # from a signal handler
                raise


class Alive(Generic[T]):
    """The added objects that still exist."""

    __slots__ = ("_refs",)

    def __init__(self) -> None:
        # A WeakSet removes objects by Python code: a signal's exception would be swallowed there, and the object be
        # counted forever. Here each change is one call into C.
        self._refs: set[weakref.ref[T]] = set()

    def add(self, each: T) -> None:
        self._refs.add(weakref.ref(each, self._refs.discard))

    def discard(self, each: T) -> None:
        self._refs.discard(weakref.ref(each))

    def __len__(self) -> int:
        return len(self._refs)

    def __iter__(self) -> Iterator[T]:
        return iter([each for ref in snapshot(self._refs) if (each := ref()) is not None])


class WeakTable(Generic[T]):
    """Maps objects to values; an entry disappears with its object. Each change is one call into C, as in ``Alive``."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[weakref.ref[object], T] = {}

    def get(self, each: object) -> T | None:
        return self._values.get(weakref.ref(each))

    def set(self, each: object, value: T) -> T:
        self._values[weakref.ref(each, self._values.pop)] = value
        return value


class Helpers:
    """A few threads that run calls, in order; a thread ends when there is no call left.

    An executor would take mutexes that a signal may leave locked. A thread counts as long as its mark is kept, so one
    that was never started does not count.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._calls: deque[Call] = deque()
        self._marks = Alive[_ThreadMark]()

    def take(self, call: Call) -> None:
        """Run a call as soon as a thread is free."""
        # No call is forgotten without a mutex: the caller adds it before it counts the threads, and a thread gives up
        # its mark before it looks for calls again.
        self._calls.append(call)
        if len(self._marks) < self._most:
            mark = _ThreadMark()
            self._marks.add(mark)
            try:
                start(self._work, mark)
            except RuntimeError:  # no threads left, or the interpreter exits
                self._work(mark)

    def _work(self, mark: _ThreadMark) -> None:
        while self._calls:
            self._marks.add(mark)
            self._run_all()
            self._marks.discard(mark)

    def _run_all(self) -> None:
        while True:
            try:
                call = self._calls.popleft()
            except IndexError:
                return
            call.run()


class _ThreadMark:
    """A thread of ``Helpers``."""

    __slots__ = ("__weakref__",)


def run_in_thread(function: Callable[..., T], *args: Any) -> T:
    """Call a function in a separate thread, where no signal interrupts it; return or raise its outcome."""
    (outcome,) = gather([partial(function, *args)])
    return value_of(outcome)


def within(seconds: float, function: Callable[..., T], *args: Any) -> T | None:
    """The same; None if it takes longer than ``seconds``. The thread then continues without the caller."""
    call = Call(partial(function, *args)).start()
    return call.result() if call.wait(seconds) else None


def value_of(outcome: T | BaseException) -> T:
    """Return the result of a call, or raise its error."""
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def gather(functions: Sequence[Callable[[], T]]) -> list[T | BaseException]:
    """Call functions concurrently, each in a separate thread; return their values, or exceptions instead of them."""
    calls = [Call(function).start() for function in functions]
    for call in calls:
        call.wait()
    return [call.outcome for call in calls]


# --- the stacks of threads --------------------------------------------------------------------------------------------


def stack_at(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and those around it, from the innermost to the outermost."""
    while frame is not None:
        yield frame
        frame = frame.f_back


StackLine = tuple[str, int, str]
"""File, line and function."""
MOST_DUMPED = 100
"""The number of threads whose stacks faulthandler shows."""
_THREAD = r"(?:Current thread|Thread) 0x([0-9a-f]+)\b"
_LINE = r'  File "(.*)", line (\d+) in (.*)'
"""Of faulthandler."""


def calls_in(frames: Iterable[FrameType]) -> list[StackLine]:
    """Where the code of some frames is."""
    return [(each.f_code.co_filename, each.f_lineno, each.f_code.co_name) for each in frames]


def calls_by_thread() -> dict[int, list[StackLine]]:
    """Where each thread is, by its ident, from the innermost call to the outermost one."""
    dump = ""
    with (
        contextlib.suppress(OSError, ImportError),  # a subinterpreter has no faulthandler
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as file,
    ):
        import faulthandler

        faulthandler.dump_traceback(file)
        file.seek(0)
        dump = file.read()
    return {
        int(thread[1], 16): [(name, int(line), function) for name, line, function in re.findall(_LINE, section)]
        for section in dump.split("\n\n")
        if (thread := re.match(_THREAD, section))
    }


# --- events of asyncio tasks ------------------------------------------------------------------------------------------

_is_done = methodcaller("done")
_set_result = methodcaller("set_result", None)


class Sleep:
    """A sleep of the running task. ``end``, called in the task's loop, ends it; ``end_after`` takes an argument."""

    __slots__ = ("_future", "end", "end_after")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._future: asyncio.Future[None] = loop.create_future()
        # Functions written in C, which no signal handler interrupts, unlike the callbacks in asyncio's sleep(), wait()
        # and gather(): a loop logs what a callback raises, and the task would sleep on. The first call sets the result
        # of the future, unless it is done; next() returns its second argument afterwards.
        ended = map(_set_result, filterfalse(_is_done, [self._future]))
        self.end: Callable[[], object] = partial(next, ended, None)
        self.end_after: Callable[[object], object] = partial(next, ended)

    async def until_end(self, timeout: float | None) -> None:
        """Sleep for ``timeout`` seconds at most; None means no time limit."""
        timer = None if timeout is None else self._future.get_loop().call_later(timeout, self.end)
        try:
            await self._future
        finally:
            if timer is not None:
                timer.cancel()


async def sleep(seconds: float) -> None:
    """As asyncio.sleep()."""
    await Sleep(asyncio.get_running_loop()).until_end(seconds)


class LoopEvent:
    """Wakes the one task that waits for it, from any thread. It stays set until that task has woken."""

    # asyncio.Event takes a mutex of all loops when a task first waits for it, and a signal may leave that locked.

    __slots__ = ("_loop", "_sleep", "is_set")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._sleep: Sleep | None = None
        self.is_set = False

    def set(self) -> None:
        self.is_set = True
        sleep = self._sleep
        if sleep is not None:
            with contextlib.suppress(RuntimeError):  # the loop was closed
                self._loop.call_soon_threadsafe(sleep.end)

    async def wait(self, timeout: float | None = None) -> bool:
        """Sleep until it is set (True) or for ``timeout`` seconds (False); None means no time limit."""
        self._sleep = sleep = Sleep(self._loop)
        # set() does the two steps in the opposite order, so one of the two sees the other.
        if not self.is_set:
            await sleep.until_end(timeout)
        self._sleep = None
        if not self.is_set:
            return False
        self.is_set = False
        return True
