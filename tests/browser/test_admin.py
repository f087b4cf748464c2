"""The admin in a real browser: an operator finds a lock that a real process holds, and frees it."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from django.contrib.auth.models import User
from playwright.sync_api import Browser, Page, expect, sync_playwright
from pytest_django.live_server_helper import LiveServer

from django_rlock.inspection import iter_locks
from tests.admin.pages import LIST
from tests.inspection.processes import Process, until
from tests.inspection.test_inspection import fall_silent

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
expect.set_options(timeout=30_000)

SCREENSHOT = os.environ.get("RLOCK_SCREENSHOT")
"""Set to anything, the list is drawn for the README."""
IMAGES = Path(__file__).parents[2] / "docs" / "images"

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (apt-get install chromium)"),
    pytest.mark.django_db(transaction=True),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    # Playwright runs an event loop in this thread, where Django then refuses the database.
    before = os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        yield launched
        launched.close()
    if before is None:
        del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


@pytest.fixture
def page(browser: Browser, live_server: LiveServer) -> Iterator[Page]:
    """Logged in as a superuser; a script error or a refused resource fails the test."""
    User.objects.create_superuser("alice", password="password")
    with browser.new_context(base_url=live_server.url, viewport={"width": 1280, "height": 760}) as context:
        page = context.new_page()
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(f"/admin/login/?next={LIST}")
        page.fill("#id_username", "alice")
        page.fill("#id_password", "password")
        page.click("[type=submit]")
        page.wait_for_url(f"**{LIST}")
        yield page
        assert problems == []


def test_an_operator_finds_a_lock_and_frees_it(page: Page, redis_client: redis.Redis) -> None:
    with Process("web-2") as web:
        web.acquire("stock:42", {"route": "POST /buy/42/", "user": "7"})
        until(lambda: redis_client.keys("rlock_process:*"))
        page.reload()
        row = page.get_by_role("row").filter(has_text="stock:42")
        expect(row).to_contain_text(f"web-2 · pid {web.pid}")
        expect(row).to_contain_text("POST /buy/42/")
        row.get_by_role("checkbox").check()
        page.get_by_role("button", name="Force release selected").click()
        expect(page.get_by_role("heading", name="Force release")).to_be_visible()
        expect(page.get_by_text("alive", exact=True)).to_be_visible()
        page.get_by_label("Reason, for the log").fill("stuck since noon")
        page.get_by_role("button", name="Yes, force release").click()
        expect(page.get_by_text("1 lock was freed.")).to_be_visible()
    assert not redis_client.exists("rlock:stock:42")


def test_the_list_refreshes_itself_until_somebody_works_on_it(page: Page, redis_client: redis.Redis) -> None:
    page.clock.install()
    page.reload()
    expect(page.get_by_text("No lock is held at the moment.")).to_be_visible()
    with Process("web-2") as web:
        web.acquire("stock:1")
        until(lambda: redis_client.keys("rlock_process:*"))
        page.clock.run_for(5100)
        box = page.get_by_role("checkbox", name="Select stock:1")
        expect(box).to_be_visible()
        box.check()
        web.release("stock:1")
        until(lambda: not redis_client.exists("rlock:stock:1"))
        with_requests: list[str] = []
        page.on("request", lambda request: with_requests.append(request.url))
        page.clock.run_for(20_000)
        expect(box).to_be_checked()
        assert with_requests == []
        box.uncheck()
        box.blur()
        page.clock.run_for(5100)
        expect(page.get_by_text("No lock is held at the moment.")).to_be_visible()
        page.get_by_role("button", name="Pause").click()
        with_requests.clear()
        page.clock.run_for(20_000)
        expect(page.get_by_text("Not refreshing")).to_be_visible()
        assert with_requests == []


def test_all_can_be_selected_at_once(page: Page, redis_client: redis.Redis) -> None:
    with Process("web-1") as web:
        web.acquire("stock:1")
        web.acquire("stock:2")
        until(
            lambda: (
                len(
                    [
                        key
                        for report in redis_client.keys("rlock_process:*")
                        for key in redis_client.hkeys(report)
                        if "hold" in key
                    ]
                )
                == 2
            )
        )
        page.reload()
        page.get_by_role("checkbox", name="Select all on this page").check()
        expect(page.get_by_role("checkbox", name="Select stock:1")).to_be_checked()
        expect(page.get_by_role("checkbox", name="Select stock:2")).to_be_checked()
        page.get_by_role("checkbox", name="Select stock:2").uncheck()
        expect(page.get_by_role("checkbox", name="Select all on this page")).not_to_be_checked()


@pytest.mark.parametrize("width", [390, 800, 1280])
def test_no_page_is_wider_than_the_screen(page: Page, redis_client: redis.Redis, width: int) -> None:
    with Process("web-production-eu-west-2-7f9c") as web:
        web.acquire(
            "stock:" + "x" * 150, {"task": "shop.tasks.a_name_that_is_rather_long", "task_id": "5f0c9e1e-8a37-4f0e"}
        )
        until(lambda: redis_client.keys("rlock_process:*"))
        page.set_viewport_size({"width": width, "height": 800})
        page.reload()
        widths = [_width(page)]
        page.get_by_role("link", name="stock:xxx").click()
        page.wait_for_url("**/change/")
        widths.append(_width(page))
        page.get_by_role("button", name="Force release").click()
        page.wait_for_url("**/force-release/")
        widths.append(_width(page))
    assert max(widths) <= width


def _width(page: Page) -> int:
    """In pixels, of a page that has loaded: a click returns while the next page has no document yet."""
    width: int = page.evaluate("document.documentElement.scrollWidth")
    return width


@pytest.mark.skipif(SCREENSHOT is None, reason="draws docs/images/admin.png when RLOCK_SCREENSHOT is set")
def test_picture_for_the_readme(page: Page, redis_client: redis.Redis) -> None:
    with Process("web-1") as shop, Process("web-2") as other, Process("worker-1", "celery") as dead:
        shop.acquire("stock:42", {"route": "POST /buy/42/", "user": "7"})
        shop.acquire("cart:9f2", {"route": "PATCH /cart/9f2/", "user": "12"}, kind="rlock")
        dead.acquire("report:2026-11", {"task": "shop.tasks.report", "task_id": "5f0c9e1e-8a37"}, lease_time=60)
        other.acquire("invoice:1009", {"route": "POST /checkout/1009/", "user": "9"})
        other.wait("stock:42", {"route": "POST /buy/42/", "user": "9"})
        redis_client.hset("rlock:legacy:import", "9e107d9d-372b-4c81-9f3a-2b1e6c0f7a55:31", 1)
        redis_client.pexpire("rlock:legacy:import", 21_000)
        until(lambda: redis_client.zcard("rlock_queue:{rlock:stock:42}"))
        until(lambda: all(lock.held_for for lock in iter_locks()) and len(list(iter_locks())) == 4)
        dead.kill()
        fall_silent(redis_client, dead)
        page.goto(f"{LIST}?scan=1")
        expect(page.get_by_text("legacy:import")).to_be_visible()
        IMAGES.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=IMAGES / "admin.png")
