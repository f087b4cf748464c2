"""In which calls the holder of a lock is: asked of its process by an operator who may, and told without values."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO

import pytest
import redis
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from django_rlock._redis.keys import stack_channel
from django_rlock.console import inspection
from django_rlock.console.inspection import holder_stack
from tests.console.conftest import LogIn
from tests.console.crowd import plant_locks
from tests.console.pages import detail, text
from tests.console.reporting import held
from tests.eventually import eventually

STACK = reverse("admin:django_rlock_lock_stack")
PROGRAM = """
import sys
if sys.argv[1] == "greenlet":
    from gevent import monkey
    monkey.patch_all()
import asyncio, sys, threading, time
import django
from django.conf import settings
settings.RLOCK = {"default": {"SHOW_STACKS": sys.argv[2] != "off"}}
django.setup()
from django_rlock import rlock

def hang_in_a_loop(secret):
    while True:
        sum(range(1000))

def hang_asleep(secret):
    print("ready", flush=True)
    time.sleep(600)

def in_thread(hang):
    with rlock("stock:1"):
        print("ready", flush=True)
        hang("s3cr3t")

async def in_task(hang):
    async with rlock("stock:1"):
        print("ready", flush=True)
        await hang("s3cr3t")

async def hang_awaiting(secret):
    await asyncio.Event().wait()

async def hang_the_loop(secret):
    await asyncio.sleep(0.6)
    hang_in_a_loop(secret)

async def main(hang):
    await asyncio.gather(in_task(hang), asyncio.sleep(600))

def named():
    with rlock("stock:1", owner="order-7"):
        print("ready", flush=True)
        time.sleep(600)

def in_greenlet(hang):
    import gevent
    gevent.joinall([gevent.spawn(time.sleep, 600), gevent.spawn(in_thread, hang)])

{
    "greenlet": lambda: in_greenlet(hang_asleep),
    "thread": lambda: in_thread(hang_in_a_loop),
    "asleep": lambda: in_thread(hang_asleep),
    "task": lambda: asyncio.run(main(hang_awaiting)),
    "loop": lambda: asyncio.run(main(hang_the_loop)),
    "named": named,
}[sys.argv[1]]()
"""


@contextmanager
def hanging(how: str, client: redis.Redis, tells: bool = True) -> Iterator[subprocess.Popen[str]]:
    """A process that holds a lock and does not come to its end, once it listens, or has reported its hold."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, how, "on" if tells else "off"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            eventually(lambda: held("stock:1").holder.host)
            eventually(lambda: listens(client) or not tells)
            yield process
        finally:
            process.kill()


def listens(client: redis.Redis) -> bool:
    """Whether the holder's process does."""
    return bool(client.pubsub_channels(stack_channel(held("stock:1").holder.client)))


def asked() -> list[str] | None:
    lock = held("stock:1")
    return holder_stack(lock, lock.holder)


@pytest.mark.parametrize(
    ("how", "calls"),
    [
        ("thread", ["in_thread", "hang_in_a_loop"]),
        ("asleep", ["in_thread", "hang_asleep"]),
        ("task", ["main", "in_task", "hang_awaiting", "wait"]),
        ("loop", ["in_task", "hang_the_loop", "hang_in_a_loop"]),
    ],
)
def test_a_holder_tells_where_it_hangs(redis_client: redis.Redis, how: str, calls: list[str]) -> None:
    with hanging(how, redis_client):
        found = eventually(lambda: (lines := asked()) and calls[-1] in lines[-1] and lines)
    functions = [line.rpartition(" in ")[2] for line in found]
    assert functions[-len(calls) :] == calls or functions[-len(calls) + 1 :] == calls[1:]
    assert all(line.startswith('File "') and ", line " in line for line in found)
    assert "s3cr3t" not in "".join(found)


def test_a_greenlet_tells_where_it_hangs(redis_client: redis.Redis) -> None:
    pytest.importorskip("gevent")
    with hanging("greenlet", redis_client):
        found = eventually(asked)
    functions = [line.rpartition(" in ")[2] for line in found]
    assert functions[functions.index("in_thread") :][:2] == ["in_thread", "hang_asleep"]


def test_a_name_has_no_stack(redis_client: redis.Redis) -> None:
    with hanging("named", redis_client):
        assert asked() == ["'order-7' is a name that does not belong to a thread or task."]


def test_the_page_and_the_command_show_it(log_in: LogIn, redis_client: redis.Redis) -> None:
    operator = log_in("view_lock view_stack")
    with hanging("asleep", redis_client):
        page = text(operator, detail("stock:1"))
        assert "Show the stack" in page
        assert held("stock:1").holder.owner not in page
        answer = ask(operator).content.decode()
        out = StringIO()
        call_command("rlock_info", "stock:1", "--stack", stdout=out)
        documents = StringIO()
        call_command("rlock_info", "stock:1", "--stack", "--format", "json", stdout=documents)
    assert "in hang_asleep" in answer
    assert "in hang_asleep" in out.getvalue().splitlines()[-1]
    assert json.loads(documents.getvalue())[0]["holders"][0]["stack"][-1].endswith("in hang_asleep")


@pytest.mark.parametrize(
    ("permissions", "is_on", "status"),
    [
        ("view_lock view_stack", True, 200),
        ("view_lock force_release_lock", True, 403),
        ("view_lock view_stack", False, 404),
    ],
    ids=["", "without its permission", "off"],
)
def test_a_stack_is_asked_for_by_those_who_may_where_it_is_on(
    redis_client: redis.Redis, log_in: LogIn, settings, monkeypatch, permissions: str, is_on: bool, status: int
) -> None:
    monkeypatch.setattr(inspection, "STACK_WITHIN", 0.2)
    operator = log_in(permissions)
    settings.RLOCK = {"default": {"SHOW_STACKS": is_on}}
    plant_locks(redis_client, 1, 1)
    assert ("Show the stack" in text(operator, detail("stock:0"))) == (status == 200)
    answer = ask(operator, "stock:0")
    assert (answer.status_code, "The process did not respond" in answer.content.decode()) == (status, status == 200)
    assert operator.get(STACK).status_code == 405


def test_a_process_that_has_it_off_does_not_listen(redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "STACK_WITHIN", 0.2)
    with hanging("asleep", redis_client, tells=False):
        assert asked() is None
        assert not listens(redis_client)


def test_forged_questions_are_ignored(redis_client: redis.Redis) -> None:
    with hanging("asleep", redis_client):
        for message in "x", "[]", "[1, 2, 3]", '["rlock:stock:1", "no one", "x"]', "[" * 5000:
            redis_client.publish(stack_channel(held("stock:1").holder.client), message)
            assert "hang_asleep" in (asked() or [""])[-1], message[:10]
        assert not redis_client.exists("rlock_stack:x")


def ask(client: Client, name: str = "stock:1"):
    return client.post(STACK, {"using": "default", "name": name, "stack": held(name).holder.short_owner})
