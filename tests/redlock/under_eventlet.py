"""Greenlets of eventlet that enter a RedLock's block one after another; prints how many were inside at each visit.

python -m tests.redlock.under_eventlet <url>...
"""

import sys

GREENLETS, VISITS = 4, 5


def main() -> None:
    import eventlet  # type: ignore[import-untyped, unused-ignore]

    eventlet.monkey_patch()
    import django
    from django.conf import settings

    settings.configure(
        RLOCK={"quorum": {"NODES": sys.argv[1:], "QUARANTINE": 0, "NODE_TIMEOUT": 1.0}},
        CACHES={"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}},
        USE_TZ=True,
    )
    django.setup()
    from django_rlock import rlock

    def visit() -> None:
        for _ in range(VISITS):
            with rlock("stock:42", using="quorum"):
                inside.append(1)
                eventlet.sleep(0)
                seen.append(len(inside))
                inside.pop()

    inside: list[int] = []
    seen: list[int] = []
    for greenlet in [eventlet.spawn(visit) for _ in range(GREENLETS)]:
        greenlet.wait()
    print(seen)  # noqa: T201


if __name__ == "__main__":
    main()
