"""Waiters that die, on both sides: killed, or at an orderly exit; with one wait or many."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from uuid import UUID

import pytest

from benchmarks.redisson import build
from django_rlock import FairLock
from tests.eventually import UNTIL_SERVED, eventually, in_threads
from tests.forms import long
from tests.interop.pairs import helper
from tests.interop.redisson import Redisson, fair_lock
from tests.interop.redisson import lock as plain_lock
from tests.interop.sites import SCENES
from tests.processes import ClientProcess

LEASE = 60
"""In seconds: a waiter that nobody notifies sleeps for as long, and fails then."""


@pytest.fixture(params=SCENES[:1], ids=str)
def scene(request):
    """On one server: its address is all that our processes get."""
    return request.param


@pytest.fixture
def python(site) -> Iterator[ClientProcess]:
    with ClientProcess(site.address.nodes[0], {"KEY_PREFIX": ""}) as process:
        yield process


@pytest.fixture
def jvm(scene) -> Iterator[Redisson]:
    """A JVM that the test may kill."""
    process = Redisson(build(scene.version))
    yield process
    process.end()


@pytest.mark.parametrize("waits", [1, *long(60)])
@pytest.mark.parametrize("how", ["kill", "end"])
@pytest.mark.parametrize("kind", ["rlock", "fair"])
def test_javas_next_waiter_is_served_after_the_process_before_it_has_died(kind, how, waits, name, site, java, python):
    holder, waiter, theirs = java("holder"), java("waiter"), fair_lock(name)
    queue, deadlines = helper("redisson_lock_queue", name), helper("redisson_lock_timeout", name)
    holder.do(theirs, "lock", LEASE, "SECONDS")
    waiting = waiter.begin(theirs, "lock", LEASE, "SECONDS")
    eventually(lambda: site.client.llen(queue) == 1)
    for number in range(1, waits):
        site.client.hset(f"other:{number}", f"{UUID(int=5, version=4)}:7", 1)
        python.begin(f"lock('other:{number}', {kind!r}).acquire()", f"other {number}")
    python.begin(f"lock({name!r}, {kind!r}).acquire()")
    eventually(lambda: site.client.lrange(queue, 0, 0) == ["rlock_waiters"])
    getattr(python, how)()
    if how == "kill":
        eventually(lambda: site.client.zscore(deadlines, "rlock_waiters") <= site.client.time()[0] * 1000, within=5)
    holder.do(theirs, "unlock")
    waiting.result(UNTIL_SERVED)
    waiter.do(theirs, "unlock")


@pytest.mark.parametrize("theirs", [plain_lock, fair_lock])
def test_jvm_that_died_while_it_waited_costs_no_pauses(theirs, name, site, jvm):
    """Its entry in Redisson's queue stays for minutes."""
    ours = FairLock(name)
    ours.acquire()
    jvm.thread("dead", site.address).begin(theirs(name), "lock", LEASE, "SECONDS")
    eventually(lambda: listeners(site, name))
    jvm.kill()
    eventually(lambda: not listeners(site, name))
    ours.release()
    in_threads(*[lambda: visit_often(name)] * 3)
    assert site.client.zscore(helper("rlock_alive", name), "guests:missed") is None


def listeners(site, name) -> list[str]:
    return site.client.pubsub_channels(f"{helper('redisson_lock__channel', name)}*")


def visit_often(name: str) -> None:
    for _ in range(15):
        with FairLock(name):
            threading.Event().wait(0.001)
