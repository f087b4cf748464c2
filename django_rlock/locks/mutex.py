"""One call at a time for each lock and owner: nested calls are refused; those of a named owner wait in a FIFO mutex."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Coroutine
from functools import partial, update_wrapper
from inspect import CO_COROUTINE
from types import CodeType, FrameType, TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from django_rlock._core import process, threads
from django_rlock._transport.calls import Driver
from django_rlock._transport.identity import Owner
from django_rlock.locks.holds import NEAR, WAITS
from django_rlock.locks.kinds import AbstractLock
from django_rlock.locks.records import Key, key_of, spot_of

# --- nested calls -----------------------------------------------------------------------------------------------------

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
    spots = set(map(spot_of, lock.parts))
    frame = _current_frame(1)
    while frame is not None and frame.f_code.co_flags & CO_COROUTINE:
        frame = frame.f_back  # the running flow's own
    interrupts = False
    while frame is not None:
        if frame.f_code in _calls:
            interrupts = True
            other = frame.f_locals["lock"]
            if other.owner == lock.owner and not spots.isdisjoint(map(spot_of, other.parts)):
                raise RuntimeError(
                    f"A signal handler, a __del__ method or a receiver of signals takes or releases lock {lock.name!r} "
                    f"inside a call that does so for the same owner. Let it set a flag for the interrupted code, or "
                    f"start a thread that takes the lock."
                )
        frame = frame.f_back
    return interrupts


_current_frame: Callable[[int], FrameType | None] = sys._getframe


# --- the calls of named owners ----------------------------------------------------------------------------------------

# A FIFO mutex for each named owner of a lock: its calls run one after another, in the order of their arrival.
#
# The threads and tasks of this process that use one ``owner=`` for one lock share one hold. A signal may end a call at
# any point, so this is a queue of weak references instead of a mutex with a state of its own: an entry belongs to its
# call alone, and ends at the latest when the call's frames are gone.

S = TypeVar("S", bound="AbstractLock")
P = ParamSpec("P")
T = TypeVar("T")

NAMED_PATIENCE = 1.0
"""How long a call waits at least for an earlier call that does not sleep, in seconds: that call takes the time of a
command."""
_TURN_PAUSES = 0.001, 0.02


class QueuedCall:
    """One call in the queue. As a context manager it joins the queue, and leaves it at its end.

    Others wait for it inside ``with call.running``. This is a raw lock that nobody waits for: a signal handler that
    raises may keep a call from leaving the queue, and the error may keep its frames, but the raw lock is released.
    """

    __slots__ = ("__weakref__", "_queue", "key", "running")

    def __init__(self, queue: list[weakref.ref[QueuedCall]], key: Key) -> None:
        self._queue = queue
        self.key = key
        self.running = threads.raw_lock()

    async def acquire(self, lock: AbstractLock, driver: Driver, until: float | None) -> bool:
        """Wait for the earlier calls with this key until the monotonic time ``until`` (None: no limit), or a little
        longer for a call that is about to end; returns False if some have not ended. Raises RuntimeError if this call
        interrupts the call that it would wait for.
        """
        if self._is_first():
            return True
        # A signal handler would wait here for the call that it interrupts.
        refuse_nested(lock)
        patient_until, pause = driver.now() + NAMED_PATIENCE, _TURN_PAUSES[0]
        while not self._is_first():
            now = driver.now()
            if until is not None and now >= until and (now >= patient_until or self._is_waited_for()):
                return False
            await driver.sleep(pause)
            pause = min(2 * pause, _TURN_PAUSES[1])
        return True

    def _is_first(self) -> bool:
        for each in threads.snapshot(self._queue):
            other = each()
            if other is self:
                break
            if other is not None and other.key == self.key and other.running.locked():
                return False
        return True

    def _is_waited_for(self) -> bool:
        """Whether an earlier call waits for the lock itself, which may take long."""
        return WAITS.has(self.key)

    def __enter__(self) -> Self:
        self._queue.append(weakref.ref(self, self._queue.remove))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(ValueError):  # a forked child has another queue
            self._queue.remove(weakref.ref(self))


class FifoMutex:
    """The queued calls of all keys, in the order of their arrival; added and removed by single calls into C.

    A queue for each key would have to be removed when it becomes empty, while another call joins it. So there are a
    thousand queues, each for the few keys whose hashes end alike.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._queues: tuple[list[weakref.ref[QueuedCall]], ...] = tuple([] for _ in range(NEAR + 1))

    def call(self, key: Key) -> QueuedCall:
        """A call that may join the queue."""
        return QueuedCall(self._queues[hash(key) & NEAR], key)


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


@a_call
async def serialize(lock: AbstractLock, driver: Driver, owner: Owner, run: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a flow after the earlier calls of a named owner."""
    call = NAMED_CALLS.call(key_of(lock, owner))
    with call.running, call:
        await call.acquire(lock, driver, driver.now())
        return await run()
