"""Script calls, and how they are packed for the wire.

Scripts are idempotent (they get absolute counts), so a call whose reply was lost is simply sent again. A reply is
accepted only if it echoes the call's nonce, which is different for each call.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Self

from django_rlock.scripts import Script

Argument = str | int | bytes

REMEMBERED = 120.0
"""How long a server remembers requests that it must not execute again, in seconds. This is longer than a command is
retried and undone, and longer than a delayed copy of it may be under way."""

ASKING = b"*1\r\n$6\r\nASKING\r\n"
"""Precedes a command to a cluster node that is importing the slot but does not serve it yet."""

_MOST_KEYS_KEPT = 8
"""Packed heads are cached for calls with few keys; those of MultiLocks would fill the memory: see ``ManyKeys``."""

next_nonce: Callable[[], bytes] = map(b"%d".__mod__, itertools.count(int.from_bytes(os.urandom(4)))).__next__
"""Returns the nonce that a reply must echo; never the same twice in a process."""


class ManyKeys(tuple[str, ...]):
    """Keys that are used in many calls, and are packed once. The code that makes the calls keeps this object."""

    packed: bytes

    def __new__(cls, keys: Iterable[str], packed: bytes | None = None) -> Self:
        made = super().__new__(cls, keys)
        made.packed = _pack_keys(made) if packed is None else packed
        return made

    def followed_by(self, keys: tuple[str, ...]) -> ManyKeys:
        """These keys, followed by others."""
        return ManyKeys((*self, *keys), self.packed + _pack_keys(keys))


class ScriptCall:
    """One script with its keys and arguments (without the nonce), for the ``noun`` (usually a lock) called ``name``.

    ``confirm`` says whether REPLICA_ACKS applies. ``hasty`` says whether to give up at once when the server refuses
    connections. ``sends`` counts how often the server may have executed the call; ``sent_at`` is when it was last sent
    (monotonic seconds).
    """

    __slots__ = ("args", "confirm", "hasty", "keys", "name", "noun", "script", "sends", "sent_at")

    fresh: int | None = None
    """The last argument, after ``args``, of calls whose last argument differs each time; it is not cached."""

    def __init__(
        self, name: str, script: Script, keys: tuple[str, ...], args: tuple[Argument, ...], noun: str = "lock"
    ) -> None:
        self.name = name
        self.noun = noun
        self.script = script
        self.keys = keys
        self.args = args
        self.confirm = False
        self.hasty = False
        self.sends = 0
        self.sent_at = 0.0


def join(calls: Sequence[ScriptCall]) -> ScriptCall:
    """One call in place of several that can be joined (see ``may_join``); its reply has one value for each."""
    first = calls[0]
    shared = first.script.shared
    keys = tuple([key for call in calls for key in call.keys])
    others = [word for call in calls for word in call.args[shared:]]
    return ScriptCall(first.name, first.script, keys, (*first.args[:shared], *others))


def may_join(call: ScriptCall) -> object:
    """A key that is equal for calls to one server that can be joined."""
    shared = call.script.shared
    return call if shared is None else (call.script, call.args[:shared])


def pack(call: ScriptCall, nonce: bytes, verb: str = "EVALSHA") -> bytes:
    """The call as the server reads it (RESP). The nonce, the first argument (an owner) and ``fresh`` are packed each
    time; the rest is cached."""
    keys, args = call.keys, call.args
    first = args[0]
    owner = first.encode() if type(first) is str else _encoded(first)
    count = len(args) if call.fresh is None else len(args) + 1
    if len(keys) <= _MOST_KEYS_KEPT and verb == "EVALSHA":
        head, tail = _kept_head(call.script, keys, count), _kept_tail(args[1:])
    else:
        head, tail = _head(verb, call.script, keys, count), pack_words(args[1:])
    if call.fresh is not None:
        tail += pack_words((call.fresh,))
    return b"%b$%d\r\n%b\r\n$%d\r\n%b\r\n%b" % (head, len(nonce), nonce, len(owner), owner, tail)


def pack_command(*words: Argument) -> bytes:
    """Any command as the server reads it."""
    return b"*%d\r\n%b" % (len(words), pack_words(words))


def _head(verb: str, script: Script, keys: tuple[str, ...], args: int) -> bytes:
    packed = keys.packed if isinstance(keys, ManyKeys) else _pack_keys(keys)
    return _kept_start(verb, script, len(keys), args) + packed


@lru_cache(maxsize=1024)
def _kept_start(verb: str, script: Script, keys: int, args: int) -> bytes:
    """What is before the keys; kept for locks of new names, whose heads are not."""
    words: tuple[Argument, ...] = (verb, script.sha if verb == "EVALSHA" else script.source, keys)
    return b"*%d\r\n%b" % (len(words) + keys + 1 + args, pack_words(words))


@lru_cache(maxsize=1024)
def _kept_head(script: Script, keys: tuple[str, ...], args: int) -> bytes:
    return _kept_start("EVALSHA", script, len(keys), args) + _pack_keys(keys)


@lru_cache(maxsize=1024)
def _kept_tail(args: tuple[Argument, ...]) -> bytes:
    return pack_words(args)


def pack_words(words: tuple[Argument, ...] | list[Argument]) -> bytes:
    """Pack the words of a command, each with its length."""
    return _framed(map(_encoded, words))


def _pack_keys(keys: Iterable[str]) -> bytes:
    """The same for strings only, in a third of the time."""
    return _framed(map(str.encode, keys))


def _framed(words: Iterable[bytes]) -> bytes:
    return b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


def _encoded(word: Argument) -> bytes:
    if type(word) is str:
        return word.encode()
    return word if isinstance(word, bytes) else str(word).encode()
