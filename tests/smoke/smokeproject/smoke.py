"""One of each: kinds of lock, the decorator, the admin, commands; an operation and a task where their packages are."""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import django
from django.core.management import call_command

WITHIN = 60.0
"""How long what must come is waited for, in seconds."""


def try_package() -> None:
    import django_rlock

    assert Path(django_rlock.__file__).is_relative_to(sys.prefix), django_rlock.__file__
    assert django_rlock.__version__ == version("django-rlock")
    assert ("celery" in sys.modules) is False, "The package imports Celery by itself."


def try_kinds() -> None:
    from django_rlock import (
        CountDownLatch,
        PermitExpirableSemaphore,
        ReadWriteLock,
        Semaphore,
        rlock,
    )

    shared = ReadWriteLock("shared")
    locks = [rlock("it", kind=kind) for kind in ("fair", "rlock", "spin", "fenced")]
    locks += [rlock("a", "b"), rlock("it", using="quorum"), shared.read_lock, shared.write_lock]
    for lock in locks:
        with lock:
            assert lock.owned(), lock
        assert not lock.locked(), lock

    semaphore = Semaphore("few")
    assert semaphore.try_set_permits(2)
    with semaphore:
        assert semaphore.available_permits() == 1
    permits = PermitExpirableSemaphore("few-permits")
    assert permits.try_set_permits(1)
    permit = permits.acquire()
    assert permit is not None
    permits.release(permit)
    latch = CountDownLatch("ready")
    assert latch.try_set_count(1)
    latch.count_down()
    assert latch.wait(wait_time=WITHIN)
    asyncio.run(try_async())


async def try_async() -> None:
    from django_rlock import rlock

    async with rlock("it") as lock:
        assert await lock.alocked()


def try_decorator() -> None:
    from django.test import Client

    from django_rlock import rlock

    assert Client().get("/buy/cake/").content == b"yours: cake"
    with rlock("stock:cake", owner="another"):
        assert Client().get("/buy/cake/").status_code == 423


def try_operation() -> None:
    from django.test import Client

    from django_rlock import rlock

    assert Client().get("/api/buy/cake/").json() == "yours: cake"
    with rlock("stock:cake", owner="another"):
        assert Client().get("/api/buy/cake/").status_code == 423


def try_admin() -> None:
    from django.contrib.auth.models import User
    from django.test import Client

    from django_rlock import rlock

    call_command("migrate", verbosity=0)
    client = Client()
    client.force_login(User.objects.create_superuser("alice"))
    with rlock("stock:admin"):
        assert b"stock:admin" in client.get("/admin/django_rlock/lock/").content


def try_commands() -> None:
    call_command("check")
    call_command("rlock_doctor", stdout=io.StringIO())
    command = [sys.executable, "-m", "django", "rlock_run", "job", "--", sys.executable, "-c", "raise SystemExit(7)"]
    assert subprocess.run(command, check=False, timeout=WITHIN).returncode == 7


def try_task() -> None:
    from django_rlock import rlock

    from .tasks import app, build_report

    with rlock("report:8", owner="another"):
        assert not build_report(8)
    command = [sys.executable, "-m", "celery", "--quiet", "--app", "smokeproject.tasks", "worker", "--pool", "solo"]
    with subprocess.Popen(command) as worker:
        try:
            assert build_report.delay(7).get(timeout=WITHIN) == "report of 7"
        finally:
            worker.terminate()
    app.close()


def main() -> None:
    django.setup()
    try_package()
    for step in (try_kinds, try_decorator, try_admin, try_commands):
        step()
    names = ["django", "redis", "django-redis"]
    if find_spec("ninja"):
        try_operation()
        names.append("django-ninja")
    if find_spec("celery"):
        try_task()
        names += ["celery", "kombu", "hiredis"]
    print("Python", sys.version.split()[0], *(f"{name} {version(name)}" for name in names))  # noqa: T201


if __name__ == "__main__":
    main()
