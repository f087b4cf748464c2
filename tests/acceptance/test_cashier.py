"""``manage.py cashier``: the process whose death the demo shows, and which never outlives its parent."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import redis

from example_project.embedded import EmbeddedServer
from example_project.shop.accident import wait_until
from tests.acceptance.running import MANAGE, ROOT
from tests.eventually import PATIENCE


def test_releases_its_lock_when_its_input_ends(server: EmbeddedServer, redis_client: redis.Redis) -> None:
    with start_cashier(server) as cashier:
        wait_until(cashier, "holds the lock")
        assert redis_client.exists("rlock:till")
        assert leave(cashier) == 0
        assert not redis_client.exists("rlock:till")


def test_leaves_the_queue_when_its_input_ends(server: EmbeddedServer, redis_client: redis.Redis) -> None:
    with start_cashier(server) as holder:
        wait_until(holder, "holds the lock")
        with start_cashier(server) as waiter:
            wait_until(waiter, "waits")
            assert leave(waiter) == 0
        assert redis_client.exists("rlock:till")


@contextmanager
def start_cashier(server: EmbeddedServer) -> Iterator[subprocess.Popen[str]]:
    cashier = subprocess.Popen(
        [*MANAGE, "cashier"],
        cwd=ROOT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "example_project.settings", "SHOP_REDIS_URL": server.url},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with cashier:
        try:
            yield cashier
        finally:
            cashier.kill()


def leave(cashier: subprocess.Popen[str]) -> int:
    """End the process's input; returns its exit status."""
    assert cashier.stdin is not None
    cashier.stdin.close()
    return cashier.wait(PATIENCE)
