"""A loop that runs inside the code of one of its tasks, as nest_asyncio lets it: in notebooks, above all."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import PATIENCE

pytest.importorskip("nest_asyncio", reason="nest_asyncio is in the dependency group test")

ROOT = Path(__file__).parents[2]
PROGRAM = """
import asyncio, json, sys
import django
from django.conf import settings
settings.configure(CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": sys.argv[1]}})
django.setup()
import nest_asyncio
from django_rlock import FairLock, MultiLock, rlock
from django_rlock.locks.holds import WAITS

def run(coro):
    return asyncio.get_event_loop().run_until_complete(coro)

async def enter(*names, **options):
    async with rlock(*(names or ["stock:42"]), **options):
        return "inside"

async def in_a_task():
    return await asyncio.create_task(enter())

async def deeper():
    return run(enter())

async def beside():
    while not WAITS:
        await asyncio.sleep(0.01)

async def told(call):
    try:
        async with rlock("stock:42") as lock:
            async with asyncio.timeout(60):
                outcome = call()
            lock.check()
            return outcome
    except Exception as error:
        return f"{type(error).__name__}: {error}"

async def main():
    nest_asyncio.apply()
    outcomes = {
        "run": await told(lambda: run(enter())),
        "asyncio.run": await told(lambda: asyncio.run(enter())),
        "for a while": await told(lambda: run(enter(wait_time=60))),
        "several": await told(lambda: run(enter("stock:41", "stock:42"))),
        "in a task": await told(lambda: run(in_a_task())),
        "deeper": await told(lambda: run(deeper())),
        "another": await told(lambda: run(enter("stock:43"))),
    }
    async with rlock("stock:42", owner="order 7"):
        outcomes["the same name"] = run(enter(owner="order 7"))
    async with rlock("stock:42"):
        waiting = asyncio.ensure_future(enter())
        run(beside())
    outcomes["beside"] = await waiting
    print(json.dumps(outcomes))

asyncio.run(main())
"""
REFUSED = ["run", "asyncio.run", "for a while", "several", "in a task", "deeper"]
FREE = ["another", "the same name", "beside"]


def test_code_inside_of_a_holder_is_refused_and_other_code_waits(server: Any, redis_client: Any) -> None:
    """It waited for ever: the holder goes on when the inner loop has ended, and no limit of its own ends that."""
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM, server.url], cwd=ROOT, check=True, timeout=PATIENCE, capture_output=True
    )
    outcomes = json.loads(told.stdout)
    for each in REFUSED:
        assert outcomes[each].startswith("RuntimeError: Lock 'stock:42' is held by task "), each
    assert [outcomes[each] for each in FREE] == ["inside"] * 3
    assert not redis_client.keys("rlock:*")
