"""The admin in a real browser: an operator finds a lock that a real process holds, and frees it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import redis
from django.contrib.sessions.models import Session
from playwright.sync_api import Page, Route, expect
from pytest_django import Settings

from django_rlock.inspection import iter_locks
from tests.console.crowd import plant_locks
from tests.console.pages import LIST
from tests.console.processes import Process
from tests.console.test_inspection import fall_silent
from tests.eventually import eventually
from tests.forms import long

SCREENSHOT = os.environ.get("RLOCK_SCREENSHOT")
"""Set to anything, the list is drawn for the README."""
IMAGES = Path(__file__).parents[2] / "docs" / "images"

pytestmark = pytest.mark.django_db(transaction=True)


def test_an_operator_finds_a_lock_and_frees_it(page: Page, redis_client: redis.Redis) -> None:
    with Process("web-2") as web:
        web.acquire("stock:42", {"route": "POST /buy/42/", "user": "7"})
        eventually(lambda: redis_client.keys("rlock_process:*"))
        page.reload()
        row = page.get_by_role("row").filter(has_text="stock:42")
        expect(row).to_contain_text(f"web-2 · pid {web.pid}")
        expect(row).to_contain_text("POST /buy/42/")
        expect(page.get_by_role("button", name="Force release selected")).to_be_disabled()
        row.get_by_role("checkbox").check()
        page.get_by_role("button", name="Force release selected … (1)").click()
        expect(page.get_by_role("heading", name="Force release")).to_be_visible()
        expect(page.get_by_text("alive", exact=True)).to_be_visible()
        page.get_by_label("Reason (for the log)").fill("stuck since noon")
        page.get_by_role("button", name="Yes, force release").click()
        expect(page.get_by_text("1 lock was freed.")).to_be_visible()
    assert not redis_client.exists("rlock:stock:42")


def test_the_list_refreshes_itself_until_an_operator_works_on_it(page: Page, redis_client: redis.Redis) -> None:
    page.clock.install()
    page.reload()
    expect(page.get_by_text("No lock is held at the moment.")).to_be_visible()
    with Process("web-2") as web:
        web.acquire("stock:1")
        eventually(lambda: redis_client.keys("rlock_process:*"))
        with page.expect_request(lambda request: request.headers.get("x-rlock-refresh") == "1"):
            page.clock.run_for(5100)
        box = page.get_by_role("checkbox", name="Select stock:1")
        expect(box).to_be_visible()
        box.check()
        web.release("stock:1")
        eventually(lambda: not redis_client.exists("rlock:stock:1"))
        with_requests: list[str] = []
        page.on("request", lambda request: with_requests.append(request.url))
        page.clock.run_for(20_000)
        expect(box).to_be_checked()
        assert with_requests == []
        expect(page.get_by_text("Paused while locks are selected")).to_be_visible()
        expect(page.get_by_text("updated 20 s ago")).to_be_visible()
        box.uncheck()
        expect(box).to_be_focused()
        page.clock.run_for(5100)
        expect(page.get_by_text("No lock is held at the moment.")).to_be_visible()
        page.get_by_role("button", name="Pause").click()
        with_requests.clear()
        page.clock.run_for(20_000)
        expect(page.get_by_text("Not refreshing")).to_be_visible()
        assert with_requests == []


def test_a_refresh_keeps_focus_and_selected_text(page: Page, redis_client: redis.Redis) -> None:
    page.clock.install()
    with Process("web-2") as web:
        for number in (1, 2):
            web.acquire(f"stock:{number}")
        eventually(lambda: len(list(iter_locks())) == 2)
        page.reload()
        page.get_by_role("link", name="stock:2").focus()
        page.get_by_role("link", name="stock:2").evaluate("link => getSelection().selectAllChildren(link)")
        web.release("stock:1")
        web.acquire("stock:3")
        eventually(lambda: [lock.name for lock in iter_locks()] == ["stock:2", "stock:3"])
        page.clock.run_for(5100)
        expect(page.get_by_role("link", name="stock:1")).to_have_count(0)
        expect(page.get_by_role("link", name="stock:2")).to_be_focused()
        assert page.evaluate("getSelection().toString()") == "stock:2"
        web.release("stock:2")
        eventually(lambda: [lock.name for lock in iter_locks()] == ["stock:3"])
        page.clock.run_for(5100)
        expect(page.get_by_role("link", name="stock:2")).to_have_count(0)
        expect(page.locator("#rlock-live")).to_be_focused()
        assert page.evaluate("getSelection().toString()") == ""


def test_focus_stays_on_each_element_when_something_comes_above_it(page: Page, redis_client: redis.Redis) -> None:
    page.clock.install()
    plant_locks(redis_client, 1, 1, longer=3600)
    news = 0

    def add_news(route: Route) -> None:
        nonlocal news
        news += 1
        answer = route.fetch(headers={**route.request.headers, "if-none-match": "none"})
        body = answer.text().replace("<ul class", news * "<p class=news></p>" + "<ul class", 1)
        route.fulfill(response=answer, body=body)

    page.route(lambda url: url.endswith(LIST), add_news)
    page.reload()
    elements = page.locator("#rlock-live :is(a, input:not([hidden]), button:enabled)")
    names = elements.evaluate_all("all => all.map(each => [each.tagName, each.href, each.value, each.textContent])")
    assert len(names) > 10
    for number, name in enumerate(names):
        elements.nth(number).focus()
        shown = page.locator("#rlock-live p.news").count()
        page.clock.run_for(5100)
        page.wait_for_function("shown => document.querySelectorAll('p.news').length > shown", arg=shown)
        focused = page.evaluate("(e => [e.tagName, e.href, e.value, e.textContent])(document.activeElement)")
        assert focused == name


def test_the_list_leads_to_the_login_after_the_session_has_ended(page: Page) -> None:
    page.clock.install()
    page.reload()
    login = page.get_by_role("link", name="Log in again")
    expect(login).to_be_hidden()
    Session.objects.all().delete()
    page.clock.run_for(5100)
    expect(page.get_by_text("Your session has ended.")).to_be_visible()
    login.click()
    page.wait_for_url(f"**/login/?next={LIST}")


def test_a_long_name_takes_three_lines_of_the_list(page: Page, redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 1, 1, prefix=f"rlock:{'7' * 900}:", longer=3600)
    page.reload()
    link = page.get_by_role("row").locator(".field-lock a")
    lines = "link => link.clientHeight / parseFloat(getComputedStyle(link).lineHeight)"
    assert link.evaluate(lines) == pytest.approx(3, abs=0.2)


def test_the_search_field_does_not_stop_the_refresh(page: Page, redis_client: redis.Redis) -> None:
    page.clock.install()
    page.reload()
    page.get_by_role("searchbox", name="Search").fill("sto")
    with Process("web-2") as web:
        web.acquire("stock:1")
        eventually(lambda: redis_client.keys("rlock_process:*"))
        page.clock.run_for(5100)
        expect(page.get_by_role("link", name="stock:1")).to_be_visible()
        expect(page.get_by_role("searchbox", name="Search")).to_be_focused()
        expect(page.get_by_role("searchbox", name="Search")).to_have_value("sto")


def test_all_can_be_selected_at_once(page: Page, redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 2, 1, longer=3600)
    page.reload()
    page.get_by_role("checkbox", name="Select all on this page").check()
    expect(page.get_by_role("checkbox", name="Select stock:0")).to_be_checked()
    expect(page.get_by_role("checkbox", name="Select stock:1")).to_be_checked()
    page.get_by_role("checkbox", name="Select stock:1").uncheck()
    expect(page.get_by_role("checkbox", name="Select all on this page")).not_to_be_checked()


@pytest.mark.parametrize("width", [390, *long(800, 1280)])
def test_no_page_is_wider_than_the_screen(page: Page, redis_client: redis.Redis, width: int) -> None:
    with Process("web-production-eu-west-2-7f9c") as web:
        web.acquire(
            "stock:" + "x" * 150, {"task": "shop.tasks.a_name_that_is_rather_long", "task_id": "5f0c9e1e-8a37-4f0e"}
        )
        eventually(lambda: redis_client.keys("rlock_process:*"))
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


def test_the_list_fits_a_desktop_where_words_are_long(
    page: Page, redis_client: redis.Redis, settings: Settings
) -> None:
    plant_locks(redis_client, 2, 1, longer=7300)
    plant_locks(redis_client, 2, 1, prefix="rlock:old:", silent=7200, longer=7300)
    redis_client.persist("rlock:stock:1")
    too_wide = {}
    for language in ("ar", "de", "pt-br", "ru"):  # those with the longest words
        settings.LANGUAGE_CODE = language
        page.goto(LIST)
        table = page.locator(".results")
        assert table.locator(".rlock-state").count() == 4
        too_wide[language] = table.evaluate("table => table.scrollWidth - table.clientWidth")
    assert not any(too_wide.values()), too_wide


def test_on_a_phone_a_label_stands_at_one_side_and_its_value_at_the_other(
    page: Page, redis_client: redis.Redis
) -> None:
    plant_locks(redis_client, 1, 1, longer=3600)
    page.set_viewport_size({"width": 390, "height": 800})
    page.reload()
    for direction, side in ("ltr", "left"), ("rtl", "right"):
        page.evaluate("direction => document.documentElement.setAttribute('dir', direction)", direction)
        cell = page.get_by_role("row").filter(has_text="stock:0").locator("td[data-label='Held for']")
        found = cell.evaluate(
            """cell => [getComputedStyle(cell).textAlign, getComputedStyle(cell).borderBottomWidth,
                        getComputedStyle(cell, "::before").float]"""
        )
        assert found[:2] == ["end", "0px"]
        assert found[2] in {"inline-start", side}


def _width(page: Page) -> int:
    """In pixels; of a page that is loaded, since a click returns while the next one has no document yet."""
    width: int = page.evaluate("document.documentElement.scrollWidth")
    return width


def _grow_old(client: redis.Redis, ages: dict[str, float]) -> None:
    """Let reports say that locks have been held, and waited for, for more seconds than they have."""
    for report in client.scan_iter("rlock_process:*"):
        entries: dict[Any, Any] = client.hgetall(report)
        for field, value in entries.items():
            if field.startswith(("hold ", "wait ")):
                entry = json.loads(value)
                older = ages[entry["key"].removeprefix("rlock:")] / (1 if field.startswith("hold ") else 2)
                client.hset(report, field, json.dumps(entry | {"since": entry["since"] - older}))


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
        eventually(lambda: redis_client.zcard("rlock_queue:{rlock:stock:42}"))
        eventually(lambda: all(lock.held_for for lock in iter_locks()) and len(list(iter_locks())) == 4)
        dead.kill()
        _grow_old(redis_client, {"stock:42": 3.1, "cart:9f2": 0.3, "report:2026-11": 37.5, "invoice:1009": 14.2})
        redis_client.pexpire("rlock:report:2026-11", 22_000)
        fall_silent(redis_client, dead)
        page.goto(f"{LIST}?scan=1")
        expect(page.get_by_text("legacy:import")).to_be_visible()
        IMAGES.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=IMAGES / "admin.png")
