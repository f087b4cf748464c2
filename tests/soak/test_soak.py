"""A short form of ``make soak``: whatever the nemesis does, no two hold a lock together, and nothing is left."""

from random import Random

import pytest

from tests.soak.control import NO_LOCKS
from tests.soak.deeds import DEEDS
from tests.soak.nemesis import plan
from tests.soak.run import control, soak


@pytest.mark.thorough
@pytest.mark.parametrize("seed", ["Ada", "Grace"])
def test_a_short_soak(seed):
    report = soak(seed, seconds=3, workers=2)
    assert report.passed, str(report)
    assert report.counts["holds"].total() > 0
    assert report.counts["deeds"].total() > 0


def test_control_without_locks_is_caught():
    """Overlaps of those who exclude each other, readers beside a writer, too many permits, tokens that do not rise."""
    verdict = control("Alan")
    assert set(verdict.holds) == {make(Random()).kind for make in NO_LOCKS.values()}
    found = "\n".join(violation.what for violation in verdict.violations)
    for what in ("fenced and fenced inside", "(read) and prices (write) inside", "more than 3 permits", "is not above"):
        assert what in found


def test_plan_comes_from_its_seed():
    def planned(seed):
        deeds = zip(plan(DEEDS, seed), range(3 * len(DEEDS)), strict=False)
        return [(deed.name, chance.random()) for (deed, chance), _ in deeds]

    assert planned("1") == planned("1") != planned("2")
    assert {name for name, _ in planned("1")[: len(DEEDS)]} == {deed.name for deed in DEEDS}
    assert len(DEEDS) >= 25
