"""docs/design/capacity.md shows what the model says, with the numbers that it has; docs/capacity.md repeats some."""

import re
import shlex

import pytest

from benchmarks import sizing
from benchmarks.capacity import carried, outlook, spread
from benchmarks.sizing import HERE
from tests.docs.pages import DOCS, blocks

PAGE = DOCS / "design/capacity.md"


def table(heading: str) -> list[list[str]]:
    """The cells of the first table whose head begins like this, without the head."""
    lines = PAGE.read_text(encoding="utf-8").partition(heading)[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def number(text: str) -> float:
    return float(re.sub(r"[^\d.]", "", text))


def test_the_output_of_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    command, output = (block for block in blocks(PAGE) if "use of one server" in block.code or "sizing" in block.code)
    program, *arguments = shlex.split(command.code)[2:]
    assert program == sizing.__name__
    assert sizing.main(arguments) == 0
    assert capsys.readouterr().out == output.code


def test_what_one_server_carries() -> None:
    shown = [number(line[-1]) for line in table("| load | one server carries |")]
    assert shown == pytest.approx([row.figure for row in carried(HERE)], rel=0.01)


def test_the_users_page_has_the_same_figures() -> None:
    page = (DOCS / "capacity.md").read_text(encoding="utf-8")
    short = page.partition("| load | one server carries |")[2].partition("\n\n")[0].splitlines()[2:]
    figures = {number(line[-1]) for line in table("| load | one server carries |")}
    assert short
    assert {number(line.strip("| ").rpartition("|")[2]) for line in short} <= figures


def test_larger_crowds() -> None:
    for line, expected in zip(table("| processes |"), outlook(HERE).lines, strict=True):
        assert [number(cell) for cell in line] == pytest.approx([expected[place] for place in (0, 2, 4, 5)], rel=0.06)


def test_how_names_spread() -> None:
    for line, expected in zip(table("| names |"), spread.run(quick=False).lines, strict=True):
        assert [number(cell) for cell in line] == pytest.approx(expected, rel=0.005)
