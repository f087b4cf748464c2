"""Does in the project of docs/quickstart.md what the page does there, in one process; quickstart.py starts it.

With ``--in-process``, the locks are those of ``override_locks()``.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from threading import Event
from typing import Any

import django
from celery.contrib.testing.worker import start_worker
from celery.signals import task_success
from django.core.management import call_command
from django.test import Client

from django_rlock import rlock
from django_rlock.signals import task_skipped
from django_rlock.testing import override_locks

WITHIN = 60.0
"""How long what must come is waited for, in seconds."""


def configure() -> None:
    call_command("migrate", verbosity=0)
    call_command("check", fail_level="WARNING")
    call_command("rlock_doctor")


def lock_view(client: Client) -> None:
    assert client.get("/buy/cake/").content == b"yours"
    with rlock("stock:cake", owner="another"):
        response = client.get("/buy/cake/")
        assert (response.status_code, response.json()["code"]) == (423, "locked")
        assert client.get("/buy/pie/").content == b"yours"


def lock_task() -> None:
    from mysite.celery import app  # type: ignore[import-not-found]
    from mysite.tasks import build_report  # type: ignore[import-not-found]

    done, skipped = Event(), Event()

    def note_success(result: Any, **_: Any) -> None:
        if result == "report of 8":
            done.set()

    def note_skipped(**_: Any) -> None:
        skipped.set()

    task_success.connect(note_success)
    task_skipped.connect(note_skipped)
    with start_worker(app, perform_ping_check=False), rlock("report:7", owner="another"):
        for account_id in (7, 8):
            build_report.delay(account_id)
        assert skipped.wait(WITHIN)
        assert done.wait(WITHIN)


def see_locks(client: Client) -> None:
    from django.contrib.auth.models import User

    client.force_login(User.objects.create_superuser("alice"))
    with rlock("stock:cake"):
        assert b"stock:cake" in client.get("/admin/django_rlock/lock/").content
        call_command("rlock_list")


def main() -> None:
    django.setup()
    client = Client(headers={"host": "localhost"})
    configure()
    with override_locks() if "--in-process" in sys.argv else nullcontext():
        lock_view(client)
        lock_task()
        see_locks(client)


if __name__ == "__main__":
    main()
