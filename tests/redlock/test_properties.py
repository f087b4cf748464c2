"""RedLock's properties, each with a change of the code that breaks it: a property that nothing breaks says nothing."""

from __future__ import annotations

import math
import time
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from django_rlock._redis import scripts
from django_rlock._transport.calls import run_sync
from django_rlock._transport.quorum import Quorum
from django_rlock._transport.quorum.votes import AHEAD, Answer, QuorumCall, Restarts, VoteTally, VotingRound
from django_rlock.locks import redlock, watchdog
from django_rlock.locks.redlock import Acquire, Bump, Majority, Release
from tests.forms import THOROUGH
from tests.mutants import Mutate, both, changed
from tests.redlock import simulator
from tests.redlock.model import Node
from tests.redlock.simulator import (
    BrokenError,
    Client,
    Setting,
    SimNode,
    SimSession,
    check_order,
    check_undone,
    first_broken,
    simulated,
    sweep,
)

ROUGH = Setting(
    lasts=1.5, loss=0.02, copies=0.05, slow=0.05, slow_delay=0.2, cuts=1.0, pauses=0.5, longest_pause=1.5, crashes=0.3
)

DISORDER = replace(ROUGH, copies=0.5, slow=0.5, slow_delay=0.1, pauses=0, cuts=0, crashes=0, again=0.5)


def set_to(place: Any, name: str, value: Any) -> Mutate:
    return lambda patch: patch.setattr(place, name, value)


def votes_count_twice(patch):
    def changed(self, node, reply):
        if not isinstance(reply, Exception) and self.call.is_vote_for(reply):
            self.cast += 1
        add(self, node, reply)

    add, decided = VoteTally.add, vars(VoteTally)["decided"]
    patch.setattr(VoteTally, "cast", 0, raising=False)
    patch.setattr(VoteTally, "add", changed)
    patch.setattr(VoteTally, "won", property(lambda self: self.cast >= self.quorum))
    patch.setattr(VoteTally, "decided", property(lambda self: self.won or decided.fget(self)))


def grants_of_other_attempts_count(patch):
    def arrive(self, answer):
        current = self.client.session
        if self.closed and not current.closed:
            current.arrive(answer)
        else:
            received(self, answer)

    def enter(self, driver):
        init(self, driver)
        driver.client.session = self

    def count(self, answer):
        tally = next(reversed(self._tallies.values()))
        if type(answer.call) is not type(tally.call):
            return None
        tally.add(answer.node, answer.reply)
        return tally

    received, init = SimSession.arrive, SimSession.__init__
    patch.setattr(Client, "session", None, raising=False)
    patch.setattr(SimSession, "arrive", arrive)
    patch.setattr(SimSession, "__init__", enter)
    patch.setattr(VotingRound, "_count", count)


def counts_up_and_down(patch):
    def acquire(self, owner, count, *args):
        reply = taken(self, owner, count, *args)
        if count > 1 and owner in self.holds:
            self.holds[owner] = before_of(self, owner) + 1
            self.counts[owner] = self.holds[owner]
        else:
            self.counts = {owner: 1}
        return reply

    def before_of(self, owner):
        return getattr(self, "counts", {}).get(owner, 1)

    def release(self, owner, left, lease_ms, refused_ms):
        if self.holds.get(owner, 0) > 1:
            self.holds[owner] -= 1
            self.counts[owner] = self.holds[owner]
            return 1
        return given(self, owner, 0, lease_ms, refused_ms)

    taken, given = Node.acquire, Node.release
    patch.setattr(Node, "acquire", acquire)
    patch.setattr(Node, "release", release)


def lost_locks_come_back(patch):
    note: Any = watchdog.note_renewal
    patch.setattr(watchdog, "note_renewal", lambda *args: note(*args[:-1], -math.inf))


NO_TOMBSTONES = changed(
    Node, "release", "self.tombstones[owner] = max(self.tombstones.get(owner, 0), self._ms() + refused_ms)",
    "self.tombstones.clear()",
)  # fmt: skip
NO_LONGER_LEASES = set_to(Restarts, "learn", lambda *_: None)
OVER = "call.over(VotingRound(self.transport.nodes, session, self.now))"
MUTANTS: dict[str, Mutate] = {
    "minority_is_enough": changed(VoteTally, "__init__", "size // 2 + 1", "size // 2"),
    "no_drift": set_to(Majority, "drift", lambda *_: 0.0),
    "counts_from_the_reply": changed(
        Quorum, "_run_once", f"return await {OVER}", f"reply = await {OVER}; call.sent_at = self.now(); return reply",
    ),
    "votes_count_twice": votes_count_twice,
    "late_grants_count": changed(VotingRound, "ask", "else until)", "else until + 10 * self.nodes.timeout)"),
    "grants_of_other_attempts_count": grants_of_other_attempts_count,
    "tokens_are_used_again": both(set_to(Majority, "fresh_names", False), NO_TOMBSTONES),
    "gives_back_where_granted_only": changed(
        VotingRound, "undo_everywhere", "undo = call.undo()", "return self.send(call.undo(), asked.yes)",
    ),
    "gives_nothing_back": changed(VotingRound, "undo_everywhere", "if call.undo is None:", "if True:"),
    "lost_locks_come_back": lost_locks_come_back,
    "no_second_round": changed(Acquire, "_fence", "if tokens.count(tokens[0])", "return max(tokens)\n    if tokens[0]"),
    "late_granters_vote_on_a_lower_token": changed(  # instead of those nodes that granted first
        VotingRound, "ask", "self._open(call, voters)",
        "self._open(call, range(self._size) if type(call).__name__ == 'Bump' else voters)",
    ),
    "only_the_first_granters_are_asked": changed(Acquire, "_fence", "if token is None:", "if False:"),
    "bumps_whoever_owns": changed(Node, "bump", "if owner not in self.holds:", "if False:"),
    "grants_what_is_proposed": changed(  # though its counter is higher
        Node, "acquire", 'return [b"OK", token,', 'return [b"OK", proposal if 0 < proposal < token else token,',
    ),
    "proposals_lower_the_counter": changed(
        Node, "_next_token", "return self.counter",
        "self.counter = min(self.counter, proposal) if proposal > 0 else self.counter\n    return self.counter",
    ),
    "grants_without_counting": changed(Node, "_next_token", "self.counter = proposal", "return proposal"),
    "copies_count_again": changed(
        Node, "acquire", "if owner in self.holds:",
        "if owner in self.holds:\n        self.counter = proposal or self.counter",
    ),
    "proposals_outrank_the_clock": changed(
        Node, "_next_token", "now = self._now_us()",
        "now = self._now_us()\n    if self.counter < proposal <= now + AHEAD:\n        self.counter = proposal\n"
        "        return proposal",
    ),
    "proposals_know_no_bound": changed(Node, "_next_token", " <= now + AHEAD", ""),
    "the_client_believes_its_proposal": changed(
        Acquire, "_fence", "tokens = [", "if self.fresh:\n        return self.fresh\n    tokens = [",
    ),
    "two_agree": changed(
        Acquire, "_fence", "if tokens.count(tokens[0]) >= grants.quorum:\n        return int(tokens[0])",
        "best = max(tokens, key=tokens.count)\n    if tokens.count(best) > 1:\n        return int(best)",
    ),
    "any_token_will_do": changed(Acquire, "_fence", "if tokens.count(tokens[0]) >= grants.quorum:", "if True:"),
    "counter_without_clock": changed(
        Node, "_next_token", "now = self._now_us()", "self.counter += 1\n    return self.counter",
    ),
    "no_quarantine": set_to(simulator, "QUARANTINE_SHARE", 0.0),
    "half_quarantine": both(set_to(simulator, "QUARANTINE_SHARE", 0.5), NO_LONGER_LEASES),
    "data_are_not_marked": set_to(Node, "_mark", lambda self, _, kept, __: (self.run_id.encode(), kept, b"")),
    "others_may_have_no_longer_leases": NO_LONGER_LEASES,
    "marks_outlive_failovers": changed(
        Node, "fail_over_and_back", "self.replication += 1",
        "self.replication += 1\n    self.marked = self.marked and self.replication",
    ),
    "keys_end_too_soon": set_to(redlock, "milliseconds", lambda seconds: int(seconds * 500)),
    "waits_for_all": set_to(VoteTally, "decided", property(lambda self: not self.unheard)),
    "never_gives_up_early": set_to(VoteTally, "decided", property(lambda self: self.won or not self.unheard)),
    "keys_do_not_end": changed(Node, "_hold", "self.expires = self._ms() + max(held_for, lease_ms)", "pass"),
    "never_pauses": set_to(Majority, "pauses", lambda *_: (0.0001, math.inf)),
    "counts_up_and_down": counts_up_and_down,
    "no_tombstones": NO_TOMBSTONES,
    "no_lasting_tombstones": set_to(Release, "lasting", lambda self: self),
    "follows_the_wall_clock": set_to(Client, "clock", Client.wall),
}  # fmt: skip


@pytest.fixture
def mutate(monkeypatch):
    """Applies a change of the code by its name, if it has one."""

    def apply(name: str | None) -> None:
        if name is not None:
            MUTANTS[name](monkeypatch)

    return apply


def seeds(number, since=0):
    """So many scenarios; in the short form the first third of them."""
    return range(since, since + (number if THOROUGH else number // 3))


@pytest.fixture
def no_timing(monkeypatch):
    """Clocks are ignored: locks are valid for ever, and two may hold one."""
    ask = VotingRound.ask

    async def changed(self, call, voters=None, until=None):
        return await ask(self, call, voters, self.now() + 3)

    monkeypatch.setattr(VotingRound, "ask", changed)
    monkeypatch.setattr(Client, "check_grants", lambda self, hold: None)
    monkeypatch.setattr(redlock, "MIN_VALIDITY", -math.inf)
    monkeypatch.setattr(Majority, "drift", lambda self, lock, lease: -lease)
    monkeypatch.setattr(simulator.World, "note_inside", lambda self, client, hold: None)
    monkeypatch.setattr(Client, "check_hold", lambda self, hold: None)


def check_bounds(world):
    """No proposal drives a counter away from the clocks: a draw adds one."""
    for node in world.nodes:
        clock = max(each.clock() for each in world.nodes) * 1e6
        if node.model.counter > clock + AHEAD + len(node.granted):
            raise BrokenError(f"node {node.number} counts on from {node.model.counter}, at {clock}")


def check_nothing_left(world):
    for node in world.nodes:
        node.model.run(scripts.LOCK_STATE, ("x",))
        if node.model.holds:
            raise BrokenError(f"node {node.number} still has {node.model.holds}")


# --- scenarios, and mutants that break a property in some of them ----------------------------------------------------

LATE = replace(ROUGH, slow=0.4, slow_delay=0.15, longest_hold=0.05)
LATER = replace(ROUGH, slow=0.3, slow_delay=0.4, longest_hold=0.3, pauses=0, crashes=0)
"""A late release of the first attempt frees what the second one was granted."""
TIMELESS = replace(ROUGH, rate_error=0.3, durable=True, crashes=3.0, pauses=3.0, longest_hold=0.3, lasts=2.0)
AGREED = replace(TIMELESS, rate_error=0, skew=0.01)
"""The nodes' clocks are as good as usual, so they mostly agree on a proposal."""
WILD = replace(AGREED, wild=0.7)
MIXED = replace(AGREED, clients=4, singles=2.0, wild=0.3)
SWIFT = replace(MIXED, longest_hold=0.02, longest_rest=0.02, copies=0.2)
"""Owners that follow each other within the time by which a proposal may be ahead of the clocks."""
CLOSE = replace(SWIFT, skew=0.09)
"""Clocks that differ by almost as much as a proposal may be ahead of them."""
LOST_COUNTERS = replace(ROUGH, crashes=0, blackouts=0.2, pauses=0, lasts=8.0, longest_hold=0.5)
RESTARTS = replace(
    ROUGH, nodes=3, lease=4.0, lasts=8.0, crashes=0.2, blackouts=0.3, outage=0.1, pauses=0, longest_hold=8.0, renewed=0
)
RETURNS = replace(RESTARTS, crashes=0, blackouts=0, returns=1.0)
BRIEF = replace(RETURNS, brief=2, returns=0.5, longest_hold=4.0)
DEADLY = replace(ROUGH, kills=0.3)
FROZEN = replace(ROUGH, crashes=0, pauses=2.0, longest_pause=3.0, steps=3.0, stepping=2, longest_step=3.0, back=True)
"""The clocks of a minority are set back, so that they keep keys for too long; they stop for seconds; they forget
nothing."""
TWICE = replace(DISORDER, fencing=False)


@pytest.mark.parametrize(
    "scenario",  # one parameter, so that the short form takes every other one
    [
        *((ROUGH, part) for part in range(6)),
        *((replace(ROUGH, nodes=3, clients=4), part) for part in range(3)),
        # Nodes are asked but once: without fencing always, and often where they agree on a token.
        (replace(ROUGH, fencing=False), 0),
        (replace(ROUGH, skew=0.01), 0),
    ],
)
@pytest.mark.lengthy
def test_p01_no_two_inside(scenario, settings):
    setting, part = scenario
    assert sweep(settings, setting, seeds(200, 200 * part)) > 60


@pytest.mark.parametrize(
    ("setting", "number", "check"),
    [
        pytest.param(replace(ROUGH, renewed=1.0), 15, None, id="p02: valid no longer than promised"),
        pytest.param(LATE, 90, None, id="p04: grants in time"),
        pytest.param(LATER, 90, None, id="p04: grants for this attempt"),
        pytest.param(ROUGH, 90, check_undone, id="p05: undone on all nodes"),
        pytest.param(LOST_COUNTERS, 50, None, id="p09: tokens rise where counters are lost"),
        pytest.param(replace(LOST_COUNTERS, skew=0.01, wild=0.5), 50, None, id="p09: and proposals are wild"),
        pytest.param(RESTARTS, 50, None, id="p10: restarted nodes have no votes"),
        pytest.param(RETURNS, 50, None, id="p10: nor have those that failed over and back"),
        pytest.param(BRIEF, 50, None, id="p10: nodes wait for the longest lease of all users"),
        pytest.param(DEADLY, 120, check_nothing_left, id="p11: keys of dead clients end"),
        pytest.param(DISORDER, 60, check_nothing_left, id="p14: copies and disorder"),
        pytest.param(FROZEN, 60, None, id="p17: a minority that is frozen or late"),
    ],
)
def test_it_holds_in_scenarios(setting, number, check, settings):
    """P2 and P4 are checked by the simulator whenever a lock is acquired or renewed."""
    assert sweep(settings, setting, seeds(number), check) > number / 3


def test_p09_tokens_rise_without_clocks(no_timing, settings):
    assert sweep(settings, TIMELESS, seeds(100), check_order) > 33


@pytest.mark.lengthy
@pytest.mark.parametrize("setting", [AGREED, WILD, MIXED, SWIFT], ids=["agreed", "wild", "mixed", "swift"])
def test_p09_tokens_rise_where_they_are_proposed(setting, no_timing, settings):
    """Whatever is proposed, by clients whose clocks are wrong, too, and beside owners of single nodes."""
    agreed = []

    def check(world):
        check_order(world)
        check_bounds(world)
        agreed.append(world.agreed)

    acquired = sweep(settings, setting, seeds(100), check)
    assert acquired / 10 < sum(agreed) < acquired


FOUND: list[tuple[str, Setting, int, Any]] = [
    ("minority_is_enough", replace(ROUGH, nodes=4), 100, None),
    ("keys_end_too_soon", replace(ROUGH, nodes=4), 100, None),
    ("no_drift", replace(ROUGH, renewed=1.0), 5, None),
    ("counts_from_the_reply", replace(ROUGH, renewed=1.0), 5, None),
    ("late_grants_count", LATE, 200, None),
    ("grants_of_other_attempts_count", LATE, 200, None),
    ("tokens_are_used_again", LATER, 300, None),
    ("gives_back_where_granted_only", ROUGH, 30, check_undone),
    ("gives_nothing_back", ROUGH, 30, check_undone),
    ("counter_without_clock", LOST_COUNTERS, 50, None),
    ("late_granters_vote_on_a_lower_token", ROUGH, 30, None),
    ("no_quarantine", RESTARTS, 100, None),
    ("half_quarantine", RESTARTS, 100, None),
    ("data_are_not_marked", RESTARTS, 100, None),
    ("marks_outlive_failovers", RETURNS, 100, None),
    ("others_may_have_no_longer_leases", BRIEF, 100, None),
    ("keys_do_not_end", DEADLY, 20, check_nothing_left),
    ("follows_the_wall_clock", ROUGH, 200, None),
    ("counts_up_and_down", TWICE, 60, check_nothing_left),
    ("votes_count_twice", TWICE, 60, check_nothing_left),
]
FOUND_WITHOUT_TIMING: list[tuple[str, Setting, int, Any]] = [
    ("grants_what_is_proposed", CLOSE, 100, check_order),
    ("proposals_lower_the_counter", CLOSE, 100, check_order),
    ("grants_without_counting", CLOSE, 100, check_order),
    ("copies_count_again", CLOSE, 100, check_order),
    ("the_client_believes_its_proposal", CLOSE, 100, check_order),
    ("any_token_will_do", CLOSE, 100, check_order),
    ("proposals_know_no_bound", WILD, 20, check_bounds),
    ("no_second_round", TIMELESS, 200, None),
]


@pytest.mark.lengthy
@pytest.mark.parametrize(("mutant", "setting", "within", "check"), FOUND, ids=[row[0] for row in FOUND])
def test_a_mutant_breaks_a_property(mutant, setting, within, check, mutate, settings):
    mutate(mutant)
    assert first_broken(settings, setting, range(within), check) is not None, "no scenario noticed the change"


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("mutant", "setting", "within", "check"), FOUND_WITHOUT_TIMING, ids=[row[0] for row in FOUND_WITHOUT_TIMING]
)
def test_a_mutant_makes_tokens_fall(mutant, setting, within, check, mutate, no_timing, settings):
    mutate(mutant)
    assert first_broken(settings, setting, range(within), check) is not None, "no scenario noticed the change"


# --- P3, P4: whose votes count ----------------------------------------------------------------------------------------


def test_p03_a_quorum_of_different_nodes(mutate):
    def is_won_by(nodes):
        tally = VoteTally(call(), 5)
        for node in nodes:
            tally.add(node, [b"", 1])
        return tally.won

    assert is_won_by([0, 3, 4])
    assert not is_won_by([0, 3])
    assert not is_won_by([0, 3, 3, 0, 3])
    mutate("votes_count_twice")
    assert is_won_by([0, 3, 3, 0, 3])


# --- P6, P7: a vote ends ----------------------------------------------------------------------------------------------

SPLITS = [(nodes, split) for nodes in range(1, 8) for split in product("gdes", repeat=nodes)]
"""What each node does: grant, deny, fail, or stay silent."""


class Told:
    """A session in which the nodes reply one after the other, a millisecond each, as a split says."""

    def __init__(self, split):
        self.split = split
        self.time = 0.0
        self.restarts, self.proposals, self.timeout = Restarts((), 0.0, 0.0), None, 1.0

    def send(self, call, nodes):
        self.answers = [(node, self.split[node], call) for node in nodes if self.split[node] != "s"]

    async def listen(self, count, until):
        replies: dict[str, Any] = {"g": [b"", 1], "d": [b"", 0], "e": OSError()}
        for node, vote, call in self.answers:
            self.time += 0.001
            if count(Answer(node, call, replies[vote])):
                return
        self.time = until

    def now(self):
        return self.time

    @property
    def names(self):
        return self.split


def vote(split):
    """The ballot on a call, and the time that it took."""
    told: Any = Told(split)
    return run_sync(VotingRound(told, told, told.now).ask(call())), told.time


def call():
    return QuorumCall("x", scripts.LOCK_STATE, ("x",), ("owner",))


def test_p06_every_split_ends_and_is_judged_rightly():
    for size, split in SPLITS:
        tally, took = vote(split)
        assert took <= 1.0
        assert tally.decided
        assert tally.won == (split.count("g") > size / 2), split


def test_p07_fails_as_soon_as_no_quorum_can_come():
    for size, split in SPLITS:
        refused = [
            number for number, each in enumerate(one for one in split if one != "s") if split_is_no(split, number)
        ]
        needed = size - size // 2
        if len(refused) >= needed:
            assert vote(split)[1] == pytest.approx(0.001 * (refused[needed - 1] + 1)), split


def split_is_no(split, number):
    return [one for one in split if one != "s"][number] in "de"


@pytest.mark.parametrize("mutant", ["waits_for_all", "never_gives_up_early"])
def test_p07_mutants(mutant, mutate):
    mutate(mutant)
    with pytest.raises(AssertionError):
        test_p07_fails_as_soon_as_no_quorum_can_come()


def test_p06_mutant(mutate):
    mutate("minority_is_enough")
    with pytest.raises(AssertionError):
        test_p06_every_split_ends_and_is_judged_rightly()


# --- P8: lost is lost -------------------------------------------------------------------------------------------------


def renew_at_the_last_moment(settings, seed):
    """All nodes are cut off until shortly before the lease ends, and the replies to a renewal come around its end."""
    setting = Setting(clients=1, lease=1.0, delay=0.018, loss=0, copies=0, slow=0, rate_error=0, restless=True, wait=0)
    with simulated(settings, setting, seed) as world:
        [client] = world.clients
        client.start(client.visit(3.0))
        world.run(0.2)
        for node in world.nodes:
            node.cut_until[client] = 0.93
        world.run(4.0)


def test_p08_a_lost_lock_does_not_come_back(mutate, settings):
    for seed in range(20):
        renew_at_the_last_moment(settings, seed)
    mutate("lost_locks_come_back")
    with pytest.raises(BrokenError):
        for seed in range(20):
            renew_at_the_last_moment(settings, seed)


# --- P9: tokens rise, whatever clocks do ------------------------------------------------------------------------------


@pytest.mark.parametrize("mutant", [None, "two_agree", "the_client_believes_its_proposal", "grants_what_is_proposed"])
def test_p09_one_node_that_counts_on_from_an_earlier_owner_is_enough(mutant, mutate, settings):
    """The last owner's token is known by three nodes, of which the next owner reaches one."""
    mutate(mutant)
    with near_nodes(settings) as (world, client):
        last = propose(client, AHEAD // 2) + AHEAD // 4
        for node in world.nodes[2:]:
            node.model.counter = last
        for node in world.nodes[3:]:
            node.cut_until[client] = math.inf
        client.start(client.visit(0.1))
        world.run(1.0)
        [token] = world.tokens.values()
        assert (token > last) == (mutant is None)


def test_p09_what_only_a_minority_counts_on_from_is_no_ones_token(settings):
    """The others agree without it; who gets that minority later counts on from it."""
    with near_nodes(settings) as (world, client):
        failed = propose(client, AHEAD // 2) + 10 * AHEAD
        for node in world.nodes[:2]:
            node.model.counter = failed
            node.cut_until[client] = 0.5
        client.start(client.visit(0.1))
        world.run(0.6)
        for node in world.nodes[3:]:
            node.cut_until[client] = math.inf
        client.start(client.visit(0.1))
        world.run(1.0)
        first, second = world.tokens.values()
        assert first < failed < second
        assert world.agreed == 1


@contextmanager
def near_nodes(settings):
    """One client, and nodes whose clocks are the same."""
    with simulated(settings, Setting(clients=1, loss=0, copies=0, slow=0, wait=0.0, rate_error=0, skew=0), 0) as world:
        yield world, world.clients[0]


def propose(client, ahead):
    """Let a client propose a number of microseconds more than the nodes' clock, which is returned."""
    clock = math.floor(client.world.nodes[0].clock() * 1e6) + ahead
    client.driver.proposals.learn([clock], client.clock())
    return clock


@pytest.mark.parametrize("mutant", [None, "bumps_whoever_owns"])
def test_p09_who_lost_a_node_before_the_second_round_gets_no_token(mutant, mutate, no_timing, settings):
    """One sleeps between the rounds until its lease has ended; meanwhile another gets the lock, and a lower token."""
    mutate(mutant)
    setting = Setting(nodes=3, clients=2, loss=0, copies=0, slow=0, wait=0.0)
    with simulated(settings, setting, 0) as world:
        sleeper, other = world.clients
        world.nodes[2].offset += 100
        world.nodes[2].cut_until[other] = math.inf
        sleeper.start(sleeper.visit(1.0))
        sleeper.paused_until = 1.5
        world.run(1.2)
        other.start(other.visit(1.0))
        world.run(3.0)
        assert world.acquired == (1 if mutant is None else 2)
        with pytest.raises(BrokenError) if mutant else nullcontext():
            check_order(world)


@pytest.mark.parametrize("mutant", [None, "proposals_outrank_the_clock"])
def test_p09_where_counters_are_lost_the_clock_outranks_a_proposal(mutant, mutate, settings):
    """All nodes forget, and the next client's clock is a second behind."""
    mutate(mutant)
    with near_nodes(settings) as (world, client):
        propose(client, 0)
        client.start(client.visit(0.0))
        world.run(0.5)
        for node in world.nodes:
            node.model.forget()
            node.model.give_vote()
        propose(client, -(10**6))
        client.start(client.visit(0.0))
        with pytest.raises(BrokenError) if mutant else nullcontext():
            world.run(1.0)
            assert world.acquired == 2


@pytest.mark.parametrize("mutant", [None, "only_the_first_granters_are_asked"])
def test_p09_another_granter_stands_in_for_one_that_fails(mutant, mutate, settings, monkeypatch):
    """The node that is to count on first goes down instead."""
    mutate(mutant)
    receive = SimNode.receive

    def changed(self, call, *args):
        self.down = self.down or (isinstance(call, Bump) and not any(node.down for node in self.world.nodes))
        receive(self, call, *args)

    monkeypatch.setattr(SimNode, "receive", changed)
    acquired = 0
    for seed in range(20):
        with simulated(settings, Setting(clients=1, loss=0, copies=0, slow=0, wait=0.0), seed) as world:
            [client] = world.clients
            client.start(client.visit(0.1))
            world.run(1.0)
            acquired += world.acquired
    assert (acquired == 20) == (mutant is None)


# --- P12: progress ----------------------------------------------------------------------------------------------------

CROWD = Setting(lasts=2.0, loss=0, copies=0, slow=0, clients=10, wait=None, longest_hold=10.0)


def check_progress(world):
    if not world.acquired:
        raise BrokenError("nobody got in")


@pytest.mark.parametrize("clients", [2, 5, 10])
def test_p12_one_of_many_gets_in(clients, settings):
    """All begin at once, after a holder that died: someone is in after its lease and ten rounds."""
    for seed in range(30):
        with simulated(settings, replace(CROWD, clients=clients), seed) as world:
            compete(world)


def test_p12_mutant(mutate, settings):
    mutate("gives_nothing_back")
    mutate("never_pauses")
    with pytest.raises(BrokenError):
        for seed in range(30):
            with simulated(settings, CROWD, seed) as world:
                compete(world)


def compete(world):
    for node in world.nodes:
        node.model._hold("dead", 1, 1000)
    for client in world.clients:
        client.start(client.visit(10.0))
    world.run(1.0 * 1.01 + 10 * 2 * world.setting.timeout)
    check_progress(world)


# --- P13: wall clocks -------------------------------------------------------------------------------------------------


def test_p13_the_clients_wall_clock_is_not_asked(monkeypatch, settings):
    def forbidden():
        raise AssertionError("the wall clock was asked")

    with simulated(settings, ROUGH, 0):  # settings and lookups are cached from here on
        pass
    monkeypatch.setattr(time, "time", forbidden)
    monkeypatch.setattr(time, "time_ns", forbidden)
    sweep(settings, ROUGH, range(3))


# --- P15: late grants -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mutant", [None, "gives_back_where_granted_only", "no_tombstones"])
def test_p15_a_late_grant_is_given_back(mutant, mutate, settings):
    """Three nodes are paused while they are asked, in or out of order; soon after they go on, all is free."""
    setting = Setting(clients=1, loss=0, copies=0, slow=0.5, slow_delay=0.15, rate_error=0)
    mutate(mutant)
    left = 0
    for seed in range(20):
        with simulated(settings, replace(setting, wait=0.1), seed) as world:
            for node in world.nodes[:3]:
                node.paused_until = 0.5
            [client] = world.clients
            client.start(client.visit(0.0))
            world.run(0.5 + 0.05)
            assert not world.acquired
            left += any(node.model.holds for node in world.nodes)
    assert (left > 0) == (mutant is not None)


@pytest.mark.parametrize("mutant", [None, "no_lasting_tombstones"])
@pytest.mark.parametrize("lease", [4.0, 1.0])
def test_p15_what_outlasts_a_tombstone_takes_nothing(lease, mutant, mutate, settings, monkeypatch):
    """Two of three nodes get the command long after they have executed its undo, also after a lease."""
    mutate(mutant)
    receive = SimNode.receive

    def changed(self, call, *args):
        delay = 2 * redlock.REFUSED if isinstance(call, Acquire) and self.number else 0.0
        self.world.at(self.world.now + delay, lambda: receive(self, call, *args))

    monkeypatch.setattr(SimNode, "receive", changed)
    setting = Setting(nodes=3, clients=1, lease=lease, loss=0, copies=0, slow=0, rate_error=0, wait=0.0)
    with simulated(settings, setting, 0) as world:
        [client] = world.clients
        client.start(client.visit(0.0))
        world.run(2 * redlock.REFUSED + 0.5)
        assert not world.acquired
        assert any(node.model.holds for node in world.nodes) == (mutant is not None)


# --- P16: the drift is exact ------------------------------------------------------------------------------------------


def overlaps(settings, rate_error, share):
    """Whether some choice of clock rates lets two in, with ``share`` of the drift that the theory asks for."""
    drift = 2 * rate_error / (1 + rate_error)
    setting = Setting(
        nodes=3, clients=2, lease=1.0, clock_drift=drift * share, rate_error=0, delay=0, slow=0, loss=0, copies=0
    )
    return any(
        race(settings, setting, 1 + node_rate * rate_error, 1 + client_rate * rate_error)
        for node_rate in (-1, 0, 1)
        for client_rate in (-1, 0, 1)
    )


def race(settings, setting, node_rate, client_rate):
    """One holds the lock until its lease ends; another one tries at every moment around that time."""
    with simulated(settings, replace(setting, wait=0.3, renewed=0), 0) as world:
        for node in world.nodes:
            node.rate = node_rate
        holder, other = world.clients
        holder.rate = client_rate
        holder.start(holder.visit(2.0, renewed=False))
        world.run(1 / node_rate - 0.01)
        other.start(other.visit(0.0))
        try:
            world.run(2.0)
        except BrokenError:
            return True
    return False


@pytest.mark.parametrize("rate_error", [0.02, 0.05, 0.1])
def test_p16_the_drift_is_exact(rate_error, settings, monkeypatch):
    monkeypatch.setattr(redlock, "_VOTE_BACKOFF", (0.0002, 0.0002))
    monkeypatch.setattr(redlock, "ROUNDING", 0.0)
    monkeypatch.setattr(Client, "check_hold", lambda self, hold: None)  # of P2, with the rounding
    assert not overlaps(settings, rate_error, 1.0)
    assert overlaps(settings, rate_error, 0.9)


# --- P17: a minority may do what it likes -----------------------------------------------------------------------------


def misbehave(settings, seed, number):
    """Some nodes evict keys and step their clocks while someone has the lock on all nodes and others want it."""
    setting = Setting(loss=0, copies=0, slow=0, steps=20.0, stepping=number, evicts=True, wait=None, lasts=1.5)
    with simulated(settings, setting, seed) as world:
        world.plan_faults()
        holder, *others = world.clients
        holder.start(holder.visit(0.9))
        world.run(0.01)
        for other in others:
            other.start(other.visit(0.01))
        world.run(2.0)
        assert world.acquired > 1


def test_p17_a_minority_that_forgets_does_no_harm_to_a_lock_that_all_granted(settings):
    for seed in range(30):
        misbehave(settings, seed, 2)


def test_p17_mutant_with_one_node_more(settings):
    with pytest.raises(BrokenError):
        for seed in range(30):
            misbehave(settings, seed, 3)
