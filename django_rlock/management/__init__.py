"""Management commands, and ``LockedCommand`` for a project's own: work that many hosts start at the same time, and only
one of them should do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from django_rlock._core.text import printable
from django_rlock.exceptions import LockLostError, LockTimeoutError, LockUnavailableError, RLockError
from django_rlock.locks import BaseLock, Duration, LockTerms, rlock
from django_rlock.locks.release import released_when_dropped
from django_rlock.settings import DEFAULT_ALIAS, get_settings

__all__ = ["LockedCommand"]

ERROR, USAGE, NOTHING_MATCHED = 1, 2, 3
"""Exit statuses."""
UNAVAILABLE, LOCK_LOST, TAKEN = 69, 70, 75
"""The exit statuses of commands that run something under a lock, in addition to a program's own; from sysexits.h."""

T = TypeVar("T")

logger = logging.getLogger("django_rlock.commands")

COMMAND_ON_LOCKED = "skip", "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How to acquire the lock: ``options`` are those of ``LockTerms``, not checked yet.

    ``waits_by`` is the name of the option for the wait time in errors; ``whose`` is the beginning of errors about wrong
    terms.
    """

    name: str
    options: Mapping[str, Any]
    on_locked: str = "skip"
    waits_by: str = "lock_wait_time"
    whose: str = ""

    def lock(self, on_lost: Callable[[Any], object] | None) -> BaseLock:
        """Make the lock. Raises CommandError for invalid terms."""
        try:
            terms = self._checked()
            lock: BaseLock = rlock(self.name, wait_time=terms.wait_time, on_lost=on_lost, **terms.of_lock)
        except (ValueError, TypeError, ImproperlyConfigured) as error:
            raise CommandError(f"{self.whose}{error}", returncode=USAGE) from error
        return lock

    def _checked(self) -> LockTerms:
        if self.on_locked not in COMMAND_ON_LOCKED:
            raise ValueError(f"on_locked must be 'skip' or 'fail', not {self.on_locked!r}.")
        names = {"wait_time": self.waits_by}
        terms = LockTerms(**LockTerms.checked(lambda name: names.get(name, name), **self.options))
        using, value, settings = terms.using, terms.at_least or 0.0, get_settings(terms.using)
        longest = settings.longest_lease if settings.nodes else None
        if longest is not None and value > longest:
            raise ValueError(
                f"at_least must not be above {longest:g} s, not {value:g}: locks of RLOCK[{using!r}] last no "
                f"longer without their holder. Raise RLOCK[{using!r}]['QUARANTINE'], or use another alias."
            )
        return terms


def run_locked(
    terms: Terms,
    body: Callable[[BaseLock], T],
    *,
    note: Callable[[str], object],
    on_lost: Callable[[Any], object] | None = None,
) -> T | None:
    """Run ``body`` under the lock and return its value, or None if the lock is taken and ``on_locked`` is "skip".

    In the latter case ``note`` is called with the reason. Raises CommandError, with a different exit status for each
    case, when the lock is taken, Redis is unreachable, or the lock was lost meanwhile. A failed release is only logged,
    because the work is done.
    """
    section = _CommandSection(terms.lock(on_lost))
    try:
        with section:
            return body(section.lock)
    except RLockError as error:
        # The body may have noticed that the lock was lost, by ``lock.check()``.
        is_loss = isinstance(error, LockLostError) and error.lock_name == section.lock.name
        if error is not section.failure and not is_loss:
            raise  # an error of the body itself
        refusal = _refusal(error, terms)
        if not (refusal.returncode == TAKEN and terms.on_locked == "skip"):
            raise refusal from error
        logger.info("Skipped: %s", printable(refusal))
        note(f"Skipped: {refusal}")
        return None


def _refusal(error: RLockError, terms: Terms) -> CommandError:
    if isinstance(error, LockTimeoutError):
        explained = LockTimeoutError(terms.name, error.waited, error.holder, error.retry_after, option=terms.waits_by)
        return CommandError(str(explained), returncode=TAKEN)
    return CommandError(str(error), returncode=LOCK_LOST if isinstance(error, LockLostError) else UNAVAILABLE)


class _CommandSection:
    """The lock around a body. ``failure`` is the error if it could not be taken, or was lost."""

    __slots__ = ("failure", "lock")

    def __init__(self, lock: BaseLock) -> None:
        self.lock = lock
        self.failure: RLockError | None = None

    def __enter__(self) -> None:
        try:
            self.lock.__enter__()
        except RLockError as error:
            self.failure = error
            raise

    @released_when_dropped
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.lock.__exit__(kind, error, trace)
        except LockUnavailableError as failure:
            # The work is done, and the lease ends by itself.
            logger.error(  # noqa: TRY400
                "The work under lock %r has ended, but: %s", printable(self.lock.name), printable(failure)
            )
        except RLockError as failure:
            if error is None:
                self.failure = failure
                raise
            logger.warning("While leaving lock %r after an error: %s", printable(self.lock.name), printable(failure))


class LockedCommand(BaseCommand):
    """A management command that runs under a lock, for many hosts whose cron starts it at the same minute::

        class Command(LockedCommand):
            at_least = 50                       # for a host whose clock is late

            def handle(self, **options): ...

    https://github.com/django-rlock/django-rlock/blob/main/docs/commands.md lists the attributes and the exit statuses.

    The lock is renewed while the command runs, and kept for at least ``at_least`` seconds after it was taken, even if
    the command has failed. It is freed earlier by ``rlock_release``, and, if the process was killed, by the end of its
    lease. If the same thread already held the lock before, it is kept after the outer release.
    """

    lock_name: str | None = None
    lock_using: str = DEFAULT_ALIAS
    lock_wait_time: Duration | None = 0
    on_locked: str = "skip"
    at_least: Duration = 0

    lock: BaseLock
    """The lock that the running command holds; ``self.lock.check()`` raises once it is lost. It does not exist outside
    a run."""

    def get_lock_name(self, **_options: Any) -> str:
        """The lock's name for a run with these options."""
        return f"command:{self._own_name()}" if self.lock_name is None else self.lock_name

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Django's ``execute``, under the lock."""

        def body(lock: BaseLock) -> str | None:
            self.lock = lock
            try:
                return super(LockedCommand, self).execute(*args, **options)
            finally:
                del self.lock

        def note(text: str) -> None:
            if options["verbosity"] > 1:
                self.stderr.write(text)

        terms = Terms(
            name=self.get_lock_name(**options),
            options={"using": self.lock_using, "wait_time": self.lock_wait_time, "at_least": self.at_least},
            on_locked=self.on_locked,
            whose=f"Command {self._own_name()}: ",
        )
        return run_locked(terms, body, note=note)

    def _own_name(self) -> str:
        return type(self).__module__.rpartition(".")[2]
