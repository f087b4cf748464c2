"""RedLock's real flows go the ways of its model: walks at random, and after each step both are in the same state."""

import itertools
from contextlib import ExitStack
from random import Random
from typing import Any

import pytest
import redis

from django_rlock._transport.quorum.votes import QuorumCall, Restarts, VoteTally, VotingRound
from django_rlock.locks import redlock
from models.checker import walk
from tests.flows.exploring import _url
from tests.flows.voting import LEASE, Model, Walk, options, weigh
from tests.forms import THOROUGH
from tests.mutants import changed_scripts, owner_ids_used_again

WALKS = 200 if THOROUGH else 3
STEPS = 80

pytestmark = pytest.mark.timeout(900)  # the long form takes minutes on a busy machine


@pytest.fixture
def go(make_world, settings, redis_client):
    """Walks the ways of a seed."""
    url = _url(redis_client)
    settings.RLOCK = {"default": options(url)}
    with ExitStack() as stack:
        clients = [
            stack.enter_context(redis.Redis.from_url(node, protocol=2)) for node in settings.RLOCK["default"]["NODES"]
        ]

        def go(seed: Any, model: Model, walkers: int) -> None:
            gone = []
            for client in clients:
                client.flushdb()
            with make_world() as world:
                real = Walk(world, clients, walkers)
                state = model.start()
                try:
                    for step, after in itertools.islice(walk(model, Random(seed), weigh), STEPS):
                        gone.append(step)
                        real.do(step, state, after)
                        real.compare(after)
                        assert model.fault(after) is None
                        state = after
                except BaseException as error:
                    error.add_note(f"Seed {seed}, after: " + "; ".join(gone))
                    raise

        yield go


WORLDS = [{}, {"losses": 2}, {"again": 4}, {"again": 2, "losses": 2, "lost": 2}]


@pytest.mark.parametrize("world", WORLDS, ids=str)
@pytest.mark.parametrize("attempts", [(3, 3), (2, 2, 2)], ids=len)
def test_flows_do_what_the_model_does(go, attempts, world):
    for seed in range(WALKS):
        go(seed, Model(attempts, **world), len(attempts))


def let_half_be_enough(patch):
    begin = VoteTally.__init__

    def begun(tally, call, size):
        begin(tally, call, size)
        tally.quorum = size // 2

    patch.setattr(VoteTally, "__init__", begun)


def count_any_vote(patch):
    patch.setattr(Restarts, "doubt", lambda *_: None)


def count_marks_of_any_replication(patch):
    changed_scripts("if marked ~= replication then", "if not marked then")(patch)


def shorten_the_quarantine(patch):
    begin = Restarts.__init__
    patch.setattr(Restarts, "__init__", lambda known, names, quarantine, drift: begin(known, names, 0.6 * LEASE, drift))
    patch.setattr(Restarts, "learn", lambda known, longest_ms: None)


def count_from_the_reply(patch):
    ask = VotingRound.ask

    async def counted(voting, call, *args, **options):
        tally = await ask(voting, call, *args, **options)
        call.sent_at = voting.now()
        return tally

    patch.setattr(VotingRound, "ask", counted)


def count_any_renewal(patch):
    patch.setattr(redlock.Renew, "screen", QuorumCall.screen)


def let_copies_in(patch):
    patch.setattr(
        "django_rlock.locks.redlock.milliseconds", lambda seconds: 0 if seconds < LEASE else int(1000 * seconds)
    )


def leave_undone(patch):
    async def nothing(*_):
        pass

    patch.setattr(VotingRound, "undo_everywhere", nothing)


@pytest.mark.parametrize(
    ("mutate", "world"),
    [
        (let_half_be_enough, {}),
        (count_any_vote, {}),
        (count_marks_of_any_replication, {"losses": 2}),
        (shorten_the_quarantine, {}),
        (count_from_the_reply, {}),
        (count_any_renewal, {"losses": 2}),
        (owner_ids_used_again, {}),
        (let_copies_in, {"again": 4}),
        (leave_undone, {}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_flows_that_do_otherwise_are_found(go, monkeypatch, mutate, world):
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in range(60):
            go(seed, Model((3, 3), **world), 2)
