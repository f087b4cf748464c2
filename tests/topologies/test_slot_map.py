"""The map of slots blocks no caller, although one that fetches it or waits for it may be interrupted or hang."""

import itertools
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any

import pytest

from django_rlock import LockUnavailableError, RLock
from django_rlock._transport import calls, cluster
from django_rlock._transport.cluster import Address, SlotMap
from django_rlock._transport.servers import _ask_slots, get_client, slot_map
from tests.bindings import visit
from tests.eventually import PATIENCE, eventually


class Interruption(BaseException):
    """What a signal handler may raise."""


@pytest.fixture
def client(started, use) -> Any:
    use(started("cluster"))
    return get_client()


@pytest.fixture
def reply(client):
    return _ask_slots("default", client.start[0])


@pytest.fixture
def short(monkeypatch):
    """A round of asking is abandoned soon."""
    monkeypatch.setattr(cluster, "ASK_WITHIN", 0.01)


class Node:
    """Replies when the test says so."""

    def __init__(self, reply: Any) -> None:
        self.asked: list[Address] = []
        self.may_reply = threading.Event()
        self._reply = reply

    def was_asked(self) -> bool:
        return bool(self.asked)

    def ask(self, address: Address) -> Any:
        self.asked.append(address)
        assert self.may_reply.wait(PATIENCE)
        return self._reply


def in_a_thread(function: Any, *args: Any) -> threading.Thread:
    thread = threading.Thread(target=function, args=args, daemon=True)
    thread.start()
    return thread


def ended(thread: threading.Thread) -> bool:
    thread.join(PATIENCE)
    return not thread.is_alive()


def refreshed(known: SlotMap) -> bool:
    known.refresh()
    return not known.stale


def interrupted_at(place: int, function: Any, *args: Any) -> bool:
    """Interrupt a call before the map's instruction with a number; returns whether it has that many."""
    left = itertools.count(place, -1)

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename != cluster.__file__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and next(left) == 0:
            raise Interruption
        return trace

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # else Python 3.12 traces no instructions at all
    sys.settrace(trace)
    try:
        function(*args)
    except Interruption:
        return True
    finally:
        sys.settrace(before)
    return False


def test_all_callers_wait_for_one_request_for_the_slots(client, reply):
    node = Node(reply)
    known = SlotMap(client, node.ask)
    asking = in_a_thread(known.refresh)
    eventually(node.was_asked)
    waiting = [in_a_thread(known.refresh) for _ in range(8)]
    eventually(lambda: len(known._round._waiting) == 1 + len(waiting))
    node.may_reply.set()
    assert all(map(ended, [asking, *waiting]))
    assert len(node.asked) == 1
    assert not known.stale
    assert {known.owner(slot)[1] for slot in (0, 6000, 12000)} == {port for _, _, (_, port, *_), *_ in reply}


def test_nobody_waits_longer_than_there_is_time(client, reply):
    node = Node(reply)
    known = SlotMap(client, node.ask)
    asking = in_a_thread(known.refresh)
    eventually(node.was_asked)
    known.refresh(within=0.01)
    assert known.stale
    assert known.owner(0) == client.start[0], "which may tell"
    node.may_reply.set()
    assert ended(asking)


def test_another_asks_when_one_hangs(client, reply, short):
    hanging, well = Node(reply), Node(reply)
    well.may_reply.set()
    nodes = iter([hanging, well])
    known = SlotMap(client, lambda address: next(nodes).ask(address))
    asking = in_a_thread(known.refresh)
    eventually(hanging.was_asked)
    eventually(lambda: refreshed(known))
    assert well.asked
    hanging.may_reply.set()
    assert ended(asking)


def test_the_caller_that_requests_the_slots_may_be_interrupted_anywhere(client, reply, short):
    node = Node(reply)
    node.may_reply.set()
    for place in itertools.count():
        known = SlotMap(client, node.ask)
        if not interrupted_at(place, known.refresh):
            break
        assert ended(in_a_thread(eventually, partial(refreshed, known)))
        assert not known.stale
    assert place > 50


def test_a_caller_that_waits_for_the_slots_may_be_interrupted_anywhere(client, reply):
    for place in itertools.count():
        node = Node(reply)
        known = SlotMap(client, node.ask)
        asking = in_a_thread(known.refresh)
        eventually(node.was_asked)
        interrupted = interrupted_at(place, known.refresh, None, 0.001)
        waiting = in_a_thread(known.refresh)
        node.may_reply.set()
        assert ended(asking)
        assert ended(waiting)
        assert not known.stale
        if not interrupted:
            break
    assert place > 50


def test_no_caller_waits_for_a_request_that_has_ended():
    asking = cluster._Round(1000)
    asking.end()
    asking.wait(1000)


# --- addresses that were learned and addresses in the settings --------------------------------------------------------


@pytest.fixture
def silent() -> Iterator[list[Address]]:
    """The addresses of nodes that accept connections and never reply."""
    with ExitStack() as stack:
        listening = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(6)]
        yield [each.getsockname() for each in listening]


def learned(known: SlotMap, addresses: list[Address]) -> None:
    """Let the map contain these nodes, one of them for all slots in use."""
    known._learn([(0, 16383, addresses[-1]), *((slot, slot, each) for slot, each in enumerate(addresses[:-1]))])
    known.stale = True


async def test_a_cluster_whose_addresses_have_all_changed_is_found_by_the_next_call(
    binding, kind, client, silent, monkeypatch
):
    monkeypatch.setattr(calls, "REPLY_GRACE", 0.2)
    lock = kind("stock:42")
    await visit(binding, lock)  # the background thread and the listener know the cluster, too
    learned(slot_map("default"), silent)
    slot_map("default").stale = False
    with pytest.raises(LockUnavailableError):
        await binding.acquire(lock, wait_time=0)
    monkeypatch.setattr(calls, "REPLY_GRACE", PATIENCE)
    await visit(binding, lock)


async def test_a_call_that_waits_finds_such_a_cluster_by_itself(binding, started, use, silent):
    chosen = started("cluster")
    use(replace(chosen, options={**chosen.options, "SOCKET_TIMEOUT": 0.2}))
    learned(slot_map("default"), silent)
    slot_map("default").stale = False
    async with binding.inside(RLock("stock:42", wait_time=PATIENCE)):
        pass


@pytest.mark.parametrize("where", ["in the settings", "learned"])
def test_silent_nodes_do_not_use_up_the_time_to_ask_the_others(client, reply, silent, where):
    well = Node(reply)
    well.may_reply.set()
    hanging = Node(reply)
    start, client.start = client.start, silent if where == "in the settings" else client.start
    known = SlotMap(client, lambda address: (hanging if address in silent else well).ask(address))
    learned(known, start if where == "in the settings" else silent)
    known.refresh()
    assert not known.stale
    hanging.may_reply.set()


def test_nodes_of_another_cluster_at_learned_addresses_are_not_believed(client, reply, silent):
    """Addresses of a cluster in containers are used again."""
    stranger = [[0, 16383, [b"192.0.2.1", 6379, b"id"]]]
    known = SlotMap(client, lambda address: stranger if address in silent else reply)
    learned(known, silent)
    known.refresh()
    assert known.owner(0)[1] == next(port for first, _, (_, port, *_), *_ in reply if first == 0)
