"""A process that is told to end while it waits for a lock ends as usual: by an exception, and the hooks at exit."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from django_rlock import FairLock
from tests.eventually import PATIENCE, eventually

ROOT = Path(__file__).parents[2]
QUEUE = "rlock_queue:{rlock:stock:42}"
WAITS = """
import asyncio, signal, sys
import django
from django.conf import settings
settings.configure(CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": sys.argv[1]}})
django.setup()
from django_rlock import FairLock

def end(*_):
    sys.exit(0)

async def wait():
    await FairLock("stock:42").aacquire()

signal.signal(signal.SIGTERM, end)
if sys.argv[2] == "async":
    asyncio.run(wait())
else:
    FairLock("stock:42").acquire()
"""


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_waiting_process_that_ends_by_sigterm_leaves_the_queue(server: Any, redis_client: Any, how: str) -> None:
    """Not after a claim, as a process that was killed."""
    with FairLock("stock:42"), subprocess.Popen([sys.executable, "-c", WAITS, server.url, how], cwd=ROOT) as process:
        eventually(lambda: redis_client.zcard(QUEUE), PATIENCE)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        assert not redis_client.exists(QUEUE)
