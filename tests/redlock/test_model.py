"""The simulator's node and the real scripts answer the same, on random sequences of calls."""

import random
import time

import pytest

from django_rlock import keys, scripts
from django_rlock.locks import redlock
from tests.redlock.model import Node

KEY = "rlock:x"
STATE, TOKEN, TOMBSTONES, CHANNEL = keys.redlock_keys(KEY)
KEYS = {
    scripts.REDLOCK_ACQUIRE: (STATE, TOKEN, TOMBSTONES),
    scripts.REDLOCK_BUMP: (STATE, TOKEN),
    scripts.REDLOCK_RELEASE: (STATE, CHANNEL, TOMBSTONES),
    scripts.REDLOCK_RENEW: (STATE,),
    scripts.REDLOCK_SEED: (STATE, TOMBSTONES),
    scripts.LOCK_STATE: (STATE,),
}
LEASES = 1_000_000, 2_000_000
FAR = 8 * 10**15
"""Tokens beyond any clock, so that the counters agree to the last digit; below 2**53, up to which Lua is exact."""


def random_call(pick: random.Random):
    owner, lease = pick.choice("abc"), pick.choice(LEASES)
    return pick.choice(
        [
            (scripts.REDLOCK_ACQUIRE, (owner, pick.choice([1, 1, 1, 2]), lease, pick.choice([0, 10**8]))),
            (scripts.REDLOCK_BUMP, (owner, FAR + pick.randrange(100), pick.choice([0, 10**8]))),
            (scripts.REDLOCK_RELEASE, (owner, pick.choice([0, 0, 1]), lease, 10**6)),
            (scripts.REDLOCK_RENEW, (owner, lease, pick.choice([0, 1]))),
            (scripts.REDLOCK_SEED, (owner, pick.choice([1, 2]), lease)),
            (scripts.LOCK_STATE, (owner,)),
            ("expire", ()),
            ("forget tombstones", ()),
        ]
    )


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
            client.delete(TOMBSTONES)
            node.tombstones.clear()
        else:
            real = client.eval(what.source, len(KEYS[what]), *KEYS[what], b"nonce", *args)[1:]
            assert comparable(what, real) == comparable(what, node.run(what, args)), (step, what.name, args)
        assert client.hgetall(STATE) == {owner.encode(): b"%d" % holds for owner, holds in node.holds.items()}
        assert abs(client.pttl(STATE) - node._pttl()) < 1000
        if node.counter >= FAR:
            assert int(client.get(TOKEN)) == node.counter
    client.close()


def comparable(script, reply):
    """Without what a clock makes differ by a little."""
    if script is scripts.REDLOCK_ACQUIRE and reply[0] == b"OK":
        return b"OK", reply[1] if reply[1] >= FAR else abs(reply[1] / 1e6 - time.time()) < 5
    return [round(each, -5) if isinstance(each, int) and each > 1000 else each for each in reply]


def test_tokens_go_on_from_the_clock_where_the_counter_was_lost(server):
    client = server.client(decode_responses=False)
    reply = client.eval(scripts.REDLOCK_ACQUIRE.source, 3, *KEYS[scripts.REDLOCK_ACQUIRE], "nonce", "a", 1, 1000, 0)
    assert abs(reply[2] / 1e6 - time.time()) < 5
    client.close()


def test_every_script_of_the_kind_is_modelled():
    used = {each.name for each in vars(scripts).values() if isinstance(each, scripts.Script)}
    assert {each.name for each in KEYS} >= {name for name in used if name.startswith(redlock.RedLock.kind)}
