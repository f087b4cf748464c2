"""The short form of the suite has every other combination of parameters, and each value of each parameter."""

import pytest

from tests.forms import is_of_the_short_form


@pytest.mark.lengthy
@pytest.mark.parametrize("first", ["a", "b"])
@pytest.mark.parametrize(("second", "third"), [("x", 1), ("y", 1), ("z", 1)])
def test_combination(first, second, third):
    """The next test looks which combinations run."""


def test_half_of_the_combinations_run(request):
    items = [item for item in request.node.parent.collect() if item.originalname == "test_combination"]
    run = [item.callspec.params for item in items if is_of_the_short_form(item)]
    assert len(run) == len(items) / 2
    assert {each["first"] for each in run} == {"a", "b"}
    assert {each["second"] for each in run} == {"x", "y", "z"}
