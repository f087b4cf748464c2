"""docs/design/redisson-tests.md names only tests that are there."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/design/redisson-tests.md").read_text(encoding="utf-8")
SECTIONS = {
    part.partition("\n")[0]: re.findall(r"^\| (\w+) \| (.*?) \| ?(.*?) ?\|$", part, re.MULTILINE)
    for part in PAGE.split("\n## ")[1:]
}
PLACE = re.compile(r"`(tests/[\w/.]+)::(\w+)`")


@cache
def collected_from(file: str) -> set[str]:
    """What pytest would collect there."""
    source = (ROOT / file).read_text(encoding="utf-8")
    # What it imports from another file runs there with the fixtures of this one.
    imported = " ".join(re.findall(r"^from \S+ import (\([^)]*\)|.*)", source, re.MULTILINE))
    return {*re.findall(r"^(?:async )?def (test_\w+)", source, re.MULTILINE), *re.findall(r"\btest_\w+", imported)}


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
