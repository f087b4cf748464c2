"""Nodes whose connections break, or are of no more use, in the middle of a call: they are asked again over new ones."""

import pytest

from django_rlock._redis import keys, scripts
from django_rlock._transport.calls import REMEMBERED
from django_rlock._transport.quorum.nodes import node_set
from django_rlock._transport.quorum.votes import VoteTally
from django_rlock.exceptions import QuorumNotReachedError
from django_rlock.locks import redlock
from django_rlock.locks.redlock import RedLock
from django_rlock.locks.release import release_later
from tests.background import until_renewed
from tests.bindings import TaskBinding
from tests.eventually import eventually
from tests.faults.test_server_errors import NO_LOGIN, REPLICA, REPLICA_62
from tests.proxy import Proxy
from tests.redlock.conftest import acquire_and_give_back, hold_of, holders, paused

pytestmark = pytest.mark.usefixtures("patient")  # a vote that comes late on a stalled machine is not to blame


@pytest.mark.parametrize("wait_time", [0, 20])
@pytest.mark.parametrize("error", [NO_LOGIN, REPLICA, REPLICA_62], ids=["login", "replica", "replica, 6.2"])
async def test_nodes_whose_connections_are_of_no_more_use_vote_over_new_ones(binding, proxies, error, wait_time):
    lock = RedLock("x", using="quorum")
    await acquire_and_give_back(binding, lock)
    refused = [each.refuse(scripts.REDLOCK_ACQUIRE, error) for each in proxies]
    assert await binding.acquire(lock, wait_time=wait_time)
    until_renewed(hold_of(lock))
    refused += [each.refuse(scripts.REDLOCK_RENEW, error) for each in proxies]
    until_renewed(hold_of(lock))
    refused += [each.refuse(scripts.REDLOCK_RELEASE, error) for each in proxies]
    await binding.release(lock)
    assert all(rule.served.is_set() for rule in refused)


@pytest.mark.parametrize("cut", [Proxy.cut_before, Proxy.lose_reply], ids=["command", "reply"])
async def test_nodes_whose_connections_break_in_the_midst_of_a_call_are_asked_again(binding, proxies, cut):
    lock = RedLock("x", using="quorum")
    await acquire_and_give_back(binding, lock)

    async def cut_at(script, method, *args, **kwargs):
        broken = [cut(each, script) for each in proxies]
        assert await binding.call(lock, method, *args, **kwargs) is not False
        await binding.until(lambda: all(rule.served.is_set() for rule in broken))

    await cut_at(scripts.REDLOCK_ACQUIRE, "acquire", wait_time=0)
    await cut_at(scripts.REDLOCK_RENEW, "extend", 100)
    await cut_at(scripts.REDLOCK_RELEASE, "release")


async def test_other_nodes_vote_while_a_connection_is_made_anew(binding, proxies):
    lock = RedLock("x", using="quorum")
    await acquire_and_give_back(binding, lock)
    proxies[0].lose_reply(scripts.REDLOCK_ACQUIRE)
    connecting = proxies[0].hold(b"LIB-NAME")
    vote = proxies[1].hold_reply(scripts.REDLOCK_ACQUIRE)

    async def acquire_at_once():
        assert await binding.acquire(lock, wait_time=0)
        assert node_set("quorum").down == {}  # the connection is still being made
        connecting.let_go.set()
        await binding.release(lock)

    acquiring = binding.start(acquire_at_once)
    await binding.until(connecting.served.is_set)
    vote.let_go.set()
    await binding.result(acquiring)


def test_a_release_in_the_background_reaches_a_node_whose_connection_breaks(nodes, proxies):
    """Although the other nodes have decided it by then."""
    lock = RedLock("x", using="quorum")
    lock.acquire()
    broken, connecting = proxies[0].cut_before(scripts.REDLOCK_RELEASE), proxies[0].hold(b"LIB-NAME")
    release_later(hold_of(lock))
    eventually(connecting.served.is_set)
    eventually(lambda: not any(holders(nodes[1:])))
    connecting.let_go.set()
    eventually(lambda: not any(holders(nodes)))
    assert broken.served.is_set()


async def test_a_node_whose_connections_break_twice_has_no_vote(binding, proxies):
    lock = RedLock("x", using="quorum")
    await acquire_and_give_back(binding, lock)
    broken = [each.lose_reply(scripts.REDLOCK_ACQUIRE) for each in proxies for _ in range(2)]
    with pytest.raises(QuorumNotReachedError, match="closed the connection"):
        await binding.acquire(lock, wait_time=0)
    assert all(rule.served.is_set() for rule in broken)


def refused_for(node) -> float:
    """How long the attempt that a node refuses longest is refused, in seconds."""
    with node.client() as client:
        return max(map(client.pttl, client.scan_iter(keys.tombstone_key("rlock:x", "*"))), default=0) / 1000


async def test_a_copy_that_comes_after_the_node_was_asked_again_takes_nothing(binding, proxies, nodes):
    """The first copy of an acquire whose connection broke may come much later than any other attempt's."""
    lock = RedLock("x", using="quorum")
    await acquire_and_give_back(binding, lock)
    late = [each.copy_late(scripts.REDLOCK_ACQUIRE) for each in proxies]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redlock, "MIN_VALIDITY", 1.0)  # the attempt is given up although all nodes have granted it
        assert not await binding.acquire(lock, wait_time=0)
    await binding.until(lambda: all(refused_for(each) > REMEMBERED / 2 for each in nodes[:2]))
    for rule in late:
        rule.let_go.set()
    await binding.until(lambda: all(rule.obeyed.is_set() for rule in late))
    assert holders(nodes)[:2] == [{}, {}]


@pytest.mark.parametrize("binding", [TaskBinding], ids=["async"], indirect=True)  # only event loops counted votes so
async def test_a_vote_that_comes_while_others_are_asked_again_is_not_the_last_one(binding, proxies, nodes, monkeypatch):
    lock = RedLock("x", using="quorum")
    await acquire_and_give_back(binding, lock)
    voters: list[int] = []
    add = VoteTally.add

    def add_noted(tally, node, reply):
        add(tally, node, reply)
        voters.append(node)

    monkeypatch.setattr(VoteTally, "add", add_noted)
    for each in proxies:
        each.refuse(scripts.REDLOCK_ACQUIRE, NO_LOGIN)
    connecting = [each.hold(b"LIB-NAME") for each in proxies]

    async def acquire_at_once():
        assert await binding.acquire(lock, wait_time=0)
        await binding.release(lock)

    with paused(nodes[2:3]):
        acquiring = binding.start(acquire_at_once)
        await binding.until(lambda: all(rule.served.is_set() for rule in connecting))
    await binding.until(lambda: voters == [2])
    for rule in connecting:
        rule.let_go.set()
    await binding.result(acquiring)
