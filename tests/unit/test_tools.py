"""What tools find of a lock: editors, notebooks, mocks, frameworks that tell coroutine functions from others."""

import ast
import inspect
import textwrap
from typing import Any
from unittest.mock import AsyncMock, MagicMock, patch

import pytest

from django_rlock import (
    CountDownLatch,
    FairLock,
    FencedLock,
    MultiLock,
    PermitExpirableSemaphore,
    ReadLock,
    RedLock,
    RLock,
    Semaphore,
    SpinLock,
    WriteLock,
)

LOCKS: list[type] = [RLock, FairLock, FencedLock, SpinLock, MultiLock, RedLock, ReadLock, WriteLock]
KINDS = [*LOCKS, Semaphore, PermitExpirableSemaphore, CountDownLatch]


def bindings_of(kind: type) -> dict[str, str]:
    """The blocking method of each coroutine method."""
    pairs = {f"a{name}": name for name in dir(kind) if f"a{name}" in dir(kind) and not name.startswith(("_", "enter"))}
    return pairs | ({"await_": "wait"} if kind is CountDownLatch else {})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_methods_are_written_out(kind):
    """What an editor reads, without running anything."""
    pairs = bindings_of(kind)
    assert len(pairs) >= 5
    for name in {*pairs, *pairs.values()}:
        method = getattr(kind, name)
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(method))).body
        assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
        assert definition.name == method.__name__ == name
        assert ast.get_docstring(definition)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_coroutine_methods_have_the_signatures_of_the_blocking_ones(kind):
    for awaited, blocking in bindings_of(kind).items():
        assert inspect.iscoroutinefunction(getattr(kind, awaited))
        assert not inspect.iscoroutinefunction(getattr(kind, blocking))
        assert inspect.signature(getattr(kind, awaited)) == inspect.signature(getattr(kind, blocking))


def test_methods_of_one_object_can_be_replaced():
    lock: Any = RLock("stock:42")
    with patch.object(lock, "acquire", return_value=False), patch.object(lock, "aacquire") as awaited:
        assert lock.acquire() is False
        assert isinstance(lock.acquire, MagicMock)
        assert isinstance(awaited, AsyncMock)
    assert "acquire" not in vars(lock)
