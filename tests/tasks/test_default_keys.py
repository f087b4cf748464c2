"""The key of a task without ``lock_key``, from all arguments: sender, worker and plain calls make the same one."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from uuid import UUID

import pytest
from celery import Celery
from celery.app.task import Context
from celery.app.trace import build_tracer
from django.utils.translation import gettext_lazy
from kombu import serialization

from django_rlock import KeyTemplateError
from django_rlock.celery import LockedTask

ID = UUID("c5a1e0e4-7f3e-4a6b-9d0b-3a5f2c1d0e9f")


class Money:
    def __init__(self, amount):
        self.amount = amount


def dumped(value):
    return json.dumps(value, default=lambda each: {"amount": each.amount})


@pytest.fixture
def own_serializer():
    serialization.register("money", dumped, json.loads, "application/x-money", "utf-8")
    yield "money"
    serialization.unregister("money")


@pytest.fixture
def make_task():
    with Celery("keys", broker="memory://", set_as_current=False) as app:

        def make(serializer):
            @app.task(base=LockedTask, name="job", serializer=serializer, shared=False)
            def job(data, *more, **others):
                pass

            return job

        yield make


def key(task, *args, **kwargs):
    [name] = task._rlock.naming.names(task, args, kwargs)
    return name


def as_received(task, *args, **kwargs):
    content_type, encoding, payload = serialization.dumps([args, kwargs], task.serializer)
    args, kwargs = serialization.loads(payload, content_type, encoding, force=True)
    return tuple(args), kwargs


VALUES = [
    pytest.param({9: 1, 10: 2}, id="int keys that sort otherwise as text"),
    pytest.param({1: "a", "b": 2}, id="keys of several types"),
    pytest.param({1: "a", "1": "b"}, id="keys that JSON takes for one"),
    pytest.param({True: 1, None: 2, 1.5: 3}, id="odd keys"),
    pytest.param([{"a": ({2: 1, 10: 1},)}], id="deep inside"),
    pytest.param((1, (2, 3)), id="tuple"),
    pytest.param(datetime(2026, 2, 1, tzinfo=UTC), id="datetime"),
    pytest.param({"on": date(2026, 2, 1)}, id="date"),
]


@pytest.mark.parametrize("serializer", ["json", "pickle"])
@pytest.mark.parametrize("value", [*VALUES, pytest.param(b"\xff\x00", id="bytes")])
def test_sender_and_worker_make_the_same_key(make_task, serializer, value):
    task = make_task(serializer)
    args, kwargs = as_received(task, value, value, also=value)
    assert key(task, value, value, also=value) == key(task, *args, **kwargs)


@pytest.mark.parametrize("value", [ID, Decimal("1.50"), gettext_lazy("Log in")], ids=["UUID", "Decimal", "lazy text"])
def test_sender_and_worker_make_the_same_key_of_what_only_json_takes(make_task, value):
    task = make_task("json")
    args, kwargs = as_received(task, value)
    assert key(task, value) == key(task, *args, **kwargs)


def test_a_serializer_of_the_project_counts(make_task, own_serializer):
    task = make_task(own_serializer)
    args, kwargs = as_received(task, Money(7))
    assert key(task, Money(7)) == key(task, *args, **kwargs) != key(task, Money(8))


@pytest.mark.parametrize("serializer", ["json", "pickle"])
def test_a_uuid_and_its_text_are_one_key(make_task, serializer):
    task = make_task(serializer)
    assert key(task, ID) == key(task, str(ID))
    assert key(task, {"a": [ID]}) == key(task, {"a": [str(ID)]})


@pytest.fixture
def plain_task():
    with Celery("keys", broker="memory://", set_as_current=False) as app:

        @app.task(base=LockedTask, name="job", serializer="json", shared=False)
        def job(data, a=2):
            pass

        yield job


@pytest.mark.parametrize("value", [4, -(10**30), 0.1, True, None, "", "ü\ud800\n", "4"])
def test_a_plain_value_has_the_key_of_all_serializers(plain_task, value):
    plain = key(plain_task, value)
    plain_task.serializer = "pickle"
    assert key(plain_task, value) == plain


def test_the_key_is_that_of_other_versions(plain_task):
    assert key(plain_task, 4) == "job:9a9754a79a4655dc0af56cd637203862"


def test_what_no_message_carries_is_refused_by_name(make_task):
    with pytest.raises(KeyTemplateError, match="'data' is not JSON"):
        key(make_task("json"), object())


@pytest.mark.parametrize("body", ["three parameters", "any arguments"])
def test_a_link_error_gets_what_no_message_carries(body):
    """Celery calls it in the worker, with the request, the exception and the traceback of the task that failed."""
    called = []
    with Celery("alerts", broker="memory://", backend="cache+memory://", set_as_current=False) as app:
        locked = partial(app.task, base=LockedTask, name="alert", shared=False)

        def alert(request, error, traceback):
            called.append((request.id, error.args, bool(traceback)))

        def alert_of_any(*args):
            alert(*args)

        errback = locked(alert if body == "three parameters" else alert_of_any)

        @app.task(name="job", shared=False)
        def job():
            raise ValueError("no")

        request = {"id": "7", "delivery_info": {}, "errbacks": [errback.s()]}
        outcome = build_tracer(job.name, job, app=app)("7", [], {}, request)
        assert outcome.info is not None
        assert outcome.info.state == "FAILURE"
        assert called == [("7", ("no",), True)]


def test_the_failure_of_a_request_makes_the_key_of_its_link_error(make_task):
    task = make_task("json")
    first, second = Context(id="1"), Context(id="2")
    name = key(task, first, ValueError("no"), "a traceback")
    assert name == key(task, first, ValueError("no"), None)
    assert name not in {key(task, second, ValueError("no"), None), key(task, first, ValueError("never"), None)}
    assert key(task, first, ValueError("no"), None, "more") != name
