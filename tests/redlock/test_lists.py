"""Processes whose lists of NODES differ: whether majorities of both need to share a node, and what is logged if not."""

from itertools import combinations

import pytest
from pytest_django import Settings

from django_rlock._core.callbacks import flush
from django_rlock._transport.quorum import nodes as quorum_nodes
from django_rlock._transport.quorum.nodes import LISTED_FOR, SETTLED, OtherLists, must_meet
from django_rlock.locks.redlock import RedLock
from example_project.embedded import EmbeddedServer
from tests.redlock.conftest import holders
from tests.redlock.test_quarantine import mark, run_id_of

QUARANTINE = 30.0


def majorities(nodes: set[int]) -> list[set[int]]:
    return [set(each) for each in combinations(nodes, len(nodes) // 2 + 1)]


@pytest.mark.parametrize("own", range(2, 7))
def test_lists_are_compared_as_all_their_majorities(own: int) -> None:
    for other in range(2, 7):
        for common in range(min(own, other) + 1):
            first, second = set(range(own)), set(range(own - common, own - common + other))
            meet = all(one & another for one in majorities(first) for another in majorities(second))
            assert must_meet(own, other, common) == meet, (own, other, common)


@pytest.fixture
def five(nodes: list[EmbeddedServer], settings: Settings, monkeypatch: pytest.MonkeyPatch) -> list[EmbeddedServer]:
    """Five nodes, which are known."""
    monkeypatch.setattr(quorum_nodes, "SETTLED", 0.0)
    settings.RLOCK = {"quorum": {**settings.RLOCK["quorum"], "QUARANTINE": QUARANTINE}}
    for server in nodes:
        mark(server, run_id_of(server), QUARANTINE)
    return nodes


@pytest.fixture
def use(binding, five, caplog, settings):
    """Lets a process whose NODES are ours take locks after one whose NODES are theirs; returns what ours has logged."""

    async def use(ours: list[int], theirs: list[int], times: int, **options: str) -> list[str]:
        quorum = settings.RLOCK["quorum"]
        settings.RLOCK = {
            "ours": {**quorum, "NODES": [quorum["NODES"][number] for number in ours]},
            "theirs": {**quorum, "NODES": [quorum["NODES"][number] for number in theirs], **options},
        }
        async with binding.inside(RedLock("of theirs", using="theirs")):
            name = f"{options.get('KEY_PREFIX', 'rlock:')}of theirs".removeprefix("rlock:")
            await binding.until(lambda: all(holders([five[number] for number in theirs], name)))
        while times:  # each time, the votes of the slowest nodes are not heard
            async with binding.inside(RedLock("of ours", using="ours")):
                times -= 1
            flush(1)
            if logged := [each.getMessage() for each in caplog.records if each.name == "django_rlock.redlock"]:
                return logged
        return []

    return use


async def test_two_nodes_more_at_once_are_reported(binding, use):
    [text] = await use([0, 1, 2, 3, 4], [0, 1, 2], 10_000)
    assert "lists 5 NODES" in text
    assert "a list of 3" in text
    assert "one node at a time" in text


async def test_a_node_that_was_replaced_at_once_is_reported(binding, use):
    [text] = await use([0, 1, 2], [0, 1, 3], 10_000)
    assert "only 2 nodes" in text


@pytest.mark.parametrize("theirs", [[0, 1, 2], [0, 1, 2, 3, 4], [3, 2, 1, 0]])
async def test_one_node_at_a_time_is_not_reported(binding, use, theirs):
    assert not await use([0, 1, 2, 3], theirs, 20)


async def test_other_locks_on_the_same_nodes_are_not_reported(binding, use):
    assert not await use([0, 1, 2], [0, 3, 4], 20, KEY_PREFIX="rlock:other:")


def test_a_list_that_is_no_longer_used_is_forgotten(caplog):
    known = OtherLists("ours", 3)

    def use(at: float) -> int:
        for node, lists in enumerate([b"0a:3:0b", b"", b""]):
            known.note(node, lists, at)
        flush(1)
        return len(caplog.records)

    assert [use(at) for at in (0.0, SETTLED, LISTED_FOR)] == [0, 1, 1]
    known.note(1, b"", 2 * LISTED_FOR + 1)
    assert [use(at) for at in (3 * LISTED_FOR, 3 * LISTED_FOR + SETTLED)] == [1, 2]
