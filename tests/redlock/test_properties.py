"""RedLock's properties, each with a change of the code that breaks it: a property that nothing breaks says nothing."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from django_rlock import scripts
from django_rlock.drivers import quorum_calls
from django_rlock.drivers.base import run_sync
from django_rlock.drivers.quorum import Answer, Ballot, Nodes, QuorumCall, QuorumDriver
from django_rlock.drivers.quorum_calls import Acquire, Bump
from django_rlock.locks import redlock, watchdog
from django_rlock.locks.redlock import RedLock
from tests import THOROUGH
from tests.redlock import simulator
from tests.redlock.model import Node
from tests.redlock.simulator import (
    BrokenError,
    Client,
    Setting,
    SimNode,
    SimTalk,
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


@pytest.fixture
def mutate(monkeypatch):
    """Applies a change of the code by its name."""

    def apply(name: str) -> None:
        MUTANTS[name](monkeypatch)

    return apply


def minority_is_enough(patch):
    init = Ballot.__init__

    def changed(self, call, size):
        init(self, call, size)
        self.quorum = size // 2

    patch.setattr(Ballot, "__init__", changed)


def no_drift(patch):
    patch.setattr(RedLock, "drift", lambda self, lease: 0.0)


def counts_from_the_reply(patch):
    run_once = QuorumDriver._run_once

    async def changed(self, call):
        reply = await run_once(self, call)
        call.sent_at = self.now()
        return reply

    patch.setattr(QuorumDriver, "_run_once", changed)


def votes_count_twice(patch):
    def changed(self, node, reply):
        if not isinstance(reply, Exception) and self.call.is_vote_for(reply):
            self.cast += 1
        add(self, node, reply)

    add = Ballot.add
    patch.setattr(Ballot, "cast", 0, raising=False)
    patch.setattr(Ballot, "add", changed)
    patch.setattr(Ballot, "won", property(lambda self: self.cast >= self.quorum))


def late_grants_count(patch):
    ask = Nodes.ask

    async def changed(self, call, voters=None, until=None):
        return await ask(self, call, voters, None if until is None else until + 10 * self.timeout)

    patch.setattr(Nodes, "ask", changed)


def grants_of_other_attempts_count(patch):
    def arrive(self, answer):
        current = self.client.talk
        if self.closed and not current.closed:
            current.arrive(answer)
        else:
            received(self, answer)

    def enter(self, driver):
        init(self, driver)
        driver.client.talk = self

    async def next_vote(self, until):
        answer = await self._talk.receive(until)
        if answer is None:
            return None
        ballot = next(reversed(self._ballots.values()))
        if type(answer.call) is type(ballot.call):
            ballot.add(answer.node, answer.reply)
        return ballot

    received, init = SimTalk.arrive, SimTalk.__init__
    patch.setattr(Client, "talk", None, raising=False)
    patch.setattr(SimTalk, "arrive", arrive)
    patch.setattr(SimTalk, "__init__", enter)
    patch.setattr(Nodes, "_next_vote", next_vote)


def tokens_are_used_again(patch):
    patch.setattr(RedLock, "fresh_names", False)
    no_tombstones(patch)  # which would refuse the name as well


def gives_back_where_granted_only(patch):
    async def changed(self, call, asked):
        if call.undo is not None:
            self.send(call.undo, asked.yes)

    patch.setattr(Nodes, "undo_everywhere", changed)


def gives_nothing_back(patch):
    async def changed(self, call, asked):
        pass

    patch.setattr(Nodes, "undo_everywhere", changed)


def lost_locks_come_back(patch):
    note = watchdog._note_renewal

    def changed(hold, lease, call, reply, now):
        note(hold, lease, call, reply, -math.inf)

    patch.setattr(watchdog, "_note_renewal", changed)


def no_second_round(patch):
    async def changed(self, grants, nodes):
        return max(reply[2] for reply in grants.yes.values())

    patch.setattr(Acquire, "_fence", changed)


def late_granters_vote_on_a_lower_token(patch):
    """All nodes are asked to count on from the token of those that granted first."""
    ask = Nodes.ask

    async def changed(self, call, voters=None, until=None):
        if isinstance(call, Bump):
            voters = range(self._driver.size)
        return await ask(self, call, voters, until)

    patch.setattr(Nodes, "ask", changed)


def only_the_first_granters_are_asked(patch):
    async def changed(self, grants, nodes):
        return await self._count_on(self.bump, grants, nodes, self.sent_at + 2 * nodes.timeout)

    patch.setattr(Acquire, "_fence", changed)


def bumps_whoever_owns(patch):
    def changed(self, owner, token, fence_ttl):
        self.counter = max(self.counter, token)
        return 1

    patch.setattr(Node, "bump", changed)


def counter_without_clock(patch):
    def changed(self):
        self.counter += 1
        return self.counter

    patch.setattr(Node, "_next_token", changed)


def no_quarantine(patch):
    patch.setattr(simulator, "QUARANTINE_SHARE", 0.0)


def connections_outlive_restarts(patch):
    patch.setattr(SimNode, "has_open", lambda self, link: True)


def half_quarantine(patch):
    patch.setattr(simulator, "QUARANTINE_SHARE", 0.5)


def keys_end_too_soon(patch):
    patch.setattr(redlock, "milliseconds", lambda seconds: int(seconds * 500))


def waits_for_all(patch):
    patch.setattr(Ballot, "decided", property(Ballot.is_complete))


def never_gives_up_early(patch):
    patch.setattr(Ballot, "decided", property(lambda self: self.won or self.is_complete()))


def keys_do_not_end(patch):
    def changed(self, owner, count, lease_ms):
        self.holds[owner] = count

    patch.setattr(Node, "_hold", changed)


def never_pauses(patch):
    patch.setattr(RedLock, "pauses", lambda self, left_ms, tries: (0.0001, math.inf))


def counts_up_and_down(patch):
    def acquire(self, owner, count, lease_ms, fence_ttl):
        reply = taken(self, owner, count, lease_ms, fence_ttl)
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


def no_tombstones(patch):
    release = Node.release

    def changed(self, owner, left, lease_ms, refused_ms):
        held = release(self, owner, left, lease_ms, refused_ms)
        self.tombstones.clear()
        return held

    patch.setattr(Node, "release", changed)


def follows_the_wall_clock(patch):
    patch.setattr(Client, "clock", Client.wall)


MUTANTS = {
    name: each
    for name, each in list(globals().items())
    if callable(each) and getattr(each, "__code__", None) and each.__code__.co_varnames[:1] == ("patch",)
}


def assert_caught(settings, setting, within, check=None):
    seed = first_broken(settings, setting, range(within), check)
    assert seed is not None, f"no scenario of {within} noticed the change"


# --- P1: no two inside ------------------------------------------------------------------------------------------------


SEEDS = 200 if THOROUGH else 80
"""In each part."""


@pytest.mark.parametrize("part", range(6))
def test_p01_no_two_inside(part, settings):
    assert sweep(settings, ROUGH, range(200 * part, 200 * part + SEEDS)) > SEEDS


@pytest.mark.parametrize("part", range(3))
def test_p01_no_two_inside_of_three_nodes(part, settings):
    assert sweep(settings, replace(ROUGH, nodes=3, clients=4), range(200 * part, 200 * part + SEEDS)) > SEEDS


@pytest.mark.parametrize("mutant", ["minority_is_enough", "keys_end_too_soon"])
def test_p01_mutants(mutant, mutate, settings):
    mutate(mutant)
    assert_caught(settings, replace(ROUGH, nodes=4), 100)


# --- P2: valid no longer than promised --------------------------------------------------------------------------------


@pytest.mark.parametrize("mutant", ["no_drift", "counts_from_the_reply"])
def test_p02_valid_from_before_the_first_byte(mutant, mutate, settings):
    """The simulator checks it whenever a lock is acquired or renewed."""
    setting = replace(ROUGH, renewed=1.0)
    sweep(settings, setting, range(5))
    mutate(mutant)
    assert_caught(settings, setting, 5)


# --- P3, P4: whose votes count ----------------------------------------------------------------------------------------


def test_p03_a_quorum_of_different_nodes(mutate):
    def is_won_by(nodes):
        ballot = Ballot(call(), 5)
        for node in nodes:
            ballot.add(node, [b"", 1])
        return ballot.won

    assert is_won_by([0, 3, 4])
    assert not is_won_by([0, 3])
    assert not is_won_by([0, 3, 3, 0, 3])
    mutate("votes_count_twice")
    assert is_won_by([0, 3, 3, 0, 3])


def test_p03_mutant(mutate, settings):
    mutate("votes_count_twice")
    assert_caught(settings, replace(DISORDER, fencing=False), 60)  # whose second round would make up for it


@pytest.mark.parametrize("mutant", ["late_grants_count", "grants_of_other_attempts_count"])
def test_p04_grants_in_time_for_this_attempt(mutant, mutate, settings):
    setting = replace(ROUGH, slow=0.4, slow_delay=0.15, longest_hold=0.05)
    sweep(settings, setting, range(30))
    mutate(mutant)
    assert_caught(settings, setting, 200)


def test_p04_mutant_that_uses_a_name_again(mutate, settings):
    """A late release of the first attempt frees what the second one was granted."""
    setting = replace(ROUGH, slow=0.3, slow_delay=0.4, longest_hold=0.3, pauses=0, crashes=0)
    sweep(settings, setting, range(30))
    mutate("tokens_are_used_again")
    assert_caught(settings, setting, 300)


# --- P5: undone everywhere --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mutant", ["gives_back_where_granted_only", "gives_nothing_back"])
def test_p05_undone_on_all_nodes(mutant, mutate, settings):
    sweep(settings, ROUGH, range(30), check_undone)
    mutate(mutant)
    assert_caught(settings, ROUGH, 30, check_undone)


# --- P6, P7: a vote ends ----------------------------------------------------------------------------------------------

SPLITS = [(nodes, split) for nodes in range(1, 8) for split in product("gdes", repeat=nodes)]
"""What each node does: grant, deny, fail, or stay silent."""


class Told:
    """A conversation in which the nodes answer one after the other, a millisecond each, as a split says."""

    def __init__(self, split):
        self.split = split
        self.time = 0.0
        self.census, self.timeout = None, 1.0

    def send(self, call, nodes):
        self.answers = [(node, self.split[node], call) for node in nodes if self.split[node] != "s"]

    async def receive(self, until):
        if not self.answers:
            self.time = until
            return None
        self.time += 0.001
        node, vote, call = self.answers.pop(0)
        replies: dict[str, Any] = {"g": [b"", 1], "d": [b"", 0], "e": OSError()}
        return Answer(node, call, replies[vote])

    def now(self):
        return self.time

    @property
    def size(self):
        return len(self.split)


def vote(split):
    """The ballot on a call, and the time that it took."""
    told: Any = Told(split)
    return run_sync(Nodes(told, told).ask(call())), told.time


def call():
    return QuorumCall("x", scripts.LOCK_STATE, (), ())


def test_p06_every_split_ends_and_is_judged_rightly():
    for size, split in SPLITS:
        ballot, took = vote(split)
        assert took <= 1.0
        assert ballot.decided
        assert ballot.won == (split.count("g") > size / 2), split


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

TIMELESS = replace(ROUGH, rate_error=0.3, durable=True, crashes=3.0, pauses=3.0, longest_hold=0.3, lasts=2.0)


@pytest.fixture
def no_timing(monkeypatch):
    """Nobody looks at a clock: locks are valid for ever, and two may be inside."""
    ask = Nodes.ask

    async def changed(self, call, voters=None, until=None):
        return await ask(self, call, voters, self.now() + 3)

    monkeypatch.setattr(Nodes, "ask", changed)
    monkeypatch.setattr(Client, "check_grants", lambda self, hold: None)
    monkeypatch.setattr(quorum_calls, "MIN_VALIDITY", -math.inf)
    monkeypatch.setattr(RedLock, "drift", lambda self, lease: -lease)
    monkeypatch.setattr(simulator.World, "note_inside", lambda self, client, hold: None)
    monkeypatch.setattr(Client, "check_hold", lambda self, hold: None)


def test_p09_tokens_rise_without_clocks(no_timing, settings):
    assert sweep(settings, TIMELESS, range(100), check_order) > 100


def test_p09_mutant_without_a_second_round(mutate, no_timing, settings):
    mutate("no_second_round")
    assert_caught(settings, TIMELESS, 200)


@pytest.mark.parametrize("mutant", [None, "bumps_whoever_owns"])
def test_p09_who_lost_a_node_before_the_second_round_gets_no_token(mutant, mutate, no_timing, settings):
    """One sleeps between the rounds until its lease has ended; meanwhile another gets the lock, and a lower token."""
    if mutant is not None:
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


LOST_COUNTERS = replace(ROUGH, crashes=0, blackouts=0.2, pauses=0, lasts=8.0, longest_hold=0.5)


def test_p09_tokens_rise_where_counters_are_lost(settings):
    assert sweep(settings, LOST_COUNTERS, range(50)) > 50


def test_p09_mutant_that_only_counts(mutate, settings):
    mutate("counter_without_clock")
    assert_caught(settings, LOST_COUNTERS, 50)


def test_p09_mutant_in_which_late_granters_vote(mutate, settings):
    """Their own tokens may be higher."""
    mutate("late_granters_vote_on_a_lower_token")
    assert_caught(settings, ROUGH, 30)


@pytest.mark.parametrize("mutant", [None, "only_the_first_granters_are_asked"])
def test_p09_another_granter_stands_in_for_one_that_fails(mutant, mutate, settings, monkeypatch):
    """The node that is to count on first goes down instead."""
    if mutant is not None:
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


# --- P10: quarantine --------------------------------------------------------------------------------------------------

RESTARTS = replace(
    ROUGH, nodes=3, lease=4.0, lasts=8.0, crashes=0.2, blackouts=0.3, outage=0.1, pauses=0, longest_hold=8.0, renewed=0
)


def test_p10_restarted_nodes_have_no_votes(settings):
    assert sweep(settings, RESTARTS, range(50)) > 50


@pytest.mark.parametrize("mutant", ["no_quarantine", "half_quarantine", "connections_outlive_restarts"])
def test_p10_mutants(mutant, mutate, settings):
    mutate(mutant)
    assert_caught(settings, RESTARTS, 100)


# --- P11: a dead client's keys end ------------------------------------------------------------------------------------


def check_nothing_left(world):
    for node in world.nodes:
        node.model.run(scripts.LOCK_STATE, ("x",))
        if node.model.holds:
            raise BrokenError(f"node {node.number} still has {node.model.holds}")


def test_p11_keys_of_dead_clients_end(mutate, settings):
    """At the end all clients have been gone for longer than the lease."""
    setting = replace(ROUGH, kills=0.3)
    sweep(settings, setting, range(40), check_nothing_left)
    mutate("keys_do_not_end")
    assert_caught(settings, setting, 20, check_nothing_left)


# --- P12: progress ----------------------------------------------------------------------------------------------------

CROWD = Setting(lasts=2.0, loss=0, copies=0, slow=0, clients=10, wait=None, longest_hold=10.0)


def check_progress(world):
    if not world.acquired:
        raise BrokenError("nobody got in")


@pytest.mark.parametrize("clients", [2, 5, 10])
def test_p12_one_of_many_gets_in(clients, settings):
    """All begin at once, after a holder that died: somebody is in after its lease and ten rounds."""
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


def test_p13_mutant(mutate, settings):
    mutate("follows_the_wall_clock")
    assert_caught(settings, ROUGH, 200)


# --- P14: copies and disorder -----------------------------------------------------------------------------------------


def test_p14_copies_and_disorder_do_no_harm(settings):
    assert sweep(settings, DISORDER, range(60), check_nothing_left) > 60


@pytest.mark.parametrize("mutant", ["counts_up_and_down", "votes_count_twice"])
def test_p14_mutants(mutant, mutate, settings):
    mutate(mutant)
    assert_caught(settings, replace(DISORDER, fencing=False), 60, check_nothing_left)


# --- P15: late grants -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mutant", [None, "gives_back_where_granted_only", "no_tombstones"])
def test_p15_a_late_grant_is_given_back(mutant, mutate, settings):
    """Three nodes are paused while they are asked, in or out of order; soon after they go on, all is free."""
    setting = Setting(clients=1, loss=0, copies=0, slow=0.5, slow_delay=0.15, rate_error=0)
    if mutant is not None:
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
    """One holds the lock until its lease ends; another asks for it every moment around that time."""
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
    monkeypatch.setattr(redlock, "_SHORTEST_PAUSE", 0.0002)
    monkeypatch.setattr(redlock, "_LONGEST_PAUSE", 0.0002)
    monkeypatch.setattr(redlock, "ROUNDING", 0.0)
    monkeypatch.setattr(Client, "check_hold", lambda self, hold: None)  # of P2, with the rounding
    assert not overlaps(settings, rate_error, 1.0)
    assert overlaps(settings, rate_error, 0.9)


# --- P17: a minority may do what it likes -----------------------------------------------------------------------------


def test_p17_a_minority_that_is_frozen_or_late_does_no_harm(settings):
    """Their clocks are set back, so that they keep keys for too long; they stop for seconds; they forget nothing."""
    setting = replace(
        ROUGH, crashes=0, pauses=2.0, longest_pause=3.0, steps=3.0, stepping=2, longest_step=3.0, back=True
    )
    assert sweep(settings, setting, range(60)) > 60


def misbehave(settings, seed, number):
    """Some nodes evict keys and step their clocks while somebody has the lock on all nodes and others want it."""
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
