"""The admin's pages as the tests reach them."""

import json
import re
from collections import Counter
from html import unescape

import redis
from django.contrib.admin.utils import quote
from django.test import Client
from django.urls import reverse

from tests.console.reporting import held

LIST = reverse("admin:django_rlock_lock_changelist")
JSON = reverse("admin:django_rlock_lock_json")
FORCE = reverse("admin:django_rlock_lock_force_release")
HISTORY = reverse("admin:django_rlock_lock_history")
HISTORY_JSON = reverse("admin:django_rlock_lock_history_json")
PROCESSES = reverse("admin:django_rlock_lock_processes")
METRICS = reverse("admin:django_rlock_lock_metrics")


def detail(name: str, using: str = "default") -> str:
    return reverse("admin:django_rlock_lock_change", args=[quote(f"{using}/{name}")])


def target(name: str) -> str:
    """What ticking a lock on the list sends."""
    return json.dumps(["default", name, held(name).holder.owner])


def text(client: Client, url: str) -> str:
    response = client.get(url)
    assert response.status_code == 200
    return response.content.decode()


def rows(page: str) -> list[str]:
    """The names on a list, from top to bottom."""
    return [unescape(name) for name in re.findall(r'field-lock"><a [^>]*><bdi>([^<]*)</bdi></a>', page)]


def said(client: Client) -> list[str]:
    """The messages of the last action."""
    page = text(client, LIST)
    return [unescape(message) for message in re.findall(r'<li class="(?:success|warning|error)">([^<]*)</li>', page)]


UNCOUNTED = "info", "hello", "client", "select", "auth", "subscribe", "unsubscribe", "ping"


def commands_of(client: redis.Redis) -> Counter[str]:
    """How often the server has run each, but for those of connecting, of listening and of asking this."""
    calls = {name.removeprefix("cmdstat_"): about["calls"] for name, about in client.info("commandstats").items()}
    return Counter({name: number for name, number in calls.items() if not name.startswith(UNCOUNTED)})
