import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from pytest_django import Settings

from django_rlock.connections import get_client
from django_rlock.settings import get_settings


def errors() -> list[tuple[str, str]]:
    return [(error.id, error.msg) for error in run_checks() if error.id and error.id.startswith("django_rlock.E")]


def test_good_settings_pass() -> None:
    assert errors() == []


def test_each_bad_alias_is_an_error_with_the_text_of_the_exception(settings: Settings) -> None:
    settings.RLOCK = {"default": {"KEYPREFIX": ""}, "good": {}, "other": {"KIND": "fare"}}
    texts = []
    for alias in ("default", "other"):
        with pytest.raises(ImproperlyConfigured) as caught:
            get_settings(alias)
        texts.append(("django_rlock.E001", str(caught.value)))
    assert errors() == texts


def test_a_setting_of_another_type_is_an_error(settings: Settings) -> None:
    settings.RLOCK = ["default"]
    [(code, text)] = errors()
    assert code == "django_rlock.E001"
    assert "must be a dict" in text


def test_a_cache_that_is_not_of_django_redis_is_an_error_with_the_text_of_the_exception(settings: Settings) -> None:
    settings.CACHES = {
        **settings.CACHES,
        "memory": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
        "away": settings.CACHES["default"] | {"LOCATION": "redis://127.0.0.1:1/0"},  # nobody asks it
    }
    settings.RLOCK = {"default": {"CACHE": "memory"}, "other": {"CACHE": "away"}}
    with pytest.raises(ImproperlyConfigured) as caught:
        get_client()
    assert errors() == [("django_rlock.E001", str(caught.value))]
