"""RedissonSemaphoreTest."""

from __future__ import annotations

import pytest

from django_rlock import Semaphore
from tests.redisson.crowds import LOOPS, PROCESSES, in_processes

MOST = 2**31 - 1


@pytest.fixture
def semaphore() -> Semaphore:
    return Semaphore("semaphore")


@pytest.mark.parametrize(("threads", "loops"), [(4, LOOPS), (8, 1)], ids=["loop", "once"])
def test_concurrency_multi_instance(clients, redis_client, semaphore, threads, loops):
    """Ported from testConcurrencyLoop_MultiInstance and testConcurrency_MultiInstance_1_permits."""
    semaphore.try_set_permits(1)
    in_processes(clients, [f"count({loops}, lambda: Semaphore('semaphore'))"] * threads)
    assert redis_client.get("counter") == str(PROCESSES * threads * loops)
    assert semaphore.available_permits() == 1
