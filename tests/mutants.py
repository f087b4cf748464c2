"""The package's own code with a few words replaced, to see that a test notices."""

from __future__ import annotations

import inspect
import itertools
import textwrap
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from django_rlock._redis import scripts
from django_rlock._redis.scripts import Script
from django_rlock._transport.identity import Owner
from django_rlock.locks import (
    acquire,
    attempt,
    counters,
    expirable,
    fair,
    forced,
    groups,
    multi,
    ownership,
    plain,
    release,
    semaphore,
)

Mutate = Callable[[pytest.MonkeyPatch], None]


def changed(place: Any, name: str, old: str, new: str) -> Mutate:
    """A mutant of a function of a module, or of a method of a class."""

    def mutate(patch: pytest.MonkeyPatch) -> None:
        function = inspect.unwrap(getattr(place, name))
        source = textwrap.dedent(inspect.getsource(function))
        assert old in source, f"{name} has no {old!r} any more"
        made: dict[str, Any] = {}
        exec(source.replace(old, new), function.__globals__, made)
        modules = [place] if isinstance(place, type) else _users(getattr(place, name))
        for each in modules:
            patch.setattr(each, name, made[name])

    return mutate


def owner_ids_used_again(patch: pytest.MonkeyPatch) -> None:
    """All attempts of an owner have the same owner id."""
    patch.setattr(Owner, "new_id", lambda owner, *_: owner.owner_id)


def both(one: Mutate, other: Mutate) -> Mutate:
    """Without two protections that cover the same fault."""

    def mutate(patch: pytest.MonkeyPatch) -> None:
        one(patch)
        other(patch)

    return mutate


def _users(function: Any) -> list[ModuleType]:
    """The modules that have a function under its name."""
    return [
        each
        for each in (multi, groups, attempt, acquire, release, ownership, expirable, counters, forced, semaphore)
        if getattr(each, function.__name__, None) is function
    ]


def changed_scripts(old: str, new: str) -> Mutate:
    """A mutant of all scripts that have a text."""

    def mutate(patch: pytest.MonkeyPatch) -> None:
        mutants = {
            name: each.with_source(each.source.replace(old, new))
            for name, each in vars(scripts).items()
            if isinstance(each, Script) and old in each.source
        }
        assert mutants, f"no script has {old!r} any more"
        for name, mutant in mutants.items():
            patch.setattr(scripts, name, mutant)
        for kind, name in itertools.product((plain, fair), ("_acquiring", "_releasing")):
            patch.setattr(kind, name, getattr(kind, name).__wrapped__)  # what is kept has the former script

    return mutate
