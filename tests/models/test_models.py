"""The models of the locks are searched to the end, and models that leave a protection out have a fault."""

import itertools
import re
from pathlib import Path
from random import Random
from typing import Any

import pytest

from models import fairlock, redlock
from models.checker import search, walk
from models.fairlock import FairLock
from models.redlock import RedLock
from tests.forms import THOROUGH

pytestmark = pytest.mark.timeout(900)  # the long form takes minutes on a busy machine

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "models" / "README.md").read_text(encoding="utf-8")
MOST = 500_000
LATE: dict[str, Any] = {"again": 1}
"""One command may be sent a second time."""
AGAIN: dict[str, Any] = {"attempts": (2, 1)}
"""The first client may take the lock twice."""


SIZES = [{}, *(pytest.param(world, marks=pytest.mark.thorough) for world in ({"crashes": 1}, LATE))]


@pytest.mark.parametrize("world", SIZES, ids=str)
def test_no_two_are_inside_a_fair_lock(world):
    found = search(FairLock(**world), MOST)
    assert found.is_complete, found


OTHER_LEASES: dict[str, Any] = {"attempts": (1, 2), "leases": (2, 1)}
"""The second client has shorter leases than the first."""
NODES_FAIL: list[dict[str, int]] = [{"losses": 1}, {"losses": 0, "again": 1}, {"losses": 0, "lost": 1}]


@pytest.mark.parametrize(
    "world",
    [{"losses": 0}, *(pytest.param(world, marks=pytest.mark.thorough) for world in (*NODES_FAIL, OTHER_LEASES))],
    ids=str,
)
def test_no_two_are_inside_a_redlock(world):
    found = search(RedLock(**world), MOST)
    assert found.is_complete, found


WALKS = 2000 if THOROUGH else 25
STEPS = 150


def fault_on_a_walk(model: FairLock, seed: int) -> str | None:
    def weigh(step: str) -> float:
        return 0.1 if step.endswith(("gives up", "dies")) else 1.0

    states = itertools.islice(walk(model, Random(seed), weigh), STEPS)
    return next((fault for _, state in states if (fault := model.fault(state))), None)


@pytest.mark.parametrize("world", [{}, {"again": 2, "crashes": 1}], ids=str)
def test_three_clients_find_no_fault_on_walks(world):
    for seed in range(WALKS):
        assert fault_on_a_walk(FairLock((2, 2, 2), **world), seed) is None, seed


def test_walks_of_three_clients_find_what_is_wrong():
    for mutant in fairlock.AnyWakeUp, fairlock.ClockStandsStill, fairlock.NoBeat, fairlock.GrantNotAtomic:
        assert any(fault_on_a_walk(mutant((2, 2, 2)), seed) for seed in range(500)), mutant


CAUGHT: dict[Any, dict[str, Any]] = {
    fairlock.ClockStandsStill: {},
    fairlock.ConfirmationShortens: LATE,
    fairlock.DeadlineFromReply: LATE,
    fairlock.GrantNotAtomic: AGAIN,
    fairlock.NameUsedTwice: AGAIN,
    fairlock.NoBeat: {},
    fairlock.NoUndo: {},
    fairlock.AnyWakeUp: {},
    redlock.DataNotMarked: {},
    redlock.EarlierVotesStand: OTHER_LEASES,
    redlock.HalfIsEnough: {},
    redlock.CopiesNotRefused: {**LATE, "losses": 0},
    redlock.LongestNotMarked: OTHER_LEASES,
    redlock.NameUsedTwice: {**LATE, **AGAIN, "losses": 0},
    redlock.RenewalsUndoubted: {},
    redlock.ReplicationNotCompared: {},
    redlock.ShortQuarantine: {"attempts": (1, 2)},
    redlock.ValidFromReply: {},
}
QUICK = {
    *(fairlock.AnyWakeUp, fairlock.ClockStandsStill, fairlock.NoBeat, fairlock.NoUndo),
    *(redlock.CopiesNotRefused, redlock.DataNotMarked, redlock.HalfIsEnough, redlock.ReplicationNotCompared),
}


@pytest.mark.parametrize(
    "mutant",
    [each if each in QUICK else pytest.param(each, marks=pytest.mark.thorough) for each in CAUGHT],
    ids=lambda mutant: mutant.__name__,
)
def test_mutants_are_caught(mutant):
    found = search(mutant(**CAUGHT[mutant]), MOST)
    assert found.fault, found


def test_every_mutant_is_tried():
    assert {*CAUGHT} == {*fairlock.MUTANTS, *redlock.MUTANTS}


def test_the_page_names_code_that_is_there():
    named = re.findall(r"`([\w/]+\.(?:py|lua))`(?:[^`|]*`([\w.]+)`)?", PAGE)
    assert len(named) > 15
    for path, name in named:
        places = [ROOT / folder / path for folder in ("models", "django_rlock", "")]
        text = next(place.read_text(encoding="utf-8") for place in places if place.exists())
        assert name in text, (path, name)
