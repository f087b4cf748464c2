"""Which threads and tasks of this process are blocked until the running code has ended.

``async_to_sync()`` blocks its thread until a coroutine has ended; ``sync_to_async()`` and ``to_thread()`` keep their
task until a function has. What they run has an owner of its own, so it would wait for ever for a lock of its caller.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

from django_rlock.drivers.identity import Owner, running_loop

_PLUMBING = {"asgiref", "asyncio", "concurrent", "contextlib", "django_rlock", "queue", "selectors", "threading"}
"""Packages of which no line says what a thread or a task is doing."""

_LOOKS, _PAUSE = 100, 0.001
"""How often, and with which pauses in seconds, a thread looks whether a task is suspended."""

Task = asyncio.Task[Any]


def is_blocked_on_caller(owner: Owner) -> bool:
    """Whether an owner, a thread or a task, goes on only when the running code has ended."""
    task = _task_of(owner)
    if task is not None:
        _let_it_suspend(task)
        return _leads_to_caller(task, crossed=False)
    if not owner.thread or owner.ended:
        return False
    if running_loop() is not None and owner.thread == threading.get_ident():
        return True  # the loop runs inside of what the thread does
    loops = _loops()
    frames = _stack(_frame_of(owner.thread)) if loops else ()
    results = [frame.f_locals.get("call_result") for frame in frames if _is(frame, "asgiref.sync", "__call__")]
    tasks = [each for loop in loops for each in asyncio.all_tasks(loop)]
    for each in tasks:
        _let_it_suspend(each)
    return any(
        _awaits(each, "asgiref.sync", "main_wrap", "call_result", results) and _leads_to_caller(each, crossed=True)
        for each in tasks
    )


def whereabouts(owner: Owner) -> str:
    """An owner, and the line at which it is now: for errors."""
    task = _task_of(owner)
    if task is not None:
        frames, what = [*_coroutine_frames(task)][::-1], "task"
    else:
        frames, what = [*_stack(_frame_of(owner.thread))], "thread"
    for frame in frames:
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in _PLUMBING:
            return f"{what} {owner.place!r}, now at {frame.f_code.co_filename}:{frame.f_lineno}"
    return f"{what} {owner.place!r}"


def stack_of(owner: Owner) -> list[str]:
    """The calls in which another thread's owner is, the innermost last: file, line and function of each. Empty when it
    has ended."""
    task = _task_of(owner)
    if task is not None:
        frames = [*_coroutine_frames(task)]
        if getattr(task.get_coro(), "cr_running", False):
            frames = _calls_from(frames[0]) or frames
    elif owner.thread:
        frames = [] if owner.ended else [*_stack(_frame_of(owner.thread))][::-1]
    else:
        # A greenlet's owner refers to it weakly, to know when it ends.
        greenlet = next(iter(getattr(owner.is_alive, "args", ())), lambda: None)()
        frames = [*_stack(getattr(greenlet, "gr_frame", None))][::-1]
    calls = [(frame.f_code, frame.f_lineno) for frame in frames]
    return [f'File "{code.co_filename}", line {line}, in {code.co_name}' for code, line in calls]


def _calls_from(first: FrameType) -> list[FrameType]:
    """The calls from a frame of a coroutine that a thread runs now, the innermost last; empty if none does any more."""
    for frame in _current_frames().values():
        calls = [*_stack(frame)][::-1]
        if first in calls:
            return calls[calls.index(first) :]
    return []


def _frame_of(thread: int) -> FrameType | None:
    """The frame in which a thread is."""
    return _current_frames().get(thread)


def _current_frames() -> dict[int, FrameType]:
    """The frames in which all threads are, by their idents.

    No garbage may be collected meanwhile: CPython holds a mutex then that the end of a thread's local variables needs,
    https://github.com/python/cpython/issues/106883.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()  # noqa: SLF001 - documented
    finally:
        if collects:
            gc.enable()


def _task_of(owner: Owner) -> Task | None:
    return None if owner.task is None else owner.task()


def _let_it_suspend(task: Task) -> None:
    """Wait a little for a task that may be about to await what the running thread executes: what it awaits is known
    only when it is suspended."""
    for _ in range(_LOOKS):
        if running_loop() is not None or not getattr(task.get_coro(), "cr_running", False):
            return
        time.sleep(_PAUSE)


def _leads_to_caller(task: Task, crossed: bool) -> bool:
    """Whether a task awaits a function that the running thread executes for it; or, once a bridge was ``crossed``,
    whether it is the running task or awaits that. Tasks that await each other without a bridge are left alone.
    """
    current = asyncio.current_task() if running_loop() is not None else None
    running = [*_stack(sys._getframe())]  # noqa: SLF001 - documented
    jobs = [frame.f_locals.get("task_context") for frame in running if _is(frame, "asgiref.sync", "thread_handler")]
    calls = [getattr(frame.f_locals.get("self"), "fn", None) for frame in running if _is_work(frame)]
    seen: set[Task] = set()
    todo = [(task, crossed)]
    while todo:
        each, crossed = todo.pop()
        if crossed and each is current:
            return True
        if each in seen or each.done():
            continue
        seen.add(each)
        if _awaits(each, "asgiref.sync", "__call__", "task_context", jobs):
            return True
        if _awaits(each, "asyncio.threads", "to_thread", "func_call", calls):
            return True
        future = getattr(each, "_fut_waiter", None)
        todo += [(found, crossed) for found in (future, *getattr(future, "_children", ())) if _is_task(found)]
        todo += [(found, True) for found in _run_for(each)]
    return False


def _is_task(future: Any) -> bool:
    return isinstance(future, asyncio.Task)


def _run_for(task: Task) -> list[Task]:
    """The tasks that ``async_to_sync()`` runs for the function that a task awaits."""
    frames = [frame for frame in _coroutine_frames(task) if _is(frame, "asgiref.sync", "__call__")]
    return [each for frame in frames for each in frame.f_locals.get("task_context") or ()]


def _awaits(task: Task, module: str, function: str, name: str, values: list[Any]) -> bool:
    """Whether a task is inside of a coroutine function whose variable is one of these objects."""
    return any(
        _is(frame, module, function) and any(frame.f_locals.get(name) is value for value in values if value is not None)
        for frame in _coroutine_frames(task)
    )


def _coroutine_frames(task: Task) -> Iterator[FrameType]:
    """Those of a task that is suspended, from the outermost to the innermost; of the running one, its stack."""
    if running_loop() is not None and task is asyncio.current_task():
        yield from _stack(sys._getframe())  # noqa: SLF001 - documented
        return
    coro: Any = task.get_coro()
    while coro is not None:
        frame = getattr(coro, "cr_frame", None) or getattr(coro, "gi_frame", None)
        if frame is None:
            return
        yield frame
        coro = getattr(coro, "cr_await", None) or getattr(coro, "gi_yieldfrom", None)


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    """From the innermost to the outermost."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _loops() -> list[asyncio.AbstractEventLoop]:
    """The running loop, and those for whose tasks the running thread executes functions."""
    stack = _stack(sys._getframe())  # noqa: SLF001 - documented
    found = [frame.f_locals.get("loop") for frame in stack if _is(frame, "asgiref.sync", "thread_handler")]
    return [loop for loop in [running_loop(), *found] if loop is not None]


def _is(frame: FrameType, module: str, function: str) -> bool:
    return frame.f_code.co_name == function and frame.f_globals.get("__name__") == module


def _is_work(frame: FrameType) -> bool:
    return _is(frame, "concurrent.futures.thread", "run")
