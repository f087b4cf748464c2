"""The system's Chromium, and an operator who has logged in."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Browser, Page, expect, sync_playwright
from pytest_django.live_server_helper import LiveServer

from tests.console.pages import LIST
from tests.eventually import PATIENCE

ROOT = Path(__file__).parents[2]
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

expect.set_options(timeout=PATIENCE * 1000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("needs chromium (apt-get install chromium)")
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
    """Logged in as a superuser; a script error fails the test."""
    client = Client()
    client.force_login(User.objects.create_superuser("alice"))
    session = client.cookies["sessionid"].value
    with browser.new_context(base_url=live_server.url, viewport={"width": 1280, "height": 760}) as context:
        context.set_default_timeout(PATIENCE * 1000)
        page = context.new_page()
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        context.add_cookies([{"name": "sessionid", "value": session, "url": live_server.url}])
        page.goto(LIST)
        yield page
        assert problems == []


@contextmanager
def themed_site(theme: str, folder: Path) -> Iterator[str]:
    """The address of a site under a theme of the admin."""
    environment = os.environ | {"ADMIN_THEME": theme, "ADMIN_THEME_DATABASE": str(folder / "db.sqlite3")}
    command = [sys.executable, "-m", "tests.browser.theme_site"]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate(timeout=PATIENCE)  # closes its input


def log_in(page: Page) -> None:
    page.goto(f"/admin/login/?next={LIST}")
    page.fill("[name=username]", "alice")
    page.fill("[name=password]", "password")
    page.click("[type=submit]")
    page.wait_for_url(f"**{LIST}")
