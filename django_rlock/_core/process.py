"""Resources of a process: created once, replaced after a fork and when the settings change, closed at exit.

Modules register their resources here, under one of the STAGES; nothing else in the package hooks into forks, restored
memory, settings or the interpreter's exit. Each of these events handles the stages in order, so that the dependencies
of a recreated object have already been replaced.
"""

from __future__ import annotations

import atexit
import itertools
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Generic, Literal, TypeVar, get_args

from django.core.signals import setting_changed

from django_rlock._core import threads
from django_rlock._core.clock import monotonic
from django_rlock._core.foreign import end_threads

loaded = sys.modules.get
"""Returns a module if this process has imported it, else None."""
K = TypeVar("K")
T = TypeVar("T")

Stage = Literal[
    "identity", "settings", "connections", "drivers", "listening", "background", "holds", "reports", "callbacks"
]
STAGES: tuple[Stage, ...] = get_args(Stage)

SETTINGS = frozenset({"RLOCK", "CACHES"})
"""The settings whose change makes a process forget what it derived from them."""

EXIT_WITHIN = 2.0
"""How long the interpreter's exit may take because of this package, in seconds."""

_hooks: dict[str, dict[Stage, list[Callable[..., object]]]] = {
    event: {stage: [] for stage in STAGES} for event in ("fork", "restore", "settings", "exit")
}


class MadeOnce(Generic[T]):
    """An attribute that ``make`` makes when it is first read; the same for all threads.

    Python then finds it among the attributes of its object. ``__getattr__`` instead would slow down all of these.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make

    def __set_name__(self, _kind: type, name: str) -> None:
        self._name = name

    def __get__(self, each: Any, _kind: type) -> T:
        value: T = each.__dict__.setdefault(self._name, self._make(each))  # by one call into C
        return value


class Owned(Generic[T]):
    """An object that a process makes once, at the first use of ``value``.

    A forked child makes a new one. So does the process itself when the settings change, unless the value ``outlives``
    them; ``stop`` then ends the old value. A fork stops nothing: threads and sockets belong to the parent. A value that
    ``has_identity`` is also replaced when the process gets another client id.

    Nothing is made on import, nor in the fork: gevent and eventlet may replace the locks and queues of Python later, as
    gunicorn's workers do under --preload. A greenlet that waits for a lock of the system stops all others.
    """

    value = MadeOnce[T](lambda owned: owned._make())

    def __init__(
        self,
        stage: Stage,
        make: Callable[[], T],
        *,
        stop: Callable[[T], object] | None = None,
        outlives_settings: bool = False,
        has_identity: bool = False,
    ) -> None:
        self._make = make
        self._stop = stop
        on_fork(stage, self._forget)
        if not outlives_settings:
            on_changed_settings(stage, self._replace)
        if has_identity:
            on_restore(stage, self._replace)

    def _forget(self) -> T | None:
        former: T | None = self.__dict__.pop("value", None)
        return former

    def _replace(self) -> None:
        former = self._forget()
        if former is not None and self._stop is not None:
            self._stop(former)


class _MadeOnUse(dict[K, T]):
    """A table whose values are made when they are first looked up."""

    def __init__(self, make: Callable[[K], T]) -> None:
        self._make = make

    def __missing__(self, key: K) -> T:
        # Two threads may both make a value; setdefault() is one call into C, so both get the same one.
        return self.setdefault(key, self._make(key))


def owned_table(stage: Stage, make: Callable[[K], T], stop: Callable[[T], object]) -> Owned[dict[K, T]]:
    """A table of objects, such as one for each alias, which ``make`` makes when they are first looked up, and ``stop``
    ends when the settings change."""

    def stop_all(table: dict[K, T]) -> None:
        for each in threads.snapshot(table.values()):
            stop(each)

    return Owned(stage, lambda: _MadeOnUse(make), stop=stop_all)


def on_fork(stage: Stage, hook: Callable[[], object]) -> None:
    """Call ``hook`` in a forked child."""
    _hooks["fork"][stage].append(hook)


def on_restore(stage: Stage, hook: Callable[[], object]) -> None:
    """Call ``hook`` in a process whose memory was restored from an image, of which there may be other copies."""
    _hooks["restore"][stage].append(hook)


def on_changed_settings(stage: Stage, hook: Callable[[], object]) -> None:
    """Call ``hook`` when RLOCK or CACHES change, as tests do."""
    _hooks["settings"][stage].append(hook)


def forget_settings() -> None:
    """Forget what this process derived from the settings."""
    _run("settings")


def on_exit(stage: Stage, hook: Callable[[float], object]) -> None:
    """Call ``hook`` when the interpreter exits, with the number of seconds that it may take."""
    _hooks["exit"][stage].append(hook)


class _Remembered(_MadeOnUse[K, T]):
    """The results of a function, until they are forgotten."""

    def __init__(self, make: Callable[[K], T]) -> None:
        super().__init__(make)
        self._times_forgotten = 0

    def __missing__(self, key: K) -> T:
        # No mutex, because an interruption could leave it locked. Two threads may both compute a result, so computing
        # and dropping a result must do no harm; if the settings change meanwhile, it is computed again.
        while True:
            before, result = self._times_forgotten, self._make(key)
            if self._times_forgotten == before:
                return self.setdefault(key, result)

    def forget(self) -> None:
        self._times_forgotten += 1
        self.clear()


def remembered(stage: Stage) -> Callable[[Callable[[K], T]], Callable[[K], T]]:
    """Decorator: a function of one argument computes each result once, until a fork or a change of the settings.

    Threads that make the first call at the same time get the same result. A later call is a look-up in C, which takes
    half as long as with ``functools.cache``.
    """

    def decorate(make: Callable[[K], T]) -> Callable[[K], T]:
        results = _Remembered(make)
        on_fork(stage, results.forget)
        on_changed_settings(stage, results.forget)
        return results.__getitem__

    return decorate


def _hooks_of(event: str) -> Iterator[Callable[..., object]]:
    return itertools.chain.from_iterable(_hooks[event].values())


def _run(event: str) -> None:
    for hook in _hooks_of(event):
        hook()


# Read it as ``process.pid``: a fork changes it, so a copy that another module had imported by name would stay the
# parent's, and children would enter each other's locks.
pid = os.getpid()
"""The process that the resources belong to."""
_is_forked = False
_ends_child = 0
"""The child of ``multiprocessing`` that ends as the interpreter does."""
_noticing = threading.Lock()


def notice_fork() -> None:
    """Forget the parent's resources if this process was forked without Python's hooks.

    This is rule 11 of docs/design/architecture.md.

    uWSGI forks its workers in C, and runs Python's hooks only if an option says so. All workers would be one owner, and
    would enter each other's locks. So every call of a lock compares its process with ``pid`` first.
    """
    if os.getpid() != pid:
        threads.run_in_thread(_notice_fork)


def _notice_fork() -> None:
    """Runs in a separate thread, because an interrupted caller could leave the mutex locked."""
    with _noticing:
        if os.getpid() != pid:
            _after_fork()


def is_forked() -> bool:
    """Whether this process was forked from one that had loaded this package."""
    return _is_forked


def _after_fork() -> None:
    global _is_forked, pid  # noqa: PLW0603 - see above
    _is_forked = True
    _forks.clear()
    _between_forks.clear()
    _run("fork")
    if (util := loaded("multiprocessing.util")) is not None:
        util.register_after_fork(_in_child, _in_child)  # multiprocessing calls it in its children
    pid = os.getpid()  # last, because other threads of the child continue when they see it


# --- background threads during a fork ---------------------------------------------------------------------------------

# A child has only the thread that forked, so nothing there unlocks a lock that another thread held. Python recreates
# the locks of ``logging`` in the child, but neither the mutex of a buffered stream nor the locks of the project's
# metrics and callbacks. If a child was forked while a thread of this package wrote a log record, it would hang at its
# own first record.

FORK_WAITS = 1.0
"""How long a fork waits for such threads, in seconds; they may themselves wait for the thread that forks."""
_PAUSE = 0.001

_forks: deque[None] = deque()
"""An item for each fork that is under way. Each change is one call into C, so no interruption leaves one behind."""
_between_forks: set[int] = set()
"""The threads in a block of ``between_forks``."""


@contextmanager
def between_forks() -> Iterator[None]:
    """Execute a block of a background thread while no other thread forks: it may take locks that a child needs."""
    # Polling, because a mutex stays locked if a signal handler raises in a thread that forks.
    thread = threading.get_ident()
    _between_forks.add(thread)
    while _forks:  # each side makes its entry before it looks for the other's, so neither misses the other
        _between_forks.discard(thread)
        time.sleep(_PAUSE)
        _between_forks.add(thread)
    try:
        yield
    finally:
        _between_forks.discard(thread)


def _before_fork() -> None:
    give_up_at = monotonic() + FORK_WAITS
    while _between_forks - {threading.get_ident()} and monotonic() < give_up_at:  # a block may fork, too
        time.sleep(_PAUSE)


# --- restored memory --------------------------------------------------------------------------------------------------

# A platform may store the memory of a process that has loaded the project, and start many copies of it, all with the
# same process id. The copies must not be one client, or they would enter each other's locks.


def note_restored() -> None:
    """Take another identity, because this process may be one of several copies."""
    _run("restore")


def finish(**_: object) -> None:
    """Finish the work of this process's resources, before it exits."""
    notice_fork()
    give_up_at = monotonic() + EXIT_WITHIN
    for hook in _hooks_of("exit"):
        # Half of the remaining time: the first hooks free locks, and the others still get some time if those are
        # blocked.
        hook(max(give_up_at - monotonic(), 0.0) / 2)


def _finish_child() -> None:
    """At the end of a child of ``multiprocessing``, which ends its threads later than the interpreter does."""
    atexit.unregister(finish)  # a spawned child runs that too
    end_threads()  # they may still work under locks
    finish()


def _in_child(_: object = None) -> None:
    """Make a child of ``multiprocessing`` end as the interpreter does: it exits by ``os._exit``, without atexit."""
    global _ends_child  # noqa: PLW0603 - the parent may be such a child, too, and then registers it twice
    if _ends_child != os.getpid():
        _ends_child = os.getpid()
        sys.modules["multiprocessing.util"].Finalize(None, _finish_child, exitpriority=-sys.maxsize)  # after all others


def _on_setting(*, setting: str, **_: object) -> None:
    if setting in SETTINGS:
        forget_settings()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
os.register_at_fork(before=partial(_forks.append, None), after_in_parent=_forks.pop)  # before the other hook
with suppress(ImportError):  # of AWS Lambda's SnapStart
    from snapshot_restore_py import register_after_restore  # type: ignore[import-not-found]

    register_after_restore(note_restored)
setting_changed.connect(_on_setting, dispatch_uid="django_rlock._core.process")
atexit.register(finish)
if (multiprocessing := loaded("multiprocessing.process")) and multiprocessing.parent_process():  # this is a child
    _in_child()
