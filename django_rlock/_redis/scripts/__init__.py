"""The Lua scripts, loaded once from the files beside this module.

A script takes a nonce as ``ARGV[1]`` and returns it first, so a reply that belongs to another command is recognised.
The nonce alone stands for the usual reply, OK or 1: to return a table costs a server as much as one or two commands.
The line ``-- include: name`` in a script stands for the text of ``name.lua``.

All are read at import: a process goes on with those of its own version when an update replaces the files, and to take
a lock needs no file.

The sources are for a single server. A cluster gets ``script.sharded()``, derived from the same source, which
publishes to the shard of the channel's slot, and to all nodes only for Redisson's clients that listen there.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from functools import cache
from typing import Any, cast

from django_rlock._redis import keys

OK, LOST, QUEUED = b"OK", b"LOST", b"QUEUED"
"""The words in scripts' replies: the lock was taken; the hold to re-enter is gone; a free lock must be granted to a
waiter."""
ENDLESS, ABSENT = -1, -2
"""The values instead of a remaining lease in ms, as for PTTL: the lease has no end; the key does not exist."""

KeysOf = Callable[[str], tuple[str, ...]]
"""Returns a script's keys for the key of a lock: a function of ``_redis.keys``, which puts it in them as it is, or with
braces."""

_WORDS = {OK: "OK", LOST: "LOST", QUEUED: "QUEUED", b"UPGRADE": "UPGRADE"}
_VALUES = {"OK": bytes, "bytes": bytes, "int": int}
_get_data: Callable[[str], bytes] = cast("Any", __spec__).loader.get_data
"""Reads a file beside this module, also in a zip file: as pkgutil.get_data(), which takes three times as long."""
_INCLUDE = re.compile(r"-- include: (\w+)$", re.MULTILINE)  # without "^": re finds a literal prefix fast
_SHARDED = {
    # A sharded channel must be in the slot of the keys, so a process has one for each lock: keys.wake_channel().
    "'publish', 'rlock_wake:' .. client": (
        "'spublish', 'rlock_wake' .. string.sub(queue, #'rlock_queue' + 1) .. ':' .. client"
    ),
    "redis.pcall('publish', ": "publish_both(",
    # Redisson's clients listen to the shard, or to all nodes.
    "local seen = redis.pcall('pubsub', 'numsub', channel)\n": (
        "local seen = redis.pcall('pubsub', 'shardnumsub', channel)\n"
        "    seen[2] = math.max(seen[2] or 0, redis.pcall('pubsub', 'numsub', channel)[2] or 0)\n"
    ),
    "local seen = redis.pcall('pubsub', 'numsub', channel, 'rlock_wake::' .. channel)": (
        "local seen = redis.pcall('pubsub', 'shardnumsub', channel, 'rlock_wake::' .. channel)\n"
        "    seen[2] = math.max(seen[2] or 0, redis.pcall('pubsub', 'numsub', channel)[2] or 0)"
    ),
}


class Script:
    """One Lua script; ``sha`` is its digest for EVALSHA.

    ``joins`` says whether calls with the same first argument may be joined into one: it then has all their keys, and
    after that argument all their others; its reply has one value for each call. ``reply`` is a pattern for the values
    after the nonce: ``int``, ``bytes`` (text in UTF-8), ``texts`` (a list of bytes), ``numbers`` (a list of int),
    ``empty`` (a list), or the word itself, as ``OK``. ``usual`` are the most frequent replies that are a single value,
    and ``grants`` the types of the replies, with the nonce, that have values after ``OK``: both are recognized without
    the pattern. The nonce alone stands for the first of ``usual``.

    ``keys_of`` returns the script's keys for the key of a lock; it raises TypeError if they depend on more than that.
    """

    __slots__ = ("grants", "joins", "keys_of", "name", "reply", "sha", "source", "usual")

    def __init__(self, name: str, source: str, reply: str, keys_of: KeysOf, joins: bool) -> None:
        self.name = name
        self.source = source
        self.sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
        self.reply = reply
        self.keys_of = keys_of
        self.joins = joins
        alternatives = reply.split("|")
        alone = {each.strip("()+") for each in alternatives}
        self.usual: tuple[bytes | int, ...] = (*([OK] if "OK" in alone else ()), *((1, 0) if "int" in alone else ()))
        words = [each.split() for each in alternatives if each.startswith("OK ")]
        self.grants = {(bytes, *map(_VALUES.__getitem__, each)) for each in words if _VALUES.keys() >= set(each)}

    @classmethod
    def load(cls, name: str, reply: str = "int", keys_of: KeysOf = keys.unknown, joins: bool = False) -> Script:
        return cls(name, _read(name), reply, keys_of, joins)

    def may_reply(self, values: list[Any]) -> bool:
        """Whether these values may follow the nonce in a reply."""
        return _pattern(self.reply).fullmatch("".join([f" {_kind(value)}" for value in values])) is not None

    def sharded(self, to_all: bool = False) -> Script:
        """The script for a Redis Cluster; that one's own is itself. ``to_all`` is PUBLISH_TO_ALL."""
        return _sharded(self, to_all)

    def with_source(self, source: str) -> Script:
        """The same script with another source."""
        return Script(self.name, source, self.reply, self.keys_of, self.joins)


@cache
def _pattern(reply: str) -> re.Pattern[str]:
    bytes_of_any_kind = "|".join(("bytes", *_WORDS.values()))
    return re.compile(re.sub(r" ?(\w+)", r" \1", reply).replace("bytes", f"(?:{bytes_of_any_kind})"))


def _kind(value: Any) -> str:
    """A value of a reply in the words of ``Script.reply``."""
    if type(value) is bytes:
        try:
            text = value.decode()
        except UnicodeDecodeError:
            return "garbage"
        return text if value in _WORDS else "bytes"
    if type(value) is not list:
        return type(value).__name__
    kinds = {type(each) for each in value}
    return "empty" if not kinds else "texts" if kinds == {bytes} else "numbers" if kinds == {int} else "mixed"


@cache
def _sharded(script: Script, to_all: bool) -> Script:
    source, publishing = script.source, _read("publish_always" if to_all else "publish_both")
    if source.startswith(publishing):
        return script
    for one_server, cluster in _SHARDED.items():
        source = source.replace(one_server, cluster)
    if "publish_both(" in source:
        source = publishing + source
    return script if source == script.source else script.with_source(source)


@cache
def _read(name: str) -> str:
    text = _get_data(f"{__path__[0]}{os.sep}{name}.lua").decode()
    return _INCLUDE.sub(lambda found: _read(found.group(1)), text)


LOCK_STATE = Script.load("lock_state", "int int", keys.state_key)
LOCK_HOLDERS = Script.load("lock_holders", "texts|empty", keys.state_key)
LOCK_RENEW = Script.load("lock_renew", "(int)+", keys.state_key, joins=True)
LOCK_EXTEND = Script.load("lock_extend")
LOCK_KEEP = Script.load("lock_keep", keys_of=keys.shorter_lease_keys)
LOCK_FORCE_RELEASE = Script.load("lock_force_release", keys_of=keys.force_release_keys)
RLOCK_ACQUIRE = Script.load("rlock_acquire", "OK|LOST|int", keys.state_key)
RLOCK_RELEASE = Script.load("rlock_release", keys_of=keys.release_keys)
RLOCK_WAIT = Script.load("rlock_wait", "OK|LOST|int int bytes", keys.java_queue_keys)
FENCED_ACQUIRE = Script.load("fenced_acquire", "OK int|LOST|int", keys.fenced_keys)
FENCED_WAIT = Script.load("fenced_wait", "OK int|LOST|int int bytes", keys.fenced_wait_keys)
JAVA_HEARTBEAT = Script.load("java_heartbeat", "(int int)+", keys.java_queue_keys)
JAVA_LEAVE = Script.load("java_leave", keys_of=keys.release_keys)
MULTI_ACQUIRE = Script.load("multi_acquire", "OK|OK numbers|QUEUED|int int")
MULTI_RELEASE = Script.load("multi_release", "OK|numbers")
FAIR_ACQUIRE = Script.load("fair_acquire", "OK|LOST|int int bytes", keys.fair_keys)
FAIR_RELEASE = Script.load("fair_release", keys_of=keys.fair_release_keys)
FAIR_LEAVE = Script.load("fair_leave", keys_of=keys.fair_release_keys)
FAIR_DECLINE = Script.load("fair_decline", keys_of=keys.fair_release_keys)
FAIR_HEARTBEAT = Script.load("fair_heartbeat", "(int int)+", keys.fair_heartbeat_keys)
REDLOCK_ACQUIRE = Script.load("redlock_acquire", "OK int int|OK int int bytes int bytes|LOST|int")
REDLOCK_BUMP = Script.load("redlock_bump")
REDLOCK_RELEASE = Script.load("redlock_release")
REDLOCK_RENEW = Script.load("redlock_renew", "int|int bytes int bytes")
REDLOCK_SEED = Script.load("redlock_seed")
REDLOCK_VOUCH = Script.load("redlock_vouch")
SIDE_RENEW = Script.load("side_renew", "(int)+", keys.side_keys, joins=True)
SIDE_EXTEND = Script.load("side_extend")
READ_ACQUIRE = Script.load("read_acquire", "OK|LOST|int", keys.read_acquire_keys)
LIMITED_ACQUIRE = Script.load("limited_acquire", "OK|LOST|int", keys.side_keys)
READ_HEARTBEAT = Script.load("read_heartbeat", "int int", keys.waiting_side_keys)
READ_RELEASE = Script.load("read_release", keys_of=keys.read_release_keys)
READ_STATE = Script.load("read_state", "int int int", keys.side_keys)
WRITE_ACQUIRE = Script.load("write_acquire", "OK|LOST|UPGRADE|int", keys.readwrite_keys)
WRITE_RELEASE = Script.load("write_release", keys_of=keys.readwrite_keys)
WRITE_HEARTBEAT = Script.load("write_heartbeat", "int int", keys.waiting_side_keys)
WRITE_WITHDRAW = Script.load("write_withdraw")
WRITE_STATE = Script.load("write_state", "int int", keys.state_key)
REQUEST_RETIRE = Script.load("request_retire")
COUNTER_READ = Script.load("counter_read", keys_of=keys.state_key)
SEMAPHORE_ACQUIRE = Script.load("semaphore_acquire", "OK|int")
SEMAPHORE_LEAVE = Script.load("semaphore_leave")
SEMAPHORE_RELEASE = Script.load("semaphore_release")
SEMAPHORE_SET = Script.load("semaphore_set")
SEMAPHORE_ADD = Script.load("semaphore_add")
SEMAPHORE_DRAIN = Script.load("semaphore_drain")
SEMAPHORE_DELETE = Script.load("semaphore_delete")
PERMIT_ACQUIRE = Script.load("permit_acquire", "OK|int")
PERMIT_LEAVE = Script.load("permit_leave")
PERMIT_RELEASE = Script.load("permit_release")
PERMIT_RENEW = Script.load("permit_renew")
PERMIT_STATE = Script.load("permit_state", "int int int")
PERMIT_SET = Script.load("permit_set")
LATCH_SET = Script.load("latch_set")
LATCH_COUNT_DOWN = Script.load("latch_count_down")
LATCH_PASS = Script.load("latch_pass", "OK|int", keys.state_key)
LATCH_DELETE = Script.load("latch_delete")
TASK_READ = Script.load("task_read", "int bytes int", keys.task_keys)
TASK_DONE = Script.load("task_done", keys_of=keys.success_keys)
TASK_FINISH = Script.load("task_finish", "(int)+", joins=True)
TASK_EXPECT = Script.load("task_expect")
TASK_QUEUE = Script.load("task_queue", "bytes bytes int")
TASK_RESERVATION = Script.load("task_reservation", "int bytes int")
