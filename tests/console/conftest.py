from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from django_rlock.locks import forced
from django_rlock.locks.statistics import STATISTICS
from tests.background import forget_clean_up, settle
from tests.console.past import Past
from tests.console.reporting import Clock, drive_by_hand, drive_by_thread
from tests.eventually import PATIENCE

LogIn = Callable[..., Client]


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


@pytest.fixture
def log_in(db: None) -> LogIn:
    """Logs a staff user in who has some permissions; None is anonymous."""

    def log_in(permissions: str | None = "", *, superuser: bool = False, enforce_csrf_checks: bool = False) -> Client:
        client = Client(enforce_csrf_checks=enforce_csrf_checks)
        if permissions is not None:
            user = User.objects.create(username="alice", is_staff=True, is_superuser=superuser)
            user.user_permissions.set(Permission.objects.filter(codename__in=permissions.split()))
            client.force_login(user)
        return client

    return log_in


@pytest.fixture
def operator(log_in: LogIn) -> Client:
    """May see locks and free them."""
    return log_in("view_lock force_release_lock")


@pytest.fixture(autouse=True)
def _nothing_of_earlier_tests() -> None:
    """A test counts the commands of pages: none comes between that cleans up after an earlier test."""
    forget_clean_up()
