"""A signal's exception between the making and the run of a flow: Python does not warn about a forgotten coroutine."""

import warnings
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

import pytest

from django_rlock import RLock
from django_rlock._transport.calls import run_flow
from tests.faults.opcodes import Aim


def strike() -> None:
    raise InterruptedError


def warnings_of(act: Callable[[], object]) -> list[str]:
    """What Python warns of if each opcode of ``run_flow`` in turn is interrupted."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        for at in count(1):
            aim = Aim(strike, lambda code: code is not run_flow.__code__)
            with suppress(InterruptedError):
                try:
                    aim.begin(at)
                    act()
                finally:
                    aim.end()
            if not aim.place:
                break
    return [str(each.message) for each in caught if each.category is RuntimeWarning]


async def flow(number: int) -> int:
    return number


def visit() -> None:
    with RLock("stock:42"):
        pass


@pytest.mark.parametrize("act", [lambda: run_flow(flow, (42,)), visit], ids=["flow", "block"])
def test_no_coroutine_is_left_unawaited(act: Callable[[], Any], redis_client: Any) -> None:
    act()
    assert warnings_of(act) == []


def test_a_flow_returns_its_value_and_raises_its_error() -> None:
    async def fails() -> None:
        raise LookupError

    assert run_flow(flow, (42,)) == 42
    with pytest.raises(LookupError):
        run_flow(fails, ())
