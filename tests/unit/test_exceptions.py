"""Errors keep their values and texts on every way that an error takes."""

import inspect
import json
import pickle
import re
from typing import Any

import pytest
import redis.exceptions
from celery import Celery
from celery.backends.base import Backend
from celery.utils.serialization import get_pickleable_exception

from django_rlock import (
    KeyTemplateError,
    LockLostError,
    LockNotOwnedError,
    LockTimeoutError,
    LockUnavailableError,
    LockUpgradeError,
    PermitNotHeldError,
    RLockError,
    StaleTokenError,
)
from django_rlock._transport.calls import unavailable
from django_rlock.exceptions import QuorumNotReachedError
from django_rlock.inspection import Holder

ERRORS = [
    LockTimeoutError("stock:1", waited=3.0, holder="web-2 pid 311", retry_after=22.9),
    LockTimeoutError("stock:1"),
    LockNotOwnedError("stock:1", owner="another"),
    LockNotOwnedError("stock:1", owner="another", side="read", held_side="write"),
    LockNotOwnedError("stock:1", owner="another", left_by="Task-7"),
    LockNotOwnedError("stock:1", owner="another", asked_for="fencing token"),
    LockUpgradeError("stock:1", owner="another"),
    LockLostError("stock:1", reason="an operator freed it"),
    StaleTokenError("stock:1", row="shop.stock:1", token=1_700_000_000_000_001, stored=1_700_000_000_000_002),
    StaleTokenError(None, row="shop.stock:1", token=None, stored=1_700_000_000_000_002),
    LockUnavailableError("stock:1", reason="connection refused", advice="Start the server."),
    LockUnavailableError("stock:1", reason="connection refused"),
    LockUnavailableError("printers", reason="connection refused", noun="semaphore"),
    LockTimeoutError("printers", noun="semaphore"),
    LockLostError("licences", noun="permit of semaphore"),
    PermitNotHeldError("stock:1", ids=("0" * 32, "1" * 32)),
    KeyTemplateError("stock:<id>: no argument 'id'", template="stock:<id>"),
]

HOSTILE = "a\r\n\x1b[31m\u202e\u2028b"
"""A line of its own, a colour, another direction; as any client may put it into a path, and so into another's error."""


def classes_of_errors(of: type[RLockError] = RLockError) -> list[type[RLockError]]:
    return [of, *(each for kind in of.__subclasses__() for each in classes_of_errors(kind))]


def made_of_hostile_texts(kind: type[RLockError]) -> RLockError:
    """An error each of whose texts is hostile."""
    values: dict[str, Any] = {"float": 1.0, "int": 1, "Sequence[str]": (HOSTILE,), "object": HOSTILE}
    values["dict[str, Exception]"] = {HOSTILE: ConnectionError(HOSTILE)}
    given = []
    for parameter in inspect.signature(kind).parameters.values():
        annotation = str(parameter.annotation).removesuffix(" | None")
        given.append(values.get(annotation, HOSTILE))
    return kind(*given)


each_error = pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)


def assert_same(copy: BaseException, error: RLockError) -> None:
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


@pytest.mark.parametrize("kind", classes_of_errors(), ids=lambda kind: kind.__name__)
def test_no_error_shows_what_is_not_printable(kind: type[RLockError]) -> None:
    error = made_of_hostile_texts(kind)
    assert str(error).isprintable()
    assert "\\n" in str(error)


def test_no_holder_shows_what_is_not_printable() -> None:
    holder = Holder(owner=HOSTILE, actor="", client="", count=1, context={"route": HOSTILE})
    assert str(holder).isprintable()
    assert "\\n" in str(holder)


@each_error
def test_an_error_survives_pickling(error: RLockError) -> None:
    assert_same(pickle.loads(pickle.dumps(error)), error)


@each_error
def test_an_error_survives_a_json_result_of_celery(error: RLockError) -> None:
    backend = Backend(Celery(set_as_current=False), serializer="json")
    stored = json.loads(json.dumps(backend.prepare_exception(error, serializer="json")))
    assert_same(backend.exception_to_python(stored), error)


@each_error
def test_an_error_survives_celery_making_it_pickleable(error: RLockError) -> None:
    assert_same(get_pickleable_exception(error), error)


BUILTIN: dict[type[RLockError], type[Exception]] = {
    LockTimeoutError: TimeoutError,
    LockUnavailableError: ConnectionError,
    KeyTemplateError: ValueError,
}
"""The builtin errors that callers expect; the others are RuntimeErrors."""


@each_error
def test_code_that_catches_builtin_errors_or_those_of_redis_py_catches_ours(error: RLockError) -> None:
    assert isinstance(error, redis.exceptions.LockError)
    assert isinstance(error, BUILTIN.get(type(error), RuntimeError))
    if isinstance(error, LockNotOwnedError | LockLostError):
        assert isinstance(error, redis.exceptions.LockNotOwnedError)


def test_a_text_says_who_holds_the_lock_or_what_is_to_be_done() -> None:
    assert re.fullmatch(r"Lock 'stock:1' .*held by web-2 pid 311.* 22\.9 s.*", str(ERRORS[0]))
    error = LockUnavailableError("stock:1", reason="connection refused", advice="Start the server.")
    assert str(error) == "Lock 'stock:1' is unavailable: connection refused. Start the server."


def test_an_error_without_a_text_is_named_by_its_type():
    """As a handshake of TLS that takes too long."""
    silent = TimeoutError()
    told = QuorumNotReachedError("stock:1", {"node1": silent, "node2": ValueError("it was refused.")}, nodes=3)
    assert "(node1: TimeoutError; node2: it was refused)" in str(told)
    assert unavailable("stock:1", silent).reason == "TimeoutError"
