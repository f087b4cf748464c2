"""The panel on an object's own page: who holds its lock, and a button that leads to the release and back."""

import re
from html import unescape
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
import redis
from django.contrib.auth.models import User
from django.template import RequestContext, Template
from django.test import Client, RequestFactory
from pytest_django import Settings

from django_rlock import LockNotOwnedError, rlock
from django_rlock.exceptions import KeyTemplateError
from django_rlock.locks.records import Work
from tests.console.conftest import LogIn
from tests.console.pages import FORCE, LIST, detail, said

PANEL = Template('{% load rlock %}{% rlock_panel "stock:<item.pk>" item=item %}')
PAGE = "/admin/shop/item/42/change/?tab=stock"


def panel(user: Any, item: Any = SimpleNamespace(pk=42), template: Template = PANEL) -> str:  # noqa: B008
    request = RequestFactory().get(PAGE)
    request.user = user
    return template.render(RequestContext(request, {"item": item}))


def user_of(client: Client) -> User:
    return User.objects.get(pk=client.session["_auth_user_id"])


def test_who_holds_the_lock_since_when_and_for_whom(log_in: LogIn) -> None:
    bob = User.objects.create(username="bob")
    user = user_of(log_in("view_lock view_user"))
    assert "Nobody holds the lock." in panel(user)
    with Work({"route": "POST /items/<pk>/", "user": str(bob.pk)}), rlock("stock:42"):
        page = panel(user)
    for expected in ("POST /items/&lt;pk&gt;/", "pid ", f'href="{detail("stock:42")}"', ">bob</bdi>"):
        assert expected in page
    assert re.search(r"\d\d:\d\d:\d\d \w+</span>", page)  # since when


def test_who_edits_since_when(log_in: LogIn) -> None:
    """An editor's lock is held from request to request, and by none of them."""
    bob = User.objects.create(username="bob")
    user = user_of(log_in("view_lock view_user"))
    with Work({"route": "GET /edit/<pk>/", "user": str(bob.pk)}):
        lock = rlock("stock:42", owner=str(uuid4()), lease_time=120)
        lock.acquire()
        lock.hand_over()
    page = panel(user)
    assert "GET /edit/&lt;pk&gt;/" in page
    assert ">bob</bdi>" in page
    assert re.search(r"\d\d:\d\d:\d\d \w+</span>", page)


def test_the_button_leads_to_the_confirmation_and_back(operator: Client, redis_client: redis.Redis) -> None:
    with pytest.raises(LockNotOwnedError), rlock("stock:42"):
        page = panel(user_of(operator))
        sent = {name: unescape(value) for name, value in re.findall(r'name="(\w+)" value="([^"]*)"', page)}
        assert sent.keys() == {"csrfmiddlewaretoken", "next", "lock"}
        confirmation = operator.post(FORCE, sent).content.decode()
        assert f'href="{PAGE}" class="rlock-cancel"' in unescape(confirmation)
        answer = operator.post(FORCE, sent | {"confirm": "yes"})
        assert answer["Location"] == PAGE
        assert not redis_client.exists("rlock:stock:42")
    assert said(operator) == ["1 lock was freed."]


@pytest.mark.parametrize("page", ["https://evil.example.com/", "//evil.example.com", "javascript:alert(1)", ""])
def test_the_way_back_leads_to_no_other_site(operator: Client, page: str) -> None:
    assert operator.post(FORCE, {"next": page})["Location"] == LIST


@pytest.mark.parametrize(
    ("permissions", "sees", "frees"),
    [("", False, False), ("view_lock", True, False), ("force_release_lock", True, True)],
)
def test_who_may_see_and_free(log_in: LogIn, permissions: str, sees: bool, frees: bool) -> None:
    user = user_of(log_in(permissions))
    with rlock("stock:42"):
        page = panel(user)
    assert ("pid" in page, "Force release" in page) == (sees, frees)


def test_an_object_that_is_being_added_has_no_lock(operator: Client) -> None:
    assert panel(user_of(operator), item=None).strip() == ""


def test_an_alias_its_key_function_and_its_trouble(operator: Client, settings: Settings) -> None:
    template = Template('{% load rlock %}{% rlock_panel "stock:<item.pk>" using="tenants" item=item %}')
    settings.RLOCK = {"tenants": {"KEY_FUNCTION": "acme:{}".format}}
    with rlock("stock:42", using="tenants"):
        assert "acme:stock:42" in panel(user_of(operator), template=template)
    settings.CACHES = settings.CACHES | {
        "away": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}
    }
    settings.RLOCK = {"tenants": {"CACHE": "away"}}
    assert "did not respond" in panel(user_of(operator), template=template)


def test_a_wrong_template_is_the_developers_mistake(operator: Client) -> None:
    with pytest.raises(KeyTemplateError):
        panel(user_of(operator), template=Template('{% load rlock %}{% rlock_panel "stock:<pk" pk=7 %}'))
