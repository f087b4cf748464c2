"""A short form of ``make campaign``; and what its checker says of tasks that have no lock."""

import pytest

from tests.campaign.run import run

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("whose", ["locked", "queued"])
def test_a_short_campaign(whose):
    report = run("Ada", seconds=5, workers=2, whose=whose)
    assert report.passed, str(report)
    assert report.counts["holds"].total() > 0
    assert report.counts["deeds"].total() > 0


def test_control_without_locks_is_caught():
    """Each long task is delivered again while it runs."""
    report = run("Alan", seconds=3, workers=2, whose="plain", rages=False, long=1, most=5)
    found = "\n".join(violation.what for violation in report.violations)
    assert "plain and plain inside together" in found
    assert "run again after its success" in found
