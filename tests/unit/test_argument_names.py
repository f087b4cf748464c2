"""What the arguments of a call are called: as ``inspect`` has it."""

import inspect

import pytest

from django_rlock._web.keytemplates import Arguments

DEFAULT = object()


def plain(a, b=DEFAULT, *, c=3, d): ...


def positional_only(a, /, b=2, *, d): ...


def several(a, *rest, **more): ...


CALLS = [
    (args, kwargs)
    for args in [(), (1,), (1, 5), (1, 5, 6)]
    for kwargs in [{}, {"d": 4}, {"a": 7, "d": 4}, {"b": 8, "d": 4}, {"c": 9, "d": 4}, {"e": 0, "d": 4}]
]


@pytest.mark.parametrize("function", [plain, positional_only, several])
@pytest.mark.parametrize(("args", "kwargs"), CALLS)
def test_they_are_what_the_call_itself_would_give(function, args, kwargs):
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        with pytest.raises(TypeError):
            Arguments(function).of_call(args, kwargs)
    else:
        bound.apply_defaults()
        expected = dict(bound.arguments)
        expected |= expected.pop("more", {})
        assert Arguments(function).of_call(args, kwargs) == expected


def test_a_call_that_does_not_fit_gets_the_error_of_the_call_itself():
    with pytest.raises(TypeError) as theirs:
        plain(1, 2, 3, d=4)  # type: ignore[call-arg]
    with pytest.raises(TypeError) as ours:
        Arguments(plain).of_call((1, 2, 3), {"d": 4})
    assert str(ours.value) == str(theirs.value)
