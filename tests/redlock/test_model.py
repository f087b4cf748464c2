"""The simulator's node and the real scripts return the same, on random sequences of calls."""

import random
import time

import pytest

from django_rlock._redis import keys, scripts
from django_rlock._transport.quorum.votes import AHEAD
from django_rlock.locks import redlock
from tests.redlock.model import Node

KEY = "rlock:x"
STATE, TOKEN, TOMBSTONE, CHANNEL = KEY, keys.token_key(KEY), keys.tombstone_key(KEY, ""), keys.redisson_channel(KEY)
MARK, FORMER_MARK = keys.NODE_KEY, keys.voter_key(30)
KEYS = {
    scripts.REDLOCK_ACQUIRE: (STATE, TOKEN, TOMBSTONE, MARK, FORMER_MARK),
    scripts.REDLOCK_BUMP: (STATE, TOKEN),
    scripts.REDLOCK_RELEASE: (STATE, CHANNEL, TOMBSTONE),
    scripts.REDLOCK_RENEW: (STATE, MARK, FORMER_MARK, keys.settled_key(KEY, "client", "owner")),
    scripts.REDLOCK_SEED: (STATE, TOMBSTONE),
    scripts.REDLOCK_VOUCH: (MARK,),
    scripts.LOCK_STATE: (STATE,),
}
LEASES = 1_000_000, 2_000_000
FAR = 8 * 10**15
"""Tokens beyond any clock, so that the counters agree to the last digit; below 2**53, up to which Lua is exact."""


def random_call(pick: random.Random):
    owner, lease, quarantine = pick.choice("abc"), pick.choice(LEASES), pick.choice(LEASES)
    return pick.choice(
        [
            (
                scripts.REDLOCK_ACQUIRE,
                (owner, pick.choice([1, 1, 1, 2]), lease, pick.choice([0, 10**8]), quarantine, "a:3:b", 0),
            ),
            (scripts.REDLOCK_BUMP, (owner, FAR + pick.randrange(100), pick.choice([0, 10**8]))),
            (scripts.REDLOCK_RELEASE, (owner, pick.choice([0, 0, 1]), lease, 10**6)),
            (scripts.REDLOCK_RENEW, (owner, lease, pick.choice([0, 1, 2]), quarantine, "a:3:b")),
            (scripts.REDLOCK_SEED, (owner, pick.choice([1, 2]), lease)),
            (scripts.REDLOCK_VOUCH, (f"?{pick.choice('abc')}".encode(), "run", pick.choice(LEASES))),
            (scripts.LOCK_STATE, (owner,)),
            ("lose mark", ()),
            ("fail over", ()),
            ("have the former mark", ()),
            ("expire", ()),
            ("forget tombstones", ()),
        ]
    )


TOLERANCE = 20_000
"""How far the model's clock and the server's may differ, in ms, if the machine stalls between their readings."""


@pytest.mark.parametrize("seed", range(12))
def test_model_and_scripts_agree(seed, server):
    pick = random.Random(seed)
    client = server.client(decode_responses=False)
    node = Node(time.time)
    for step in range(150):
        what, args = random_call(pick)
        if what == "expire":
            client.delete(STATE)
            node._delete()
        elif what == "forget tombstones":
            client.delete(*(TOMBSTONE + owner for owner in "abc"))
            node.tombstones.clear()
        elif what == "lose mark":
            client.delete(MARK)
            node.marks = b"", None, b"", 0, 0
        elif what == "fail over":
            if client.exists(MARK):
                client.hset(MARK, "replication", "another")
                node.replication += 1
        elif what == "have the former mark":
            client.set(FORMER_MARK, "former")
            node.former_mark = b"former"
        else:
            used = [key + args[0] if key == TOMBSTONE else key for key in KEYS[what]]
            reply = client.eval(what.source, len(used), *used, step, *args)
            real = [1] if reply == b"%d" % step else reply[1:]
            assert comparable(what, real) == comparable(what, node.run(what, args)), (step, what.name, args)
        assert client.hgetall(STATE) == {owner.encode(): b"%d" % holds for owner, holds in node.holds.items()}
        before, left, after = node._pttl(), client.pttl(STATE), node._pttl()
        assert after - TOLERANCE <= left <= before + TOLERANCE
        if node.counter >= FAR:
            assert int(client.get(TOKEN)) == node.counter
    client.close()


def comparable(script, reply):
    """Without what a clock makes differ by a little."""
    if script is scripts.REDLOCK_ACQUIRE and reply[0] == b"OK":
        return b"OK", reply[1] if reply[1] >= FAR else is_now(reply[1]), is_now(reply[2]), reply[3:]
    return [round(each, -5) if isinstance(each, int) and each > 1000 else each for each in reply]


def is_now(clock_us):
    return abs(clock_us / 1e6 - time.time()) < 5


# --- proposals --------------------------------------------------------------------------------------------------------


@pytest.fixture
def client(server):
    with server.client(decode_responses=False) as client:
        yield client


def draw(client, proposal):
    """The token that a new owner is granted, who proposes one, and the node's clock."""
    client.delete(STATE)
    keys = KEYS[scripts.REDLOCK_ACQUIRE]
    _, ok, token, clock = client.eval(
        scripts.REDLOCK_ACQUIRE.source, 3, *keys[:3], "nonce", "a", 1, 1000, 0, 0, "", proposal
    )
    assert ok == b"OK"
    assert int(client.get(TOKEN)) == token
    return token, clock


def draw_alone(client):
    """The token of FencedLock's script."""
    client.delete(STATE)
    return client.eval(scripts.FENCED_ACQUIRE.source, 2, STATE, TOKEN, "nonce", "a", 1, 1000, 0)[2]


def clock_of(client):
    seconds, micros = client.time()
    return seconds * 10**6 + micros


def test_a_proposal_is_taken(client):
    # Lower than the clock by the time it arrives, where that takes longer.
    assert any(draw(client, proposal)[0] == proposal for proposal in proposals(client, AHEAD - 5000, 100))
    _, clock = draw(client, 0)
    assert is_now(clock)


def proposals(client, ahead, times):
    for _ in range(times):
        client.delete(TOKEN)
        yield clock_of(client) + ahead


@pytest.mark.parametrize(
    "garbage",
    ["", "x", "nan", "-nan", "inf", "-inf", "1e400", "-1", "-1e300", "0x20000000000000", 2**53, 2**63, 10**30, "None"],
)
def test_a_proposal_that_is_nonsense_changes_nothing(garbage, client):
    token, clock = draw(client, garbage)
    assert token == clock


@pytest.mark.parametrize("years", [-50, -1, 1, 50])
def test_the_proposal_of_a_wrong_clock_changes_nothing(years, client):
    token, clock = draw(client, clock_of(client) + years * 365 * 86_400 * 10**6)
    assert token == clock


def test_a_fraction_is_cut_off(client):
    for proposal in proposals(client, AHEAD - 5000, 100):
        token, _ = draw(client, f"{proposal}.75")
        if token == proposal:
            return
    raise AssertionError("it was never taken")


def test_a_counter_that_is_ahead_goes_on(client):
    client.set(TOKEN, FAR)
    assert draw(client, clock_of(client) + AHEAD // 2)[0] == FAR + 1
    assert draw(client, FAR + 100)[0] == FAR + 2  # far ahead of the clock


@pytest.mark.parametrize("seed", range(5))
def test_tokens_of_one_node_rise_whoever_draws_them(seed, client):
    """Owners that propose and those that do not, as before an upgrade, fenced locks, and tokens raised by others."""
    pick = random.Random(seed)
    last = 0
    for _ in range(100):
        proposal = pick.choice([None, 0, clock_of(client) + pick.randrange(-AHEAD, 2 * AHEAD)])
        token = draw_alone(client) if proposal is None else draw(client, proposal)[0]
        assert token > last
        last = token
        if pick.random() < 0.2:
            last += pick.randrange(AHEAD)
            assert client.eval(scripts.REDLOCK_BUMP.source, 2, STATE, TOKEN, "nonce", "a", last, 0) == b"nonce"


def test_every_script_of_the_kind_is_modelled():
    used = {each.name for each in vars(scripts).values() if isinstance(each, scripts.Script)}
    assert {each.name for each in KEYS} >= {name for name in used if name.startswith(redlock.RedLock.kind)}
