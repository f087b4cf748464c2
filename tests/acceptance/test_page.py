"""The shop's page in a real browser."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from tests.acceptance.conftest import Shop
from tests.acceptance.running import has_ended
from tests.eventually import PATIENCE, eventually

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
QUIET = [
    *["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"],
    *["--disable-component-update", "--disable-sync"],
]
expect.set_options(timeout=PATIENCE * 1000)

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture(autouse=True)
def _no_sale_goes_on(shop: Shop) -> None:
    """Wait for the sale of an earlier test, because a second one would be skipped."""
    with redis.Redis.from_url(shop.stack.env["SHOP_REDIS_URL"]) as client:
        eventually(lambda: not client.exists("rlock:flash-sale"), PATIENCE)


@pytest.fixture
def page(browser: Browser, shop: Shop) -> Iterator[Page]:
    with opened_page(browser, shop) as page:
        yield page


@contextmanager
def opened_page(browser: Browser, shop: Shop) -> Iterator[Page]:
    """The shop's page, on which the console stays empty."""
    said: list[str] = []
    with browser.new_context(base_url=shop.url) as context:
        context.set_default_timeout(PATIENCE * 1000)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto("/")
        yield page
        assert said == []


def test_a_sale_fills_the_lanes(page: Page) -> None:
    _start_sale(page, buyers=32, stock=24)
    for name in ["The database alone", "@distributed_lock"]:
        lane = page.get_by_role("region", name=name)
        expect(lane).to_contain_text("24 sold, none oversold")
        expect(lane.locator(".tile.sold")).to_have_count(24)
        expect(lane.locator(".tile.sold_out")).to_have_count(8)
    for name in ["No lock", "SET NX, short expiry", "SET NX, long expiry"]:
        lane = page.get_by_role("region", name=name)
        expect(lane.locator(".verdict")).to_contain_text("oversold in")
        oversold = int(lane.locator("[data-total=oversold]").inner_text())
        assert oversold > 0
        expect(lane.locator(".tile.oversold")).to_have_count(oversold)
    expect(page.get_by_role("status")).to_contain_text("SET NX, long expiry: ")


@pytest.mark.thorough
def test_all_lanes_that_end_between_two_looks_are_announced(page: Page) -> None:
    url = page.locator("body").get_attribute("data-status-url")
    state = page.request.get(str(url)).json()
    page.route(f"**{url}", lambda route: route.fulfill(json=state))
    for tone in ("busy", "right"):
        for lane in state["lanes"]:
            lane |= {"tone": tone, "verdict": f"is {tone}"}
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # it looks at once
        expect(page.locator(f"[data-tone={tone}]")).to_have_count(5)
    for name in ["No lock", "SET NX, long expiry", "@distributed_lock"]:
        expect(page.get_by_role("status")).to_contain_text(f"{name}: is right")


@pytest.mark.thorough
def test_a_lane_links_to_its_lock_in_the_admin(page: Page, shop: Shop) -> None:
    _log_in(page, shop)
    page.goto("/")
    _start_sale(page, buyers=30, stock=30)
    expect(page.get_by_role("button", name="Start the sale")).to_be_disabled()
    page.get_by_role("region", name="@distributed_lock").get_by_role("link", name="This lock in the admin").click()
    expect(page.get_by_role("heading", name=re.compile("stock:moon-cake-"))).to_be_visible()


@pytest.mark.thorough
def test_the_next_one_enters_when_the_holder_was_killed(page: Page) -> None:
    card = page.get_by_role("region", name="When the holder dies")
    button = card.get_by_role("button", name="Kill the holder")
    button.click()
    lease = card.get_by_text("The dead holder’s lease ends in")
    expect(lease).to_be_visible()
    expect(button).to_be_disabled()
    events = card.locator(".events li")
    expect(events).to_have_count(5)
    holder, waiter = _process_of(events.nth(1)), _process_of(events.nth(2))
    assert has_ended(holder)
    expect(events.nth(3)).to_contain_text(f"Process {holder} is killed")
    expect(events.nth(4)).to_contain_text(f"Process {waiter} holds the lock")
    expect(lease).to_be_hidden()
    expect(button).to_be_enabled()
    eventually(lambda: has_ended(waiter), PATIENCE)


@pytest.mark.thorough
def test_the_next_one_enters_when_the_dead_holders_lock_is_freed_in_the_admin(
    browser: Browser, shop_with_long_leases: Shop
) -> None:
    with opened_page(browser, shop_with_long_leases) as page:
        _log_in(page, shop_with_long_leases)
        page.goto("/")
        card = page.get_by_role("region", name="When the holder dies")
        card.get_by_role("button", name="Kill the holder").click()
        expect(card.get_by_text("The dead holder’s lease ends in")).to_be_visible()
        card.get_by_role("link", name="release the lock in the admin").click()
        page.get_by_role("button", name="Force release …").click()
        page.get_by_label("Reason (for the log)").fill("its holder is dead")
        page.get_by_role("button", name="Yes, force release").click()
        expect(page.get_by_text("1 lock was freed.")).to_be_visible()
        page.goto("/")
        events = card.locator(".events li")
        expect(events).to_have_count(5)
        expect(events.nth(4)).to_contain_text(f"Process {_process_of(events.nth(2))} holds the lock")


@pytest.mark.thorough
def test_one_report_runs_and_the_others_are_skipped(page: Page, shop: Shop) -> None:
    _log_in(page, shop)  # first, since the report does not wait for long
    page.goto("/")
    button = page.get_by_role("button", name="Build the report")
    reports = page.locator(".reports li")
    button.click()
    expect(reports).to_have_text(["runs, and holds the lock"])
    button.click()
    button.click()
    expect(reports).to_have_text([*["skipped: another one was running"] * 2, "runs, and holds the lock"])
    page.get_by_role("link", name="its lock is in the admin").click()
    lock = page.get_by_role("link", name="report:42")
    for _ in range(20):  # it is reported after half a second or more, and the page looks again after five
        if lock.is_visible():
            break
        page.wait_for_timeout(200)
        page.reload()
    expect(lock).to_be_visible()
    page.goto("/")
    expect(reports.last).to_contain_text("done")


@pytest.mark.thorough
def test_the_page_shows_its_tasks_code_and_works_after_a_login_in_another_tab(page: Page, shop: Shop) -> None:
    card = page.get_by_role("region", name="A report that must not run twice")
    expect(card.locator("pre")).to_contain_text("def build_report(")
    admin = page.context.new_page()
    _log_in(admin, shop)
    expect(admin.get_by_role("heading", name="Site administration")).to_be_visible()
    reports = card.locator(".reports li")
    before = reports.count()
    card.get_by_role("button", name="Build the report").click()
    expect(reports).to_have_count(before + 1)
    expect(page.locator("#problem")).to_be_hidden()
    expect(reports.first).to_contain_text(re.compile("done|skipped"))


def _process_of(event: Locator) -> int:
    """The process that a line tells of."""
    found = re.search(r"Process (\d+)", event.inner_text())
    assert found is not None
    return int(found[1])


def _log_in(page: Page, shop: Shop) -> None:
    page.goto("/admin/")
    page.get_by_label("Username").fill("admin")
    page.get_by_label("Password").fill(shop.stack.password)
    page.get_by_role("button", name="Log in").click()


@pytest.mark.thorough
def test_works_without_javascript(browser: Browser, shop: Shop) -> None:
    with browser.new_context(base_url=shop.url, java_script_enabled=False) as context:
        context.set_default_timeout(PATIENCE * 1000)
        page = context.new_page()
        page.goto("/")
        _start_sale(page, buyers=9, stock=5)
        locked = page.get_by_role("region", name="@distributed_lock")
        for _ in range(2 * round(PATIENCE)):
            if "5 sold, none oversold" in locked.inner_text():
                break
            page.wait_for_timeout(500)
            page.reload()
        expect(locked.locator(".tile.sold")).to_have_count(5)
        expect(locked.locator(".tile.sold_out")).to_have_count(4)


def _start_sale(page: Page, buyers: int, stock: int) -> None:
    page.get_by_label("Buyers").fill(str(buyers))
    page.get_by_label("Moon cakes").fill(str(stock))
    page.get_by_role("button", name="Start the sale").click()
