"""The table of layers in docs/architecture.md is the contract that import-linter checks."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def contract() -> list[set[str]]:
    """The rows of the contract, the lowest first."""
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    (layers,) = [each["layers"] for each in linter["contracts"] if each["name"] == "Layers"]
    return [set(re.findall(r"\w+", row)) for row in reversed(layers)]


def documented() -> list[set[str]]:
    """The rows of the page."""
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    table = page.split("| layer | what it is |\n|---|---|\n")[1].split("\n\n")[0]
    return [set(re.findall(r"`(\w+)`", row.split("|")[1])) for row in table.splitlines()]


def test_the_page_shows_the_contract():
    assert documented() == contract()
