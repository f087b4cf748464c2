"""A call that ends as it should releases everything itself, without the collector: an interpreter that does not
count references collects it much later. Here such objects are kept for ever, and cycles are not looked for.
"""

import asyncio
import gc

import pytest

from django_rlock import FairLock, PermitExpirableSemaphore, RLock, rlock
from django_rlock._transport.calls import EVERYBODY
from django_rlock._transport.connection import Connection, ConnectionSlot
from django_rlock._transport.identity import Owner
from django_rlock._transport.listener import ListenerWaiter
from django_rlock._transport.registry import listeners
from django_rlock._transport.servers import server
from django_rlock.locks.expirable import Permit
from django_rlock.locks.holds import HOLDS, WAITS
from django_rlock.locks.mutex import NAMED_CALLS, QueuedCall
from django_rlock.locks.records import Hold, Wait
from tests.beside import beside, visit
from tests.eventually import eventually


@pytest.fixture(autouse=True)
def kept(monkeypatch):
    """All objects of these classes that are made during a test."""
    found = []
    for kind in QueuedCall, ConnectionSlot, Connection, ListenerWaiter, Permit, Hold, Wait, Owner:
        init = kind.__init__

        def keep(self, *args, init=init, **options):
            found.append(self)
            init(self, *args, **options)

        monkeypatch.setattr(kind, "__init__", keep)
    gc.disable()
    yield found
    gc.enable()


def of(kept, kind):
    return [each for each in kept if isinstance(each, kind)]


def test_a_named_owners_call_leaves_its_queue(kept, redis_client):
    with rlock("stock", owner="checkout-7"):
        pass
    assert of(kept, QueuedCall)
    assert not any(NAMED_CALLS._queues)


def test_a_connection_that_is_closed_leaves_its_place(kept, redis_client):
    node = server("default")
    node.close_idle()
    with rlock("stock"):
        assert node.size == 1
    node.close_idle()
    assert of(kept, ConnectionSlot)
    assert node.size == 0


@pytest.mark.parametrize("kind", [FairLock, RLock])
def test_a_wait_that_is_over_leaves_its_queue(kept, redis_client, kind):
    holder, waiter = kind("stock"), kind("stock")
    holder.acquire()
    with beside(visit, waiter):
        eventually(lambda: of(kept, Wait))
        holder.release()
    assert of(kept, ListenerWaiter)
    channels = [channel for listener in listeners("default") for channel in listener.channels.values()]
    lines = [line for channel in channels for token, line in channel.lines.items() if token != EVERYBODY]
    # Holds listen for everybody's messages; the entries of earlier tests' waiters are dead.
    assert not list(filter(None, (ref() for line in lines for ref in line)))
    assert not WAITS.snapshot()


def test_a_permit_that_was_given_back_is_not_renewed(kept, redis_client):
    semaphore = PermitExpirableSemaphore("places")
    semaphore.try_set_permits(1)
    permit = semaphore.acquire(renewed=True)
    assert permit
    permit.release()
    with semaphore.permit(renewed=True):
        assert len(HOLDS.snapshot()) == 1
    assert len(of(kept, Permit)) == 2
    assert not HOLDS.snapshot()
    assert semaphore.available_permits() == 1


def test_what_a_task_has_left_is_not_renewed_after_its_end(kept, redis_client):
    tasks = []

    async def forget():
        tasks.append(asyncio.current_task())
        await RLock("stock").aacquire()

    asyncio.run(forget())
    [hold] = of(kept, Hold)
    assert tasks
    assert hold.owner_ended
    HOLDS.remove(hold)
