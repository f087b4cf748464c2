"""The package's pages under django-unfold, which replaces the admin's style sheets."""

from collections.abc import Iterator

import pytest
import redis
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.accessibility import violations
from tests.browser.conftest import log_in, themed_site
from tests.console.crowd import beating, plant_locks
from tests.console.pages import LIST, detail
from tests.eventually import PATIENCE
from tests.forms import long

pytest.importorskip("unfold", reason="django-unfold is not installed")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a site under django-unfold."""
    with themed_site("unfold", tmp_path_factory.mktemp("unfold")) as address:
        yield address


@pytest.fixture(params=["light", *long("dark")])
def page(browser: Browser, site: str, redis_client: redis.Redis, request: pytest.FixtureRequest) -> Iterator[Page]:
    """The list of more locks than one page shows, in both of the system's colour schemes."""
    processes = plant_locks(redis_client, 60, 2, longer=3600)
    processes += plant_locks(redis_client, 2, 1, prefix="rlock:old:", longer=3600)
    with beating(redis_client, processes), browser.new_context(base_url=site, color_scheme=request.param) as context:
        context.set_default_timeout(PATIENCE * 1000)
        page = context.new_page()
        log_in(page)
        yield page


def expect_drawn(control: Locator) -> None:
    """A control can be seen if it has a border or a ground of its own, or is a box that the browser draws."""
    expect(control).to_be_visible()
    drawn = control.evaluate("""control => {
      const style = getComputedStyle(control);
      const isSeen = (colour) => !/, 0\\)$|\\/ 0\\)$|^transparent$/.test(colour);
      const ground = getComputedStyle(document.getElementById("main")).backgroundColor;
      return (parseFloat(style.borderTopWidth) > 0 && isSeen(style.borderTopColor))
        || (isSeen(style.backgroundColor) && style.backgroundColor !== ground)
        || (control.type === "checkbox" && style.appearance === "auto");
    }""")
    assert drawn, control


def test_controls_can_be_seen_and_work(page: Page, redis_client: redis.Redis) -> None:
    for name in ("State", "Host", "Prefix", "Held longer than"):
        expect_drawn(page.get_by_label(name, exact=False).first)
    expect_drawn(page.get_by_role("searchbox"))
    expect_drawn(page.get_by_role("checkbox", name="scan the server"))
    expect_drawn(page.get_by_role("checkbox", name="Select all on this page"))
    page.get_by_role("searchbox").fill("stock:42")
    search = page.get_by_role("search", name="Search and filter locks").get_by_role("button", name="Search")
    expect_drawn(search)
    search.click()
    box = page.get_by_role("checkbox", name="Select stock:42")
    expect_drawn(box)
    release = page.get_by_role("button", name="Force release selected")
    expect_drawn(release)
    box.check()
    release.click()
    reason = page.get_by_label("Reason (for the log)")
    expect_drawn(reason)
    reason.fill("stuck since noon")
    confirm = page.get_by_role("button", name="Yes, force release")
    expect_drawn(confirm)
    confirm.click()
    expect(page.get_by_text("1 lock was freed.")).to_be_visible()
    assert not redis_client.exists("rlock:stock:42")


@pytest.mark.thorough
def test_axe_finds_nothing(page: Page) -> None:
    for url in (LIST, f"{LIST}processes/", detail("old:stock:1")):
        page.goto(url)
        assert violations(page, "#content-main") == []
