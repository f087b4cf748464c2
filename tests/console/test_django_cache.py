"""Over Django's own Redis backend the admin and the commands show and free what they do over django-redis."""

import pytest
import redis
from django.test import Client
from pytest_django import Settings

from django_rlock import rlock
from tests.console.conftest import clock  # noqa: F401 - a fixture
from tests.console.pages import FORCE, LIST, detail, rows, target, text
from tests.console.reporting import Clock
from tests.console.test_commands import run_json


@pytest.fixture(autouse=True)
def _over_djangos_backend(settings: Settings) -> None:
    entry = {**settings.CACHES["default"], "BACKEND": "django.core.cache.backends.redis.RedisCache"}
    settings.CACHES = {**settings.CACHES, "locks": entry}
    settings.RLOCK = {"default": {"CACHE": "locks"}}


def test_a_lock_is_reported_shown_and_freed(
    operator: Client,
    redis_client: redis.Redis,
    clock: Clock,  # noqa: F811
) -> None:
    rlock("stock:1").acquire()
    clock.publish_in(2)
    assert [found["name"] for found in run_json("rlock_list")] == ["stock:1"]
    assert [found["name"] for found in run_json("rlock_list", "--scan")] == ["stock:1"]
    assert [found["name"] for found in run_json("rlock_info", "stock:1")] == ["stock:1"]
    assert rows(text(operator, LIST)) == ["stock:1"]
    assert "MainThread" in text(operator, detail("stock:1"))
    assert operator.post(FORCE, {"lock": target("stock:1"), "confirm": "yes"}).status_code == 302
    assert not redis_client.exists("rlock:stock:1")
