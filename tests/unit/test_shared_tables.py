"""Tables that several threads change, and one looks through."""

import gc
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from django_rlock import Semaphore, rlock
from django_rlock._core.threads import Alive, snapshot
from django_rlock._transport.identity import current_owner
from django_rlock._transport.listener import Channel, Listener
from django_rlock._transport.quorum.nodes import NodeSet
from django_rlock._transport.quorum.votes import Restarts
from django_rlock._transport.worker import BackgroundWorker
from django_rlock.locks import counters, mutex, ownership
from django_rlock.locks.forced import ForcedReleaseWatcher
from django_rlock.locks.holds import Holds, Waits
from django_rlock.locks.records import Hold, Work, key_of

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
    holds.table.update({("default", f"stock:{number}", "", number): hold for number in range(MANY)})
    return Table(holds.table, ("default", "late", "", 0), hold, holds.snapshot)


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


# --- without the GIL --------------------------------------------------------------------------------------------------

# There, another thread may change a table while it is copied. These tables are changed as their first copy begins.


class Changed:
    """What a loop over the table, or over its values or items, begins with the first time."""

    has_changed = False

    def begun(self, items: Iterator[Any]) -> Iterator[Any]:
        if not self.has_changed:
            self.has_changed = True
            raise RuntimeError("changed size during iteration")
        return items


class ChangedDeque(Changed, deque[Any]):
    def __iter__(self) -> Iterator[Any]:
        return self.begun(super().__iter__())


class ChangedList(Changed, list[Any]):
    def __iter__(self) -> Iterator[Any]:
        return self.begun(super().__iter__())


class ChangedSet(Changed, set[Any]):
    def __iter__(self) -> Iterator[Any]:
        return self.begun(super().__iter__())


class View:
    def __init__(self, begin: Callable[[], Iterator[Any]]) -> None:
        self.begin = begin

    def __iter__(self) -> Iterator[Any]:
        return self.begin()


class ChangedDict(Changed, dict[Any, Any]):
    def __iter__(self) -> Iterator[Any]:
        return self.begun(super().__iter__())

    def values(self) -> Any:
        return View(lambda: self.begun(iter(dict.values(self))))

    def items(self) -> Any:
        return View(lambda: self.begun(iter(dict.items(self))))


def a_hold(holds: Holds) -> Hold:
    lock, owner = rlock("stock:42"), current_owner()
    hold = Hold(key_of(lock, owner), lock, owner, "x", 0.0)
    holds.put(hold)
    return hold


class Waiter:
    """A waiter of a channel."""

    heard = ""

    def receive(self, payload: str) -> None:
        self.heard = payload


def of_a_channel(look: Callable[[Listener, Channel], object]) -> Callable[[Any], object]:
    def looked(patch: Any) -> object:
        listener, channel, waiter = Listener(lambda *_: NEVER), Channel("news"), Waiter()
        patch.setattr(listener, "channels", ChangedDict(news=channel))
        patch.setattr(listener, "_woken", ChangedDeque([("x", 1e12)]))
        channel.lines = ChangedDict({"*": ChangedDeque([lambda: waiter])})
        return look(listener, channel)

    return looked


def woken(listener: Listener, channel: Channel) -> object:
    listener.deliver("news", "extra")
    return [each.heard for each in channel.waiters()]  # type: ignore[attr-defined]


def tidied(_listener: Listener, channel: Channel) -> object:
    channel.tidy()
    return channel.waiters()


def joined_meanwhile(listener: Listener, channel: Channel) -> object:
    """The last waiter of a queue leaves as another one joins it."""
    line = ChangedDeque(["joined"])
    line_of = ChangedDict()
    line_of.get = lambda _token: None  # type: ignore[method-assign, assignment]
    line_of["x"] = line
    channel.lines = line_of
    listener._remove_empty_line(channel, "x")
    return list(line_of["x"])


def of_the_table(patch: Any) -> object:
    holds = Holds()
    patch.setattr(holds, "table", ChangedDict())
    hold = a_hold(holds)
    return holds.snapshot() == [hold]


def of_the_name(patch: Any) -> object:
    holds = Holds()
    patch.setattr(holds, "_near", tuple(ChangedDict() for _ in holds._near))
    return holds.named(a_hold(holds).key[:2])


def of_the_owner(patch: Any) -> object:
    holds, owner = Holds(), current_owner()
    patch.setattr(owner, "holds", ChangedDict())
    a_hold(holds)
    return holds.of(owner)


def of_the_work(patch: Any) -> object:
    holds, work = Holds(), Work({})
    work.holds = ChangedDict({a_hold(holds): None})
    return holds.under(work)


def of_waits(patch: Any) -> object:
    waits = Waits()
    patch.setattr(waits, "_table", ChangedDict({1: type("Wait", (), {"over": False})()}))
    return waits.snapshot()


def of_late_rounds(patch: Any) -> object:
    worker = BackgroundWorker("default")
    worker._counted, worker._counted_until = ChangedDeque([1.0, 2.0]), 0.0
    worker._log_counted(1.0)
    return True


def of_forced_releases(patch: Any) -> object:
    watcher = ForcedReleaseWatcher(BackgroundWorker("default"))
    patch.setattr(watcher, "_messages", ChangedDeque([(1.0, "")]))
    return watcher.how_freed(a_hold(Holds())) is None


def of_answered_requests(patch: Any) -> object:
    semaphore = Semaphore("licences")
    patch.setitem(counters._answered, (semaphore.using, semaphore.name), ChangedDeque(["before"]))
    return counters.with_answered(semaphore, "now") == "now before"


def of_named_calls(patch: Any) -> object:
    return mutex.QueuedCall(ChangedList(), ("", "", "", 1))._is_first()


def of_unsettled(patch: Any) -> object:
    patch.setattr(ownership, "UNSETTLED", ChangedDict({("default", "a", "b"): 0.0}))
    ownership._forget_settled(1.0)
    return not ownership.UNSETTLED


def of_undone(patch: Any) -> object:
    nodes = object.__new__(NodeSet)
    nodes.untold = ChangedDict({(0, "undo"): 1e12})
    return nodes._untold(0)


def of_restarts(patch: Any) -> object:
    restarts = Restarts(("a", "b"), 1.0, 0.0)
    patch.setattr(restarts, "_seen", ChangedDict())
    restarts.meet(0, "x")
    restarts._seen.has_changed = False  # type: ignore[attr-defined]
    restarts.meet(1, "y")
    return True


def of_living(patch: Any) -> object:
    alive, each = Alive[Garbage](), Garbage(lambda: None)
    alive._refs = ChangedSet()
    alive.add(each)
    return list(alive) == [each]


LOOKS: dict[str, Callable[[Any], object]] = {
    "waiters": of_a_channel(lambda _, channel: channel.waiters()),
    "wanted": of_a_channel(lambda listener, _: listener.wanted(NEVER)),
    "tidied": of_a_channel(tidied),
    "woken": of_a_channel(woken),
    "woken before": of_a_channel(lambda listener, _: listener.waits_for("news", "x")),
    "idle": of_a_channel(lambda listener, _: listener.idle_channels(NEVER) == []),
    "joined": of_a_channel(joined_meanwhile),
    "table": of_the_table,
    "name": of_the_name,
    "owner": of_the_owner,
    "work": of_the_work,
    "waits": of_waits,
    "late rounds": of_late_rounds,
    "forced releases": of_forced_releases,
    "answered": of_answered_requests,
    "named calls": of_named_calls,
    "unsettled": of_unsettled,
    "undone": of_undone,
    "restarts": of_restarts,
    "living": of_living,
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_a_table_that_changes_while_it_is_copied_is_copied_again(
    look: Callable[[Any], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert look(monkeypatch)


def test_a_deque_that_really_changes_is_copied_again() -> None:
    class Line(deque[int]):
        def __iter__(self) -> Iterator[int]:
            items = super().__iter__()
            if len(self) < 3:
                self.append(3)
            return items

    assert snapshot(Line([1, 2])) == [1, 2, 3]


def test_an_error_of_a_signal_handler_is_not_taken_for_a_change() -> None:
    class Table(deque[int]):
        def __iter__(self) -> Iterator[int]:
            raise RuntimeError("time is up")

    with pytest.raises(RuntimeError, match="time is up"):
        snapshot(Table())
