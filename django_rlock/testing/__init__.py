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

import asyncio
import itertools
import threading
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar, cast
from unittest import TestCase

from asgiref.sync import sync_to_async
from django.test.utils import TestContextDecorator

from django_rlock import _memory as memory
from django_rlock._core.clock import pretend_jump
from django_rlock._core.threads import Call
from django_rlock.inspection import LockInfo, find_locks, lock_info
from django_rlock.locks import BaseLock, rlock
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.places import database_of
from django_rlock.locks.records import Hold
from django_rlock.locks.transactions import release_after_tests_commits
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

C = TypeVar("C", bound=TestCase)

_OF_REAL_SERVERS = {
    *("CACHE", "FOLDER", "IDLE_TIME", "NODES", "NODE_ADDRESSES", "REPLICA_ACKS", "REPLICA_ACK_TIMEOUT", "STORE"),
}
_owner_numbers = itertools.count(1)


class override_locks(TestContextDecorator):  # noqa: N801 - as Django's override_settings
    """Keep all locks in this process while a test runs: no Redis is needed, and no other test shares them.

    It is a context manager, and a decorator for test functions (also async functions) and for test case classes.
    ``**options`` are added to each alias of RLOCK: ``override_locks(WATCHDOG_TIMEOUT=3)``.
    https://github.com/django-rlock/django-rlock/blob/main/docs/testing.md says what differs from a Redis. Processes
    that the test starts do not see these locks; a forked process has separate locks.

    Raises ImproperlyConfigured if the extra ``testing`` is not installed, or if RLOCK is not a dict.
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
    release_after_tests_commits()
    for hold in HOLDS.snapshot():
        if hold not in earlier:
            HOLDS.remove(hold)


def _in_memory(options: Mapping[str, Any], entries: Mapping[str, Any]) -> dict[str, Any]:
    """RLOCK with all locks in this process, and with further options."""
    aliases = {DEFAULT_ALIAS: {}, **entries}
    usual = _server(aliases[DEFAULT_ALIAS])
    return {
        alias: {**_place(known, usual), **options} if isinstance(known, Mapping) else known
        for alias, known in aliases.items()
    }


def _place(known: Mapping[str, Any], usual: str) -> dict[str, Any]:
    """The options of an alias that still apply, and its servers in this process. The server of the default alias is
    always the same, also when a test changes CACHES."""
    kept = {name: value for name, value in known.items() if name not in _OF_REAL_SERVERS}
    nodes = known.get("NODES")
    if not isinstance(nodes, list | tuple):
        server = _server(known)
        return {**kept, "STORE": "memory" if server == usual else MEMORY + server}
    servers = [database_of(str(node)) for node in nodes]
    if len(set(servers)) < len(servers):  # as tests may have it, where production has different servers
        servers = [f"{node}/{number}" for number, node in enumerate(nodes)]
    return {**kept, "NODES": [MEMORY if server == usual else MEMORY + server for server in servers]}


def _server(known: Any) -> str:
    """What an alias's server has in common with that of other aliases only if both are one, as far as RLOCK shows."""
    options = known if isinstance(known, Mapping) else {}
    if options.get("STORE", "cache") == "cache":
        return database_of(str(options.get("CACHE", "default")))
    return f"{options['STORE']} {options.get('FOLDER')}"


def advance(seconds: float) -> None:
    """Let time pass for the locks of ``override_locks()``, as if the machine had been suspended for that time.

    Leases of up to ``seconds`` end, even if the watchdog renews them. No other clock changes.
    """
    memory.pass_time(seconds)
    pretend_jump(seconds)


class hold:  # noqa: N801 - read as a verb
    """Let another owner hold one or more locks during a ``with`` or ``async with`` block.

        with hold("stock:1"):
            assert client.post("/buy/1/").status_code == 423

    That owner is a separate thread, so it differs from all threads and tasks of the code under test. ``kind`` and
    further options are those of ``rlock()``. Async tests may use both forms; ``with`` blocks their event loop for a
    moment. Raises AssertionError if a lock is already taken, and LockUnavailableError if Redis is unreachable.
    """

    def __init__(self, *names: str, using: str = DEFAULT_ALIAS, **options: Any) -> None:
        self._names = names
        self._using = using
        self._lock = rlock(*names, using=using, **options)
        self._owners: list[_AnotherOwner] = []

    def __enter__(self) -> Self:
        release_after_tests_commits()
        owner = _AnotherOwner(self._lock)
        if not owner.take():
            self._refuse()
        self._owners.append(owner)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._owners.pop().release()

    async def __aenter__(self) -> Self:
        await sync_to_async(release_after_tests_commits)()
        owner = _AnotherOwner(self._lock)
        try:
            taken = await asyncio.to_thread(owner.take)
        except asyncio.CancelledError:
            owner.may_end.set()
            raise
        if not taken:
            await sync_to_async(self._refuse)()
        self._owners.append(owner)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._owners.pop().release)

    def _refuse(self) -> NoReturn:
        found = [info for name in self._names if (info := _info(name, self._using)) is not None]
        raise AssertionError(
            f"hold() could not acquire locks that are already held: {_listed(found) or ', '.join(self._names)}"
        )


class _AnotherOwner:
    """A thread that acquires a lock, and releases it on demand."""

    def __init__(self, lock: BaseLock) -> None:
        self.may_end = threading.Event()
        self._taking = Call(partial(lock.acquire, False))
        self._releasing = Call(lock.release)
        self._thread = threading.Thread(target=self._run, name=f"another owner {next(_owner_numbers)}", daemon=True)

    def _run(self) -> None:
        self._taking.run()
        if self._taking.value:
            self.may_end.wait()
            self._releasing.run()

    def take(self) -> bool:
        """Start it; returns whether it got the lock, and raises what ``acquire()`` raised."""
        self._thread.start()
        try:
            self._taking.wait()
        except BaseException:  # from a signal handler
            self.may_end.set()
            raise
        return bool(self._taking.result())

    def release(self) -> None:
        """End it; raises what ``release()`` raised."""
        self.may_end.set()
        self._thread.join()
        self._releasing.result()


# A TestCase runs each test in a transaction. What a lock with until_commit waits for has happened for the code under
# test when no other transaction is open, but Django reports it only at the end of the test.


def assert_locked(name: str, using: str = DEFAULT_ALIAS) -> None:
    """Raise AssertionError unless the lock is held, by any owner; LockUnavailableError as ``lock_info()`` does."""
    release_after_tests_commits()
    if _info(name, using) is None:
        raise AssertionError(f"Lock {name!r} is not locked.")


def _info(name: str, using: str) -> LockInfo | None:
    found = lock_info(rlock(name, using=using).name, using)
    return found if found is not None and _is_held(found) else None


def _is_held(lock: LockInfo) -> bool:
    """Whether a majority of a RedLock's nodes may have it: after a release, some may have it for another moment."""
    silent = [*lock.nodes.values()].count(None)
    return not lock.nodes or 2 * (lock.votes + silent) > len(lock.nodes)


def assert_not_locked(name: str, using: str = DEFAULT_ALIAS) -> None:
    """Raise AssertionError naming the holder if the lock is held; LockUnavailableError as ``lock_info()`` does."""
    release_after_tests_commits()
    if (found := _info(name, using)) is not None:
        raise AssertionError(f"The lock is held: {_listed([found])}")


def assert_no_locks_left(using: str | None = None) -> None:
    """Raise AssertionError, naming all held locks, if any lock of an alias is held; None checks all aliases.

    It scans the server, so use it in tests only. Raises LockUnavailableError if a server is unreachable.
    """
    release_after_tests_commits()
    found, errors = find_locks(using, scan=True)
    for error in errors.values():
        raise error
    if held := [lock for lock in found if _is_held(lock)]:
        raise AssertionError(f"Locks are left: {_listed(held)}")


def _listed(locks: list[LockInfo]) -> str:
    return "; ".join(f"{lock.name} by {', '.join(map(str, lock.holders)) or 'an unknown owner'}" for lock in locks)


aassert_locked = sync_to_async(assert_locked)
aassert_not_locked = sync_to_async(assert_not_locked)
aassert_no_locks_left = sync_to_async(assert_no_locks_left)
