"""Figures, their targets, and how they are written."""

import json

import pytest

from benchmarks.results import Row, Table, median_row, to_json, to_markdown


@pytest.mark.parametrize(
    ("row", "reached"),
    [
        (Row("x", 1.0), None),
        (Row("x", 1.0, at_most=1.0), True),
        (Row("x", 1.1, at_most=1.0), False),
        (Row("x", 0.8, at_least=0.8), True),
        (Row("x", 0.7, at_least=0.8), False),
        (Row("x", 3.0, at_most=2.0, at_least=2.0), False),
        (Row("x", 2.0, at_most=2.0, at_least=2.0), True),
    ],
)
def test_reached(row, reached):
    assert row.reached is reached


def test_median_and_middle_half():
    row = median_row("x", [5.0, 1.0, 4.0, 2.0, 3.0])
    assert (row.figure, row.spread) == (3.0, (2.0, 4.0))


def test_a_single_round_has_no_spread_but_its_own():
    assert median_row("x", [5.0]).spread == (5.0, 5.0)


def test_markdown():
    rows = [
        Row("pair", 0.8123, "× redis-py", at_most=0.85, spread=(0.79, 0.834)),
        Row("keys", 12345.6, at_least=20000, details={"inside": 6}),
        Row("plain", 2.0),
    ]
    assert to_markdown([Table("Title", rows, "A note.")]).splitlines() == [
        "## Title",
        "",
        "| what | figure | middle half | target | reached |",
        "|---|---|---|---|---|",
        "| pair | 0.812 × redis-py | 0.79 – 0.834 | at most 0.85 | yes |",
        "| keys | 12,346 (inside: 6) |  | at least 20,000 | **no** |",
        "| plain | 2 |  |  |  |",
        "",
        "A note.",
    ]


def test_json():
    written = json.loads(to_json([Table("Title", [Row("pair", 0.9, at_most=0.85)])]))
    assert written["versions"]["redis"]
    [table] = written["tables"]
    assert table["title"] == "Title"
    assert table["rows"][0]["figure"] == 0.9
    assert table["rows"][0]["reached"] is False
