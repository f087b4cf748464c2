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

from django_rlock._redis.keys import MOST_KEPT
from django_rlock._redis.scripts import Script

Argument = str | int | bytes

REMEMBERED = 120.0
"""How long a server remembers requests that it must not execute again, in seconds. This is longer than a command is
retried and undone, and longer than a delayed copy of it may be under way."""

ASKING = b"*1\r\n$6\r\nASKING\r\n"
"""Precedes a command to a cluster node that is importing the slot but does not serve it yet."""

_MOST_KEYS_KEPT = 8
"""Calls with few keys are kept; those of MultiLocks would fill the memory: see ``ManyKeys``."""

_NONCE_SIZE = 15
"""How many digits a nonce has. Scripts compare nonces as floats, which are exact up to there; and no process makes so
many calls that one more is needed."""

_first = 10 ** (_NONCE_SIZE - 1) + int.from_bytes(os.urandom(5))
next_nonce: Callable[[], bytes] = map(b"%d".__mod__, itertools.count(_first)).__next__
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


class Prepared:
    """The common part of many calls: a script with its keys and all arguments but the first.

    It is packed when the first of them is sent, because calls that are joined never are. ``has_fresh`` must say whether
    the calls have a ``fresh``, because a command begins with the number of its words.
    """

    __slots__ = ("args", "has_fresh", "head", "keys", "script", "tail")

    tail: bytes

    def __init__(
        self, script: Script, keys: tuple[str, ...], args: tuple[Argument, ...], has_fresh: bool = False
    ) -> None:
        self.script = script
        self.keys = keys
        self.args = args
        self.has_fresh = has_fresh
        self.head = b""

    def pack(self) -> None:
        """Pack what is before the nonce of a call by ``EVALSHA``, and what follows its first argument."""
        self.tail = _kept_tail(self.args) if len(self.keys) <= _MOST_KEYS_KEPT else pack_words(self.args)
        self.head = self.beginning("EVALSHA")  # last, since an interrupted caller must leave both or neither

    def beginning(self, verb: str) -> bytes:
        """What is before the nonce, with its length, if the script is called by ``EVALSHA``, or sent by ``EVAL``."""
        keys = self.keys
        packed = keys.packed if isinstance(keys, ManyKeys) else _pack_keys(keys)
        start = _kept_start(verb, self.script, len(keys), 1 + len(self.args) + self.has_fresh)
        return b"%b%b$%d\r\n" % (start, packed, _NONCE_SIZE)

    def sharded(self, to_all: bool) -> Prepared:
        """The same for a Redis Cluster; ``to_all`` is PUBLISH_TO_ALL."""
        script = self.script.sharded(to_all)
        return self if script is self.script else prepare(script, self.keys, self.args, self.has_fresh)


_kept = lru_cache(maxsize=MOST_KEPT)(Prepared)


def prepare(script: Script, keys: tuple[str, ...], args: tuple[Argument, ...], has_fresh: bool = False) -> Prepared:
    """Prepare calls. Those with few keys are kept for the next time, unless they can be joined: then few are sent."""
    keeps = len(keys) <= _MOST_KEYS_KEPT and not script.joins
    return (_kept if keeps else Prepared)(script, keys, args, has_fresh)


class ScriptCall:
    """One call of a script with its first argument, often an owner, for the ``noun`` (usually a lock) called ``name``.

    ``confirm`` says whether REPLICA_ACKS applies. ``sends`` counts how often the server may have executed the call;
    ``sent_at`` is when it was last sent (monotonic seconds).
    """

    __slots__ = ("confirm", "first", "name", "noun", "prepared", "sends", "sent_at")

    fresh: int | None = None
    """The last argument, after ``args``, of calls whose last argument differs each time."""

    def __init__(self, name: str, prepared: Prepared, first: Argument, noun: str = "lock") -> None:
        self.name = name
        self.noun = noun
        self.prepared = prepared
        self.first = first
        self.confirm = False
        self.sends = 0
        self.sent_at = 0.0

    @property
    def script(self) -> Script:
        return self.prepared.script

    @property
    def keys(self) -> tuple[str, ...]:
        return self.prepared.keys

    @property
    def args(self) -> tuple[Argument, ...]:
        """The arguments, without the nonce and ``fresh``."""
        return self.first, *self.prepared.args


def join(calls: Sequence[ScriptCall]) -> ScriptCall:
    """One call in place of several that can be joined (see ``may_join``); its reply has one value for each."""
    first = calls[0]
    keys = tuple([key for call in calls for key in call.prepared.keys])
    args = tuple([word for call in calls for word in call.prepared.args])
    return ScriptCall(first.name, prepare(first.script, keys, args), first.first)


def may_join(call: ScriptCall) -> object:
    """A key that is equal for calls to one server that can be joined."""
    script = call.prepared.script
    return (script, call.first) if script.joins else call


def pack(call: ScriptCall, nonce: bytes, with_source: bool = False) -> bytes:
    """The call as the server reads it (RESP): by its script's digest, or with the source, for a server without it."""
    prepared, first = call.prepared, call.first
    if not prepared.head:
        prepared.pack()
    head = prepared.beginning("EVAL") if with_source else prepared.head
    owner = _kept_owner(first) if type(first) is str else _between(_encoded(first))
    tail = prepared.tail if call.fresh is None else prepared.tail + pack_words((call.fresh,))
    return b"".join((head, nonce, owner, tail))


def pack_command(*words: Argument) -> bytes:
    """Any command as the server reads it."""
    return b"*%d\r\n%b" % (len(words), pack_words(words))


@lru_cache(maxsize=MOST_KEPT)
def _kept_start(verb: str, script: Script, keys: int, args: int) -> bytes:
    """What is before the keys; kept for locks of new names, whose heads are not."""
    words: tuple[Argument, ...] = (verb, script.sha if verb == "EVALSHA" else script.source, keys)
    return b"*%d\r\n%b" % (len(words) + keys + 1 + args, pack_words(words))


@lru_cache(maxsize=MOST_KEPT)
def _kept_owner(owner: str) -> bytes:
    """The first argument, if it is a string: an owner makes several calls."""
    return _between(owner.encode())


def _between(first: bytes) -> bytes:
    """What is between the nonce and the other arguments."""
    return b"\r\n$%d\r\n%b\r\n" % (len(first), first)


@lru_cache(maxsize=MOST_KEPT)
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
