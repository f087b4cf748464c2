import pytest
from django.core.checks import CheckMessage, run_checks
from django.core.exceptions import ImproperlyConfigured
from pytest_django import Settings

from django_rlock._transport.servers import get_client


def errors() -> list[tuple[str, str]]:
    """But for those of tasks: other tests have defined some, for the settings of their workers."""
    found = [(error.id, error.msg) for error in run_checks() if error.id and error.id.startswith("django_rlock.E")]
    return [(code, text) for code, text in found if code != "django_rlock.E020"]


def test_good_settings_pass() -> None:
    assert errors() == []


@pytest.mark.parametrize(("named", "codes"), [(["other"], ["django_rlock.W008"]), (["default", "other"], []), ([], [])])
def test_a_setting_without_the_default_alias_is_warned_of(
    settings: Settings, named: list[str], codes: list[str]
) -> None:
    settings.RLOCK = {alias: {} for alias in named}
    found = [message for message in run_checks() if message.id == "django_rlock.W008"]
    assert [message.id for message in found] == codes
    assert all("CACHES['default']" in message.msg for message in found)


@pytest.mark.parametrize(
    ("option", "value", "is_found"),
    [
        ("KIND", "rlock", True),
        ("CLAIM_TIME", 6, True),
        ("WAITER_ALIVE_TIME", 12, True),
        ("WATCHDOG_TIMEOUT", 300, False),
    ],
)
def test_aliases_that_share_locks_with_another_queue_are_warned_of(
    settings: Settings, option: str, value: object, is_found: bool
) -> None:
    settings.RLOCK = {"default": {}, "long": {option: value}, "apart": {option: value, "KEY_PREFIX": "other:"}}
    found = [message for message in run_checks() if message.id == "django_rlock.W013"]
    assert len(found) == is_found
    for message in found:
        assert "RLOCK['default'] and RLOCK['long'] share their locks" in message.msg
        assert option in message.msg


def test_a_cache_that_is_not_of_django_redis_is_an_error_with_the_text_of_the_exception(settings: Settings) -> None:
    settings.CACHES = {
        **settings.CACHES,
        "memory": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
        "away": settings.CACHES["default"] | {"LOCATION": "redis://127.0.0.1:1/0"},  # no one asks it
    }
    settings.RLOCK = {"default": {"CACHE": "memory"}, "other": {"CACHE": "away"}}
    with pytest.raises(ImproperlyConfigured) as caught:
        get_client()
    assert errors() == [("django_rlock.E001", str(caught.value))]


@pytest.fixture
def few_connections(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    settings.RLOCK = {"default": {"MAX_CONNECTIONS": 8}}
    monkeypatch.delenv("GUNICORN_CMD_ARGS", raising=False)
    return monkeypatch


def warnings() -> list[CheckMessage]:
    return [message for message in run_checks() if message.id == "django_rlock.W003"]


@pytest.mark.parametrize(
    ("arguments", "threads"),
    [
        ("", None),
        ("--workers=4 --threads 8", None),
        ("--workers=4 --threads 9 --bind :8000", 9),
        ("--threads 9 --threads=12", 12),
        ("--threads 2 -k gevent", 1000),
        ("--worker-class gunicorn.workers.ggevent.GeventWorker --worker-connections 8", None),
        ("--worker-connections 50", None),  # without greenlets it is threads that count
        ("--threads many", None),
        ("--threads", None),
        ("--threads 9 'unclosed", None),
    ],
)
def test_gunicorn_runs_more_threads_than_there_are_connections(
    few_connections: pytest.MonkeyPatch, arguments: str, threads: int | None
) -> None:
    few_connections.setenv("GUNICORN_CMD_ARGS", arguments)
    found = [message.msg for message in warnings()]
    assert [f" runs {threads} threads" in text for text in found] == [True] * (threads is not None)


@pytest.mark.parametrize(
    ("pool", "concurrency", "told"),
    [
        ("threads", 9, True),
        ("gevent", 9, True),
        ("eventlet", 9, True),
        ("threads", 8, False),
        ("threads", None, False),
        ("prefork", 9, False),
        (["threads"], 9, False),
    ],
)
def test_celery_runs_more_threads_than_there_are_connections(
    few_connections: pytest.MonkeyPatch, settings: Settings, pool: object, concurrency: object, told: bool
) -> None:
    settings.CELERY_WORKER_POOL, settings.CELERY_WORKER_CONCURRENCY = pool, concurrency
    assert ["CELERY_WORKER_CONCURRENCY" in message.msg for message in warnings()] == [True] * told
