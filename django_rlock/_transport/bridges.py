"""Code that runs for others: jobs of thread pools, and bridges between threads and event loops."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import linecache
import math
import queue
import selectors
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from opcode import opmap
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import asgiref.sync
from asgiref.current_thread_executor import CurrentThreadExecutor
from asgiref.sync import AsyncToSync

from django_rlock._core import foreign
from django_rlock._core.clock import monotonic
from django_rlock._core.foreign import running_loop
from django_rlock._core.threads import MOST_DUMPED, StackLine, WeakTable, calls_by_thread, calls_in, snapshot, stack_at
from django_rlock._transport.identity import BRIDGE, Owner

# --- bridges ----------------------------------------------------------------------------------------------------------

# Which threads and tasks of this process are blocked until the running code has ended.
#
# ``async_to_sync()`` blocks its thread until a coroutine has ended; ``sync_to_async()``, ``to_thread()`` and
# ``run_in_executor()`` keep their task until a function has. The function or coroutine has its own owner, so it would
# wait forever for a lock of its caller.
#
# What a task waits for is read from its future, and from the coroutines of tasks that are suspended. The frames of
# other threads are left alone: ``sys._current_frames()`` may stop the process if garbage is collected meanwhile
# (https://github.com/python/cpython/issues/106883). The stack shows that a thread waits for a future. Which future is
# certain only if all waiting threads wait for the same one.

_PLUMBING = (
    *(str(Path(str(each.__file__)).parent) for each in (asgiref.sync, asyncio, concurrent.futures)),
    *(str(each.__file__) for each in (contextlib, queue, selectors, threading)),
    str(Path(__file__).parents[1]),
)
"""The beginnings of the files whose lines are not shown: those of Python's and asgiref's bridges, and our own."""

_IN_RESULT = [
    [(str(threading.__file__), "wait"), (foreign.RESULTS_FILE, function)] for function in ("result", "exception")
]
"""The files and functions of the innermost calls of a thread that waits for a future."""
_LOOKS, _PAUSE = 100, 0.001
"""How often, and with which pauses in seconds, a thread checks whether a task is suspended."""

LOOK_SHARED_FOR = 0.25
"""For how many seconds a look at the tasks of a loop counts for all who begin to wait."""

Task = asyncio.Task[Any]


def is_blocked_on_caller(owner: Owner, is_patient: bool) -> bool:
    """Whether an owner, a thread or a task, continues only when the running code has ended.

    A task that awaits another one counts only if that ``is_patient``: else it ends when its own wait is over.
    """
    task = _task_of(owner)
    if task is not None:
        _let_it_suspend(task)
        return _leads_to_caller(task, is_crossed=False, is_sure=is_patient)
    if not owner.thread or owner.ended:
        return False
    if running_loop() is not None and owner.thread == threading.get_ident():
        return True  # the loop runs inside the thread's own work
    if _waits_for_result(owner.thread, _jobs() | _results_for_threads()):
        return True
    for each in [each for loop in _loops(owner.thread) for each in _bridges_in(loop, owner.thread)]:
        if _leads_to_caller(each, is_crossed=True, is_sure=True):
            return True
    return False


def whereabouts(owner: Owner) -> str:
    """An owner, and the line at which it is now: for errors."""
    task = _task_of(owner)
    what, calls = ("thread", calls_of(owner.thread)) if task is None else ("task", calls_in(_coroutine_frames(task)))
    for file, line, _ in calls if task is None else calls[::-1]:
        if not file.startswith(_PLUMBING):
            return f"{what} {owner.caller_name!r}, now at {file}:{line}"
    return f"{what} {owner.caller_name!r}"


def stack_of(owner: Owner) -> list[str]:
    """The calls in which another thread's owner is, the innermost last: file, line and function of each. Empty when it
    has ended."""
    task = _task_of(owner)
    if task is not None:
        calls = _calls_of_task(task)
    elif owner.thread:
        calls = [] if owner.ended else calls_of(owner.thread)[::-1]
    else:
        # A greenlet's owner refers to it weakly, to know when it ends.
        greenlet = next(iter(getattr(owner.is_alive, "args", ())), lambda: None)()
        calls = calls_in(stack_at(getattr(greenlet, "gr_frame", None)))[::-1]
    return [f'File "{file}", line {line}, in {function}' for file, line, function in calls]


def _calls_of_task(task: Task) -> list[StackLine]:
    """The frames of a task's coroutines, the innermost last, with the frames inside them if a thread runs them now."""
    calls = calls_in(_coroutine_frames(task))
    if calls and getattr(task.get_coro(), "cr_running", False):
        running = calls_of(foreign.loop_thread(task.get_loop()))[::-1]
        functions = [(file, function) for file, _, function in running]
        outermost = calls[0][0], calls[0][2]
        if outermost in functions:
            return running[functions.index(outermost) :]
    return calls


def calls_of(thread: int) -> list[StackLine]:
    """Where a thread is, from the innermost call to the outermost one."""
    return calls_by_thread().get(thread, [])


def _task_of(owner: Owner) -> Task | None:
    return None if owner.task is None else owner.task()


def _let_it_suspend(task: Task) -> None:
    """Wait a little for a task that may be about to await what the running thread executes: what it awaits is known
    only when it is suspended."""
    for _ in range(_LOOKS):
        if running_loop() is not None or not getattr(task.get_coro(), "cr_running", False):
            return
        time.sleep(_PAUSE)


def _leads_to_caller(task: Task, is_crossed: bool, is_sure: bool) -> bool:
    """Whether ``task`` cannot finish before the running code.

    True if it waits for a job of this thread; also if it is, or awaits, the running task, provided that a bridge was
    crossed (``is_crossed``) or that every wait on the way is unlimited (``is_sure``).
    """
    current = asyncio.current_task() if running_loop() is not None else None
    jobs = _jobs()
    seen: set[Task] = set()
    todo = [(task, is_crossed, is_sure)]
    while todo:
        each, crossed, sure = todo.pop()
        if each is current and (crossed or sure):
            return True
        if each in seen or each.done():
            continue
        seen.add(each)
        # Its code goes on after the loops inside it; no limit ends that earlier, for the task is not suspended.
        inner = [found for awaited in _awaited_inside(each) for found in _behind(awaited)]
        todo += [(found, True, True) for found in inner if isinstance(found, asyncio.Task)]
        if _is_cancelled_in_time(each):
            continue
        future = foreign.awaited_by(each)
        awaited = _behind(future)
        if not jobs.isdisjoint(awaited):
            return True
        # gather() ends with the first error, whatever else still runs.
        sure = sure and sum(not child.done() for child in foreign.gathered_by(future)) < 2
        frames = list(_coroutine_frames(each))
        in_group = [found for frame in frames for found in foreign.group_ended_in(frame)]
        todo += [(found, crossed, sure) for found in (*awaited, *in_group) if isinstance(found, asyncio.Task)]
        todo += [(found, True, True) for frame in frames for found in foreign.tasks_run_in(frame)]
    return False


def _is_cancelled_in_time(task: Task) -> bool:
    """Whether a suspended task goes on at a time limit: its own, or that of a task with which it is cancelled."""
    seen: set[Any] = set()
    todo: list[Any] = [task]
    while todo:
        each = todo.pop()
        if each in seen or each.done():
            continue
        seen.add(each)
        if foreign.is_limited_by_wait_for(each) or (isinstance(each, asyncio.Task) and _is_limited(each)):
            return True
        todo += foreign.cancelled_with(each)
    return False


def _is_limited(task: Task) -> bool:
    """Whether a suspended task goes on at a time limit, whatever it awaits: as ``asyncio.timeout()`` sets it."""
    # A coroutine refers to the objects whose blocks it is in.
    scopes = [getattr(each, "__self__", each) for coro in _coroutines(task) for each in gc.get_referents(coro)]
    generators = [each.gen for each in scopes if isinstance(each, foreign.GeneratorContext)]
    scopes += [each for generator in generators for each in gc.get_referents(generator)]
    deadlines = [each.when() for each in scopes if isinstance(each, asyncio.Timeout) and not each.expired()]
    deadlines += [getattr(each, "deadline", None) for each in scopes if type(each).__module__ in foreign.CANCEL_SCOPES]
    return any(deadline is not None and deadline < math.inf for deadline in deadlines)


def _jobs() -> set[Any]:
    """The futures of the jobs that the running thread executes."""
    return {foreign.job_of(frame) for frame in stack_at(sys._getframe())} - {None}  # noqa: SLF001 - documented


def may_be_awaited_later(holders: Iterable[Owner]) -> bool:
    """Whether another thread may wait for the result of the running task, now or later; or whether a shared look at the
    tasks of a loop may be older than the bridge of a thread among the holders."""
    looked_at = [loop for each in holders if each.thread for loop in _loops(each.thread)]
    return bool(looked_at or _results_for_threads())


def _results_for_threads() -> set[Any]:
    """The futures by which other threads get the result of the running task."""
    task = asyncio.current_task() if running_loop() is not None else None
    linked = foreign.linked_to(task, foreign.RESULT_LINK)
    return {each for each in linked if isinstance(each, concurrent.futures.Future)}


def _waits_for_result(thread: int, futures: Iterable[Any]) -> bool:
    """Whether a thread waits without a limit for the result of one of the futures. False if that is not known."""
    for future in futures:
        waiting = snapshot(foreign.waiters_for(future))
        if not waiting:
            continue
        calls = calls_by_thread()
        waiters = [each for each, its in calls.items() if [call[::2] for call in its[:2]] in _IN_RESULT]
        if (
            len(calls) < MOST_DUMPED
            and thread in waiters
            and len(waiters) == len(waiting)
            and linecache.getline(*calls[thread][0][:2]).strip() == foreign.UNLIMITED_WAIT
            and waiting == snapshot(foreign.waiters_for(future))
        ):
            return True
    return False


def _behind(future: Any) -> list[Any]:
    """A future, and the tasks and the jobs of executors for which it stands; those of gather(), too."""
    found = []
    todo = [future]
    while todo:
        each = todo.pop()
        found.append(each)
        if not isinstance(each, (asyncio.Task, concurrent.futures.Future)):
            linked = foreign.linked_to(each, *foreign.LINKS)
            todo += [other for other in linked if asyncio.isfuture(other) or isinstance(other, Future)]
            todo += foreign.gathered_by(each)
    return found


def _awaited_inside(task: Task) -> list[Any]:
    """The futures for which loops run inside the code of a task that is on this stack, as nest_asyncio lets them."""
    stack = list(stack_at(sys._getframe() if getattr(task.get_coro(), "cr_running", False) else None))  # noqa: SLF001
    outermost = getattr(task.get_coro(), "cr_frame", None)
    inner = stack[: stack.index(outermost)] if outermost in stack else []
    return [found for run in inner if (found := foreign.run_until_complete(run)) is not None]


class _Look(NamedTuple):
    """When the tasks of a loop were looked at, and the tasks of ``async_to_sync()``, by the thread that it blocks."""

    at: float
    bridges: dict[int | None, list[weakref.ref[Task]]]


_looks: WeakTable[_Look] = WeakTable()


def _bridges_in(loop: asyncio.AbstractEventLoop, thread: int) -> list[Task]:
    """The tasks of a loop for which ``async_to_sync()`` blocks a thread. All who begin to wait within LOOK_SHARED_FOR
    share one look at the tasks of the loop, which may be thousands."""
    look = _looks.get(loop)
    if look is None or monotonic() - look.at > LOOK_SHARED_FOR:
        look = _Look(monotonic(), {})
        for task in asyncio.all_tasks(loop):
            if getattr(getattr(task.get_coro(), "cr_code", None), "co_filename", None) == asgiref.sync.__file__:
                _let_it_suspend(task)
                look.bridges.setdefault(_blocked_thread(task), []).append(weakref.ref(task))
        _looks.set(loop, look)
    return [found for each in look.bridges.get(thread, ()) if (found := each()) is not None]


def _blocked_thread(task: Task) -> int | None:
    """The thread that ``async_to_sync()`` blocks until a task has ended."""
    for frame in _coroutine_frames(task):
        called = foreign.called_at_end(frame)
        if called is not None:
            executors = [*called, AsyncToSync.loop_thread_executors.get(task.get_loop())]
            blocked = [foreign.executor_thread(each) for each in executors if isinstance(each, CurrentThreadExecutor)]
            return next(iter(blocked), None)
    return None


def _coroutine_frames(task: Task) -> Iterator[FrameType]:
    """The frames of a suspended task, from the outermost to the innermost; for the running task, its stack."""
    if running_loop() is not None and task is asyncio.current_task():
        yield from stack_at(sys._getframe())  # noqa: SLF001 - documented
        return
    for coro in _coroutines(task):
        frame = getattr(coro, "cr_frame", None) or getattr(coro, "gi_frame", None)
        if frame is None:
            return
        yield frame


def _coroutines(task: Task) -> Iterator[Any]:
    """The coroutines of a task, from the outermost to the innermost."""
    coro: Any = task.get_coro()
    while coro is not None:
        yield coro
        coro = getattr(coro, "cr_await", None) or getattr(coro, "gi_yieldfrom", None)


def _loops(thread: int) -> set[asyncio.AbstractEventLoop]:
    """The running loop, those for whose tasks the running thread executes functions, and those for which
    ``async_to_sync()`` blocks a thread."""
    found = [foreign.loop_handling(frame) for frame in stack_at(sys._getframe())]  # noqa: SLF001 - documented
    executors = snapshot(AsyncToSync.loop_thread_executors.items())
    made = [loop for loop, each in executors if foreign.executor_thread(each) == thread]
    return {loop for loop in [running_loop(), *found, *made] if loop is not None}


# --- jobs -------------------------------------------------------------------------------------------------------------

# Jobs whose ends are reported, by a future. What other jobs of a library's threads leave held is found by their frames:
# see ``identity.running_call()``.

_REPORTS = "concurrent.futures.thread"
"""The module whose threads run jobs that have futures; bridges, which are in any thread, run such jobs, too."""
_METHODS = f"{__package__}.calls", f"{__package__.partition('.')[0]}.locks."
"""The beginnings of the names of modules between a call of a lock's method and this one."""
_WRAPPERS = "ddtrace.", "opentelemetry.", "sentry_sdk."
"""The same for modules that wrap the jobs of pools, and do nothing under a lock that a job takes."""
_CACHE, _RETURN, _INSTRUCTION = opmap.get("CACHE"), opmap["RETURN_VALUE"], 2
"""Two opcodes, and the size of an instruction in bytes."""


class Job:
    """One job that has a future. ``at_end`` are the functions to call when the future reports the end, in its thread.

    ``is_of_request`` is whether the thread works for one request only, as asgiref's thread-sensitive ones under Django.
    """

    __slots__ = ("at_end", "is_of_request", "is_over")

    def __init__(self, future: Future[Any], is_of_request: bool) -> None:
        self.at_end: dict[object, Callable[[], object]] = {}
        self.is_of_request = is_of_request
        self.is_over = False
        future.add_done_callback(self._end)

    def _end(self, _future: object) -> None:
        self.is_over = True
        while self.at_end:
            self.at_end.popitem()[1]()


def running_job(owner: Owner) -> Job | None:
    """The job with a future that the running thread, an owner, works on.

    Raises RuntimeError if the job consists of the call of a lock's method alone.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - documented
    while frame is not None and _only_passes_on(frame):
        frame = frame.f_back
    if frame is not None and frame.f_globals.get("__name__") in foreign.RUNNERS:
        raise RuntimeError(
            "A lock was to be taken by a job of a pool that does nothing else, as sync_to_async(lock.acquire), "
            "to_thread(lambda: lock.acquire()) and submit(lock.acquire) are: the pool's thread would own the lock, and "
            "goes on with other jobs. Give the pool a function with the whole block, 'with lock:', or await "
            "lock.aacquire(), or give the lock an owner=."
        )
    job: Job | None = owner.job
    if (job is None or job.is_over) and (owner.pool == _REPORTS or "task_context" in BRIDGE.__dict__):
        job = owner.job = next((Job(*each) for each in _jobs_of(frame)), None)
    return job


def _only_passes_on(frame: FrameType) -> bool:
    """Whether a frame of a lock's method or of the project does nothing more than to return what it has called."""
    name = str(frame.f_globals.get("__name__"))
    if name.startswith((*_METHODS, *_WRAPPERS)):
        return True
    if name in foreign.RUNNERS:
        return False
    code, at = frame.f_code.co_code, frame.f_lasti + _INSTRUCTION
    while code[at] == _CACHE:  # belongs to the call
        at += _INSTRUCTION
    return code[at] == _RETURN


def _jobs_of(frame: FrameType | None) -> Iterator[tuple[Future[Any], bool]]:
    """The jobs to which a frame belongs, innermost first: the arguments of ``Job``."""
    is_sensitive = False
    for each in stack_at(frame):
        if each.f_globals.get("__name__") in foreign.RUNNERS:
            runner = foreign.local(each, "self")
            is_sensitive = is_sensitive or foreign.is_thread_sensitive(runner)
            future = getattr(runner, "future", None)
            if isinstance(future, Future):
                yield future, is_sensitive
