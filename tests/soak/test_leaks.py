"""What a soak may keep: what bounded caches keep."""

from django_rlock import FairLock, RLock
from django_rlock._redis.keys import MOST_KEPT
from django_rlock._transport.calls import Prepared
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
    leaked = [Prepared.__new__(Prepared) for _ in range(20 * MOST_OBJECTS)]
    assert "objects of Prepared" in too_many_objects()
    del leaked
