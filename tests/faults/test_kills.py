"""Hand-overs under kills, pauses beyond the claim, lost connections and a stalled server: never two holders at once."""

import pytest

from tests.faults.kills import Span, overlaps_of, run


@pytest.mark.thorough
def test_no_two_are_inside():
    outcome = run(strikes=15, workers=4, seed=8)
    assert not outcome.overlaps
    assert outcome.believed


def test_the_checker_sees_an_overlap():
    spans = [Span(1.0, 2.0, "1", True), Span(2.0, 4.0, "2", True), Span(3.9, 5.0, "1", False)]
    assert overlaps_of(spans) == [(spans[1], spans[2])]
