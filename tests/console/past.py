"""Makes the test process write its history when a test says so."""

from collections.abc import Iterator
from contextlib import contextmanager

from django_rlock._core.clock import monotonic
from django_rlock._monitoring import reporter
from django_rlock._monitoring.recorder import Recorder
from django_rlock.console.history import History, read_history
from django_rlock.locks.records import Work, context
from tests.background import settle

ROUND = Recorder.round
"""The tests' own process writes nothing by itself: see ``tests/conftest.py``."""


class Past:
    """The history of this process."""

    def written(self, ahead: float = 0.0) -> History:
        """Write it now, or as if some seconds had passed, and read it."""
        settle()
        reporter._reporter.value._take_back(monotonic() + ahead)
        return read_history()

    @property
    def recorder(self) -> Recorder:
        return reporter._reporter.value.recorder

    def round(self, ahead: float) -> float:
        """Do what is due then; returns in how many seconds something is due again."""
        settle()
        now = monotonic() + ahead
        due = ROUND(self.recorder, now)
        return min(due, reporter._reporter.value.round(now)) - now


@contextmanager
def working_on(**about: str) -> Iterator[None]:
    token = context.set(Work(about))
    try:
        yield
    finally:
        context.reset(token)
