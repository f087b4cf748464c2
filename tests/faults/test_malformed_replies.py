"""Replies whose values are of the wrong types, or too few or too many, as from a broken proxy.

They count as lost: the connection is closed, and the command is sent again. No other error than RLockError reaches
callers.
"""

import re
from contextlib import suppress
from itertools import cycle
from typing import Any

import pytest

from django_rlock import (
    CountDownLatch,
    LockUnavailableError,
    MultiLock,
    PermitExpirableSemaphore,
    RLockError,
    Semaphore,
    rlock,
)
from django_rlock._redis import scripts
from django_rlock._transport.servers import server
from tests.faults.copies import is_settled, often
from tests.faults.stories import STORIES
from tests.faults.test_every_script import forget, is_like, outcome, play_usually

pytestmark = pytest.mark.lengthy

__all__ = ["forget", "often"]

NUMBER, TEXT = re.compile(rb":(-?\d+)\r\n"), re.compile(rb"\$\d+\r\n[^\r]*\r\n")
HEAD = re.compile(rb"\A\*(\d+)\r\n(\$15\r\n\d{15}\r\n)")
ALONE = re.compile(rb"\A(\$15\r\n\d{15}\r\n)\Z")


def written_out(reply):
    """A nonce alone as a list, with what it usually stands for."""
    return ALONE.sub(rb"*2\r\n\1$2\r\nOK\r\n", reply)


def values(numbers, texts):
    """Changes what follows the nonce."""

    def change(reply):
        reply = written_out(reply)
        head = HEAD.match(reply)
        if head is None:
            return reply
        return reply[: head.end()] + TEXT.sub(texts, NUMBER.sub(numbers, reply[head.end() :]))

    return change


def more(number, added=b""):
    """Changes how many they are."""

    def change(reply):
        reply = written_out(reply)
        head = HEAD.match(reply)
        if head is None:
            return reply
        rest = reply[head.end() :]
        kept = rest[: rest[:-2].rfind(b"\r\n") + 2] if number < 0 else rest + added
        return b"*%d\r\n%b%b" % (int(head[1]) + number, head[2], kept)

    return change


CHANGES = {
    "numbers are text": values(lambda found: b"$%d\r\n%b\r\n" % (len(found[1]), found[1]), lambda found: found[0]),
    "text is a number": values(lambda found: found[0], b":1\r\n"),
    "nothing": values(b"$-1\r\n", b"$-1\r\n"),
    "lists": values(b"*0\r\n", b"*1\r\n:1\r\n"),
    "nothing but a null": lambda reply: b"$-1\r\n" if HEAD.match(written_out(reply)) else reply,
    "one less": more(-1),
    "one more": more(1, b":1\r\n"),
    "two more": more(2, b":1\r\n:1\r\n"),
    "text that is not UTF-8": values(lambda found: found[0], b"$2\r\n\xff\xfe\r\n"),
}


def changed(subjects):
    """Each has all changes in the long form, and one in the short form."""
    return [
        pytest.param(subject, change, id=f"{name}, {what}", marks=() if turn == what else pytest.mark.thorough)
        for (name, subject), turn in zip(subjects.items(), cycle(CHANGES), strict=False)
        for what, change in CHANGES.items()
    ]


@pytest.mark.parametrize(("script", "change"), changed({script.name: script for script in STORIES}))
def test_same_outcome_as_in_a_usual_run(script, change, proxy, redis_client):
    usual = play_usually(script, redis_client)
    rules: list[Any] = []
    STORIES[script](lambda: rules.append(proxy.change_reply(script, change)))
    assert rules[0].served.is_set()
    is_settled()
    assert is_like(outcome(redis_client), usual)


KINDS = ["rlock", "fair", "spin", "fenced", "read", "write"]
ASKED = ["locked", "owned", "hold_count", "remaining_lease", "holders", "info", "force_release"]
COUNTERS: dict[str, Any] = {
    "semaphore": (
        lambda: Semaphore("stock:42"),
        {"acquire": (1, False), "release": (), "available_permits": (), "add_permits": (1,), "drain_permits": ()},
    ),
    "permits": (
        lambda: PermitExpirableSemaphore("stock:42"),
        {"set_permits": (2,), "acquire": (1, False), "available_permits": (), "try_release": ("a" * 32,)},
    ),
    "latch": (
        lambda: CountDownLatch("stock:42"),
        {"try_set_count": (1,), "count": (), "count_down": (), "delete": ()},
    ),
}


@pytest.mark.parametrize(("kind", "change"), changed({kind: kind for kind in KINDS}))
async def test_locks_raise_one_error(binding, kind, change, proxy):
    lock, held = rlock("stock:42", kind=kind), rlock("stock:43", kind=kind)
    assert await binding.acquire(held)
    proxy.change = change
    for method in ASKED:
        with suppress(RLockError):
            await binding.call(lock, method)
    with suppress(RLockError):
        await binding.acquire(lock, wait_time=0)
    proxy.change = bytes
    assert server("default").size <= 1
    await binding.release(held)


@pytest.mark.parametrize(
    "script", [scripts.FAIR_ACQUIRE, scripts.RLOCK_WAIT, scripts.FENCED_WAIT], ids=lambda each: each.name
)
async def test_a_ticket_that_is_not_utf8_does_not_end_the_wait(binding, script, proxy, redis_client):
    kind: Any = {"fair_acquire": "fair", "rlock_wait": "rlock", "fenced_wait": "fenced"}[script.name]
    holder = rlock("stock:42", owner="another", kind=kind)
    await binding.acquire(holder)
    rule = proxy.change_reply(script, CHANGES["text that is not UTF-8"])
    waiting = binding.start(binding.acquire, rlock("stock:42", kind=kind))
    await binding.until(rule.served.is_set)
    await binding.release(holder)
    assert await binding.result(waiting)


@pytest.mark.parametrize(("counter", "change"), changed(COUNTERS))
async def test_counters_raise_one_error(binding, counter, change, proxy):
    make, calls = counter
    proxy.change = change
    for method, args in calls.items():
        with suppress(RLockError):
            await binding.call(make(), method, *args)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_several_locks_raise_one_error(binding, change, proxy):
    proxy.change = change
    with suppress(RLockError):
        await binding.acquire(MultiLock(rlock("stock:42"), rlock("stock:43", kind="fair")), wait_time=0)


async def test_a_malformed_reply_is_named(binding, proxy):
    proxy.change = CHANGES["nothing"]
    with pytest.raises(LockUnavailableError, match="a malformed one"):
        await binding.acquire(rlock("stock:42"), wait_time=0)
