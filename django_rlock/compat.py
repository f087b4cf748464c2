"""redis-py's ``Lock`` and django-redis's ``cache.lock()``, implemented by the locks of this package.

For a migration whose first release changes one line of the settings. From then on, callers of ``cache.lock()`` and
callers of ``rlock()`` with the same name exclude each other. Later releases can change each call to ``rlock()``, which
is re-entrant.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from types import SimpleNamespace, TracebackType
from typing import Any, Literal, Self
from uuid import uuid4

from django.conf import settings as django_settings
from django.core.cache.backends.redis import RedisCache as _DjangosCache
from redis.exceptions import LockError

from django_rlock._core.callbacks import log
from django_rlock._core.clock import monotonic
from django_rlock._core.interruptions import run_when_dropped
from django_rlock.exceptions import LockTimeoutError, LockUnavailableError
from django_rlock.locks import BaseLock, rlock
from django_rlock.locks.acquire import HOLDER_WITHIN, lookup_of
from django_rlock.locks.options import MILLISECOND, duration
from django_rlock.settings import DEFAULT_ALIAS, get_aliases, get_settings

__all__ = ["BuiltinRedisCache", "Lock", "lock"]

logger = logging.getLogger("django_rlock.locks")

_timeout_seconds = duration("timeout", "None is renewed by the watchdog", MILLISECOND)
_wait_seconds = duration("blocking_timeout", "None waits forever")


class Lock:
    """A lock that behaves as redis-py's. It is not re-entrant: a second ``acquire`` by its holder waits, too.

    It and ``rlock(name)`` exclude each other. ``using`` is the RLOCK alias. ``timeout`` is how long the lock may be
    held, in seconds, without renewal; with None the lock is held until it is released or its process dies.
    ``blocking_timeout`` is how long to wait (None: forever). ``sleep`` has no effect: waiters are notified, and the
    alias's default kind serves them in the order of arrival. With ``thread_local`` only the thread that acquired the
    lock can release it, otherwise any thread with the object can. Without ``raise_on_release_error`` the end of a block
    logs that the lock was no longer held, instead of raising LockError.

    The methods raise redis-py's errors: LockError for a release without an acquire, and for a block that could not get
    the lock (a LockTimeoutError); LockNotOwnedError for a release after the timeout (a LockLostError). If Redis is
    unreachable, they raise LockUnavailableError, which is a LockError and a ConnectionError. Aliases with NODES do not
    support this lock, because a RedLock has no named owners. ``extend`` does not shorten a lease.
    """

    def __init__(
        self,
        name: str,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
        *,
        using: str = DEFAULT_ALIAS,
    ) -> None:
        self.name = name
        self.timeout = _timeout_seconds(timeout or None)
        self.sleep = sleep
        self.blocking = blocking
        self.blocking_timeout = _wait_seconds(blocking_timeout)
        self.thread_local = bool(thread_local)
        self.raise_on_release_error = raise_on_release_error
        self._using = using
        self.local: Any = threading.local() if thread_local else SimpleNamespace()
        self._under("")  # checks the arguments

    def _under(self, token: str) -> BaseLock:
        """The lock of this package for the owner with this token."""
        return rlock(self.name, using=self._using, lease_time=self.timeout, owner=token or "nobody")

    @property
    def _held(self) -> BaseLock | None:
        return getattr(self.local, "held", None)

    @property
    def is_entered(self) -> bool:
        """Whether a block of this thread holds it."""
        return self._held is not None

    def acquire(
        self,
        sleep: float | None = None,  # noqa: ARG002 - redis-py's
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Acquire the lock; returns False if it is still held after the wait. ``token`` names the owner (None: a new
        name)."""
        blocking = self.blocking if blocking is None else blocking
        wait = self.blocking_timeout if blocking_timeout is None else _wait_seconds(blocking_timeout)
        name = uuid4().hex if token is None else token.decode() if isinstance(token, bytes) else token
        held = self._under(name)
        try:
            taken = held.acquire(wait_time=wait if blocking else 0)
            if taken:
                self.local.held = held
        except BaseException:
            if held.held:  # a signal's handler has raised after the lock was taken
                held.release()
            raise
        return taken

    def release(self) -> None:
        """Release the lock. Raises LockError if it was not acquired, LockNotOwnedError if its timeout has ended."""
        held = self._owned("Cannot release a lock that's not owned or is already unlocked.")
        self.local.held = None
        held.release()

    def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:
        """Add seconds to the remaining timeout; with ``replace_ttl``, let that many seconds remain."""
        held = self._owned("Cannot extend an unlocked lock")
        self._check_timeout("extend")
        left = 0.0 if replace_ttl else held.remaining_lease() or 0.0
        held.extend(left + additional_time)
        return True

    def reacquire(self) -> Literal[True]:
        """Restart the timeout."""
        held = self._owned("Cannot reacquire an unlocked lock")
        held.extend(self._check_timeout("reacquire"))
        return True

    def locked(self) -> bool:
        """Whether any owner holds the lock."""
        return self._under("").locked()

    def owned(self) -> bool:
        """Whether this object holds the lock."""
        held = self._held
        return held is not None and held.owned()

    def __enter__(self) -> Self:
        started = monotonic()
        if not self.acquire():
            raise self._timed_out(monotonic() - started)
        return self

    def _timed_out(self, waited: float) -> LockTimeoutError:
        taken = self._under("")
        holder, left = lookup_of(taken).result(monotonic() + HOLDER_WITHIN), None
        with suppress(LockUnavailableError):
            left = taken.remaining_lease() or None
        return LockTimeoutError(self.name, waited, holder, left, option="blocking_timeout")

    @run_when_dropped
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except LockError as failure:
            if self.raise_on_release_error or isinstance(failure, LockUnavailableError):
                raise
            log(logger, logging.WARNING, "The block of lock %r has ended, but: %s", self.name, failure)

    def _owned(self, otherwise: str) -> BaseLock:
        held = self._held
        if held is None:
            raise LockError(otherwise, lock_name=self.name)
        return held

    def _check_timeout(self, deed: str) -> float:
        if self.timeout is None:
            raise LockError(f"Cannot {deed} a lock with no timeout", lock_name=self.name)
        return self.timeout


def lock(  # noqa: PLR0913 - redis-py's
    name: str,
    timeout: float | None = None,
    sleep: float = 0.1,
    blocking: bool = True,
    blocking_timeout: float | None = None,
    lock_class: Any = None,
    thread_local: bool = True,
    raise_on_release_error: bool = True,
    *,
    using: str = DEFAULT_ALIAS,
) -> Lock:
    """Make a ``Lock`` with the arguments of redis-py's ``Redis.lock()``.

    ``lock_class`` is a subclass of this module's ``Lock``. Raises TypeError for another class: its locks would exclude
    neither these nor ``rlock()``.
    """
    made_by = Lock if lock_class is None else lock_class
    if not (isinstance(made_by, type) and issubclass(made_by, Lock)):
        raise TypeError(
            f"lock_class must be None or a subclass of django_rlock.compat.Lock, not {made_by!r}: locks of other "
            f"classes and the locks of this package do not exclude each other."
        )
    made: Lock = made_by(
        name, timeout, sleep, blocking, blocking_timeout, thread_local, raise_on_release_error, using=using
    )
    return made


class LockingCache:
    """A cache whose ``lock()`` takes the arguments of django-redis's and redis-py's, and returns a ``Lock`` of this
    module.

    The lock's name is the key, without the cache's KEY_PREFIX and version; a ``version`` argument that differs from the
    cache's version is put before it. The lock belongs to the first alias of RLOCK whose cache has the same LOCATION,
    otherwise to "default".
    """

    version: int

    def __init__(self, server: Any, params: dict[str, Any]) -> None:
        super().__init__(server, params)  # type: ignore[call-arg]
        self._location = server

    def lock(
        self,
        key: str,
        version: int | None = None,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        client: object = None,  # noqa: ARG002 - django-redis's
        thread_local: bool = True,
        **of_redis_py: Any,
    ) -> Lock:
        """Make a lock; ``client`` has no effect."""
        return lock(
            key if version in (None, self.version) else f"{version}:{key}",
            timeout,
            sleep,
            blocking,
            blocking_timeout,
            thread_local=thread_local,
            using=_alias_at(self._location),
            **of_redis_py,
        )


def _alias_at(location: object) -> str:
    for using in (DEFAULT_ALIAS, *get_aliases()):
        entry = django_settings.CACHES.get(get_settings(using).cache, {})
        if entry.get("LOCATION") == location:
            return using
    return DEFAULT_ALIAS


class BuiltinRedisCache(LockingCache, _DjangosCache):
    """Django's own Redis cache, with ``lock()``."""


try:
    from django_redis.cache import RedisCache as _DjangoRedisCache
except ImportError:
    pass
else:

    class RedisCache(LockingCache, _DjangoRedisCache):  # type: ignore[misc]
        """django-redis's cache, with a ``lock()`` of this package."""

    __all__ += ["RedisCache"]
