"""What a page of the admin's list of locks costs the process that serves it, and what open ones cost the server."""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Any

from django.contrib import admin
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.test import Client
from django.test.utils import override_settings
from django.urls import URLPattern, URLResolver, path, reverse

from benchmarks.results import Row, Table, median_row
from django_rlock._monitoring import documents
from django_rlock._transport.servers import get_client
from django_rlock.settings import DEFAULT_ALIAS

MILLISECONDS_LIMIT = 100
JSON_LIMIT = 1 / 3
TABS, TURNS, TABS_LIMIT = 10, 4, 100
"""Open tabs, how often each refreshes itself here, and the commands a second that they may cost together."""
REFRESH_EVERY, QUICK_REFRESH_EVERY = 5.0, 0.1
"""In seconds; what the page itself does, and what only shows that this runs."""
TRIES = 20
SETTINGS: dict[str, Any] = {
    "ALLOWED_HOSTS": ["*"],
    "INSTALLED_APPS": [
        "django.contrib.admin",
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.messages",
        "django.contrib.sessions",
        "django.contrib.staticfiles",
        "django_rlock",
    ],
    "MIDDLEWARE": [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ],
    "ROOT_URLCONF": __name__,
    "STATIC_URL": "static/",
    "TEMPLATES": [
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "APP_DIRS": True,
            "OPTIONS": {
                "context_processors": [
                    "django.template.context_processors.request",
                    "django.contrib.auth.context_processors.auth",
                    "django.contrib.messages.context_processors.messages",
                ]
            },
        }
    ],
}
urlpatterns: list[URLPattern | URLResolver] = []


def pages(locks: int, processes: int, passes: int, quick: bool) -> Table:
    """The CPU time of this process for a page with so many locks; each round asks for all that is compared. Then what
    open tabs cost."""
    with override_settings(**SETTINGS):
        urlpatterns[:] = [path("admin/", admin.site.urls)]
        call_command("migrate", verbosity=0)
        client = Client()
        user, _ = get_user_model().objects.get_or_create(username="bench", is_staff=True, is_superuser=True)
        client.force_login(user)
        rounds = [page_costs(client) for _ in range(passes + 1)][1:]  # the first one imports and compiles
        opened = open_tabs(client, QUICK_REFRESH_EVERY if quick else REFRESH_EVERY)
    first, page, document, unchanged = (list(costs) for costs in zip(*rounds, strict=True))
    shares = [mine / whole for mine, whole in zip(document, page, strict=True)]
    return Table(
        f"A page of the admin with {locks:,} locks of {processes} processes, cpu time",
        [
            median_row("a page", page, "ms", at_most=MILLISECONDS_LIMIT),
            median_row("a process's first page", first, "ms"),
            median_row("a refresh that finds nothing changed", unchanged, "ms"),
            median_row("its JSON", document, "ms"),
            median_row("its JSON, share of the page's", shares, at_most=JSON_LIMIT),
            opened,
        ],
    )


def page_costs(client: Client) -> tuple[float, float, float, float]:
    """Milliseconds for the first page, one more, its JSON, and a response 304."""
    url = reverse("admin:django_rlock_lock_changelist")
    documents._known.value.clear()
    first, _ = timed_get(client, url)
    page, _ = timed_get(client, url)
    document, _ = timed_get(client, reverse("admin:django_rlock_lock_json"))
    return first, page, document, unchanged_cost(client, url)


def unchanged_cost(client: Client, url: str) -> float:
    for _ in range(TRIES):
        etag = client.get(url)["ETag"]
        cost, response = timed_get(client, url, etag)
        if response.status_code == HTTPStatus.NOT_MODIFIED:
            return cost
    raise TimeoutError("Leases are renewed all the time, so no page stays unchanged.")


def open_tabs(client: Client, every: float) -> Row:
    """What the server runs for ten pages that are open side by side and refresh themselves by turns."""
    url = reverse("admin:django_rlock_lock_changelist")
    etags: dict[int, str] = {tab: client.get(url)["ETag"] for tab in range(TABS)}
    unchanged, before, began = 0, commands_of_this_process(), time.monotonic()
    for turn in range(TURNS * TABS):
        time.sleep(max(0.0, began + turn * every / TABS - time.monotonic()))
        response = client.get(url, headers={"X-Rlock-Refresh": "1", "If-None-Match": etags[turn % TABS]})
        unchanged += response.status_code == HTTPStatus.NOT_MODIFIED
        etags[turn % TABS] = response.headers.get("ETag", etags[turn % TABS])
    # Where the machine is too slow, the tabs come later; they count as if they had come in time.
    rate = (commands_of_this_process() - before) / (TURNS * every)
    details = {"refreshes": float(TURNS * TABS), "of them unchanged": float(unchanged)}
    return Row(f"{TABS} open tabs, commands to the server", rate, "/s", at_most=TABS_LIMIT, details=details)


def commands_of_this_process() -> int:
    """How many commands of this process the server has run: it counts them by connection. What other processes send,
    such as their reports, is not among them."""
    client = get_client(DEFAULT_ALIAS)
    own = [about for about in client.client_list() if about["id"] == str(client.client_id())]
    return int(own[0]["tot-cmds"])


def timed_get(client: Client, url: str, etag: str | None = None) -> tuple[float, Any]:
    began = time.process_time()
    response = client.get(url, headers={"If-None-Match": etag} if etag else None)
    return (time.process_time() - began) * 1000, response
