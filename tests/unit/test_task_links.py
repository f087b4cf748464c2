"""The link of an event loop, when its loop is closed."""

import asyncio
import socket

from redis.exceptions import TimeoutError as RedisTimeoutError

from django_rlock.links.link import Link
from django_rlock.links.tasks import TaskLink


def test_link_of_a_closed_loop_is_broken_off_for_all() -> None:
    """The one who does so works in another loop; of these tasks none goes on."""
    loop = asyncio.new_event_loop()
    ours, servers = socket.socketpair()
    with ours, servers:
        link = TaskLink(Link(ours), loop)

        async def ask(nonce: bytes) -> None:
            await link.ask(b"PING", nonce, 60)

        tasks = [loop.create_task(ask(nonce)) for nonce in (b"1", b"2")]
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        link.break_off(RedisTimeoutError("The event loop has ended"))
        assert not link.owes
        assert not any(task.done() for task in tasks)
