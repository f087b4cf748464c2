"""The sequence diagrams are what their script draws, can be read in both themes, and are told to a screen reader."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree as ET

DOCS = Path(__file__).parents[2] / "docs"
SVG = "{http://www.w3.org/2000/svg}"


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rlock_pictures", DOCS / "images/draw.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_they_are_as_the_script_draws_them() -> None:
    for picture in script().PICTURES:
        assert (DOCS / "images" / picture.file).read_text() == picture.svg(), "run docs/images/draw.py"


def test_each_tells_its_story_in_both_themes() -> None:
    for picture in script().PICTURES:
        root = ET.fromstring(picture.svg())
        assert [root.find(SVG + name).text for name in ("title", "desc")] == [picture.title, picture.story]  # type: ignore[union-attr]
        assert "prefers-color-scheme:dark" in root.findtext(f"{SVG}style", "")
        assert root.get("viewBox", "").startswith("0 0 360 ")


def test_a_page_shows_each_with_its_story() -> None:
    pages = "\n".join(page.read_text() for page in DOCS.glob("*.md"))
    for picture in script().PICTURES:
        assert f"![{picture.title}: {picture.story}](images/{picture.file})" in pages
