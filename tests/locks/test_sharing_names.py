"""Different kinds of lock under one name: every cell of the tables in docs/design/kinds.md."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from django_rlock import (
    CountDownLatch,
    LockNotOwnedError,
    LockUnavailableError,
    LockUpgradeError,
    PermitExpirableSemaphore,
    Semaphore,
    rlock,
)
from django_rlock._redis.keys import fair_keys, token_key
from django_rlock._transport.identity import client_id
from django_rlock.locks import KINDS
from django_rlock.locks.holds import WAITS
from tests.bindings import visit

NAME = "stock:42"
KEY = f"rlock:{NAME}"
PAGE = (Path(__file__).parents[2] / "docs" / "design" / "kinds.md").read_text(encoding="utf-8")
ON_ONE_SERVER = [kind for kind in KINDS if kind != "redlock"]


def table(heading: str) -> dict[tuple[str, str], str]:
    """(held, requested) → outcome."""
    section = re.split(r"\n##+ ", PAGE.split(f"### {heading}\n")[1])[0]
    lines = re.findall(r"^\|.*\|$", section, re.MULTILINE)
    head, _, *rows = (line.strip("| ").split("|") for line in lines)
    asked = [cell.strip() for cell in head[1:]]
    cells = {}
    for held, *outcomes in rows:
        for kind, outcome in zip(asked, outcomes, strict=False):
            cells[held.strip(), kind] = outcome.strip()
    return {cell: outcome for cell, outcome in cells.items() if outcome}


OTHERS, OWN = table("Another owner asks"), table("The owner itself asks")
COUNTERS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "semaphore": (lambda: Semaphore(NAME).try_set_permits(2), lambda: Semaphore(NAME).acquire(wait_time=0)),
    "permits": (
        lambda: PermitExpirableSemaphore(NAME).try_set_permits(2),
        lambda: PermitExpirableSemaphore(NAME).acquire(wait_time=0),
    ),
    "latch": (lambda: CountDownLatch(NAME).try_set_count(2), lambda: CountDownLatch(NAME).count_down()),
}


def cells(outcomes: dict[tuple[str, str], str]):
    return pytest.mark.parametrize(
        ("held", "asked", "outcome"),
        [(*cell, outcome) for cell, outcome in outcomes.items()],
        ids=[f"{asked} while {held}" for held, asked in outcomes],
    )


def test_the_tables_are_whole():
    locks = {(held, asked) for held in ON_ONE_SERVER for asked in ON_ONE_SERVER}
    mixed = {pair for lock in ON_ONE_SERVER for counter in COUNTERS for pair in ((lock, counter), (counter, lock))}
    assert OTHERS.keys() == locks | mixed
    assert OWN.keys() == locks


@cells({cell: outcome for cell, outcome in OTHERS.items() if outcome != "error"})
def test_another_owner(held, asked, outcome, redis_client):
    holder, other = rlock(NAME, kind=held), rlock(NAME, kind=asked, owner="other")
    with holder:
        before = redis_client.hgetall(KEY)
        assert other.acquire(blocking=False) is (outcome == "shares")
        if outcome == "shares":
            other.release()
        assert redis_client.hgetall(KEY) == before
    assert other.acquire(blocking=False)
    other.release()
    assert {*redis_client.keys()} <= {token_key(KEY)}


@cells({cell: outcome for cell, outcome in OTHERS.items() if outcome == "error"})
def test_another_type_of_value(held, asked, outcome, redis_client):
    hold = rlock(NAME, kind=held).acquire if held in KINDS else COUNTERS[held][0]
    ask = (lambda: rlock(NAME, kind=asked).acquire(wait_time=0)) if asked in KINDS else COUNTERS[asked][1]
    hold()
    before = redis_client.dump(KEY)
    with pytest.raises(LockUnavailableError, match="holds another type of value"):
        ask()
    assert redis_client.dump(KEY) == before
    if held in KINDS:
        rlock(NAME, kind=held).release()


@cells(OWN)
def test_the_owner_itself(held, asked, outcome, redis_client):
    holder, again = rlock(NAME, kind=held), rlock(NAME, kind=asked)
    with holder:
        before = redis_client.hgetall(KEY)
        if outcome == "refused":
            with pytest.raises(LockUpgradeError):
                again.acquire(wait_time=None)
        else:
            assert again.acquire(blocking=False) is (outcome == "enters")
        if outcome == "enters":
            again.release()
        assert redis_client.hgetall(KEY) == before
        assert holder.hold_count() == 1
    assert {*redis_client.keys()} <= {token_key(KEY)}


@cells({cell: outcome for cell, outcome in OWN.items() if outcome != "enters"})
@pytest.mark.parametrize("method", ["release", "extend"])
def test_an_owner_known_by_name_through_the_wrong_kind(held, asked, outcome, method, redis_client, server):
    """As another process does it that has only the owner's name: the field of that name means something else here."""
    holder = rlock(NAME, kind=held)
    with holder:
        owner = next(field for field in redis_client.hkeys(KEY) if field != "mode").removesuffix(":write")
        before = redis_client.hgetall(KEY), redis_client.pttl(KEY) > 20_000
        wrong = rlock(NAME, kind=asked, owner=owner)
        assert not wrong.owned()
        with pytest.raises(LockNotOwnedError):
            wrong.release() if method == "release" else wrong.extend(5)
        assert (redis_client.hgetall(KEY), redis_client.pttl(KEY) > 20_000) == before


async def test_waiters_of_each_kind_are_beaten_for(binding, settings, redis_client):
    """One process, one name, two kinds: the heartbeat of the longest waiter says nothing about the others."""
    settings.RLOCK = {"default": {"WAITER_ALIVE_TIME": 1, "CLAIM_TIME": 1}}
    redis_client.hset(KEY, "another", 1)
    waiters = []
    for number, lock in enumerate([rlock(NAME, kind="write"), rlock(NAME, kind="fair")]):
        waiters.append(binding.start(visit, binding, lock))
        await binding.until(lambda number=number: len(WAITS.snapshot()) == number + 1)

    def alive_until():
        return redis_client.zscore(fair_keys(KEY)[2], client_id()) or 0

    await binding.until(alive_until)
    before = alive_until()
    await binding.until(lambda: alive_until() > before + 900)
    redis_client.delete(KEY)
    await binding.results(waiters)
