"""The site that ``make docs`` builds, in a browser: everybody can use it, and a search finds the page."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.accessibility import violations
from tests.browser.conftest import browser
from tests.docs.pages import DOCS, ROOT

pytest.importorskip("sphinx", reason="needs Sphinx (make docs)")
__all__ = ["browser"]

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "-m", "sphinx", "--quiet", DOCS, folder], cwd=ROOT, check=True)
    return folder


@pytest.fixture(params=["light", "dark"])
def page(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Page]:
    scheme: Any = request.param
    with browser.new_context(color_scheme=scheme) as context:
        yield context.new_page()


def test_axe_finds_nothing(site: Path, page: Page) -> None:
    found = {}
    for file in sorted(site.rglob("*.html")):
        page.goto(file.as_uri())
        found[str(file.relative_to(site))] = violations(page)
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("423", "decorator.html#index-423"),
        ("75", "commands.html#index-75"),
        ("LockTimeoutError", "api.html#django_rlock.exceptions.LockTimeoutError"),
        ("double submit", "cookbook.html"),
        ("E010", "checks.html"),
    ],
)
def test_a_search_finds_the_page(site: Path, browser: Browser, words: str, first: str) -> None:
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{site.as_uri()}/search.html?q={words}")
        assert page.locator("#search-results li > a").first.get_attribute("href") == first


def test_a_page_has_a_description_and_copy_buttons(site: Path, browser: Browser) -> None:
    with browser.new_context() as context:
        page = context.new_page()
        page.goto((site / "index.html").as_uri())
        assert "Distributed locks" in (page.locator("meta[name=description]").get_attribute("content") or "")
        assert page.locator("div.highlight").count() == page.locator("button.copybtn").count() >= 3
