"""Greenlets that enter a RedLock's block one after another; prints how many were inside at each visit.

python -m tests.redlock.under_greenlets eventlet|gevent <url>...
"""

import importlib
import sys
from typing import Any

GREENLETS, VISITS = 4, 5


def main() -> None:
    library, *urls = sys.argv[1:]
    greenlets: Any = importlib.import_module(library)
    if library == "gevent":
        importlib.import_module("gevent.monkey").patch_all()
    else:  # it removes ``select.poll``
        greenlets.monkey_patch()
    import django
    from django.conf import settings

    settings.configure(
        RLOCK={"quorum": {"NODES": urls, "QUARANTINE": 0, "NODE_TIMEOUT": 1.0}},
        CACHES={"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}},
        USE_TZ=True,
    )
    django.setup()
    from django_rlock import rlock

    def visit() -> None:
        for _ in range(VISITS):
            with rlock("stock:42", using="quorum"):
                inside.append(1)
                greenlets.sleep(0)
                seen.append(len(inside))
                inside.pop()

    inside: list[int] = []
    seen: list[int] = []
    for greenlet in [greenlets.spawn(visit) for _ in range(GREENLETS)]:
        (greenlet.get if library == "gevent" else greenlet.wait)()
    print(seen)  # noqa: T201


if __name__ == "__main__":
    main()
