"""Without one of the protections against late and repeated commands, an order of steps is found in which it is missed.

Each mutant is the package's own code with a few words replaced. The test that finds it is the one that passes without.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial

import pytest

from django_rlock import FairLock, RLock, Semaphore
from django_rlock.exceptions import LockLostError
from django_rlock.locks import acquire, attempt, counters, forced, multi, ownership, release
from tests.flows import (
    exploring,
    test_counters,
    test_grants,
    test_interleavings,
    test_multi,
    test_names,
)
from tests.flows.stepping import SteppingDriver
from tests.flows.test_counters import same_ids
from tests.flows.test_interleavings import PAIRS, TRIOS
from tests.mutants import Mutate, both, changed, changed_scripts, owner_ids_used_again

__all__ = ["same_ids"]


in_a_long_hold = partial(test_interleavings.test_it_comes_back_after_one_fault_in_a_long_hold, crowd=PAIRS["rlock"])
sent_twice = partial(test_interleavings.test_one_command_is_sent_twice, crowd=PAIRS["rlock"], wait=None)
sent_twice_in_a_long_hold = partial(in_a_long_hold, fault="copy")
sent_twice_in_a_long_read = partial(in_a_long_hold, crowd=(test_interleavings.R,), fault="copy")
sent_twice_by_a_group = partial(test_multi.test_one_command_is_sent_twice, kinds=test_multi.FAIR, meeting=("ab", "b"))
sent_twice_for_a_free_lock = partial(test_interleavings.test_a_forced_release_of_a_free_lock_is_sent_twice, kind=RLock)
sent_twice_by_force = partial(test_interleavings.test_a_forced_release_is_sent_twice, kind=FairLock)
sent_twice_to_a_semaphore = partial(test_counters.test_one_command_is_sent_twice, kind=Semaphore, before=0, after=b"1")
sent_twice_to_a_fair_lock = partial(in_a_long_hold, crowd=PAIRS["fair"], fault="copy")
sent_twice_in_a_short_hold = test_interleavings.test_one_command_of_a_short_hold_is_sent_twice
shared = partial(test_names.test_two_processes_use_the_name, kind=RLock, may={})
granted_before_a_restart = partial(test_grants.test_faults, may={"restart": 1}, visits=(2, 1))
paused = partial(test_grants.test_faults, may={"pass": 2}, visits=(2, 1))
paused_before_a_reply = test_grants.test_paused_before_a_reply
forgotten = partial(test_interleavings.test_an_inner_release_is_sent_twice_to_a_server_that_forgot, kind=RLock)
cancelled = partial(test_interleavings.test_cancelled_anywhere, crowd=PAIRS["rlock"], split=False)
cancelled_and_back = partial(in_a_long_hold, fault="cancel")
extended_again = partial(test_interleavings.test_a_hold_is_extended_again_after_a_failure, kind=RLock)
cancelled_beside_another = partial(
    test_interleavings.test_cancelled_beside_another_of_its_process, crowd=TRIOS["rlock"], cancelled=1
)

LOST, LEFT, SHORTENED = "LockLostError", "rlock:stock:42", "a late copy shortened the lease"
TOUCHED = "LockLostError|a late copy"
"""The next hold is lost, or its lease is changed."""

MUTANTS: dict[str, tuple[Mutate, Callable[..., None], str]] = {
    "nothing is freed behind an acquire that was sent twice": (
        changed(acquire, "_note_taken", "hold.late_lease = attempt.lease", "pass"), sent_twice, LEFT,
    ),
    "an owner id is used again after a command was sent twice": (
        owner_ids_used_again, sent_twice_in_a_long_hold, TOUCHED,
    ),
    "an owner id is used again after a cancellation": (
        owner_ids_used_again, cancelled_and_back, TOUCHED,
    ),
    "a reader's inner release may shorten": (
        changed_scripts("lease = math.max(lease, tonumber(lease_ms))", "lease = tonumber(lease_ms)"),
        sent_twice_in_a_long_read, SHORTENED,
    ),
    "what may only prolong a lease shortens it": (
        changed_scripts("return math.max(redis.call('pttl', key), tonumber(lease_ms))", "return tonumber(lease_ms)"),
        sent_twice_in_a_long_hold, SHORTENED,
    ),
    "an extension that was sent twice is not settled": (
        changed(ownership, "run_extension", "if call.sends > 1:", "if False:"),
        sent_twice_in_a_long_hold, SHORTENED,
    ),
    "an extension that failed is not settled by the next one": (
        changed(ownership, "run_extension", "if place in UNSETTLED:", "if False:"), extended_again, SHORTENED,
    ),
    "an extension that was settled is executed": (
        changed_scripts("return (tonumber(redis.call('get', settled)) or 0) > tonumber(nonce)", "return false"),
        sent_twice_in_a_long_hold, SHORTENED,
    ),
    "the second of two releases finds the lock not held": (
        changed(release, "note_released", "if not was_executed:", "if not owned:"),
        sent_twice, LOST,
    ),
    "what was abandoned is cleaned up once": (
        changed(acquire, "abandon", "again=in_doubt", "again=False"), cancelled, LEFT,
    ),
    "what was abandoned is not cleaned up": (
        changed(acquire, "abandon", "if undo is None:", "if True:"), cancelled, LEFT,
    ),
    "a wake-up ends with the waiter that it woke": (
        changed(attempt.Attempt, "wait", "waiter.close(asked)", "waiter.close()"), cancelled_beside_another, "served",
    ),
    "an inner release that was sent twice need not have found the lock": (
        changed(release, "note_released", "hold.count == 0 and call.sends > 1", "call.sends > 1"),
        forgotten, "it counts as held",
    ),
    "a forced release is executed again": (
        changed_scripts("if was_executed(KEYS[9], ARGV[5]) then", "if false then"), sent_twice_by_force, LOST,
    ),
    "a forced release of a free lock is not retired": (
        changed(forced, "_run_forced", "if call.sends > 1:", "if False:"), sent_twice_for_a_free_lock, LOST,
    ),
    "requests are executed again": (
        changed_scripts("return redis.call('zscore', requests, request)", "return false"),
        sent_twice_to_a_semaphore, "assert",
    ),
    "requests that were sent twice may be forgotten": (
        changed(counters, "note_answered", "if call.sends == 1:", "if True:"), sent_twice_to_a_semaphore, "assert",
    ),
    "a fair lock's acquire may shorten a lease": (
        changed_scripts("math.max(left, tonumber(ARGV[4]))", "tonumber(ARGV[4])"), sent_twice_to_a_fair_lock, SHORTENED,
    ),
    "an extension under a name may shorten": (
        changed(ownership, "extend_hold", "RENEW if hold.owner.is_named else EXTEND", "EXTEND"),
        shared, "it counts as held for longer",
    ),
    "a late copy of what confirmed a grant confirms it again": (
        changed_scripts("fields[member] == CLAIMED and", "fields[member] and"), sent_twice_in_a_short_hold, SHORTENED,
    ),
    "a grant is entered as a hold is": (
        changed_scripts("fields[member] == CLAIMED and", "false and"), sent_twice_in_a_short_hold, "outlives the lease",
    ),
    "the message of another ticket is believed": (
        changed(attempt.Attempt, "_is_granted", "waiter.ticket != self.ticket", "not waiter.ticket"),
        granted_before_a_restart, "it counts as held",
    ),
    "any wake-up is believed": (
        changed(attempt.Attempt, "_is_granted", "not self.ticket or waiter.ticket != self.ticket", "False"),
        granted_before_a_restart, "it counts as held",
    ),
    "a lease is counted from the reply": (
        changed(SteppingDriver, "run", "return self.reply", "call.sent_at = self.clock; return self.reply"),
        paused_before_a_reply, "it counts as held for longer",
    ),
    "a message is believed when the claim has ended": (
        both(
            changed(attempt.Attempt, "_is_granted", "until - now < max(claim / 2, LEAST_LEFT)", "False"),
            changed(acquire, "_note_taken", "return False", "return True"),
        ),
        paused, "it entered with a hold that had ended",
    ),
    "a claim is counted from its message": (
        changed(attempt.Attempt, "_is_granted", "until = self.sent_at + claim", "until = now + claim"),
        paused, "it counts as held",
    ),
    "nothing is freed behind an acquire of a group": (
        changed(multi.AllOrNone, "_holds_in", "if call.sends > 1:", "if False:"), sent_twice_by_a_group, "rlock:",
    ),
}  # fmt: skip
LONG = {
    "a wake-up ends with the waiter that it woke",
    "an extension that was sent twice is not settled",
    "what may only prolong a lease shortens it",
}
"""Mutants of which an order is found late."""


@pytest.mark.parametrize(
    ("mutate", "finds", "what"),
    [pytest.param(*mutant, id=name, marks=[pytest.mark.thorough] * (name in LONG)) for name, mutant in MUTANTS.items()],
)
@pytest.mark.lengthy
def test_without_it_an_order_is_found(request, monkeypatch, same_ids, mutate, finds, what):
    monkeypatch.setattr(exploring, "SAMPLE", math.inf)  # until it is found
    mutate(monkeypatch)
    make_world = request.getfixturevalue("make_world")  # loads the scripts
    with pytest.raises((AssertionError, LockLostError)) as found:
        finds(make_world=make_world, **({"same_ids": same_ids} if finds is sent_twice_to_a_semaphore else {}))
    assert re.search(what, repr(found.value))
