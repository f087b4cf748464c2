"""Figures, their targets, and how they are written."""

import json

import pytest

from benchmarks.results import Earlier, Grid, Result, Row, Table, grid_lines, median_row, to_json, to_markdown


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
        "### Title",
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


def earlier(*results):
    return Earlier(json.loads(to_json(results)))


def test_figures_of_an_earlier_run_stand_beside_those_of_the_same_table():
    before = earlier(
        Table("Other", [Row("pair", 7.0)]),
        Table("Title", [Row("pair", 0.9, "s"), Row("taken", 50.0, "s, and not all"), Row("gone", 1.0)]),
    )
    now = Table("Title", [Row("pair", 0.5, "s"), Row("taken", 3.0, "s"), Row("new", 2.0)])
    assert to_markdown([now], before).splitlines()[2:] == [
        "| what | before | figure | middle half | target | reached |",
        "|---|---|---|---|---|---|",
        "| pair | 0.9 | 0.5 s |  |  |  |",
        "| taken | 50 s, and not all | 3 s |  |  |  |",
        "| new |  | 2 |  |  |  |",
    ]


GRID = Grid("Growth", ("holds", "µs"), [(10, 1.5), (1000, 2.0)])


def test_markdown_of_a_grid():
    assert to_markdown([GRID]).splitlines() == [
        "### Growth",
        "",
        "| holds | µs |",
        "|---|---|",
        "| 10 | 1.5 |",
        "| 1,000 | 2 |",
    ]


def test_a_grid_shows_the_sizes_of_both_runs():
    before = earlier(Grid("Growth", ("holds", "µs"), [(10, 4.0), (300, 50.0)]))
    assert to_markdown([GRID], before).splitlines()[4:] == ["| 10 | 1.5 (4) |", "| 300 | – (50) |", "| 1,000 | 2 |"]


def test_the_lines_of_a_grid_are_found_in_this_run_and_in_an_earlier_one():
    results: list[Result] = [Table("Growth", []), Grid("Other", ("holds",), [(7,)]), GRID]
    assert grid_lines(results, "Growth") == [(10, 1.5), (1000, 2.0)]
    assert earlier(GRID).lines("Growth") == [[10, 1.5], [1000, 2.0]]
    assert Earlier().lines("Growth") == []
