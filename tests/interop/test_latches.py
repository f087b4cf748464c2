"""Latches that each side closes, counts down, waits for and deletes."""

from __future__ import annotations

import pytest

from django_rlock import CountDownLatch
from tests.eventually import UNTIL_SERVED
from tests.interop.redisson import JavaError, Target, latch
from tests.interop.sites import PLACES, waiting_here

LONG = 600


@pytest.fixture
def name(scene, name) -> str:
    """Without a hash tag in a cluster, where Redisson's latches cannot have one."""
    return name.rpartition("}:")[2] if scene.place == "cluster" else name


@pytest.fixture
def ours(name) -> CountDownLatch:
    return CountDownLatch(name)


@pytest.fixture
def theirs(name) -> Target:
    return latch(name)


async def test_counts(binding, ours, site, java, theirs, alice):
    assert await binding.call(ours, "wait", 0) is True
    assert alice.do(theirs, "trySetCount", 3) is True
    assert await binding.call(ours, "try_set_count", 5) is False
    await binding.call(ours, "count_down")
    assert await binding.call(ours, "count") == alice.do(theirs, "getCount") == 2
    alice.do(theirs, "countDown")
    assert await binding.call(ours, "count") == alice.do(theirs, "getCount") == 1
    assert await binding.call(ours, "wait", 0) is False
    await binding.call(ours, "count_down")
    assert alice.do(theirs, "await", LONG, "SECONDS") is True
    assert await binding.call(ours, "try_set_count", 5) is True
    assert alice.do(theirs, "getCount") == 5
    assert alice.do(theirs, "await", 1, "MILLISECONDS") is False


@pytest.mark.parametrize("last", ["java counts down", "python counts down", "python deletes"])
async def test_all_waiters_go_when_a_latch_opens(binding, ours, name, site, java, last, theirs, alice):
    alice.do(theirs, "trySetCount", 1)
    here, there = await waiters(binding, ours, name, site, java)
    if last == "java counts down":
        alice.do(theirs, "countDown")
    else:
        await binding.call(ours, "delete" if last == "python deletes" else "count_down")
    for each in here:
        assert await binding.result(each) is True
    for each in there:
        assert each.result(UNTIL_SERVED) is True


async def test_latch_that_java_deletes_lets_pythons_waiters_go(binding, ours, name, site, java, alice):
    """Its own wait on."""
    alice.do(latch(name), "trySetCount", 2)
    here, there = await waiters(binding, ours, name, site, java)
    assert alice.do(latch(name), "delete") is True
    for each in here:
        assert await binding.result(each) is True
    assert not any(each.done() for each in there)
    alice.do(latch(name), "trySetCount", 1)
    await binding.call(ours, "count_down")
    for each in there:
        assert each.result(UNTIL_SERVED) is True


@pytest.mark.parametrize("scene", PLACES[1:], indirect=True, ids=str)
async def test_hash_tag_in_a_cluster_is_beyond_redisson_alone(binding, site, java):
    """Its channel is in another slot than the count; our side polls instead of being notified."""
    name = "{shop}:import"
    with pytest.raises(JavaError, match="CROSSSLOT"):
        java("alice").do(latch(name), "trySetCount", 1)
    ours = CountDownLatch(name)
    assert await binding.call(ours, "try_set_count", 1) is True
    waiting = binding.start(binding.call, ours, "wait")
    await binding.until(lambda: waiting_here() == 1)
    await binding.call(ours, "count_down")
    assert await binding.result(waiting) is True


async def waiters(binding, ours, name, site, java):
    """Two on each side, which sleep."""
    here = [binding.start(binding.call, ours, "wait") for _ in range(2)]
    await binding.until(lambda: waiting_here() == 2)
    site.start_counting()
    threads = [java(who) for who in ("bob", "carol")]
    there = [thread.begin(latch(name), "await", LONG, "SECONDS") for thread in threads]
    await binding.until(lambda: site.tries("get") >= 4 and all(thread.sleeps() for thread in threads))
    return here, there
