"""Tokens that the client proposes: what it takes for all nodes to agree, and what then need not be sent."""

from time import monotonic, time_ns

import pytest

from django_rlock._transport.quorum.nodes import node_set
from django_rlock._transport.quorum.votes import AHEAD, LEAD, Proposals
from django_rlock.locks.redlock import RedLock
from tests.redlock.conftest import holders

SECOND = 10**6
CLOCK = 1_700_000_000 * SECOND


@pytest.fixture
def proposals():
    return Proposals()


def test_nothing_is_proposed_as_long_as_no_clock_is_known(proposals):
    assert proposals.next(5.0) == 0


def test_the_highest_clock_goes_on(proposals):
    proposals.learn([CLOCK + 30, CLOCK + 70, CLOCK], 5.0)
    assert proposals.next(5.0) == CLOCK + 70 + LEAD
    assert proposals.next(7.5) == CLOCK + 70 + LEAD + 2.5 * SECOND


@pytest.mark.parametrize("wrong", [-3600 * SECOND, 2 * AHEAD, 3600 * SECOND])
def test_one_clock_that_is_wrong_is_not_followed(proposals, wrong):
    proposals.learn([CLOCK, CLOCK + wrong, CLOCK + 20], 5.0)
    assert proposals.next(5.0) == CLOCK + 20 + LEAD


async def count_bumps(binding, nodes, lock, turns):
    """How many of the acquisitions had to raise counters."""
    before = evals(nodes)
    for _ in range(turns):
        async with binding.inside(lock):
            await binding.until(lambda: all(holders(nodes)))
        await binding.until(lambda: not any(holders(nodes)))
    return (evals(nodes) - before) / len(nodes) - 2 * turns


def evals(nodes):
    """The scripts that the nodes have run."""
    calls = 0
    for server in nodes:
        with server.client() as client:
            stats = client.info("commandstats")
            calls += sum(stats[name]["calls"] for name in ("cmdstat_eval", "cmdstat_evalsha") if name in stats)
            calls -= stats.get("cmdstat_evalsha", {}).get("failed_calls", 0)
    return calls


async def test_two_commands_to_each_node_take_and_release_it(binding, nodes):
    """But for the first ones, and some whose commands take longer on the way than any before."""
    turns = 30
    assert await count_bumps(binding, nodes, RedLock("x", using="quorum"), turns) < turns / 2


@pytest.mark.parametrize("wrong", [-3600, 3600])
async def test_a_client_whose_guess_is_wrong_learns_the_clock(wrong, binding, nodes):
    known, now = node_set("quorum").proposals, monotonic()
    known.learn([(time_ns() // 1000) + wrong * SECOND], now)
    guess = known.next(now)
    lock = RedLock("x", using="quorum")
    async with binding.inside(lock):
        token = lock.token
    assert abs(token - known.next(now)) < 60 * SECOND
    assert abs(token - guess) > 3000 * SECOND
