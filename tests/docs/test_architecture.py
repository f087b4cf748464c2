"""docs/design/architecture.md and its papers: layers are those of the contract, files exist, figures are as in the
code."""

import re
import tomllib

from django_rlock import FairLock
from django_rlock.locks import heartbeats, watchdog
from tests.docs.pages import DOCS, ROOT


def contract() -> list[set[str]]:
    """The rows of the contract, the lowest first."""
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    (layers,) = [each["layers"] for each in linter["contracts"] if each["name"] == "Layers"]
    return [set(re.findall(r"\w+", row)) for row in reversed(layers)]


def page(name: str = "design/architecture.md") -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def documented() -> list[set[str]]:
    """The rows of the page."""
    table = page().split("| layer | what it is |\n|---|---|\n")[1].split("\n\n")[0]
    return [set(re.findall(r"`(\w+)`", row.split("|")[1])) for row in table.splitlines()]


def test_the_page_shows_the_contract():
    assert documented() == contract()


def test_the_files_that_they_name_exist():
    text = "".join(paper.read_text(encoding="utf-8") for paper in (DOCS / "design").glob("*.md"))
    named = re.findall(r"`((?:\w+/)*\w+\.(?:py|lua))`", text)
    assert "locks/watchdog.py" in named
    places = [ROOT, ROOT / "django_rlock", ROOT / "django_rlock/_transport"]
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


def test_the_figures_are_those_of_the_code():
    background = page("design/connections.md").split("## Commands in the background\n")[1].split("\n## ")[0]
    for text in (
        f"one script for up to {watchdog.AT_ONCE} holds; in a cluster one for each, {watchdog.AT_ONCE} in a packet",
        f"one script for each hold, {watchdog.AT_ONCE} in a packet",
        f"one script for up to {FairLock._kind.heartbeats_together} locks waited for",
        f"heartbeats for {heartbeats.MOST_PER_SECOND:g} of them a second",
        f"by one command for {heartbeats._LOOK_AT}",
    ):
        assert text in background
