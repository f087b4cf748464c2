"""The Lua scripts, loaded once from the files beside this module.

A script takes a nonce as ``ARGV[1]`` and returns it first, so a reply that belongs to another command is recognised.
The line ``-- include: name`` in a script stands for the text of ``name.lua``.

All are read at import: a process goes on with those of its own version when an update replaces the files, and to take
a lock needs no file.

The sources are for a server of its own. A cluster gets ``script.sharded()``, derived from the same source, which
publishes to the shard of the channel's slot, and to all nodes only for Redisson's clients that listen there.
"""

from __future__ import annotations

import hashlib
import pkgutil
import re
from dataclasses import dataclass
from functools import cache
from typing import cast

OK, LOST, QUEUED = b"OK", b"LOST", b"QUEUED"
"""What scripts reply in words: taken; a hold that was to be entered again is gone; a free lock has to be handed on."""
ENDLESS, ABSENT = -1, -2
"""What scripts reply instead of a lease left in ms, as PTTL does: it has no end; there is nothing."""

_INCLUDE = re.compile(r"^-- include: (\w+)$", re.MULTILINE)
_SHARDED = {
    # A sharded channel must be in the slot of the keys, so a process has one for each lock: keys.wake_channel().
    "'publish', 'rlock_wake:' .. client": (
        "'spublish', 'rlock_wake' .. string.sub(queue, #'rlock_queue' + 1) .. ':' .. client"
    ),
    "redis.pcall('publish', ": "publish_both(",
    # Redisson's clients listen to the shard, or to all nodes.
    "local seen = redis.pcall('pubsub', 'numsub', channel, 'rlock_wake::' .. channel)": (
        "local seen = redis.pcall('pubsub', 'shardnumsub', channel, 'rlock_wake::' .. channel)\n"
        "    seen[2] = math.max(seen[2] or 0, redis.pcall('pubsub', 'numsub', channel)[2] or 0)"
    ),
}


@dataclass(frozen=True, slots=True, eq=False)
class Script:
    """One Lua script; ``sha`` is what EVALSHA calls it by.

    ``joins`` says whether calls with the same first argument may be joined into one: it then has all their keys, and
    after that argument all their others; its reply has one value for each call.
    """

    name: str
    source: str
    sha: str
    joins: bool = False

    @classmethod
    def load(cls, name: str, joins: bool = False) -> Script:
        return cls._from_source(name, _read(name), joins)

    def sharded(self, to_all: bool = False) -> Script:
        """The script for a Redis Cluster; that one's own is itself. ``to_all`` is PUBLISH_TO_ALL."""
        return _sharded(self, to_all)

    @classmethod
    def _from_source(cls, name: str, source: str, joins: bool) -> Script:
        return cls(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest(), joins)


@cache
def _sharded(script: Script, to_all: bool) -> Script:
    source = script.source
    for one_server, cluster in _SHARDED.items():
        source = source.replace(one_server, cluster)
    if "publish_both(" in source:
        source = _read("publish_always" if to_all else "publish_both") + source
    return script if source == script.source else Script._from_source(script.name, source, script.joins)  # noqa: SLF001


@cache
def _read(name: str) -> str:
    text = cast("bytes", pkgutil.get_data(__name__, f"{name}.lua")).decode()
    return _INCLUDE.sub(lambda found: _read(found.group(1)), text)


LOCK_STATE = Script.load("lock_state")
LOCK_HOLDERS = Script.load("lock_holders")
LOCK_RENEW = Script.load("lock_renew", joins=True)
LOCK_EXTEND = Script.load("lock_extend")
LOCK_KEEP = Script.load("lock_keep")
LOCK_FORCE_RELEASE = Script.load("lock_force_release")
RLOCK_ACQUIRE = Script.load("rlock_acquire")
RLOCK_RELEASE = Script.load("rlock_release")
FENCED_ACQUIRE = Script.load("fenced_acquire")
MULTI_ACQUIRE = Script.load("multi_acquire")
MULTI_RELEASE = Script.load("multi_release")
FAIR_ACQUIRE = Script.load("fair_acquire")
FAIR_RELEASE = Script.load("fair_release")
FAIR_LEAVE = Script.load("fair_leave")
FAIR_BEAT = Script.load("fair_beat")
REDLOCK_ACQUIRE = Script.load("redlock_acquire")
REDLOCK_BUMP = Script.load("redlock_bump")
REDLOCK_RELEASE = Script.load("redlock_release")
REDLOCK_RENEW = Script.load("redlock_renew")
REDLOCK_SEED = Script.load("redlock_seed")
REDLOCK_VOUCH = Script.load("redlock_vouch")
READ_ACQUIRE = Script.load("read_acquire")
LIMITED_ACQUIRE = Script.load("limited_acquire")
READ_RELEASE = Script.load("read_release")
READ_RENEW = Script.load("read_renew")
READ_STATE = Script.load("read_state")
WRITE_ACQUIRE = Script.load("write_acquire")
WRITE_RELEASE = Script.load("write_release")
WRITE_RENEW = Script.load("write_renew")
WRITE_BEAT = Script.load("write_beat")
WRITE_WITHDRAW = Script.load("write_withdraw")
WRITE_STATE = Script.load("write_state")
REQUEST_RETIRE = Script.load("request_retire")
COUNTER_READ = Script.load("counter_read")
SEMAPHORE_ACQUIRE = Script.load("semaphore_acquire")
SEMAPHORE_LEAVE = Script.load("semaphore_leave")
SEMAPHORE_RELEASE = Script.load("semaphore_release")
SEMAPHORE_SET = Script.load("semaphore_set")
SEMAPHORE_ADD = Script.load("semaphore_add")
SEMAPHORE_DRAIN = Script.load("semaphore_drain")
SEMAPHORE_DELETE = Script.load("semaphore_delete")
PERMIT_ACQUIRE = Script.load("permit_acquire")
PERMIT_LEAVE = Script.load("permit_leave")
PERMIT_RELEASE = Script.load("permit_release")
PERMIT_RENEW = Script.load("permit_renew")
PERMIT_STATE = Script.load("permit_state")
PERMIT_SET = Script.load("permit_set")
LATCH_SET = Script.load("latch_set")
LATCH_COUNT_DOWN = Script.load("latch_count_down")
LATCH_PASS = Script.load("latch_pass")
LATCH_DELETE = Script.load("latch_delete")
TASK_READ = Script.load("task_read")
TASK_DONE = Script.load("task_done")
TASK_EXPECT = Script.load("task_expect")
TASK_QUEUE = Script.load("task_queue")
TASK_PLACE = Script.load("task_place")
