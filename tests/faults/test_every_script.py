"""Every script that writes, executed twice in a row and once more at the end: the outcome is that of a usual run.

"Twice" means that its first reply is lost, so that it is sent again at once. "Late" means that its first copy arrives
after the story, as from a load balancer that had kept it.
"""

import re
from importlib.resources import files
from operator import attrgetter
from typing import Any

import pytest

from django_rlock._redis import keys, scripts
from django_rlock._redis.scripts import Script
from django_rlock._transport.identity import thread_owner
from django_rlock.locks.holds import HOLDS
from tests.eventually import UNTIL_SERVED, eventually
from tests.faults.copies import is_settled, often
from tests.faults.stories import STORIES
from tests.faults.storm_process import STAYS
from tests.mutants import changed_scripts

__all__ = ["often"]

TIMES = re.compile(r"\n\d+ (\d+|-) ")
"""When a reservation was made, and when its message is to start."""
OWNER = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:\d+")
NUMBER = "rlock:printers"
LEASES = """
local time, leases = redis.call('time'), {}
for place, ends in ipairs(redis.call('zrange', KEYS[1], 0, -1, 'withscores')) do
    if place % 2 == 0 then
        leases[place / 2] = ends - time[1] * 1000 - math.floor(time[2] / 1000)
    end
end
return leases
"""
"""The leases of a semaphore's permits, in ms. Their ids are no text."""
READ_ONLY = {
    scripts.LOCK_STATE,
    scripts.LOCK_HOLDERS,
    scripts.READ_STATE,
    scripts.READ_HEARTBEAT,
    scripts.WRITE_STATE,
    scripts.COUNTER_READ,
    scripts.PERMIT_STATE,
    scripts.LATCH_PASS,
    scripts.TASK_READ,
}
READING = {"exists", "get", "hget", "hkeys", "hmget", "pttl", "zcard", "zrange", "zscore"}
PASSES = re.compile(rf"{STAYS.pattern}|rlock_(drained:|process)")
"""Keys that say nothing of who holds what."""


def test_each_script_has_a_story_or_only_reads():
    found = {each for each in vars(scripts).values() if isinstance(each, Script)}
    assert found == STORIES.keys() | READ_ONLY
    assert not STORIES.keys() & READ_ONLY


@pytest.mark.parametrize("script", sorted(READ_ONLY, key=attrgetter("name")), ids=lambda script: script.name)
def test_those_that_only_read_send_no_command_that_writes(script):
    own = files(scripts).joinpath(f"{script.name}.lua").read_text()
    assert set(re.findall(r"redis\.p?call\('(\w+)'", own)) <= READING


@pytest.mark.parametrize("deed", ["twice", "late"])
@pytest.mark.parametrize("script", STORIES, ids=lambda script: script.name)
def test_same_outcome_as_in_a_usual_run(script, deed, proxy, redis_client):
    usual = play_usually(script, redis_client)
    play(script, script, deed, proxy)
    eventually(lambda: is_like(outcome(redis_client), usual))
    eventually(is_settled)
    assert is_like(outcome(redis_client), usual)


MUTANTS = {
    "an extension that was settled is executed": ("LOCK_EXTEND", "not is_settled(KEYS[2], ARGV[1])", "true"),
    "a side's extension that was settled is executed": ("SIDE_EXTEND", "not is_settled(KEYS[3], ARGV[1])", "true"),
    "a lock's renewal may shorten": ("LOCK_RENEW", "no_shorter(lock, ARGV[2])", "ARGV[2]"),
    "a reader's renewal may shorten": (
        "SIDE_RENEW",
        "math.max(lease, tonumber(ARGV[2]))",
        "ARGV[2]",
    ),
    "a permit's extension is executed": ("PERMIT_RENEW", "not is_settled(KEYS[4], ARGV[1])", "true"),
    "what left a semaphore leaves again": ("SEMAPHORE_LEAVE", "if was_executed(KEYS[3], undone) then", "if false then"),
    "a node forgets an attempt": ("REDLOCK_ACQUIRE", "if redis.call('exists', KEYS[3]) == 1 then", "if false then"),
    "a node adds a holder that left": (
        "REDLOCK_SEED",
        "redis.call('exists', KEYS[1], KEYS[2])",
        "redis.call('exists', KEYS[1])",
    ),
    "a copy of a message follows any": (
        "TASK_EXPECT",
        "known ~= ARGV[2] and known ~= ARGV[3]",
        "false",
    ),
    "a reservation is any message's": ("TASK_RESERVATION", "if value == ARGV[2] or", "if value or"),
    "a reservation is taken from a newer message": (
        "TASK_QUEUE",
        "if was_executed(KEYS[5], request) then",
        "if false then",
    ),
}


@pytest.mark.parametrize(("name", "old", "new"), MUTANTS.values(), ids=MUTANTS.keys())
def test_another_outcome_without_a_protection(monkeypatch, request, redis_client, name, old, new):
    script = getattr(scripts, name)
    changed_scripts(old, new)(monkeypatch)
    usual = play_usually(script, redis_client)
    play(script, getattr(scripts, name), "late", request.getfixturevalue("proxy"))  # which loads the mutant too
    eventually(is_settled)
    assert not is_like(outcome(redis_client), usual)


def play_usually(script, redis_client):
    """The outcome when nothing goes wrong."""
    STORIES[script](lambda: None)
    usual = outcome(redis_client)
    HOLDS.clear()
    thread_owner().new_id()
    redis_client.flushdb()
    return usual


def play(script, sent, deed, proxy):
    """Tell a script's story with a command that is obeyed twice, or late; what is sent may be a mutant of it."""
    rules: list[Any] = []
    strike = {"twice": proxy.lose_reply, "late": proxy.copy_late}[deed]
    STORIES[script](lambda: rules.append(strike(sent)))
    [rule] = rules
    assert rule.served.is_set()
    if deed == "late":
        rule.let_go.set()
        assert rule.obeyed.wait(UNTIL_SERVED)


@pytest.fixture(autouse=True)
def forget():
    """Forget the holds that a story leaves."""
    yield
    HOLDS.clear()


def outcome(redis_client):
    """Each key, and each permit, with what is under it and its lease in ms, whatever the owners' names."""
    names = [key for key in redis_client.scan_iter() if not PASSES.match(key)]
    found = {OWNER.sub("owner", key): (content(redis_client, key), redis_client.pttl(key)) for key in names}
    leases = redis_client.eval(LEASES, 1, keys.permits_key(NUMBER))
    permits = {number: ("", left) for number, left in enumerate(leases)}
    return found | permits


def content(redis_client, key):
    kind = redis_client.type(key)
    if kind == "hash":
        return sorted((OWNER.sub("owner", field), value) for field, value in redis_client.hgetall(key).items())
    return redis_client.zcard(key) if kind == "zset" else TIMES.sub("\nthen ", redis_client.get(key) or "")


def is_like(found, usual):
    """Whether both are the same, but for the time that has passed."""
    return found.keys() == usual.keys() and all(
        found[key][0] == there and 0.5 <= found[key][1] / left <= 2  # of an endless one -1 / -1
        for key, (there, left) in usual.items()
    )
