from collections.abc import Callable

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from tests.background import forget_clean_up
from tests.inspection.conftest import past  # noqa: F401 - a fixture

LogIn = Callable[..., Client]


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


@pytest.fixture(autouse=True)
def _nothing_of_earlier_tests() -> None:
    """A test counts the commands of pages: none comes between that cleans up after an earlier test."""
    forget_clean_up()


@pytest.fixture
def operator(log_in: LogIn) -> Client:
    """May see locks and free them."""
    return log_in("view_lock force_release_lock")
