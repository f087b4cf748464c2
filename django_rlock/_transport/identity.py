"""The owner of a lock: a thread, a task or a greenlet of one process.

In Redis an owner is ``<client id>:<number>``, plus ``:<label>`` if one is set (a Celery task's id). The client id is
new in every process, after every fork, and in every copy of a process whose memory was stored and restored. The number
belongs to one attempt to take a lock, and to the hold that it takes. In this process an owner has a number for its
life. No number is used twice. Thread idents and ``id()`` are not used, because the system recycles them.
"""

from __future__ import annotations

import asyncio
import dis
import inspect
import itertools
import os
import sys
import sysconfig
import threading
import uuid
import weakref
from collections.abc import Callable, Coroutine, Sequence
from functools import lru_cache, partial
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, TypeVar

from asgiref.sync import SyncToAsync

from django_rlock._core.clock import JUMP, has_jumped, monotonic, wall, wall_offset
from django_rlock._core.foreign import BRIDGES, databases_of_thread, local, locals_of, running_loop
from django_rlock._core.process import MadeOnce, loaded, note_restored, on_fork, on_restore
from django_rlock._core.threads import Alive, WeakTable, stack_at

AsyncMethod = TypeVar("AsyncMethod", bound=Callable[..., Coroutine[Any, Any, Any]])


class Owner:
    """One thread, task or greenlet.

    ``serial`` never changes. ``owner_id`` is its name in Redis in its latest attempt. ``caller_name`` is its name in
    reports. ``is_named`` says whether the caller chose the name. ``is_alive`` returns whether the thread, task or
    greenlet still runs; this object may outlive it, in holds, stored exceptions and frames. ``thread`` is a thread's
    ident (0 for others), and ``task`` returns a task. ``pool`` is the module that gives the thread or greenlet one job
    after another ("" if none does), ``job`` is its job with a future, and ``calls`` are its jobs without a future that
    have left something held. ``is_calling`` is set while a call takes or releases a lock. ``holds`` are its holds, and
    perhaps some that have ended (``locks.holds``).
    """

    __slots__ = (
        "caller_name",
        "calls",
        "holds",
        "is_alive",
        "is_calling",
        "job",
        "label",
        "owner_id",
        "pool",
        "serial",
        "task",
        "thread",
    )

    is_named = False
    serial: int | str
    job: Any
    calls: Alive[LoopCall] | None

    def __init__(
        self,
        caller_name: str,
        is_alive: Callable[[], object] = lambda: True,
        thread: int = 0,
        task: Callable[[], asyncio.Task[Any] | None] | None = None,
    ) -> None:
        self.serial = next(_process.numbers)
        self.caller_name = caller_name
        self.is_alive = is_alive
        self.thread = thread
        self.task = task
        self.pool = "" if task is not None else _pool()
        self.job = self.calls = None
        self.is_calling = False
        self.holds: dict[Any, None] = {}
        self.label = ""
        self.owner_id = f"{_process.client_id}:{next(_process.numbers)}"  # no attempt's

    @property
    def ended(self) -> bool:
        """Whether the thread, task or greenlet has ended, so that it can no longer release anything."""
        return not self.is_alive()

    def new_id(self, now: float | None = None) -> str:
        """Draw the owner id of an attempt: no other attempt has it, so no command that comes late can touch another's
        hold. See rules 8 and 15 of docs/design/late-commands.md. ``now`` is the monotonic time if its caller has just
        read it.
        """
        # As has_jumped(), without a call.
        if not -JUMP < wall() - (monotonic() if now is None else now) - _process.clocks < JUMP:
            _notice_restore()
        self.owner_id = owner_id = f"{_process.client_id}:{next(_process.numbers)}{self.label}"
        return owner_id


class NamedOwner(Owner):
    """An owner whose name the caller chose. It belongs to no thread or task, and every process may use the name.

    It never ends.
    """

    __slots__ = ()

    is_named = True
    ended = False

    def __init__(self, name: str) -> None:
        self.serial = self.owner_id = name
        self.caller_name = self.label = ""
        self.thread, self.task, self.job = 0, None, None
        self.is_calling = False
        self.pool = ""
        self.holds = {}

    def new_id(self, now: float | None = None) -> str:
        """The name, which is fixed. A grant that is not wanted ends when its lease expires."""
        return self.owner_id


class _Life:
    """Referenced by a thread's local storage only, so that it is collected when the thread ends."""

    __slots__ = ("__weakref__",)


class _Process:
    """State that a forked child must not share with its parent. ``clocks`` is the distance of the clocks at which the
    client id is known to be this process's alone.

    The client id is drawn when it is first needed: a platform may store the memory of a process that has only loaded
    the project, and start several copies of it.
    """

    def __init__(self) -> None:
        self.numbers = itertools.count(1)
        self.threads = threading.local()
        self.owners: WeakTable[Owner] = WeakTable()
        """The owners for tasks and greenlets."""
        self.clocks = wall_offset()

    @MadeOnce
    def client_id(self) -> str:
        random = str(uuid.UUID(bytes=os.urandom(16), version=4))
        # Version 8 lets scripts distinguish our clients from Redisson's, which use random UUIDs of version 4.
        return f"{random[:14]}8{random[15:]}"


class Use:
    """Whether this process holds locks or waits for them; the package ``locks`` sets it."""

    is_idle: Callable[[], bool] = staticmethod(lambda: True)


def _notice_restore() -> None:
    """Take a new client id after a jump of a clock, if nothing depends on the present one.

    Restored memory has clocks that jump: the wall clock has continued, and the other one has not. A pause of the
    machine looks the same, and a new client id does no harm then.
    """
    # In this order: a lock that is held for days after a jump must not make each acquire read the clocks again.
    if Use.is_idle() and has_jumped(_process.clocks):
        note_restored()


def may_block_loops() -> bool:
    """Whether blocking methods may be called inside an event loop: as with Django's ORM, if the environment says so."""
    return bool(os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE"))


def must_not_block() -> bool:
    """Whether the caller would block an event loop, asyncio's or trio's."""
    if running_loop() is None:
        lowlevel = loaded("trio.lowlevel")
        try:
            if lowlevel is None or lowlevel.current_task() is None:
                return False
        except (AttributeError, RuntimeError):  # another thread imports trio now, or no task runs here
            return False
    return not may_block_loops()


_process = _Process()
_calls_for_owners: set[CodeType] = set()
"""Filled on import, and the same in every process."""


def client_id() -> str:
    """This process's id in Redis: 36 characters, drawn at its first use, and anew after a fork or a restore."""
    return _process.client_id


def new_number() -> int:
    """A number that this process has never used and will never use again."""
    return next(_process.numbers)


def new_request() -> str:
    """A name for a request to a server; it is never used twice."""
    if not -JUMP < wall() - monotonic() - _process.clocks < JUMP:
        _notice_restore()
    return f"{_process.client_id}:{new_number()}"


def thread_owner() -> Owner:
    """The owner for the running greenlet, if there is one, else for the running thread."""
    greenlet = loaded("greenlet")
    # Without monkey patching, or with late patching, all greenlets of a thread share its threading.local.
    if greenlet is not None and (current := greenlet.getcurrent()).parent is not None:
        known = _process.owners.get(current)
        if known is None:
            name = threading.current_thread().name
            known = _process.owners.set(current, Owner(name, partial(_runs, weakref.ref(current))))
        return known
    try:
        owner: Owner = _process.threads.owner
    except AttributeError:
        life = _process.threads.life = _Life()
        name = threading.current_thread().name
        owner = _process.threads.owner = Owner(name, weakref.ref(life), threading.get_ident())
    return owner


def for_its_owner(method: AsyncMethod) -> AsyncMethod:
    """Mark an async method whose result belongs to the awaiting task, so that it must not run as a separate task."""
    _calls_for_owners.add(method.__code__)
    return method


def task_owner() -> Owner:
    """The owner for the running asyncio task. RuntimeError outside a task, or if the task is the call itself."""
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("The async methods need a running asyncio task: it owns the locks that they take.")
    owner = _process.owners.get(task)
    if owner is None:
        only = _only_call_of(task, sys._getframe(1))  # noqa: SLF001 - documented
        if only is not None:
            raise RuntimeError(
                f"{only}() of a lock was made a separate task, which would own the lock and ends with the call: by "
                f"create_task(), gather(), shield(), async_to_sync() or, before Python 3.12, wait_for(). Await it in "
                f"the task that works under the lock; sync code has blocking methods. For a limit use wait_time= or "
                f"asyncio.timeout(); for several locks rlock('a', 'b')."
            )
        its = weakref.ref(task)
        owner = _process.owners.set(task, Owner(task.get_name(), partial(_goes_on, its), task=its))
    return owner


def _only_call_of(task: asyncio.Task[Any], frame: FrameType) -> str | None:
    """The name of the lock's method that the running task calls, if the task does nothing else."""
    outermost = getattr(task.get_coro(), "cr_frame", None)
    for each, around in itertools.pairwise(stack_at(frame)):
        if each.f_code in _calls_for_owners:
            is_only = each is outermost or around.f_globals.get("__name__") in BRIDGES
            return each.f_code.co_name if is_only else None
        if each is outermost:
            break
    return None


def _goes_on(ref: weakref.ref[asyncio.Task[Any]]) -> bool:
    task = ref()
    return task is not None and not task.done() and not task.get_loop().is_closed()


def current_owner() -> Owner:
    """The owner for the running task inside an event loop, else for the running thread."""
    if running_loop() is None or asyncio.current_task() is None:
        return thread_owner()
    return task_owner()


def _runs(ref: weakref.ref[Any]) -> bool:
    current = ref()
    return current is not None and not current.dead


def _after_fork() -> None:
    global _process  # noqa: PLW0603 - the one place where the child gets its own
    _process = _Process()


def _after_restore() -> None:
    """Have the client id drawn anew."""
    _process.__dict__.pop("client_id", None)
    _process.clocks = wall_offset()  # last, so that other threads that see the jump do not use the former client id


on_fork("identity", _after_fork)
on_restore("identity", _after_restore)


BRIDGE: Any = SyncToAsync.threadlocal
"""Has a ``task_context`` in threads that run functions for ``sync_to_async()``, or have done so."""


# --- transactions -----------------------------------------------------------------------------------------------------


def in_transaction() -> bool:
    """Whether the running thread may be inside a transaction, perhaps only that of a test case."""
    for connection in tuple(databases_of_thread().values()):
        if getattr(connection, "in_atomic_block", False):  # not those of an event loop, which are behind one value
            return True
    return running_loop() is not None  # as a notebook's is, with DJANGO_ALLOW_ASYNC_UNSAFE


# --- jobs -------------------------------------------------------------------------------------------------------------

# A thread of a library runs one job after another: a function of the library loops, and each round of the loop calls a
# function for the next job. What a job leaves held must not stay with the thread.
#
# No library need be known for this. If a thread or greenlet begins with a looping function that is installed, then the
# function that this one has called is the job. Where the project's own code comes first, or a module (a script, a
# shell), the thread itself is the job: the project's code that still runs there may release the lock.

_INSTALLED = tuple(f"{os.sep}{name}-packages{os.sep}" for name in ("site", "dist"))
_STANDARD = sysconfig.get_path("stdlib") + os.sep
_INITIALIZED = {"concurrent.futures.thread", "multiprocessing.pool"}
"""Modules that call an initializer before their loop: a job, too. Other libraries may call its counterpart later."""
_MODULE = "<module>"
_SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_OURS = __package__.partition(".")[0]


class LoopCall:
    """A job: a function that the loop of a library's thread has called.

    ``_frame`` is its frame, which keeps what the function refers to. So only a hold that no block keeps refers to a
    call: usually the function releases it; if not, the next look at the hold empties the frame.
    """

    __slots__ = ("__weakref__", "_frame", "_last_line", "_line", "_loop")

    def __init__(self, frame: FrameType, loop: FrameType, last_line: int) -> None:
        self._frame = frame
        self._loop = loop
        self._line = loop.f_lineno
        self._last_line = last_line

    def is_same(self, call: LoopCall) -> bool:
        """Whether both stand for one call."""
        return self._frame is call._frame

    @property
    def is_over(self) -> bool:
        try:
            self._frame.clear()
        except RuntimeError:  # it runs
            return False
        # Further down in the loop, the library may call another function, which releases the lock.
        return not self._line < (self._loop.f_lineno or 0) <= self._last_line


def running_call() -> LoopCall | None:
    """The job that the running thread or greenlet executes, if a library gives it one after another."""
    frames = _stack_from(sys._getframe(1))  # noqa: SLF001 - documented; without this frame, which has the list
    at = _loop_in(frames)
    if at is None:
        return None
    loop, inside = frames[at], [each for each in frames[at + 1 :] if _package(each) != _OURS]
    last_line = max((line for begin, end, line in _loops(loop.f_code) if begin <= loop.f_lasti <= end), default=0)
    is_job = (
        inside != []
        # Where the loop comes first, it is a process of a pool: that may keep a lock from its beginning to its end.
        and (last_line > 0 or (at > 0 and loop.f_globals["__name__"] in _INITIALIZED))
        # The loop may be the project's, which is installed as well.
        and _package(inside[-1]) != _package(loop)
        # A module lasts, and a generator that is suspended may go on in another job.
        and not any(each.f_code.co_name == _MODULE or each.f_code.co_flags & _SUSPENDS for each in inside)
    )
    return LoopCall(frames[at + 1], loop, last_line) if is_job else None


def _pool() -> str:
    """The module that gives the running thread or greenlet one job after another; "" if none does."""
    frames = _stack_from(sys._getframe(1))  # noqa: SLF001
    at = _loop_in(frames)
    return "" if at is None else str(frames[at].f_globals["__name__"])


def _stack_from(frame: FrameType) -> list[FrameType]:
    """A frame and those around it, the outermost first; without those around the beginning of a child process: a forked
    child has its parent's."""
    return [*itertools.takewhile(_is_inside_process, stack_at(frame))][::-1]


def _is_inside_process(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") != "multiprocessing.process"


def _loop_in(frames: Sequence[FrameType]) -> int | None:
    """Where the function is that loops over the jobs of a thread, in its frames from the outermost to the innermost."""
    for at, (frame, called) in enumerate(itertools.pairwise(frames)):
        if frame.f_code.co_filename == threading.__file__:
            continue
        is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED  # else a module
        if not is_function or not is_installed(frame) or _is_method_of_project(frame):
            return None
        if _loops(frame.f_code):
            return at
        # Else it wraps the thread's function, or calls another function of the library, which loops.
        if not was_given(frame, called) and _package(frame) != _package(called):
            return None
    return None


def is_installed(frame: FrameType) -> bool:
    """Whether a function belongs to the standard library or an installed package."""
    name = frame.f_code.co_filename
    return name.startswith(_STANDARD) or any(part in name for part in _INSTALLED)


def _is_method_of_project(frame: FrameType) -> bool:
    """Whether a function is a method that another package's class has inherited: its object may keep a lock."""
    code = frame.f_code
    its = local(frame, "self") if code.co_varnames[:1] == ("self",) and code.co_argcount else None
    return its is not None and type(its).__module__.partition(".")[0] != _package(frame)


def was_given(frame: FrameType, called: FrameType) -> bool:
    """Whether a function has got the function that it calls as an argument or in its closure, as wrappers do."""
    for function in locals_of(frame).values():
        # By the exact types: isinstance() evaluates Django's lazy objects.
        given: Any = function
        while type(given) is partial:
            given = given.func
        if type(given) is MethodType:
            given = given.__func__
        if type(given) is FunctionType and given.__code__ is called.f_code:
            return True
    return False


@lru_cache(maxsize=256)
def _loops(code: CodeType) -> list[tuple[int, int, int]]:
    """Where the loops of a function begin and end, and the last line of each."""
    jumps = [(each.argval, each.offset) for each in dis.get_instructions(code) if "JUMP_BACKWARD" in each.opname]
    lines = [(at, line or 0) for at, _, line in code.co_lines()]
    return [(begin, end, max(line for at, line in lines if begin <= at <= end)) for begin, end in jumps]


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]
