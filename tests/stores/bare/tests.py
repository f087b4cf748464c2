"""Tests of that project, which ``manage.py test`` runs, in one process and in several."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from asgiref.sync import sync_to_async
from django.test import SimpleTestCase, TestCase

from django_rlock import LockTimeoutError, rlock
from django_rlock.testing import assert_locked, assert_no_locks_left, hold


class Buying:
    def test_a_second_buyer_is_refused(self) -> None:
        with hold("stock:1"):
            refused()

    def test_buyers_take_turns(self) -> None:
        inside: list[int] = []
        with ThreadPoolExecutor(4) as pool:
            most = list(pool.map(lambda buyer: buy(buyer, inside), range(8)))
        assert set(most) == {1}
        assert_no_locks_left()

    async def test_tasks_use_the_same_locks(self) -> None:
        async with rlock("stock:1"):
            await sync_to_async(refused, thread_sensitive=False)()


def buy(buyer: int, inside: list[int]) -> int:
    with rlock("stock:1", wait_time=20):
        inside.append(buyer)
        found = len(inside)
        inside.remove(buyer)
    return found


def refused() -> None:
    with pytest.raises(LockTimeoutError), rlock("stock:1", wait_time=0):
        pass


class FirstTests(Buying, TestCase):
    @classmethod
    def setUpTestData(cls) -> None:
        with rlock("data"):
            assert_locked("data")


class SecondTests(Buying, SimpleTestCase):
    pass


class ThirdTests(Buying, SimpleTestCase):
    pass
