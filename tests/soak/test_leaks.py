"""Bounded caches are no leak of a soak."""

from django_rlock import FairLock, RLock
from django_rlock._redis.keys import MOST_KEPT
from django_rlock._transport.calls import Template
from tests.soak.leaks import MOST_OBJECTS, too_many_objects


def test_calls_that_are_kept_for_the_next_time_are_no_leak() -> None:
    left_by_others = {*too_many_objects()}
    kinds: list[type] = [RLock, FairLock]
    for kind in kinds:
        for number in range(MOST_KEPT):
            lock = kind(f"stock:{number}")
            kept = lock._kind
            kept.acquire(lock, "another", 1, 30.0)
            kept.release(lock, "another", 0, 30.0)
    assert {*too_many_objects()} <= left_by_others
    leaked = [Template.__new__(Template) for _ in range(20 * MOST_OBJECTS)]
    assert "objects of Template" in too_many_objects()
    del leaked
