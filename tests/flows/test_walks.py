"""The real flows go the ways of the model: walks at random, and after each step both are in the same state."""

import itertools
from random import Random
from typing import Any

import pytest

from django_rlock.locks import acquire, ownership, release, watchdog
from django_rlock.locks.attempt import Attempt
from models.checker import walk
from tests.flows.stepping import SteppingDriver
from tests.flows.walking import OPTIONS, Model, Walk, weigh
from tests.forms import THOROUGH
from tests.mutants import owner_ids_used_again

WALKS = 200 if THOROUGH else 8
STEPS = 80

pytestmark = pytest.mark.timeout(900)  # the long form takes minutes on a busy machine


@pytest.fixture
def go(make_world, settings):
    """Walks the ways of a seed."""

    def go(seed: Any, model: Model, clients: int) -> None:
        settings.RLOCK = {"default": OPTIONS}
        gone = []
        with make_world() as world:
            real = Walk(world, clients)
            state = model.start()
            try:
                for step, after in itertools.islice(walk(model, Random(seed), weigh), STEPS):
                    gone.append(step)
                    real.do(step, state)
                    real.compare(after)
                    assert model.fault(after) is None
                    state = after
            except BaseException as error:
                error.add_note(f"Seed {seed}, after: " + "; ".join(gone))
                raise

    return go


@pytest.mark.parametrize("crashes", [0, 1])
@pytest.mark.parametrize("attempts", [(3, 3), (2, 2, 2)], ids=len)
def test_flows_do_what_the_model_does(go, attempts, crashes):
    for seed in range(WALKS):
        go(seed, Model(attempts, crashes=crashes), len(attempts))


def believe_any_wake_up(patch):
    def believe(attempt, waiter):
        now = attempt.driver.now()
        attempt.sent_at = attempt.granted_at = now
        attempt.granted_until = now + OPTIONS["CLAIM_TIME"]
        return True

    patch.setattr(Attempt, "_is_granted", believe)


def count_from_the_message(patch):
    is_granted = Attempt._is_granted

    def believe(attempt, waiter):
        attempt.sent_at = attempt.driver.now()
        return is_granted(attempt, waiter)

    patch.setattr(Attempt, "_is_granted", believe)


def count_from_the_reply(patch):
    run = SteppingDriver.run

    async def counted(driver, call, until=None, undo=None):
        reply = await run(driver, call, until, undo)
        call.sent_at = driver.clock
        return reply

    patch.setattr(SteppingDriver, "run", counted)


def leave_undone(patch):
    for module in (acquire, release, ownership, watchdog):
        patch.setattr(module, "clean_up", lambda *_args, **_options: None)


@pytest.mark.parametrize(
    "mutate", [believe_any_wake_up, count_from_the_message, count_from_the_reply, owner_ids_used_again, leave_undone]
)
def test_flows_that_do_otherwise_are_found(go, monkeypatch, mutate):
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in range(40):
            go(seed, Model((3, 3)), 2)
