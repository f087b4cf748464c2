from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from django_rlock.locks import forced
from django_rlock.locks.statistics import STATISTICS
from tests.background import settle
from tests.eventually import PATIENCE
from tests.inspection.past import Past
from tests.inspection.reporting import Clock, drive_by_hand, drive_by_thread


@contextmanager
def _unasked() -> Iterator[None]:
    """No stall makes a hold so long that the background asks about it while a test counts commands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forced, "LISTEN_AFTER", PATIENCE)
        yield


@pytest.fixture
def clock(_empty_server: None) -> Iterator[Clock]:
    """The reporter, driven by the test, in a process that has reported nothing yet."""
    drive_by_hand()
    with _unasked():
        yield Clock()
    drive_by_thread()


@pytest.fixture
def past(_empty_server: None) -> Iterator[Past]:
    """The history of this process, which is empty."""
    settle()
    STATISTICS.clear()
    drive_by_hand()
    with _unasked():
        yield Past()
    drive_by_thread()
    STATISTICS.clear()
