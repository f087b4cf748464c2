"""Buttons and headings under the themes of the admin that projects use: each shows its text, and the page its title."""

from collections.abc import Iterator

import pytest
import redis
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import log_in, themed_site
from tests.console.crowd import beating, plant_locks
from tests.console.pages import LIST, detail
from tests.eventually import PATIENCE
from tests.forms import long

THEMES = ["grappelli", *long("jazzmin", "admin_interface", "unfold")]
MEASURE = """() => [...document.querySelectorAll("#content-main button, #content-main [type=submit]")].map(button => {
  const text = document.createRange();
  text.selectNodeContents(button);
  const [inner, outer] = [text.getBoundingClientRect(), button.getBoundingClientRect()];
  return {
    text: (button.textContent || button.value).trim(),
    fits: button.scrollWidth <= Math.ceil(outer.width) && inner.width <= outer.width && inner.height <= outer.height,
    isRead: outer.width > 40 && outer.height > 20 && parseFloat(getComputedStyle(button).fontSize) >= 9,
  };
})"""


@pytest.fixture(scope="module", params=THEMES)
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip(request.param, reason=f"{request.param} is not installed")
    with themed_site(request.param, tmp_path_factory.mktemp("theme")) as address:
        yield address


@pytest.fixture
def page(browser: Browser, site: str, redis_client: redis.Redis) -> Iterator[Page]:
    with (
        beating(redis_client, plant_locks(redis_client, 1, 1, longer=3600)),
        browser.new_context(base_url=site, viewport={"width": 1280, "height": 760}) as context,
    ):
        context.set_default_timeout(PATIENCE * 1000)
        page = context.new_page()
        log_in(page)
        yield page


def expect_readable(page: Page, *buttons: str) -> None:
    found = page.evaluate(MEASURE)
    assert [each for each in found if not (each["fits"] and each["isRead"])] == []
    assert {each["text"] for each in found} >= {*buttons}
    sizes = page.locator("#content-main h2").evaluate_all(
        "headings => headings.map(each => parseFloat(getComputedStyle(each).fontSize))"
    )
    assert [size for size in sizes if not 12 <= size <= 18] == []


def test_buttons_show_their_texts_and_pages_their_titles(page: Page) -> None:
    expect(page.get_by_role("heading", name="Locks").first).to_be_visible()
    expect_readable(page, "Force release selected …", "Pause", "Search")
    page.goto(detail("stock:0"))
    expect_readable(page, "Show the stack", "Force release …", "Pause")
    page.get_by_role("button", name="Force release …").click()
    confirm = page.get_by_role("button", name="Yes, force release")
    expect(confirm).to_be_visible()
    expect_readable(page, "Yes, force release")
    confirm.click()
    page.wait_for_url(f"**{LIST}")
