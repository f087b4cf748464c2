"""docs/redisson-tests.md has a row for each test of Redisson's, and names only tests that are there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.redisson.names import NAMES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/redisson-tests.md").read_text(encoding="utf-8")
SECTIONS = {
    part.partition("\n")[0]: re.findall(r"^\| (\w+) \| (.*?) \| ?(.*?) ?\|$", part, re.MULTILINE)
    for part in PAGE.split("\n## ")[1:]
}
PLACE = re.compile(r"`(tests/[\w/.]+)::(\w+)`")


@cache
def collected_from(file: str) -> set[str]:
    """What pytest would collect there."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom):  # run there with fixtures of that file
            names.update(alias.name for alias in node.names)
    return {name for name in names if name.startswith("test_")}


def test_there_is_a_section_for_each_class() -> None:
    assert list(SECTIONS) == list(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_there_is_a_row_for_each_test(name: str) -> None:
    assert [test for test, _, _ in SECTIONS[name]] == NAMES[name].split()


@pytest.mark.parametrize("name", SECTIONS)
def test_each_row_names_tests_or_says_why_not(name: str) -> None:
    for test, here, difference in SECTIONS[name]:
        if here == "not ported":
            assert len(difference) > 5, test
        else:
            assert PLACE.sub("", here).replace("<br>", "") == "", test


@pytest.mark.parametrize("name", SECTIONS)
def test_what_a_row_names_is_there(name: str) -> None:
    places = [place for row in SECTIONS[name] for cell in row[1:] for place in PLACE.findall(cell)]
    assert [place for place in places if not Path(place[0]).name.startswith("test_")] == []
    assert [(file, test) for file, test in places if test not in collected_from(file)] == []
