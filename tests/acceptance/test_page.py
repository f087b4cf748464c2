"""The shop's page in a real browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.acceptance.conftest import Shop

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
QUIET = [
    *["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"],
    *["--disable-component-update", "--disable-sync"],
]
SALE_TIME = 60_000

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium"),
    pytest.mark.timeout(120),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, shop: Shop) -> Iterator[Page]:
    """The shop's page, on which the console stays empty."""
    said: list[str] = []
    with browser.new_context(base_url=shop.url) as context:
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto("/")
        yield page
        assert said == []


def test_a_sale_fills_the_lanes(page: Page) -> None:
    _start_sale(page, buyers=100, stock=90)
    locked = page.get_by_role("region", name="@distributed_lock")
    expect(locked).to_contain_text("90 sold, none oversold", timeout=SALE_TIME)
    expect(locked.locator(".tile.sold")).to_have_count(90)
    expect(locked.locator(".tile.sold_out")).to_have_count(10)
    for name in ["No lock", "SET NX with an expiry"]:
        lane = page.get_by_role("region", name=name)
        oversold = int(lane.locator("[data-total=oversold]").inner_text())
        assert oversold > 0
        expect(lane.locator(".tile.oversold")).to_have_count(oversold)
    expect(page.get_by_role("status")).to_contain_text("@distributed_lock: 90 sold")


def test_one_report_runs_and_the_others_are_skipped(page: Page, shop: Shop) -> None:
    _log_in(page, shop)  # first, since the report does not wait for a slow browser
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
    for _ in range(20):  # it is told of after half a second or more, and the page looks again after five
        if lock.is_visible():
            break
        page.wait_for_timeout(200)
        page.reload()
    expect(lock).to_be_visible()
    page.goto("/")
    expect(reports.last).to_contain_text("done", timeout=15_000)


def _log_in(page: Page, shop: Shop) -> None:
    page.goto("/admin/")
    page.get_by_label("Username").fill("admin")
    page.get_by_label("Password").fill(shop.stack.password)
    page.get_by_role("button", name="Log in").click()


def test_works_without_javascript(browser: Browser, shop: Shop) -> None:
    with browser.new_context(base_url=shop.url, java_script_enabled=False) as context:
        page = context.new_page()
        page.goto("/")
        _start_sale(page, buyers=9, stock=5)
        locked = page.get_by_role("region", name="@distributed_lock")
        for _ in range(60):
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
