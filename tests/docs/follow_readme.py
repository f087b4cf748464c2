"""Uses in one process what the blocks of README.md define; readme.py starts it, in a project of these."""

from __future__ import annotations

import asyncio

import django
from django.core.cache import cache
from django.core.management import call_command
from django.test import RequestFactory

from django_rlock import rlock


def use_shop() -> None:
    from mysite.shop import buy  # type: ignore[import-not-found]

    request = RequestFactory().post("/buy/cake/")
    cache.set("stock:cake", 1)
    assert buy(request, sku="cake").content == b"yours"
    assert buy(request, sku="cake").content == b"sold out"


def use_task() -> None:
    from mysite.tasks import build_report  # type: ignore[import-not-found]

    assert build_report(7) == "report of 7"
    with rlock("report:7", owner="another"):
        assert not build_report(7)
        call_command("rlock_list", "report:*")


def use_locks() -> None:
    from mysite.reserve import areserve, reserve  # type: ignore[import-not-found]

    reserve()
    asyncio.run(areserve())
    assert not rlock("stock:42").locked()


def main() -> None:
    django.setup()
    call_command("check", fail_level="WARNING")
    call_command("rlock_doctor")
    use_shop()
    use_task()
    use_locks()


if __name__ == "__main__":
    main()
