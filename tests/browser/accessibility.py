"""axe-core, which finds what keeps people from using a page."""

from pathlib import Path

import pytest
from playwright.sync_api import Page

axe = pytest.importorskip("axe_playwright_python", reason="brings axe-core")
SOURCE = Path(axe.__file__).with_name("axe.min.js").read_text(encoding="utf-8")


def violations(page: Page, part: str = "html") -> list[tuple[str, list[str]]]:
    """What axe finds wrong in a part of a page, with the elements."""
    page.evaluate(SOURCE)
    found = page.evaluate("part => axe.run(part)", part)["violations"]
    return [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found]
