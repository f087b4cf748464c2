"""Many callers that give up at once: each error names the holder, and one look-up is enough."""

import threading

import pytest

from django_rlock import FairLock, LockTimeoutError
from django_rlock._core.clock import monotonic
from django_rlock.locks import acquire
from django_rlock.locks.holds import INSPECTOR
from tests.beside import beside
from tests.eventually import UNTIL_SERVED, eventually

CALLERS = 30


@pytest.fixture
def lookups(monkeypatch):
    """The look-ups at the server, each of which takes until ``go_on`` is set."""
    made = []
    look = INSPECTOR.holder

    def note(lock):
        made.append(lock.name)
        assert go_on.wait(UNTIL_SERVED)
        return look(lock)

    go_on = threading.Event()
    monkeypatch.setattr(INSPECTOR, "holder", note)
    monkeypatch.setattr(acquire, "HOLDER_WITHIN", UNTIL_SERVED)
    monkeypatch.setattr(acquire, "NAME_SHARED_FOR", UNTIL_SERVED)
    yield made, go_on
    go_on.set()


async def give_up(binding, lock) -> str:
    with pytest.raises(LockTimeoutError) as caught:
        async with binding.inside(lock):
            pass
    return str(caught.value)


async def test_a_crowd_that_gives_up_looks_the_holder_up_once(binding, lookups):
    made, go_on = lookups
    async with binding.inside(FairLock("stock:42")):
        giving_up = [binding.start(give_up, binding, FairLock("stock:42", wait_time=0)) for _ in range(CALLERS)]
        await binding.until(lambda: made)
        go_on.set()
        errors = [await binding.result(each) for each in giving_up]
        assert all("in this process: t" in error for error in errors)
    assert made == ["stock:42"]


async def test_the_next_holder_is_looked_up(binding, lookups):
    made, go_on = lookups
    go_on.set()
    for _ in range(2):
        async with binding.inside(FairLock("stock:42")):
            giving_up = binding.start(give_up, binding, FairLock("stock:42", wait_time=0))
            assert "in this process" in await binding.result(giving_up)
    assert len(made) == 2


async def test_a_holder_is_not_looked_up_when_the_time_for_that_is_over(binding, lookups, monkeypatch):
    """In asyncio, few threads do that for all tasks; the errors of the last ones are not to come late."""
    made, _ = lookups
    monkeypatch.setattr(acquire, "HOLDER_WITHIN", -1.0)
    async with binding.inside(FairLock("stock:42")):
        giving_up = binding.start(give_up, binding, FairLock("stock:42", wait_time=0))
        assert "held by another owner" in await binding.result(giving_up)
    assert made == []


def test_a_caller_does_not_wait_for_the_look_up_of_another_one_forever(lookups):
    lookup = acquire.HolderLookup(FairLock("stock:42"), [])
    with beside(lookup.result, monotonic() + UNTIL_SERVED):
        eventually(lambda: lookups[0])
        assert lookup.result(monotonic() + 0.01) is None
        lookups[1].set()
