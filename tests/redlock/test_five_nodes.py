"""RedLock over five real servers."""

import pytest

from django_rlock import LockLostError, rlock
from django_rlock.exceptions import QuorumNotReachedError
from django_rlock.locks.redlock import RedLock
from tests.redlock.conftest import holders


async def test_acquire_and_release(face, nodes):
    lock = rlock("x", using="quorum")
    assert isinstance(lock, RedLock)
    assert await face.acquire(lock, wait_time=0)
    await face.until(lambda: all(holders(nodes)))
    assert await face.call(lock, "owned")
    assert await face.call(lock, "hold_count") == 1
    await face.release(lock)
    await face.until(lambda: not any(holders(nodes)))
    assert not await face.call(lock, "locked")


async def test_excludes_another(face, nodes):
    lock = rlock("x", using="quorum")

    async def other() -> bool:
        return await face.acquire(lock, wait_time=0)

    async with face.inside(lock):
        assert not await face.result(face.start(other))
    assert await face.acquire(lock, wait_time=0)
    await face.release(lock)


async def test_reenters(face, nodes):
    lock = RedLock("x", using="quorum")
    async with face.inside(lock):
        token = lock.token
        async with face.inside(lock):
            assert await face.call(lock, "hold_count") == 2
            assert lock.token == token
        assert await face.call(lock, "hold_count") == 1
    assert not await face.call(lock, "locked")


async def test_connections_that_ended_while_idle_are_replaced(face, nodes):
    lock = rlock("x", using="quorum")
    async with face.inside(lock):
        pass
    for server in nodes:
        with server.client() as client:
            client.client_kill_filter(_type="normal", skipme=True)
    await face.sleep(0.01)  # an event loop hears of it when it next looks
    assert await face.acquire(lock, wait_time=0)
    await face.release(lock)


async def test_works_while_two_are_paused(face, nodes):
    lock = rlock("x", using="quorum")
    for server in nodes[:2]:
        server.pause()
    try:
        for _ in range(3):
            async with face.inside(lock):
                assert await face.call(lock, "owned")
    finally:
        for server in nodes[:2]:
            server.resume()


async def test_three_paused(face, nodes):
    lock = rlock("x", using="quorum")
    for server in nodes[:3]:
        server.pause()
    try:
        with pytest.raises(QuorumNotReachedError) as failure:
            await face.acquire(lock, wait_time=0.2)
    finally:
        for server in nodes[:3]:
            server.resume()
    assert len(failure.value.errors) == 3


async def test_lost(face, nodes):
    lock = rlock("x", using="quorum")
    with pytest.raises(LockLostError):
        async with face.inside(lock):
            assert await face.call(lock, "force_release")
