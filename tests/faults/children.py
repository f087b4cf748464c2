"""Children of ``multiprocessing`` that take locks and end: ``python -m tests.faults.children METHOD URL``.

A program of its own, since a forked child gets the threads' locks of the process that it is forked from.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any


def set_up(url: str) -> None:
    import django
    from django.conf import settings

    if not settings.configured:
        settings.configure(CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}})
        django.setup()


def ends(url: str) -> None:
    """The child's main thread takes a lock, and one with a lease of its own; and ends."""
    set_up(url)
    from django_rlock import RLock

    assert RLock("ends").acquire()
    assert RLock("leased", lease_time=60).acquire()


def exits(url: str) -> None:
    ends(url)
    sys.exit(3)


def idles(url: str) -> None:
    """A pool of threads waits for work until the interpreter ends it."""
    pool = ThreadPoolExecutor()
    pool.submit(ends, url).result()


def goes_on(url: str) -> None:
    """A thread of the child works under the lock while the main thread has ended."""
    set_up(url)
    from django_rlock import RLock

    def work() -> None:
        with RLock("ends"):
            taken.set()
            threading.main_thread().join()
            if not RLock("ends").owned():
                os._exit(4)

    taken = threading.Event()
    threading.Thread(target=work).start()
    taken.wait()


def in_process(context: Any, child: Callable[[str], None], url: str) -> int | None:
    process = context.Process(target=child, args=(url,))
    process.start()
    process.join()
    return process.exitcode


def in_pool(context: Any, url: str) -> None:
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        pool.submit(ends, url).result()


def main(method: str, url: str) -> None:
    context: Any = multiprocessing.get_context(method)
    import redis

    server = redis.Redis.from_url(url)

    def check(what: str) -> None:
        assert not server.exists("rlock:ends"), f"{what}: the child has ended, and its lock is held"
        server.flushall()

    if method != "fork":  # such a child never inherits the package
        assert in_process(context, ends, url) == 0
        assert server.exists("rlock:leased"), "a lease chosen by the child was cut short"
        check("imported by the child")
        return
    set_up(url)
    import django_rlock  # noqa: F401 - a forked child inherits it

    for child, code in (ends, 0), (exits, 3), (idles, 0), (goes_on, 0):
        assert in_process(context, child, url) == code
        check(child.__name__)
    in_pool(context, url)
    check("a pool's process")


if __name__ == "__main__":
    main(*sys.argv[1:])
