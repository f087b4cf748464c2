"""Without one of the protections in the flows, a test of late copies fails."""

import pytest

from django_rlock import LockUnavailableError, Semaphore
from django_rlock._redis import scripts
from django_rlock.exceptions import RLockError
from django_rlock.locks import counters, forced, ownership
from django_rlock.locks.holds import HOLDS
from tests.bindings import BlockingBinding
from tests.faults import test_late_copies as copies
from tests.faults import test_late_counts as counts
from tests.faults.copies import often
from tests.mutants import changed, owner_ids_used_again

__all__ = ["often"]

PLAIN = copies.KINDS["rlock"]


async def entered_late(binding, proxy, redis_client, _patch):
    inner = copies.test_inner_call_after_the_next_hold_began_changes_nothing
    await inner(binding, PLAIN, proxy, redis_client, "acquire")


async def renewed_late(binding, proxy, redis_client, _patch):
    await copies.test_renewal_that_failed_and_comes_late_changes_nothing(binding, PLAIN, proxy, redis_client)


async def permit_changed_late(binding, proxy, _redis_client, patch):
    await copies.test_lease_of_a_permit_that_failed_to_change_does_not_shorten_the_next(binding, proxy, patch, "id")


async def freed_late(binding, proxy, redis_client, patch):
    await copies.test_force_release_that_failed_frees_no_later_holder(binding, PLAIN[0], proxy, redis_client, patch)


async def changed_late(binding, proxy, redis_client, patch):
    redis_client.set(counts.NUMBER, 3)
    await counts.test_change_that_failed_is_not_made_later(
        binding, proxy, Semaphore("printers"), redis_client, patch, scripts.SEMAPHORE_ADD, "add_permits", [5]
    )


MUTANTS = {
    "an owner id is used again after it entered twice": (owner_ids_used_again, entered_late),
    "an owner id is used again after its renewal was sent twice": (owner_ids_used_again, renewed_late),
    "a permit's lease that failed to change is not settled by the next change": (
        changed(ownership, "run_extension", "if place in UNSETTLED:", "if False:"), permit_changed_late,
    ),
    "a forced release that failed is not retired": (
        changed(forced, "_run_forced", "clean_up(lock.using, retire, driver.now() + REMEMBERED)", "pass"),
        freed_late,
    ),
    "a change that failed is not retired": (
        changed(counters.Counter, "_change_once", "retire(self, call)", "pass"), changed_late,
    ),
}  # fmt: skip


LONG = {"a forced release that failed is not retired"}
"""Those that are noticed after a wait for what does not come."""


@pytest.mark.parametrize(
    ("mutate", "finds"),
    [pytest.param(*mutant, id=name, marks=[pytest.mark.thorough] * (name in LONG)) for name, mutant in MUTANTS.items()],
)
def test_without_it_a_late_copy_is_noticed(monkeypatch, proxy, redis_client, mutate, finds):
    mutate(monkeypatch)
    binding = BlockingBinding()
    with pytest.raises((AssertionError, RLockError)) as found:
        binding.run(finds(binding, proxy, redis_client, monkeypatch))
    assert not isinstance(found.value, LockUnavailableError)
    HOLDS.clear()  # what the test that failed still held
