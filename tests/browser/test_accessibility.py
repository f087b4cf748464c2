"""The package's pages for those who see or hear them otherwise, or have no mouse, and under a strict policy."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import redis
from playwright.sync_api import Browser, Error, Page, Route, expect
from pytest_django import Settings
from pytest_django.live_server_helper import LiveServer

from tests.browser.accessibility import violations
from tests.conftest import OwnServer
from tests.console.crowd import beating, plant_locks, plant_past
from tests.console.pages import LIST, detail
from tests.console.processes import Process
from tests.eventually import eventually
from tests.forms import long

PROCESSES = f"{LIST}processes/"
JAVA = "9e107d9d-372b-4c81-9f3a-2b1e6c0f7a55:31"

SCHEMES = pytest.mark.parametrize("scheme", ["light", *long("dark")])

URLS = [
    detail("stock:59"),
    *long(LIST, f"{LIST}?q=nothing", PROCESSES, detail("free")),
]

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def trouble(redis_client: redis.Redis) -> Iterator[None]:
    """More locks than fit on a page; one is waited for, one has no end, and some have a silent holder."""
    processes = plant_locks(redis_client, 60, 2, longer=3600)
    plant_locks(redis_client, 2, 1, prefix="rlock:old:", silent=7200, longer=7300)
    redis_client.zadd("rlock_queue:{rlock:stock:59}", {JAVA: 1})
    redis_client.persist("rlock:stock:58")
    plant_past(redis_client, "stock:59")
    with beating(redis_client, processes):
        yield


@SCHEMES
@pytest.mark.parametrize("url", URLS)
def test_axe_finds_nothing(page: Page, trouble: None, url: str, scheme: Any) -> None:
    page.emulate_media(color_scheme=scheme)
    page.goto(url)
    assert violations(page) == []
    if url == detail("stock:59"):
        page.get_by_role("button", name="Force release").click()
        expect(page.get_by_role("button", name="Yes, force release")).to_be_visible()
        assert violations(page) == []


@pytest.mark.thorough
@SCHEMES
def test_axe_finds_nothing_in_a_deadlock(page: Page, scheme: Any) -> None:
    page.emulate_media(color_scheme=scheme)
    with Process("web-1") as web, Process("web-2") as other:
        web.acquire("a")
        other.acquire("b")
        web.block("b")
        other.block("a")
        eventually(lambda: page.goto(LIST) and page.locator(".rlock-deadlock").count())
        assert violations(page) == []


@pytest.mark.thorough
@SCHEMES
def test_axe_finds_nothing_where_a_server_is_down(page: Page, own_server: OwnServer, scheme: Any) -> None:
    own_server().kill()
    page.emulate_media(color_scheme=scheme)
    page.goto(LIST)
    expect(page.get_by_role("alert")).to_contain_text("did not respond")
    assert violations(page) == []


@pytest.fixture
def visitor(browser: Browser, live_server: LiveServer, settings: Settings) -> Any:
    """Opens a page of the shop, without an account, under a colour scheme."""
    settings.ROOT_URLCONF = "tests.web.urls"
    with browser.new_context(base_url=live_server.url) as context:
        page = context.new_page()
        said = listen(page)

        def visit(url: str, scheme: Any) -> Page:
            page.emulate_media(color_scheme=scheme)
            obey_policy(page)
            page.goto(url)
            return page

        yield visit
        assert said == []


@SCHEMES
def test_axe_finds_nothing_where_a_lock_was_taken(visitor: Any, redis_client: redis.Redis, scheme: Any) -> None:
    redis_client.hset("rlock:stock:1", JAVA, 1)
    redis_client.pexpire("rlock:stock:1", 60_000)
    page = visitor("/buy/1/", scheme)
    expect(page.get_by_role("status")).to_contain_text("You can try again")
    assert violations(page) == []


@pytest.mark.thorough
@SCHEMES
def test_axe_finds_nothing_where_redis_is_unreachable(visitor: Any, own_server: OwnServer, scheme: Any) -> None:
    own_server().kill()
    page = visitor("/buy/1/", scheme)
    expect(page.get_by_role("heading", name="Please try again")).to_be_visible()
    assert violations(page) == []


def listen(page: Page) -> list[str]:
    """What the console says of the policy; it also notes that a page has the status 423 or 503."""
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text) if "Security Policy" in message.text else None)
    return said


def obey_policy(page: Page) -> None:
    """Let every response come with a policy that allows only what the site itself serves."""

    def serve(route: Route) -> None:
        with suppress(Error):  # the page was left meanwhile
            response = route.fetch(max_redirects=0)
            headers = response.headers | {"content-security-policy": "default-src 'self'; form-action 'self'"}
            route.fulfill(response=response, headers=headers)

    page.route("**/*", serve)


def test_a_strict_policy_refuses_nothing(page: Page, trouble: None) -> None:
    said = listen(page)
    obey_policy(page)
    for url in (LIST, PROCESSES, detail("free"), detail("stock:59")):
        page.goto(url)
    page.get_by_role("button", name="Force release").click()
    page.get_by_role("button", name="Yes, force release").click()
    expect(page.get_by_text("1 lock was freed.")).to_be_visible()
    assert said == []


def test_a_lock_is_freed_by_the_keyboard_alone(page: Page, redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 1, 1)
    page.goto(LIST)
    press_to(page, "Select stock:0", "Space")
    page.keyboard.press("Shift+Tab")  # the headings and the button are before the locks
    press_to(page, "Force release selected", "Enter", by="Shift+Tab")
    expect(page.get_by_role("button", name="Yes, force release")).to_be_visible()
    press_to(page, "Reason (for the log)", "x")
    press_to(page, "Yes, force release", "Enter")
    expect(page.get_by_text("1 lock was freed.")).to_be_visible()


def press_to(page: Page, name: str, key: str, by: str = "Tab") -> None:
    """Go on until what has this name is focused, which can be seen, and press a key there."""
    for _ in range(60):
        page.keyboard.press(by)
        name_of, outlined = page.evaluate(_FOCUSED)
        assert outlined or not name_of
        if name_of.startswith(name):
            page.keyboard.press(key)
            return
    raise AssertionError(f"The keyboard does not reach {name!r}.")


_FOCUSED = """() => {
  const focused = document.activeElement, style = getComputedStyle(focused);
  const inside = document.getElementById("content-main").contains(focused);
  const name = focused.ariaLabel || focused.labels?.[0]?.innerText || focused.innerText || "";
  return [inside ? name.trim() : "", style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0];
}"""
