"""Around a call of a lock's method: its binding, its block's end, nested calls, named owners' queue, a pool's jobs."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import weakref
from collections.abc import Callable, Coroutine, Mapping
from copy import copy
from functools import partial, update_wrapper
from inspect import signature
from types import CodeType, FrameType, TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

from django.core.exceptions import SynchronousOnlyOperation

from django_rlock._core import process
from django_rlock._core.callbacks import log
from django_rlock._core.interruptions import Method, guarded
from django_rlock._transport.bridges import Job, running_job
from django_rlock._transport.calls import Driver, run_flow
from django_rlock._transport.identity import Owner, current_owner, may_block_loops, running_loop, thread_owner
from django_rlock._transport.registry import async_driver, sync_driver
from django_rlock.locks.holds import HOLDS, NOTHING, WAITS, Before
from django_rlock.locks.kinds import AbstractLock, Named
from django_rlock.locks.records import Hold, Key, key_of

logger = logging.getLogger("django_rlock.locks")

# --- blocks -----------------------------------------------------------------------------------------------------------

# The ends of blocks. A block belongs to the owner that entered it, also if its end runs elsewhere: the end of a dropped
# generator may run in another thread or task. And a block is left even if its ``with`` statement was interrupted before
# it could leave it.
#
# Python looks up ``__exit__`` before it calls ``__enter__``; so that is the time to note the owner.


def released_when_dropped(exit_block: Method) -> Method:
    """Pass the ``owner`` that enters the block to an ``__exit__`` with such a parameter, and make it release the lock
    if it is dropped. The class is a lock, or has a ``lock`` that ``__enter__`` takes.

    A lock with ``owner=`` is not released, because other threads may have entered blocks under the same name.
    """
    return cast("Method", _ExitMethod(exit_block))


class _ExitMethod:
    _has_lock: bool

    def __init__(self, exit_block: Callable[..., object]) -> None:
        self._exit_block = exit_block
        self._wants_owner = "owner" in signature(exit_block).parameters

    def __set_name__(self, kind: type, _name: str) -> None:
        self._has_lock = hasattr(kind, "lock")

    def __get__(self, block: Any, _kind: type) -> Callable[..., object]:
        if block is None:  # by contextlib.ExitStack, among others
            return _for(thread_owner(), self._exit_block) if self._wants_owner else self._exit_block
        lock, owner = block.lock if self._has_lock else block, thread_owner()
        around = HOLDS.before(_keys_of(lock, owner), lock._depth) if HOLDS.table else _NOTHING_HELD
        release = partial(_release_new, lock, owner, around)
        return guarded(self._exit_block, block, release, owner if self._wants_owner else None)


def left_by_its_owner(exit_block: Method) -> Method:
    """Pass the ``owner`` that enters the block to an ``__aexit__``."""
    return cast("Method", _AsyncExitMethod(exit_block))


class _AsyncExitMethod:
    def __init__(self, exit_block: Callable[..., object]) -> None:
        self._exit_block = exit_block

    def __get__(self, block: Any, _kind: type) -> Callable[..., object]:
        if block is None:
            return _for(current_owner(), self._exit_block)
        return partial(self._exit_block, block, owner=current_owner())


def _for(owner: Owner, exit_block: Callable[..., object]) -> Callable[..., object]:
    def leave(block: Any, *error: Any) -> object:
        return exit_block(block, *error, owner=owner)

    return update_wrapper(leave, exit_block)


_NOTHING_HELD: Mapping[Key, Before] = {}


def _keys_of(lock: Any, owner: Owner) -> list[Key]:
    return [key_of(part, owner) for part in lock.parts]


def _release_new(lock: Any, owner: Owner, around: Mapping[Key, Before]) -> None:
    """Release the holds of a lock that a statement has taken in addition to those ``around`` it."""
    keys = _keys_of(lock, owner)
    if HOLDS.has_none(keys) or thread_owner() is not owner:
        return
    for part, key in zip(lock.parts, keys, strict=True):
        hold, former = HOLDS.at(key), around.get(key, NOTHING)
        if hold is not None and former.is_exceeded(hold, lock._depth(key)[0]):
            leave_interrupted(lock, part, hold, former.blocks)


def leave_interrupted(lock: Any, part: Any, hold: Hold, blocks: int) -> None:
    """Release the hold of a block of the running thread whose ``__exit__`` was interrupted, of one of the lock's parts.

    ``blocks`` is the number of enclosing blocks.
    """
    hold.scoped = blocks + 1
    if part.until_commit != lock.until_commit:
        part = copy(part)
        part.until_commit = lock.until_commit
    run_flow(part._exit, (sync_driver(part.using), hold.owner, InterruptedError()))


Flow = TypeVar("Flow", bound=Callable[..., object])

_calls: set[CodeType] = set()
"""The code objects of flows that take or release a lock, with the index of their argument ``lock``."""


def a_call(flow: Flow) -> Flow:
    """Mark a flow that no other flow for the same lock and owner may interrupt."""
    _calls.add(flow.__code__)
    return flow


def refuse_nested(lock: AbstractLock) -> bool:
    """Raise RuntimeError if the running flow interrupts a flow for the same lock and owner; returns whether it
    interrupts any flow.
    """
    names = {(part.using, part.name) for part in lock.parts}
    frame = _current_frame(1)
    while frame is not None and frame.f_code is not run_flow.__code__:
        frame = frame.f_back  # the running flow's own
    interrupts = False
    while frame is not None:
        if frame.f_code in _calls:
            interrupts = True
            other = frame.f_locals["lock"]
            if other.owner == lock.owner and any((part.using, part.name) in names for part in other.parts):
                raise RuntimeError(
                    f"A signal handler, a __del__ method or a receiver of signals takes or releases lock {lock.name!r} "
                    f"inside a call that does so for the same owner. Let it set a flag for the interrupted code, or "
                    f"start a thread that takes the lock."
                )
        frame = frame.f_back
    return interrupts


_current_frame: Callable[[int], FrameType | None] = sys._getframe


def give_back_at_job_end(lock: AbstractLock, owner: Owner) -> None:
    """Before a pool's thread takes a lock: make sure that the end of its job releases locks that are still held.

    Raises RuntimeError if the job consists only of the call that takes the lock.
    """
    job = running_job(owner)
    if job is None:
        return
    parts = {key_of(part, owner): part for part in lock.parts}
    new = [key for key in parts if key not in job.at_end]
    before = HOLDS.before(new, lock._depth)
    for key in new:
        job.at_end[key] = partial(_give_back, job, lock, parts[key], key, before.get(key, NOTHING))


def _give_back(job: Job, lock: AbstractLock, part: AbstractLock, key: Key, former: Before) -> None:
    for _ in range(lock._depth(key)[0] - former.depth):
        hold = HOLDS.at(key)
        if hold is None or (job.is_of_request and hold.context is not None):
            return  # the middleware releases it at the end of the request
        log(
            logger, logging.WARNING,
            "Lock %r was still held when a job of the pool's thread %r ended; it is released now. Use 'with', release "
            "the lock in the same job, or use owner=.",
            part.name, hold.caller_name,
        )  # fmt: skip
        leave_interrupted(lock, part, hold, former.blocks)


# --- the calls of named owners ----------------------------------------------------------------------------------------

# A FIFO mutex for each named owner of a lock: its calls run one after another, in the order of their arrival.
#
# The threads and tasks of this process that use one ``owner=`` for one lock share one hold. A signal may end a call at
# any point, so this is a queue of weak references instead of a mutex with a state of its own: an entry belongs to its
# call alone, and ends at the latest when the call's frames are gone.

S = TypeVar("S", bound="AbstractLock")
P = ParamSpec("P")
T = TypeVar("T")

PATIENCE = 1.0
"""How long a call waits at least for an earlier call that does not sleep, in seconds: that call takes the time of a
command."""
_PAUSES = 0.001, 0.02


class QueuedCall:
    """One call in the queue. As a context manager it leaves the queue at its end."""

    __slots__ = ("__weakref__", "_queue", "is_over", "key")

    def __init__(self, queue: list[weakref.ref[QueuedCall]], key: Key) -> None:
        self._queue = queue
        self.key = key
        self.is_over = False

    async def acquire(self, lock: AbstractLock, driver: Driver, until: float | None) -> bool:
        """Wait for the earlier calls with this key until the monotonic time ``until`` (None: no limit), or a little
        longer for a call that is about to end; returns False if some have not ended. Raises RuntimeError if this call
        interrupts the call that it would wait for.
        """
        if not self._is_first():
            refuse_nested(lock)
        patient_until, pause = driver.now() + PATIENCE, _PAUSES[0]
        while not self._is_first():
            now = driver.now()
            if until is not None and now >= until and (now >= patient_until or self._is_waited_for()):
                return False
            await driver.sleep(pause)
            pause = min(2 * pause, _PAUSES[1])
        return True

    def _is_first(self) -> bool:
        for each in list(self._queue):
            other = each()
            if other is self:
                break
            if other is not None and other.key == self.key and not other.is_over:
                return False
        return True

    def _is_waited_for(self) -> bool:
        """Whether an earlier call waits for the lock itself, which may take long."""
        return any(wait.key == self.key for wait in WAITS.snapshot())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.is_over = True
        with contextlib.suppress(ValueError):  # a forked child has another queue
            self._queue.remove(weakref.ref(self))


class FifoMutex:
    """The queued calls of all keys, in the order of their arrival; added and removed by single calls into C."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._queue: list[weakref.ref[QueuedCall]] = []

    def join(self, key: Key) -> QueuedCall:
        call = QueuedCall(self._queue, key)
        self._queue.append(weakref.ref(call, self._queue.remove))
        return call


NAMED_CALLS = FifoMutex()
process.on_fork("holds", NAMED_CALLS.forget)


def serialized(
    flow: Callable[Concatenate[S, Driver, Owner, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, Driver, Owner, P], Coroutine[Any, Any, T]]:
    """Make calls of a flow wait for each other if they come from a named owner that several threads or tasks share.

    A call does not wait for another call that itself waits for the lock: in that case this process holds nothing.
    """

    def call(lock: S, driver: Driver, owner: Owner, /, *args: P.args, **options: P.kwargs) -> Coroutine[Any, Any, T]:
        # The call without a star makes the coroutine. Python 3.11 runs pending signal handlers after one with a star,
        # before the coroutine could be awaited.
        run = partial(flow, lock, driver, owner, *args, **options)
        return serialize(lock, driver, owner, run) if owner.is_named else run()

    update_wrapper(call, flow)
    return call


async def serialize(lock: AbstractLock, driver: Driver, owner: Owner, run: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a flow after the earlier calls of a named owner."""
    with NAMED_CALLS.join(key_of(lock, owner)) as call:
        await call.acquire(lock, driver, driver.now())
        return await run()


# --- bindings ---------------------------------------------------------------------------------------------------------

# The two bindings of a flow: a blocking method, and a coroutine method with Django's ``a`` prefix.
#
# Both are written out, so that editors, notebooks and mocks find ordinary methods. Their body is written once, in a
# coroutine function that has the method's name with an underscore, and the driver as its first argument.


def blocking_driver(of: Named) -> Driver:
    """The blocking driver. Raises ImproperlyConfigured for a wrong alias; SynchronousOnlyOperation in an event loop,
    unless DJANGO_ALLOW_ASYNC_UNSAFE is set."""
    if os.getpid() != process.pid:
        process.notice_fork()
    driver = sync_driver(of.using)
    if running_loop() is not None and not may_block_loops():
        raise SynchronousOnlyOperation(
            "A blocking method was called inside an event loop, which it would block. "
            "Use the async methods (their names begin with a, as aacquire; async with), or move the whole 'with' "
            "statement into a function that you call by sync_to_async()."
        )
    return driver


def awaited_driver(of: Named) -> Driver:
    """The async driver. Raises ImproperlyConfigured for a wrong alias, RuntimeError outside asyncio."""
    if os.getpid() != process.pid:
        process.notice_fork()
    if running_loop() is None:
        raise RuntimeError(
            "The async methods need a running asyncio event loop, and there is none here. Other loops, such as trio's, "
            "are not supported: call the blocking methods in a thread, the whole block in one function."
        )
    return async_driver(of.using)
