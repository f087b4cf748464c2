"""A short form of ``make campaign``; and what its checker says of tasks that have no lock, or another library's."""

import pytest

from tests.campaign.run import run

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("whose", ["locked", "queued"])
def test_a_short_campaign(whose):
    report = run("Ada", seconds=5, workers=2, whose=whose)
    assert report.passed, str(report)
    assert report.runs > 0
    assert report.deeds.total() > 0


@pytest.mark.parametrize(
    ("whose", "module"), [("plain", "celery"), ("once", "celery_once"), ("singleton", "celery_singleton")]
)
def test_others_are_caught(whose, module):
    """Each long task is delivered again while it runs. Libraries that look at publishing only let it run twice."""
    pytest.importorskip(module, reason="is in the dependency group bench")
    report = run("Alan", seconds=3, workers=2, whose=whose, rages=False, long=1, most=5)
    found = "\n".join(violation.what for violation in report.violations)
    assert f"{whose} and {whose} inside together" in found
    assert "run again after its success" in found
