"""Tables that several threads change, and one looks through."""

import gc
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from django_rlock import rlock
from django_rlock._transport.identity import current_owner
from django_rlock._transport.listener import Channel, Listener
from django_rlock.locks.holds import Holds
from django_rlock.locks.records import Hold, key_of

MANY = 10_000
NEVER: Any = None
"""A subscriber that is not asked for anything."""


class Table(NamedTuple):
    """What is changed meanwhile, by which key and value, and who looks through it."""

    content: dict[Any, Any]
    late: Any
    value: Any
    look_through: Callable[[], object]


class Garbage:
    """Does something when the collector finds it."""

    def __init__(self, then: Callable[[], None]) -> None:
        self.itself = self
        self.then = then

    def __del__(self) -> None:
        self.then()


@pytest.fixture
def eager_collector() -> Iterator[None]:
    thresholds = gc.get_threshold()
    gc.collect()
    gc.set_threshold(200)
    yield
    gc.set_threshold(*thresholds)


@pytest.fixture
def holds() -> Table:
    holds = Holds()
    lock, owner = rlock("stock"), current_owner()
    hold = Hold(key_of(lock, owner), lock, owner, "x", 0.0)
    holds.table.update({(("default", f"stock:{number}"), "", number): hold for number in range(MANY)})
    return Table(holds.table, (("default", "late"), "", 0), hold, holds.snapshot)


@pytest.fixture
def channels() -> Table:
    listener = Listener(lambda *_: NEVER)
    listener.channels.update({name: Channel(name) for name in map(str, range(MANY))})
    return Table(listener.channels, "late", Channel("late"), lambda: listener.wanted(NEVER))


@pytest.mark.usefixtures("eager_collector")
@pytest.mark.parametrize("which", ["holds", "channels"])
def test_who_looks_through_a_table_is_not_stopped_by_what_changes_it(
    which: str, request: pytest.FixtureRequest
) -> None:
    """The collector may run in the middle of it, and with it a finalizer, or another thread."""
    table: Table = request.getfixturevalue(which)
    Garbage(lambda: table.content.update({table.late: table.value}))
    table.look_through()
    gc.collect()
    assert table.late in table.content
