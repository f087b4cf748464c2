"""The suite's short form, which the gate runs, and its long form, of ``make test-all``."""

import operator
import os
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

THOROUGH = bool(os.environ.get("RLOCK_TEST_THOROUGH"))
"""Whether this is the long form: tests marked ``thorough`` run, and sweeps go through all they have."""


def long(*values: Any) -> list[Any]:
    """Parameters of the long form."""
    return [pytest.param(value, marks=pytest.mark.thorough) for value in values]


def first_place(config: pytest.Config, stride: int) -> int:
    """Where a sweep with a stride begins: the same for the same seed; runs with consecutive seeds meet every place."""
    return 1 + int(config.getoption("randomly_seed", 0)) % stride


def is_of_the_short_form(item: pytest.Item) -> bool:
    return not item.get_closest_marker("thorough") and _is_every_other(item)


def _is_every_other(item: pytest.Item) -> bool:
    """Of the combinations of a binding with other parameters, and of all combinations of a lengthy test, the fields of
    one colour on a chessboard. Which colour it is differs from test to test; so each parameter has its turn.
    """
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return True
    names = item.callspec.indices.keys()
    is_crossed = "binding" in names and len(names) > 1
    if not is_crossed and not item.get_closest_marker("lengthy"):
        return True
    colour = zlib.crc32(item.originalname.encode())
    return (sum(_places(item)) + colour) % 2 == 0


def _places(item: pytest.Function) -> Iterator[int]:
    """Where the values stand in their lists: one place for each fixture and for each ``parametrize``."""
    rest = dict(item.callspec.indices)  # of what a ``parametrize`` gives directly, it numbers the combinations
    for mark in item.iter_markers("parametrize"):
        names, rows = mark.args[:2]
        names = [each.strip() for each in names.split(",")] if isinstance(names, str) else names
        chosen = [item.callspec.params[name] for name in names]
        yield next(place for place, row in enumerate(rows) if all(map(operator.is_, _values(row, names), chosen)))
        for name in names:
            del rest[name]
    yield from rest.values()


def _values(row: Any, names: Sequence[str]) -> Sequence[Any]:
    if isinstance(row, type(pytest.param())):
        return row.values
    return row if len(names) > 1 else [row]
