"""The grips give back what they took, whatever ends their tasks."""

import asyncio
from uuid import uuid4

from django_rlock import rlock
from tests.soak.grips import ONE, NamedGrip, Tasks


def test_a_named_lock_is_released_where_the_task_is_cancelled_before_another_one_could_do_it(settings, server):
    """A name has no end, so nobody else would ever get the lock."""
    settings.RLOCK = {ONE: {"CACHE": "default"}}
    lock = rlock("stock:42", using=ONE, owner=str(uuid4()))
    grip = NamedGrip("named", ONE, ["stock:42"], lock)

    async def body() -> None:
        assert await grip.acquire(Tasks(), 0, None)
        releasing = asyncio.create_task(grip.release(Tasks()))
        await asyncio.sleep(0)  # the other task is made, and has not begun
        releasing.cancel()
        await asyncio.wait({releasing})
        assert releasing.cancelled()
        assert not await lock.alocked()

    asyncio.run(body())
