"""Everything that may go wrong beside a lock goes wrong at once, and the lock is kept."""

import subprocess
import sys
import time

import pytest

from tests.eventually import PATIENCE
from tests.processes import ROOT

SCRIPT = """
import asyncio, sys, threading
from tests.processes import set_up
set_up(sys.argv[1], {"WATCHDOG_TIMEOUT": 6})
from django.conf import settings
settings.CACHES["other"] = {**settings.CACHES["default"], "LOCATION": sys.argv[2]}
settings.RLOCK["other"] = {"CACHE": "other", "WATCHDOG_TIMEOUT": 6}

from django_rlock import LockUnavailableError, RLock
from django_rlock._transport.servers import get_client
from django_rlock._transport import subscriber
from django_rlock.locks.holds import HOLDS
from django_rlock.signals import lock_lost
from tests.background import renew_now
from tests.eventually import eventually

subscriber.PING_AFTER = 0.1
called = threading.Event()


def never_returns(**_):
    called.set()
    threading.Event().wait()


lock_lost.connect(never_returns)
lock = RLock("stock:42")
lock.acquire()
RLock("stock:43").acquire()
RLock("stock:44", using="other").acquire()
hold = next(hold for hold in HOLDS.snapshot() if hold.lock is lock)


def wait() -> None:
    RLock("stock:42").acquire(wait_time=0.05)


def in_threads(number, function) -> None:
    threads = [threading.Thread(target=function) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


in_threads(1, wait)  # from now on there is a listener
print("holds", flush=True)
sys.stdin.readline()


def fail() -> None:
    for _ in range(5):
        try:
            RLock("stock:45", using="other").acquire(wait_time=0.05)
        except LockUnavailableError:
            pass


async def cancel() -> None:
    async def acquire(name, using) -> None:
        await RLock(name, using=using).aacquire()

    for using in "default", "other":
        tasks = [asyncio.create_task(acquire("stock:42", using)) for _ in range(50)]
        await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


get_client().delete("rlock:stock:43")
renew_now()
called.wait()
in_threads(16, fail)
asyncio.run(cancel())
late = hold.deadline
eventually(lambda: hold.deadline > late + 6)
lock.check()
assert not lock.lost
print("still holds", flush=True)
sys.stdin.readline()
"""


@pytest.mark.thorough
def test_a_lock_is_renewed_through_it_all(proxy, own_server, redis_client):
    """Another server hangs, beside calls that fail and calls that are cancelled; a receiver never returns; the
    listening connection is cut without a word. The process ends all the same.
    """
    other = own_server(None)
    command = [sys.executable, "-c", SCRIPT, proxy.url, other.url]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "holds\n"
        cut = proxy.swallow_reply(b"PING")
        other.pause()
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "still holds\n"
        assert cut.served.wait(PATIENCE)
        other.resume()
        assert redis_client.exists("rlock:stock:42")
        other.pause()
        began = time.monotonic()
        process.communicate("\n", timeout=PATIENCE)
        assert time.monotonic() - began < 10  # 2 s, but a busy machine must not fail this
    other.resume()
    assert process.returncode == 0
    assert not redis_client.exists("rlock:stock:42")
