"""Key templates: what is parsed and refused, what values become, and that no two bindings share a key."""

import contextlib
import itertools
import json
import pickle
import re
import string
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from types import SimpleNamespace
from unittest import mock
from urllib.parse import unquote_to_bytes
from uuid import UUID

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.contrib.contenttypes.models import ContentType
from django.db.models import IntegerChoices, TextChoices
from django.http import HttpRequest
from django.test import RequestFactory
from django.urls import converters
from django.utils.functional import SimpleLazyObject
from django.utils.translation import gettext_lazy
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from django_rlock._web.keytemplates import KeyTemplate, check_converters, check_names
from django_rlock._web.values import MAX_BYTES
from django_rlock.exceptions import KeyTemplateError, RLockError

SAFE = string.ascii_letters + string.digits + "_.@-"


class Level(Enum):
    LOW = 1
    NAMED = "low"
    EMPTY = ""
    NOTHING = None


class Status(TextChoices):
    PAID = "paid"


class Priority(IntegerChoices):
    HIGH = 3


class ProxyUser(User):
    class Meta:
        proxy = True
        app_label = "auth"


def shown(value) -> str:
    """An id for a parameter, short and without addresses, which differ between xdist's workers."""
    return ascii(value)[:40] if type(value) in {str, bool} else type(value).__name__


def render(source: str, **namespace) -> str:
    return KeyTemplate.parse(source).render(namespace)


def refusal(source: str, **namespace) -> str:
    template = KeyTemplate.parse(source)
    with pytest.raises(KeyTemplateError) as caught:
        template.render(namespace)
    assert caught.value.template == source
    return str(caught.value)


def json_request(body: str | bytes, content_type: str = "application/json") -> HttpRequest:
    return RequestFactory().post("/", body, content_type=content_type)


# ---- the template ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "key"),
    [
        ("stock", "stock"),
        ("stock:<id>", "stock:7"),
        ("<id>", "7"),
        ("<id>:stock", "7:stock"),
        ("a:<id>:<name>:z", "a:7:x:z"),
        ("<id>:<id>", "7:7"),
        ("<id>-:-<name>", "7-:-x"),
        ("<id> <name>", "7 x"),
        ("锁:<id>/<name>", "锁:7/x"),
        ("a<<b", "a<b"),
        ("<<id>", "<id>"),
        ("<<<id>>", "<7>"),
        ("<<<<", "<<"),
        ("100%:<id>", "100%:7"),
        ("a>b", "a>b"),
        ("<int:id>", "7"),
        ("s:<int:id?>", "s:7"),
        ("s:<none?>", "s:"),
        ("<none?>:<id>", ":7"),
        ("<nowhere?>:<id>", ":7"),
    ],
)
def test_renders(source, key):
    assert render(source, id=7, name="x", none=None) == key


NO_PLACEHOLDERS = [
    *("<>", "<?>", "<int:>", "<:id>", "<a:b:c>", "<id??>", "<id?.pk>", "<1>", "<a-b>", "< id>", "<id >", "<int: id>"),
    *("<order.>", "<.pk>", "<order..pk>", "<order.->", "<order.save()>", "<order[0]>", "<order!r>", "<a\n>"),
]
PRIVATE = ["<_id>", "<order._meta>", "<order.__class__>", "<order.__class__.__init__.__globals__>", "<GET._x>"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "that is not empty"),
        ("  ", "that is not empty"),
        (7, "is a string"),
        (None, "is a string"),
        ("<", "'<' is not closed"),
        ("stock:<id", "'<id' is not closed; write '<<'"),
        ("stock:<id:<pk>", "'<id:' is not closed"),
        ("<<<", "'<' is not closed"),
        *((source, "is not a placeholder") for source in NO_PLACEHOLDERS),
        *((source, "private name") for source in PRIVATE),
        ("stock:{id}", "no '{' in a template"),
        ("stock:}<id>", "no '}' in a template"),
        ("stock:~<id>", "no '~' in a template"),
        ("stock\x00", "no '\\x00' in a template"),
        ("stock\r\n<id>", "no '\\r' in a template"),
        ("<id>:\u202e", "no '\\u202e' in a template"),
        ("a\u200b<id>", "no '\\u200b' in a template"),
        ("a\ud800<id>", "no '\\ud800' in a template"),
        ("a\xa0<id>", "no '\\xa0' in a template"),
        ("<id?>", "the key would be empty"),
        ("<a><b>", "'<a><b>' is ambiguous"),
        ("s:<a><b>", "put a separator such as ':' between, as in '<a>:<b>'"),
        ("<a>:<b>-<c>", "'<b>-<c>' is ambiguous"),
        ("<a?>.<b?>", "'<a?>.<b?>' is ambiguous"),
        *((source, "is ambiguous") for source in ("<a>%<b>", "<a>%3A<b>", "<a>.-_@9<b>", "<int:a>x<int:b>")),
    ],
)
def test_refuses_to_parse(source, message):
    with pytest.raises(KeyTemplateError) as caught:
        KeyTemplate.parse(source)
    assert message in str(caught.value)
    assert caught.value.template == source
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("source", ["a<id?>", "<id?>a", "<id?>:<b?>", "<<<id?>"])
def test_optional_values_beside_a_literal_make_no_empty_key(source):
    assert KeyTemplate.parse(source).render({})


def test_the_error_is_a_value_error_and_ours_and_pickles():
    with pytest.raises(KeyTemplateError) as caught:
        KeyTemplate.parse("<a><b>")
    assert isinstance(caught.value, RLockError)
    assert isinstance(caught.value, ValueError)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.template) == (str(caught.value), "<a><b>")


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("stock", set()),
        ("<id>", {"id"}),
        ("<order.pk>:<int:size?>", {"order", "size"}),
        ("<request.user.pk>", {"request"}),
        ("<GET.q>:<POST.q>:<header.X-A>:<data.q>", {"request"}),
        ("<data>", {"data"}),
        ("<task.id>:<self.name>", {"task", "self"}),
    ],
)
def test_names(source, names):
    assert KeyTemplate.parse(source).names == names


def test_is_frozen_hashable_and_picklable():
    template = KeyTemplate.parse("stock:<int:id>")
    assert template.source == "stock:<int:id>"
    assert {template, KeyTemplate.parse("stock:<int:id>")} == {template}
    assert template != KeyTemplate.parse("stock:<id>")
    assert pickle.loads(pickle.dumps(template)).render({"id": 7}) == "stock:7"
    with pytest.raises(AttributeError):
        template.source = "other"  # type: ignore[misc]


# ---- values ------------------------------------------------------------------------------------------------

EAST = timezone(timedelta(hours=8))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (SAFE, SAFE),
        ("1", "1"),
        (1, "1"),
        (0, "0"),
        (-5, "-5"),
        (10**60, "1" + "0" * 60),
        (True, "True"),
        (False, "False"),
        ("a:b", "a%3Ab"),
        ("%3A", "%253A"),
        ("😀", "%F0%9F%98%80"),
        ("\ud83d\ude00", "%ED%A0%BD%ED%B8%80"),
        ("\ud800", "%ED%A0%80"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Decimal("1.50"), "1.5"),
        (Decimal("1.5"), "1.5"),
        (Decimal(100), "100"),
        (Decimal("1E+2"), "100"),
        (Decimal("-0.00"), "0"),
        (Decimal("0E+999999"), "0"),
        (Decimal("1E-7"), "0.0000001"),
        (Decimal("1.00000000000000000000000000000000000001"), "1.00000000000000000000000000000000000001"),
        (date(2026, 1, 2), "2026-01-02"),
        (datetime(2026, 1, 2, 3, 4, 5), "2026-01-02T03%3A04%3A05"),  # noqa: DTZ001 (naive is the case)
        (datetime(2026, 1, 2, 3, tzinfo=UTC), "2026-01-02T03%3A00%3A00%2B00%3A00"),
        (datetime(2026, 1, 2, 11, tzinfo=EAST), "2026-01-02T03%3A00%3A00%2B00%3A00"),
        (Level.LOW, "1"),
        (Level.NAMED, "low"),
        (Status.PAID, "paid"),
        (Priority.HIGH, "3"),
        (User(pk=7), "auth.user:7"),
        (ProxyUser(pk=7), "auth.user:7"),
        (ContentType(pk="a:b"), "contenttypes.contenttype:a%3Ab"),
        (SimpleLazyObject(lambda: "a b"), "a%20b"),
        (SimpleLazyObject(lambda: 7), "7"),
        (SimpleLazyObject(lambda: SimpleLazyObject(lambda: User(pk=7))), "auth.user:7"),
    ],
    ids=shown,
)
def test_values(value, text):
    assert render("<v>", v=value) == text
    assert render("k:<v>:z", v=value) == f"k:{text}:z"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "<v> is None; pass a value, or write <v?>"),
        ("", "<v> is an empty string"),
        (Level.NOTHING, "is None"),
        (Level.EMPTY, "is an empty string"),
        (SimpleLazyObject(lambda: None), "is None"),
        (SimpleLazyObject(lambda: ""), "is an empty string"),
        (AnonymousUser(), "is AnonymousUser: nobody is logged in"),
        (SimpleLazyObject(AnonymousUser), "is AnonymousUser: nobody is logged in"),
        (User(), "is User without a primary key: save it first"),
        (ContentType(pk=""), "is an empty string"),
    ],
    ids=shown,
)
def test_nothing_is_refused_unless_optional(value, message):
    assert message in refusal("k:<v>", v=value)
    assert render("k:<v?>", v=value) == "k:"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (1.5, "float"),
        (float("nan"), "float"),
        (Decimal("NaN"), "not finite"),
        (Decimal("-Infinity"), "not finite"),
        (Decimal("1E+999999999"), "too many digits"),
        (Decimal("1E-999999999"), "too many digits"),
        (10**5000, "is int out of range"),
        (datetime(1, 1, 1, tzinfo=EAST), "is datetime out of range"),
        (b"x", "is bytes; keys take str, int"),
        ([1], "is list"),
        ((1, 2), "is tuple"),
        ({"a": 1}, "is dict"),
        ({1}, "is set"),
        (1j, "is complex"),
        (object(), "is object"),
        (len, "is builtin_function_or_method"),
        (User, "is ModelBase"),
        (timedelta(1), "is timedelta"),
        (gettext_lazy("Yes"), "is __proxy__"),
        (ContentType(pk=1.5), "is float"),  # type: ignore[misc]
    ],
    ids=shown,
)
@pytest.mark.parametrize("source", ["k:<v>", "k:<v?>"])
def test_refused_values(source, value, message):
    text = refusal(source, v=value)
    assert text.startswith(f"{source}: {source[2:]} ")
    assert message in text


def test_a_subclass_cannot_lie_about_its_text():
    class Loud(str):
        __slots__ = ()

        def __str__(self):
            return "other"

    class Odd(int):
        def __repr__(self):
            return "{}"

    assert render("<v>", v=Loud("a b")) == "a%20b"
    assert render("<v>", v=Odd(7)) == "7"


def test_the_colon_of_an_instance_is_escaped_only_where_a_colon_ends_a_value():
    user = User(pk=7)
    assert render("t:<a>", a=user) == "t:auth.user:7"
    assert render("t:<a>/<b>", a=user, b=1) == "t:auth.user:7/1"
    assert render("t:<a>:<b>", a=user, b=1) == "t:auth.user%3a7:1"
    assert render("t:<a>", a="auth.user:7") == "t:auth.user%3A7"


# ---- converters --------------------------------------------------------------------------------------------


class HexConverter:
    regex = "[0-9a-f]+"

    def to_python(self, value):
        return int(value, 16)

    def to_url(self, value):
        return f"{value:x}"


class LevelConverter:
    regex = "low|high"

    def to_python(self, value):
        return Level(value)

    def to_url(self, value):
        return value.value


@pytest.fixture
def project_converters(monkeypatch):
    registered = {"hex": HexConverter(), "level": LevelConverter()}
    monkeypatch.setattr(converters, "REGISTERED_CONVERTERS", registered)
    converters.get_converters.cache_clear()  # type: ignore[attr-defined]
    yield
    monkeypatch.undo()
    converters.get_converters.cache_clear()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("source", "value", "text"),
    [
        ("<int:v>", 7, "7"),
        ("<int:v>", "7", "7"),
        ("<int:v>", "007", "7"),
        ("<int:v>", Priority.HIGH, "3"),
        ("<int:v?>", None, ""),
        ("<int:v?>", "", ""),
        ("<str:v>", "a b", "a%20b"),
        ("<str:v>", 7, "7"),
        ("<str:v>", Status.PAID, "paid"),
        ("<slug:v>", "a-b_c", "a-b_c"),
        ("<path:v>", "a/b", "a%2Fb"),
        ("<uuid:v>", UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ("<uuid:v>", "00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000001"),
        ("<int:v>", SimpleLazyObject(lambda: 7), "7"),
        ("<casefold:v>", 7, "7"),
        ("<casefold:v>", Status.PAID, "paid"),
        ("<casefold:v>", SimpleLazyObject(lambda: "A b"), "a%20b"),
        ("<casefold:v?>", None, ""),
        ("<casefold:v?>", " \u200b", ""),
    ],
    ids=shown,
)
def test_converters(source, value, text):
    assert render(f"k:{source}", v=value) == f"k:{text}"


@pytest.mark.parametrize(
    "spellings",
    [
        ("moon-cake", "MOON-CAKE", "Moon-Cake", "moon-cake ", " moon-cake", "moon\u200b-cake", "ｍoon-cake"),
        ("café", "cafe\u0301", "CAFÉ", "cafe"),
        ("straße", "STRASSE", "Strasse"),
        ("istanbul", "İstanbul", "ISTANBUL"),
        ("Ωmega", "ωmega", "\u2126mega"),
    ],
    ids=shown,
)
def test_spellings_of_one_row_are_one_lock(spellings):
    assert len({render("<casefold:v>", v=each) for each in spellings}) == 1


def test_other_texts_stay_different_when_folded():
    texts = ["moon-cake", "moon cake", "mooncake", "moon-cake-2", "蛋糕", "月饼", "moon:cake", "moon%cake"]
    assert len({render("<casefold:v>", v=each) for each in texts}) == len(texts)


@pytest.mark.parametrize(
    ("source", "value", "message"),
    [
        ("<int:v>", "x", "does not match '[0-9]+' of converter 'int'"),
        ("<int:v>", "7\n", "does not match"),
        ("<int:v>", "٧", "does not match"),
        ("<int:v>", " 7", "does not match"),
        ("<int:v>", "7:8", "does not match"),
        ("<int:v>", -1, "does not match"),
        ("<int:v>", True, "does not match"),
        ("<int:v>", 7.0, "is float"),
        ("<int:v>", "9" * 5000, "is str that converter 'int' fails on"),
        ("<int:v>", 10**5000, "is int out of range"),
        ("<int:v>", None, "is None"),
        ("<int:v>", "", "is an empty string"),
        ("<int:v>", AnonymousUser(), "nobody is logged in"),
        ("<int:v>", User(pk=7, username="7"), "is User; keys take"),
        ("<str:v>", "a/b", "does not match"),
        ("<str:v>", 1.5, "is float"),
        ("<str:v>", User(pk=7), "is User; keys take"),
        ("<slug:v>", "a b", "does not match"),
        ("<uuid:v>", "0", "does not match"),
        ("<uuid:v>", "A" * 8, "does not match"),
        ("<path:v>", "a\nb", "does not match"),
        ("<itn:v>", 7, "no path converter 'itn'; did you mean 'int'?"),
        ("<itn:v?>", 7, "no path converter 'itn'"),
        ("<casefold:v>", 1.5, "is float"),
        ("<casefold:v>", User(pk=7), "is User; keys take"),
        ("<casefold:v>", "\u0301" * 1001, "has more than 1,000 characters"),
        ("<casefold:v>", "\u0301", "is an empty string"),
        ("<csefold:v>", "x", "did you mean 'casefold'?"),
        ("<zzz:v>", 7, "no path converter 'zzz'; register it in the URLconf"),
    ],
    ids=shown,
)
def test_converters_refuse(source, value, message):
    assert message in refusal(f"k:{source}", v=value)


@pytest.mark.usefixtures("project_converters")
def test_converters_of_the_project():
    assert render("<hex:v>", v=255) == render("<hex:v>", v="0ff") == "ff"
    assert render("<level:v>", v=Level.NAMED) == render("<level:v>", v="low") == "low"
    assert "fails on" in refusal("<level:v>", v="high")
    assert "fails on" in refusal("<level:v>", v=7)
    assert "fails on" in refusal("<hex:v>", v=User(pk=7))
    assert "does not match '[0-9a-f]+' of converter 'hex'" in refusal("<hex:v>", v=-1)


def test_a_converter_may_be_registered_after_the_template_was_parsed(request):
    template = KeyTemplate.parse("<hex:v>")
    assert check_converters(template) == (
        "<hex:v>: no path converter 'hex'; register it in the URLconf, or use a built-in converter"
    )
    request.getfixturevalue("project_converters")
    assert check_converters(template) is None
    assert check_converters(KeyTemplate.parse("k:<id>:<int:a>:<uuid:b>")) is None
    assert template.render({"v": 255}) == "ff"


# ---- paths -------------------------------------------------------------------------------------------------


class Order:
    pk = 7
    customer = None
    items = {"first": {"sku": "a-1", "2": "two"}}

    def save(self):
        raise AssertionError("a template called something")

    @property
    def broken(self):
        raise ZeroDivisionError

    @property
    def half_broken(self):
        return self.nothing  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("source", "key"),
    [
        ("<order.pk>", "7"),
        ("<int:order.pk>", "7"),
        ("<order.items.first.sku>", "a-1"),
        ("<order.items.first.2>", "two"),
        ("k:<order.customer?>", "k:"),
        ("k:<order.customer.pk?>", "k:"),
        ("k:<order.items.second.sku?>", "k:"),
        ("k:<order.half_broken?>", "k:"),
        ("k:<int:order.customer.pk?>", "k:"),
        ("k:<nobody.customer.pk?>", "k:"),
    ],
)
def test_paths(source, key):
    assert render(source, order=Order()) == key


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("<order.nothing>", "<order.nothing> is missing: Order has no 'nothing'"),
        ("<order.customer>", "<order.customer> is None"),
        ("<order.customer.pk>", "NoneType has no 'pk'"),
        ("<order.items.second>", "there is no item 'second'"),
        ("<order.items.keys>", "there is no item 'keys'"),
        ("<order.items>", "is dict"),
        ("<order.save>", "'save' is callable, and templates do not call anything"),
        ("k:<order.save?>", "'save' is callable"),
        ("<order.save.pk>", "'save' is callable"),
        ("<order>", "is Order; keys take"),
    ],
)
def test_paths_refused(source, message):
    assert message in refusal(source, order=Order())


def test_errors_of_properties_pass_through():
    with pytest.raises(ZeroDivisionError):
        render("k:<order.broken?>", order=Order())


def test_an_attribute_error_stays_as_the_cause():
    with pytest.raises(KeyTemplateError) as caught:
        render("<order.half_broken>", order=Order())
    assert isinstance(caught.value.__cause__, AttributeError)


def test_celery_names_are_plain_roots():
    class Task:  # a task is callable, and yet a fine root
        queue = "slow"

        def __call__(self):
            raise AssertionError("a template called something")

    namespace = {"task": SimpleNamespace(id="1-2", name="shop.tasks.report"), "self": Task()}
    template = KeyTemplate.parse("<task.name>:<task.id>:<self.queue>")
    assert template.render(namespace) == "shop.tasks.report:1-2:slow"
    assert "is Task" in refusal("<self>", **namespace)


# ---- the request -------------------------------------------------------------------------------------------


def test_the_user():
    request = SimpleNamespace(user=SimpleLazyObject(lambda: User(pk=7)))
    assert render("u:<request.user.pk>", request=request) == "u:7"
    assert render("u:<request.user>", request=request) == "u:auth.user:7"
    request = SimpleNamespace(user=SimpleLazyObject(AnonymousUser))
    text = refusal("u:<request.user.pk>", request=request)
    assert "is None, as the user is AnonymousUser: nobody is logged in" in text
    assert "write <request.user.pk?>" in text
    assert "AnonymousUser has no 'email'" in refusal("u:<request.user.email>", request=request)
    assert render("u:<request.user.pk?>", request=request) == "u:"
    assert render("u:<request.user?>", request=request) == "u:"
    assert render("u:<request.user.email?>", request=request) == "u:"


def test_fields_of_the_request():
    request = RequestFactory().post("/?q=a:b&n=007", {"q": "posted"}, headers={"Idempotency-Key": "k/1"})
    assert render("<GET.q>", request=request) == "a%3Ab"
    assert render("<int:GET.n>", request=request) == "7"
    assert render("<POST.q>", request=request) == "posted"
    assert render("<data.q>", request=request) == "posted"
    assert render("<header.Idempotency-Key>", request=request) == "k%2F1"
    assert render("<header.idempotency-key>", request=request) == "k%2F1"
    assert render("k:<GET.other?>", request=request) == "k:"
    assert "there is no item 'other'" in refusal("<GET.other>", request=request)
    assert "there is no item 'X-Other'" in refusal("<header.X-Other>", request=request)


@pytest.mark.parametrize("content_type", ["application/json", "application/json; charset=utf-8", "application/x+json"])
def test_json_data(content_type):
    request = json_request(json.dumps({"sku": "a:b", "item": {"id": 7}, "none": None, "list": [1]}), content_type)
    assert render("<data.sku>:<data.item.id>", request=request) == "a%3Ab:7"
    assert render("k:<data.none?>:<data.more?>", request=request) == "k::"
    assert "is None" in refusal("<data.none>", request=request)
    assert "is list" in refusal("<data.list>", request=request)
    assert "is dict" in refusal("k:<data.item?>", request=request)


def test_json_is_parsed_once():
    request = json_request('{"sku": 1}')
    with mock.patch.object(json, "loads", wraps=json.loads) as loads:
        assert render("<data.sku>:<data.sku>", request=request) == "1:1"
        assert render("<data.sku>", request=request) == "1"
    loads.assert_called_once()


BAD_JSON = [b" ", b"{", b"\xff\xfe\xfd", b"[" * 1_000_000, b'{"a": ' * 100_000, b"9" * 5000]


@pytest.mark.parametrize("body", BAD_JSON, ids=lambda body: f"{body[:4]!a} {len(body)}")
@pytest.mark.parametrize("source", ["k:<data.sku>", "k:<data.sku?>"])
def test_a_body_that_is_not_json(source, body):
    assert "the body of the request is not valid JSON" in refusal(source, request=json_request(body))


@pytest.mark.parametrize("body", ["[]", "null", "7", '"text"', "NaN"])
def test_json_that_is_no_object(body):
    assert "has no 'sku'" in refusal("<data.sku>", request=json_request(body))


def test_json_with_nan_and_half_a_surrogate_pair():
    assert "is float" in refusal("<data.v>", request=json_request('{"v": NaN}'))
    assert render("<data.v>", request=json_request('{"v": "\\ud800"}')) == "%ED%A0%80"


def test_rest_framework_data_is_taken_as_it_is():
    request = SimpleNamespace(data={"sku": "x"})
    assert render("<data.sku>", request=request) == "x"


@pytest.mark.parametrize("name", ["GET", "POST", "header", "data"])
def test_a_bound_argument_wins_over_the_request(name):
    """Or else a client would choose what is locked by sending a field of that name."""
    request = RequestFactory().post("/?sku=evil", {"sku": "evil"}, headers={"sku": "evil"})
    assert render(f"<{name}.sku>", request=request) == "evil"
    assert render(f"<{name}.sku>", request=request, **{name: {"sku": "good"}}) == "good"
    assert "there is no item 'sku'" in refusal(f"<{name}.sku>", request=request, **{name: {}})


def test_fields_of_the_request_without_a_request():
    assert refusal("<GET.q>", pk=7, size=1) == (
        "<GET.q>: no argument 'GET' and no 'request' to take it from; the call has 'pk', 'size'"
    )
    assert "no argument 'data'; the call has 'request'" in refusal("<data>", request=RequestFactory().get("/"))


# ---- names -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "available", "suggestion"),
    [
        ("stock:<id>", ["request", "pk"], "stock:<pk>"),
        ("stock:<id>", ["request", "pk", "size"], "stock:<pk>"),
        ("stock:<int:pk?>:<int:pk>", ["id", "x"], "stock:<int:pk?>:<int:id>"),
        ("stock:<int:order_idd>", ["request", "order_id", "size"], "stock:<int:order_id>"),
        ("stock:<id>", ["request", "order_id", "size"], "stock:<order_id>"),
        ("stock:<id>", ["request", "order_id", "item_id"], None),
        ("stock:<ordr.customer.pk>", ["order", "size"], "stock:<order.customer.pk>"),
        ("<get.q>", ["request"], "<GET.q>"),
        ("<headers.X-A>", ["request"], "<header.X-A>"),
        ("<get.q>", ["pk", "size"], None),
        ("<ID>", ["id", "size"], "<id>"),
        ("<sku>", ["request", "self"], None),
        ("<sku>", [], None),
        ("<a>:<b>", ["a", "request"], None),
    ],
)
def test_check_names_suggests(source, available, suggestion):
    text = check_names(KeyTemplate.parse(source), available, "view()")
    assert text is not None
    assert text.startswith(f"{source}: no argument '")
    found = re.search(r"; did you mean '(.*)'\?$", text)
    assert (found and found[1]) == suggestion


def test_check_names_message():
    template = KeyTemplate.parse("stock:<id>")
    assert check_names(template, ["request", "pk"], "buy(request, pk)") == (
        "stock:<id>: no argument 'id'; buy(request, pk) has 'request', 'pk'; did you mean 'stock:<pk>'?"
    )
    assert check_names(template, [], "buy()") == "stock:<id>: no argument 'id'; buy() has no arguments"


@pytest.mark.parametrize(
    ("source", "available"),
    [
        ("stock", []),
        ("<id>", ["id"]),
        ("k:<id?>", []),
        ("<request.user.pk>", ["request"]),
        ("<GET.q>:<header.X>", ["request"]),
        ("<data.sku>", ["data"]),
        ("<data.sku>", {"request": 1}),
        ("<data>", ("data",)),
    ],
)
def test_check_names_finds_nothing(source, available):
    assert check_names(KeyTemplate.parse(source), available, "view()") is None


# ---- long keys ---------------------------------------------------------------------------------------------


def test_the_longest_plain_key_and_the_first_shortened_one():
    plain = "k:" + "x" * (MAX_BYTES - 2)
    assert render("k:<v>", v=plain[2:]) == plain
    short = render("k:<v>", v=plain[2:] + "x")
    assert re.fullmatch(r"k:x{165}~[0-9a-f]{32}", short)
    assert len(short) == MAX_BYTES


def test_bytes_count_and_not_characters():
    assert render("锁" * 66 + "<v>", v=12) == "锁" * 66 + "12"
    short = render("锁" * 66 + "<v>", v=123)
    assert len(short.encode()) <= MAX_BYTES
    assert re.fullmatch(r"锁{55}~[0-9a-f]{32}", short)


def test_a_long_template_without_values_is_shortened():
    assert "~" in render("x" * (MAX_BYTES + 1))


def test_long_keys_that_differ_at_the_end_stay_apart():
    keys = {render("k:<v>:<w>", v="x" * n, w=end) for n in (500, 501) for end in ("a", "b")}
    assert len(keys) == 4


def test_no_value_looks_like_a_shortened_key():
    short = render("k:<v>", v="x" * 500)
    assert render("k:<v>", v=short[2:]) != short
    with pytest.raises(KeyTemplateError):
        KeyTemplate.parse(short)


@pytest.mark.parametrize("char", ["a", "\x00", "{", "\u202e", "\ud800", "😀", "~", ":"], ids=shown)
def test_a_megabyte(char):
    key = render("k:<v>", v=char * 1_000_000)
    assert len(key) <= MAX_BYTES
    assert re.fullmatch(r"k:[A-Za-z0-9%]*~[0-9a-f]{32}", key)


@pytest.mark.parametrize("source", ["<" * 99_999, "<a" * 100_000, "<a>" * 100_000, "<<" * 100_000 + "{"])
def test_a_long_bad_template_is_refused_soon(source):
    """In quadratic time it would take longer than a test may."""
    with pytest.raises(KeyTemplateError):
        KeyTemplate.parse(source)


def test_messages_do_not_repeat_the_value():
    for source in ("<int:v>", "<slug:v>", "<v.pk>"):
        assert "secret" not in refusal(source, v="my secret")


# ---- injectivity -------------------------------------------------------------------------------------------

NAMES = ["a", "b", "c", "d"]

# Pieces that look like what the templates below and the encoding put in.
ADVERSARIAL = ["", "1", "12", "2", ":", "/", "~", "%", "%3A", "%3a", "3A", "x", ".", "auth.user", "{", "}", "\x00", "é"]
texts = st.one_of(st.text(max_size=6), st.lists(st.sampled_from(ADVERSARIAL), max_size=4).map("".join))
pks = st.one_of(st.integers(), texts.filter(bool))
values = st.one_of(
    st.none(),
    texts,
    st.integers(-20, 20),
    st.booleans(),
    st.uuids(),
    st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-9, max_value=9),
    st.dates(),
    st.datetimes(min_value=datetime(2, 1, 1), timezones=st.sampled_from([None, UTC, EAST])),  # noqa: DTZ001
    st.sampled_from([Status.PAID, Priority.HIGH, Level.LOW]),
    st.builds(lambda pk: User(pk=pk), pks),
)

LITERAL_CHARS = st.sampled_from("ab1.%-@_:/ |<é")
literals = st.one_of(st.sampled_from(["", ":", "/", "%", "1"]), st.text(LITERAL_CHARS, max_size=4))


@st.composite
def templates(draw, names=4):
    """Any arrangement of literals and placeholders, among them those that parse() has to refuse."""
    source = draw(literals).replace("<", "<<")
    for name in NAMES[: draw(st.integers(1, names))]:
        source += f"<{name}{draw(st.sampled_from(['', '?']))}>"
        source += draw(literals).replace("<", "<<")
    try:
        return KeyTemplate.parse(source)
    except KeyTemplateError:
        return None


def normalised(value) -> tuple[str, str]:
    """What counts as one value: said once more, in other words than the module's."""
    if isinstance(value, User):
        return "auth.user", normalised(value.pk)[1]
    if isinstance(value, Enum):
        return normalised(value.value)
    if isinstance(value, Decimal):
        numerator, denominator = value.as_integer_ratio()
        if denominator == 1:
            return "text", str(numerator)
        return "text", str(value).rstrip("0")
    if isinstance(value, datetime):
        moment = value.astimezone(UTC) if value.tzinfo else value
        return "text", moment.isoformat()
    return "text", "" if value is None else str(value)


def rendered(template: KeyTemplate, binding: dict[str, object]) -> str:
    try:
        return template.render(binding)
    except KeyTemplateError:
        assume(False)
        raise


def bindings(kind):
    return st.fixed_dictionaries(dict.fromkeys(NAMES, kind))


@given(template=templates(), first=bindings(values), second=bindings(values))
def test_two_bindings_never_share_a_key(template, first, second):
    assume(template is not None)
    keys = [rendered(template, binding) for binding in (first, second)]
    wanted = [[normalised(binding[name]) for name in sorted(template.names)] for binding in (first, second)]
    assert (keys[0] == keys[1]) == (wanted[0] == wanted[1])


# What could be taken for one another: text and its escape, halves of pairs, instances and what they look like.
SIMILAR = [
    (":", "%3A"),
    (":", "3A", "1"),
    ("%", "25"),
    ("\ud800", "\ud801"),
    ("\ud83d", "\ude00", "😀"),
    ("auth.user", "1"),
    ("auth.user:1", "1"),
]
PIECES = sorted({"~", "é", ".", "/", "x"}.union(*SIMILAR))


@st.composite
def templates_and_close_values(draw):
    """A template, and all values of up to three of a few pieces, some from the template: those that could meet."""
    template = draw(templates(names=2).filter(bool))
    literals = re.split(r"<[a-d]\??>", template.source.replace("<<", ""))
    any_two = st.sets(st.sampled_from([*PIECES, "1", *filter(None, literals)]), min_size=1, max_size=2)
    pieces = sorted(draw(st.one_of(any_two, st.sampled_from(SIMILAR))))
    sizes = (1, 2, 3) if len(pieces) < 3 else (1, 2)
    texts = ["".join(words) for size in sizes for words in itertools.product(pieces, repeat=size)]
    return template, [*texts, *(User(pk=piece) for piece in pieces)]


@settings(max_examples=400)
@given(templates_and_close_values())
def test_no_two_of_all_combinations_share_a_key(drawn):
    template, pool = drawn
    names = sorted(template.names)
    seen: dict[str, list[tuple[str, str]]] = {}
    for combination in itertools.product(pool, repeat=len(names)):
        wanted = [normalised(value) for value in combination]
        key = template.render(dict(zip(names, combination, strict=True)))
        assert seen.setdefault(key, wanted) == wanted


@settings(suppress_health_check=[HealthCheck.filter_too_much])  # many templates refuse the values at hand
@given(template=templates(), binding=bindings(values))
def test_only_known_characters_come_out(template, binding):
    assume(template is not None)
    key = rendered(template, binding)
    allowed = set(SAFE + "%~:") | set(re.sub(r"<[a-d]\??>", "", template.source))
    assert set(key) <= allowed
    assert key
    assert len(key.encode()) <= MAX_BYTES


@given(st.text())
def test_a_string_can_be_read_back(text):
    assume(text)
    key = render("<v>", v=text)
    assume("~" not in key)
    assert unquote_to_bytes(key).decode("utf-8", "surrogatepass") == text


@given(st.one_of(st.text(max_size=30), st.text(st.sampled_from("<>?:.ab_{}~% "), max_size=12)))
def test_any_text_is_a_template_or_refused(source):
    try:
        template = KeyTemplate.parse(source)
    except KeyTemplateError:
        return
    assert not set(source) & set("{}~\x00\r\n")
    with contextlib.suppress(KeyTemplateError):
        assert template.render(dict.fromkeys(template.names, 1))


@pytest.mark.parametrize("separator", ["", "x", ".", "1", "x1", "@-", ":", "/", "x:", ":x", " ", "é", "<<"])
def test_the_rule_for_separators_is_exact(separator):
    """A separator is refused just when two bindings share a key across it."""
    alphabet = {"1", *separator} & set(SAFE)
    words = ["".join(word) for size in range(1, 5) for word in itertools.product(alphabet, repeat=size)]
    keys = [left + separator + right for left in words for right in words]
    if len(set(keys)) < len(keys):
        with pytest.raises(KeyTemplateError, match="ambiguous"):
            KeyTemplate.parse(f"<a>{separator}<b>")
    else:
        KeyTemplate.parse(f"<a>{separator}<b>")
