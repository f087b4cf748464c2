"""The public names of a lock, a semaphore and a latch: methods and descriptions. Hooks are out of sight."""

import pytest

from django_rlock import (
    CountDownLatch,
    FairLock,
    FencedLock,
    LimitedLock,
    MultiLock,
    PermitExpirableSemaphore,
    ReadWriteLock,
    RedLock,
    RLock,
    Semaphore,
    SpinLock,
)


def both(names: str) -> set[str]:
    """Methods in both bindings."""
    return {each for name in names.split() for each in (name, f"a{name}")}


DESCRIBES = {*["key", "kind", "name", "noun", "template", "using", "wait_time"]}
LOCK = DESCRIBES | both(
    "acquire release extend force_release locked owned hold_count remaining_lease info leave holders"
)
LOCK |= {*["check", "held", "at_least", "lost", "suspect", "hand_over", "enter", "atomic", "until_commit"]}
LOCK |= {*["lease_time", "max_hold_time", "on_lost", "owner", "parts"]}
LOCK |= {"do_not_call_in_templates"}  # Django's: a lock is callable for the sake of its advice

COUNTS = DESCRIBES | both("acquire release available_permits add_permits try_set_permits delete")
SEMAPHORE = COUNTS | both("drain_permits release_if_exists")
PERMITS = COUNTS | both("lease_time try_release update_lease_time acquired_permits total_permits set_permits")
PERMITS |= {"permit", "on_lost", "max_hold_time"}
LATCH = DESCRIBES | both("count count_down try_set_count delete") | {"wait", "await_"}


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (RLock, LOCK),
        (FairLock, LOCK),
        (SpinLock, LOCK | {"backoff"}),
        (FencedLock, LOCK | {"token"}),
        (LimitedLock, LOCK | {"permits"}),
        (RedLock, LOCK | {"token", "fencing"}),
        (MultiLock, LOCK),
        (type(ReadWriteLock("a").read_lock), LOCK | {"prefer"}),
        (type(ReadWriteLock("a").write_lock), LOCK | {"prefer"}),
        (Semaphore, SEMAPHORE),
        (PermitExpirableSemaphore, PERMITS),
        (CountDownLatch, LATCH),
    ],
)
def test_public_names(kind, names):
    assert {name for name in dir(kind) if not name.startswith("_")} == names
