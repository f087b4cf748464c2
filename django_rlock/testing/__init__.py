"""Tools for projects' tests: locks without Redis, locks held by another owner, and assertions::

    from django_rlock.testing import hold, override_locks

    @override_locks()
    class BuyTests(TestCase):
        def test_second_buyer_is_refused(self):
            with hold("stock:1"):
                self.assertEqual(self.client.post("/buy/1/").status_code, 423)

``django_rlock/pytest_plugin.py`` has fixtures for pytest, ``rlocks`` and ``held_lock``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, cast
from unittest import TestCase

from asgiref.sync import sync_to_async
from django.test.utils import TestContextDecorator

from django_rlock._core.clock import pretend_jump
from django_rlock._core.threads import run_in_thread
from django_rlock._stores import memory
from django_rlock._transport.identity import running_loop
from django_rlock.inspection import LockInfo, find_locks, lock_info
from django_rlock.locks import rlock
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.records import Hold
from django_rlock.settings import DEFAULT_ALIAS, MEMORY, changed_entries, get_aliases

__all__ = [
    "aassert_locked",
    "aassert_no_locks_left",
    "aassert_not_locked",
    "advance",
    "assert_locked",
    "assert_no_locks_left",
    "assert_not_locked",
    "hold",
    "override_locks",
]

T = TypeVar("T")

C = TypeVar("C", bound=TestCase)

_OF_REAL_SERVERS = {
    *("CACHE", "FOLDER", "IDLE_TIME", "NODES", "NODE_ADDRESSES", "REPLICA_ACKS", "REPLICA_ACK_TIMEOUT", "STORE"),
}
_numbers = itertools.count(1)


class override_locks(TestContextDecorator):  # noqa: N801 - as Django's override_settings
    """Keep all locks in this process while a test runs: no Redis is needed, and no other test shares them.

    It is a context manager, and a decorator for test functions (also async functions) and for test case classes, where
    it covers ``setUpClass`` and ``setUpTestData``. The same scripts run on a server within the process (``fakeredis``,
    from the extra ``testing``), so every kind of lock behaves as with Redis. ``**options`` are added to each alias of
    RLOCK: ``override_locks(WATCHDOG_TIMEOUT=3)``.

    It stays in effect when a test overrides CACHES or RLOCK. The aliases of RLOCK stay, and an alias with NODES gets
    the same number of nodes. Options for real servers are ignored: REPLICA_ACKS, NODE_ADDRESSES, sentinels, clusters.
    Processes that the test starts do not see these locks; a forked process has separate locks. Raises
    ImproperlyConfigured if the extra is not installed, or if RLOCK is not a dict.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._options = options
        self._ends: list[ExitStack] = []

    def enable(self) -> None:
        """Start."""
        memory.check_extra()
        with ExitStack() as stack:
            stack.enter_context(memory.fresh())
            stack.enter_context(changed_entries(partial(_in_memory, self._options)))
            get_aliases()  # raises ImproperlyConfigured if RLOCK is not a dict
            stack.callback(_forget_holds_but, set(HOLDS.snapshot()))
            self._ends.append(stack.pop_all())

    def disable(self) -> None:
        """Restore the real servers. Locks that are still held are forgotten, in this process too."""
        self._ends.pop().close()

    def decorate_class(self, cls: type[C]) -> type[C]:
        """Cover the whole test case class, ``setUpTestData`` included; each test begins without locks."""
        decorated: Any = super().decorate_class(cast("Any", cls))
        set_up = decorated.setUpClass.__func__

        def set_up_class(inner: type[TestCase]) -> None:
            inner.enterClassContext(override_locks(**self._options))
            set_up(inner)

        decorated.setUpClass = classmethod(set_up_class)
        return cast("type[C]", decorated)


def _forget_holds_but(earlier: Collection[Hold]) -> None:
    for hold in HOLDS.snapshot():
        if hold not in earlier:
            HOLDS.remove(hold)


def _in_memory(options: Mapping[str, Any], entries: Mapping[str, Any]) -> dict[str, Any]:
    """RLOCK with all locks in this process, and with further options."""
    aliases = {DEFAULT_ALIAS: {}, **entries}
    return {
        alias: {**_place(alias, known), **options} if isinstance(known, Mapping) else known
        for alias, known in aliases.items()
    }


def _place(alias: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an alias that still apply, and its store in this process."""
    kept = {name: value for name, value in known.items() if name not in _OF_REAL_SERVERS}
    nodes = known.get("NODES")
    if isinstance(nodes, list | tuple):
        return {**kept, "NODES": [f"{MEMORY}{alias}/{number}" for number in range(len(nodes))]}
    return {**kept, "STORE": "memory"}


def advance(seconds: float) -> None:
    """Let time pass for the locks of ``override_locks()``, as if the machine had been suspended for that time.

    Leases of up to ``seconds`` end, even if the watchdog renews them, and their holders find their locks lost. No other
    clock changes; and libraries that fake the time, such as freezegun, do not change this clock.
    """
    memory.pass_time(seconds)
    pretend_jump(seconds)


class hold:  # noqa: N801 - read as a verb
    """Let another owner hold one or more locks during a ``with`` or ``async with`` block.

        with hold("stock:1"):
            assert client.post("/buy/1/").status_code == 423

    That owner differs from all threads and tasks of the code under test. ``kind`` and further options are those of
    ``rlock()``. Async tests may use both forms; ``with`` blocks their event loop for a moment. Raises AssertionError if
    a lock is already taken, and LockUnavailableError if Redis is unreachable.
    """

    def __init__(self, *names: str, using: str = DEFAULT_ALIAS, **options: Any) -> None:
        self._names = names
        self._using = using
        self._lock = rlock(*names, using=using, owner=f"another owner {next(_numbers)}", **options)

    def __enter__(self) -> Self:
        if not _beside_the_loop(self._lock.acquire, False):
            raise AssertionError(self._refused())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _beside_the_loop(self._lock.release)

    async def __aenter__(self) -> Self:
        if not await self._lock.aacquire(blocking=False):
            raise AssertionError(await sync_to_async(self._refused)())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._lock.arelease()

    def _refused(self) -> str:
        found = [info for name in self._names if (info := _info(name, self._using)) is not None]
        return f"hold() could not acquire locks that are already held: {_listed(found) or ', '.join(self._names)}"


def _beside_the_loop(function: Callable[..., T], *args: Any) -> T:
    """Call a blocking function, in a separate thread if this one runs an event loop."""
    return function(*args) if running_loop() is None else run_in_thread(function, *args)


def assert_locked(name: str, using: str = DEFAULT_ALIAS) -> None:
    """Raise AssertionError unless the lock is held, by any owner; LockUnavailableError as ``lock_info()`` does."""
    if _info(name, using) is None:
        raise AssertionError(f"Lock {name!r} is not locked.")


def _info(name: str, using: str) -> LockInfo | None:
    return lock_info(rlock(name, using=using).name, using)


def assert_not_locked(name: str, using: str = DEFAULT_ALIAS) -> None:
    """Raise AssertionError naming the holder if the lock is held; LockUnavailableError as ``lock_info()`` does."""
    if (found := _info(name, using)) is not None:
        raise AssertionError(f"The lock is held: {_listed([found])}")


def assert_no_locks_left(using: str | None = None) -> None:
    """Raise AssertionError, naming all held locks, if any lock of an alias is held; None checks all aliases.

    It scans the server, so use it in tests only. Raises LockUnavailableError if a server is unreachable.
    """
    found, errors = find_locks(using, scan=True)
    for error in errors.values():
        raise error
    if found:
        raise AssertionError(f"Locks are left: {_listed(found)}")


def _listed(locks: list[LockInfo]) -> str:
    return "; ".join(f"{lock.name} by {', '.join(map(str, lock.holders)) or 'an unknown owner'}" for lock in locks)


aassert_locked = sync_to_async(assert_locked)
aassert_not_locked = sync_to_async(assert_not_locked)
aassert_no_locks_left = sync_to_async(assert_no_locks_left)
