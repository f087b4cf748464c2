"""What users see of a lock, a semaphore and a latch: what they call, and what describes it. Hooks are out of sight."""

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

DESCRIBES = {"key", "kind", "name", "noun", "template", "using"}
WAITS = {"wait_time"}

LOCK = DESCRIBES | WAITS
LOCK |= {"acquire", "release", "extend", "force_release", "locked", "owned", "hold_count", "remaining_lease", "info"}
LOCK |= {"aacquire", "arelease", "aextend", "aforce_release", "alocked", "aowned", "ahold_count", "aremaining_lease"}
LOCK |= {
    "ainfo",
    "check",
    "held",
    "leave",
    "aleave",
    "at_least",
    "lost",
    "suspect",
    "hand_over",
    "holders",
    "aholders",
    "enter",
    "atomic",
    "until_commit",
}
LOCK |= {"lease_time", "max_hold_time", "on_lost", "owner", "parts"}
LOCK |= {"do_not_call_in_templates"}  # Django's: a lock is callable for the sake of its advice

SEMAPHORE = DESCRIBES | WAITS
SEMAPHORE |= {"acquire", "release", "available_permits", "add_permits", "try_set_permits", "delete"}
SEMAPHORE |= {"aacquire", "arelease", "aavailable_permits", "aadd_permits", "atry_set_permits", "adelete"}

PERMITS = SEMAPHORE | {"permit", "lease_time", "try_release", "update_lease_time", "acquired_permits", "total_permits"}
PERMITS |= {"set_permits", "alease_time", "atry_release", "aupdate_lease_time", "aacquired_permits", "atotal_permits"}
PERMITS |= {"aset_permits", "on_lost", "max_hold_time"}

SEMAPHORE |= {"drain_permits", "release_if_exists", "adrain_permits", "arelease_if_exists"}

LATCH = DESCRIBES | WAITS | {"wait", "count", "count_down", "try_set_count", "delete"}
LATCH |= {"await_", "acount", "acount_down", "atry_set_count", "adelete"}


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
