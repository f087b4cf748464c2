"""Script calls: packed for the wire, and sent by a driver until their outcome is known, within their caller's time.

Scripts are idempotent (they get absolute counts), so a call whose reply was lost is simply sent again. A reply is
accepted only if it echoes the call's nonce, which is different for each call.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from functools import lru_cache
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from redis.backoff import EqualJitterBackoff
from redis.exceptions import NoScriptError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.sentinel import MasterNotFoundError

from django_rlock._core.clock import monotonic
from django_rlock._core.errors import FILE_ADVICE, clearer, is_down, is_final, meaning_of, unreadable_in
from django_rlock._core.text import reason_of
from django_rlock._redis import scripts
from django_rlock._redis.keys import MOST_KEPT, reservation_change_keys
from django_rlock._redis.scripts import KeysOf, Script
from django_rlock.exceptions import LockUnavailableError

if TYPE_CHECKING:
    from django_rlock._transport.identity import Owner

T = TypeVar("T")
Argument = str | int | bytes

REMEMBERED = 120.0
"""How long a server remembers requests that it must not execute again, in seconds. This is longer than a command is
retried and undone, and longer than a delayed copy of it may be under way."""

ASKING = b"*1\r\n$6\r\nASKING\r\n"
"""Precedes a command to a cluster node that is importing the slot but does not serve it yet."""

_NONCE_SIZE = 15
"""How many digits a nonce has. Lua compares nonces as doubles, which are exact to 15 digits; no process sends enough
calls to need a 16th."""
_NONCE_FOLLOWS = b"$%d\r\n" % _NONCE_SIZE

_first = 10 ** (_NONCE_SIZE - 1) + int.from_bytes(os.urandom(5))
next_nonce: Callable[[], bytes] = map(b"%d".__mod__, itertools.count(_first)).__next__
"""Returns the nonce that a reply must echo; never the same twice in a process."""


class ManyKeys(tuple[str, ...]):
    """Keys that are used in many calls, and are packed once. The code that makes the calls keeps this object."""

    packed: bytes

    def __new__(cls, keys: Iterable[str], packed: bytes | None = None) -> Self:
        made = super().__new__(cls, keys)
        made.packed = pack_words(made) if packed is None else packed
        return made

    def followed_by(self, keys: tuple[str, ...]) -> ManyKeys:
        """These keys, followed by others."""
        if not keys:
            return self
        return ManyKeys((*self, *keys), self.packed + pack_words(keys))


def keys_of(of: KeysOf | tuple[str, ...], key: str) -> tuple[str, ...]:
    """The keys of a call with this key."""
    return of if isinstance(of, tuple) else of(key)


class Template:
    """What is common to the calls of a script for all locks: all arguments but the first, and which keys it has.

    ``of`` returns these for a lock's key; or it is the keys themselves. None means the script's keys for a lock.
    ``end`` follows the first argument; it is empty for a template that is used once.
    """

    __slots__ = ("around", "end", "of", "rest", "script")

    def __init__(
        self, script: Script, rest: tuple[Argument, ...] = (), of: KeysOf | tuple[str, ...] | None = None
    ) -> None:
        of = script.keys_of if of is None else of
        self.script = script
        self.of = of
        self.rest = rest
        is_used_once = isinstance(of, tuple) and not isinstance(of, ManyKeys)
        self.end = b"" if is_used_once else b"\r\n" + pack_words(rest)
        self.around: dict[int, list[bytes]] = {}
        if isinstance(of, ManyKeys):  # all calls have the first of these keys
            head = _start(script, len(of), 2 + len(rest)) + of.packed + _NONCE_FOLLOWS
            self.around[len(of[0].encode()) * (-1 if "{" in of[0] else 1)] = [head]

    def add(self, size: int) -> list[bytes]:
        """Pack what is around each place of a key of this size in bytes, up to the nonce. The size is negative for a
        key that has a hash tag."""
        mark = "\0" if size > 0 else "{\0}"
        keys = keys_of(self.of, mark)
        grows = abs(size) - len(mark)
        framed = "".join([f"${len(key) + grows * key.count(mark)}\r\n{key}\r\n" for key in keys])
        head = _start(self.script, len(keys), 2 + len(self.rest)) + framed.encode() + _NONCE_FOLLOWS
        if len(self.around) >= MOST_KEPT:  # strangers may choose names, and so their sizes
            self.around.clear()
        self.around[size] = pieces = head.split(mark.encode())
        return pieces

    def sharded(self, to_all: bool) -> Template:
        """The same for a Redis Cluster; ``to_all`` is PUBLISH_TO_ALL."""
        script = self.script.sharded(to_all)
        if script is self.script:
            return self
        return Template(script, self.rest, self.of) if isinstance(self.of, tuple) else kept(script, self.rest)


kept = lru_cache(maxsize=MOST_KEPT)(Template)
"""A template that calls for other locks will use, too."""


class ScriptCall:
    """One call of a script with its first argument, often an owner, for the ``noun`` (usually a lock) called ``name``.

    All its keys are in the slot of ``key``. ``confirm`` says whether REPLICA_ACKS applies. ``sends`` counts how often
    the server may have executed the call; ``sent_at`` is when it was last sent (monotonic seconds).
    """

    __slots__ = ("confirm", "first", "key", "name", "noun", "sends", "sent_at", "template")

    fresh: int | None = None
    """The last argument, after ``args``, of calls whose last argument differs each time."""

    def __init__(self, name: str, template: Template, key: str, first: Argument, noun: str = "lock") -> None:
        self.name = name
        self.noun = noun
        self.template = template
        self.key = key
        self.first = first
        self.confirm = False
        self.sends = 0
        self.sent_at = 0.0

    @property
    def script(self) -> Script:
        return self.template.script

    @property
    def keys(self) -> tuple[str, ...]:
        return keys_of(self.template.of, self.key)

    @property
    def args(self) -> tuple[Argument, ...]:
        """The arguments, without the nonce and ``fresh``."""
        return self.first, *self.template.rest


ASKS, RUNS, UNSENT = "", "-", "?"
"""The special arguments of ``reservation_call``."""


def reservation_call(name: str, lock_key: str, key: str, value: str, ms: int | str, starts: int | str) -> ScriptCall:
    """The call that changes a task's reservation at ``key``, for the lock ``name``, if the reservation has that value,
    or is still what TASK_QUEUE has returned: it keeps the reservation for ``ms`` milliseconds from now, or releases it
    (0); with ``ASKS`` it only returns whether the message was replaced. ``starts`` is the number of milliseconds until
    the message starts, or ``RUNS`` or ``UNSENT``.
    """
    all_keys = reservation_change_keys(lock_key, key)
    return ScriptCall(name, Template(scripts.TASK_RESERVATION, (ms, starts), all_keys), lock_key, value)


MOST_JOINED = 10
"""How many calls one script serves at most, because the server does nothing else meanwhile."""


def join(calls: Sequence[ScriptCall]) -> ScriptCall:
    """One call instead of several that can be joined (see ``may_join``); its reply has one value for each."""
    first = calls[0]
    keys = tuple([key for call in calls for key in call.keys])
    rest = tuple([word for call in calls for word in call.template.rest])
    return ScriptCall(first.name, Template(first.script, rest, keys), first.key, first.first)


def may_join(call: ScriptCall) -> object:
    """A key that is equal for calls to one server that can be joined."""
    script = call.template.script
    return (script, call.first) if script.joins else call


_before_first: Callable[[int], bytes] = lru_cache(maxsize=MOST_KEPT)(b"\r\n$%d\r\n".__mod__)
"""Returns what is between the nonce and a first argument of this size."""


def pack(call: ScriptCall, nonce: bytes, with_source: bool = False) -> bytes:
    """The call as the server reads it (RESP): by its script's digest, or with the source, for a server without it."""
    template, key, first = call.template, call.key, call.first
    end = template.end
    first = first.encode() if type(first) is str else _encoded(first)
    if with_source or not end:
        return _packed_once(call, nonce, first, with_source)
    packed_key = key.encode()
    size = -len(packed_key) if "{" in key else len(packed_key)
    around = template.around.get(size) or template.add(size)
    return b"".join((packed_key.join(around), nonce, _before_first(len(first)), first, end))


def _packed_once(call: ScriptCall, nonce: bytes, first: bytes, with_source: bool) -> bytes:
    template = call.template
    keys, rest = keys_of(template.of, call.key), template.rest
    if call.fresh is not None:
        rest = *rest, call.fresh
    start = _start(template.script, len(keys), 2 + len(rest), with_source)
    packed_keys = keys.packed if isinstance(keys, ManyKeys) else pack_words(keys)
    return b"".join((start, packed_keys, _NONCE_FOLLOWS, nonce, b"\r\n", pack_words((first, *rest))))


@lru_cache(maxsize=MOST_KEPT)
def _start(script: Script, keys: int, args: int, with_source: bool = False) -> bytes:
    """The part of a command before its keys."""
    words = ("EVAL", script.source, keys) if with_source else ("EVALSHA", script.sha, keys)
    return b"*%d\r\n%b" % (3 + keys + args, pack_words(words))


def pack_command(*words: Argument) -> bytes:
    """Any command as the server reads it."""
    return b"*%d\r\n%b" % (len(words), pack_words(words))


def pack_words(words: Iterable[Argument]) -> bytes:
    """Pack the words of a command, each with its length."""
    encoded = [word.encode() if type(word) is str else _encoded(word) for word in words]
    return b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in encoded])


def _encoded(word: Argument) -> bytes:
    return b"%d" % word if type(word) is int else word if isinstance(word, bytes) else str(word).encode()


# --- drivers ----------------------------------------------------------------------------------------------------------

# A driver is a *topology*, which knows the servers of the locks (one server, a cluster, or a quorum of nodes), with a
# *binding*, which knows the caller (a thread or an asyncio task): see ``registry``.

EVERYBODY = "*"
"""The token of waiters that every message of their channel wakes."""


class QueueWaiter(Protocol):
    """A caller that sleeps until it is woken. One wake-up is kept if it comes before the sleep.

    ``ticket`` comes from the last message that carried this waiter's token, or is empty: see ``Listener.deliver``.
    """

    ticket: str

    async def wait(self, timeout: float | None) -> bool:
        """Sleep until woken (returns True) or for ``timeout`` seconds (returns False); None means no time limit."""

    def wake(self) -> None:
        """Wake it, from any thread."""

    def close(self, asked: bool = True) -> None:
        """Leave the queue; an unused wake-up goes to the next waiter of the channel.

        ``asked`` is False for a waiter that may have been woken, but did not try to acquire afterwards.
        """


Undo = Callable[[], "ScriptCall"]
"""Makes the call that undoes another one."""


class Caller(Protocol):
    """The part of a driver that a binding provides. Its coroutines block instead of suspending if it is blocking."""

    def owner(self) -> Owner:
        """The owner on whose behalf the current thread or task calls."""

    def sleep(self, seconds: float) -> Coroutine[Any, Any, None]:
        """Sleep when no message could wake the caller."""

    def call(self, function: Callable[..., Any], *args: Any) -> Coroutine[Any, Any, Any]:
        """Call a blocking function without blocking an event loop."""


class Listening(Protocol):
    """The part of a driver by which callers wait for messages."""

    @property
    def channels(self) -> Collection[str]:
        """The channels to which this process is subscribed, or soon will be."""

    def listen_if_subscribed(self, channel: str, token: str | None) -> QueueWaiter | None:
        """A waiter on a channel to which this process is already subscribed, else None."""

    def listen(self, channel: str, token: str | None, until: float | None = None) -> Coroutine[Any, Any, QueueWaiter]:
        """Return a waiter on a channel, once the server has confirmed the subscription, or the monotonic time ``until``
        has come.

        It is woken by messages that carry ``token`` after a ticket, or by every message if ``token`` is EVERYBODY. With
        None it waits in turn with the other such waiters of this process; each message wakes one of them.
        """


class Driver(Caller, Listening, Protocol):
    """The interface that flows use. The coroutines of a blocking driver block instead of suspending."""

    def now(self) -> float:
        """Monotonic time, in seconds."""

    def at(self, using: str) -> Driver:
        """The driver of the same binding for another alias."""

    def location(self, key: str) -> object:
        """Where a key lives. One script may use several keys only if their locations are equal."""

    def run(
        self, call: ScriptCall, until: float | None = None, undo: Undo | None = None
    ) -> Coroutine[Any, Any, list[Any]]:
        """Run a script and return its reply, whose first element is the nonce.

        Connection failures are retried until the monotonic time ``until`` (None: for PATIENCE seconds). A script that
        takes a lock comes with an ``undo``, which is run if fewer replicas confirm the lock than REPLICA_ACKS requires.
        Raises LockUnavailableError when the server is unreachable or refuses, or replicas do not confirm.
        """

    async def run_all(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Run many calls in few round trips; a reply that did not come is replaced by an exception.

        Calls may be sent twice, so they must be safe to repeat: renewals, queries, and clean-up.
        """


_send, _NOTHING = CoroutineType.send, itertools.repeat(None)


def run_flow(flow: Callable[..., Coroutine[Any, Any, T]], args: tuple[Any, ...]) -> T:
    """Call a coroutine function whose coroutine never suspends, because its driver blocks, and run that to its end."""
    try:
        # One call into C makes the coroutine and runs it. If a signal's exception came in between, Python would warn
        # that the coroutine "was never awaited".
        next(map(_send, itertools.starmap(flow, (args,)), _NOTHING))  # type: ignore[arg-type]
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise RuntimeError("A lock's flow suspended under a blocking driver.")


def run_sync(coro: Coroutine[Any, Any, T]) -> T:
    """Like ``run_flow``, for an existing coroutine: used in the package's own threads, which run no signal handlers."""
    return run_flow(lambda: coro, ())


# --- topologies -------------------------------------------------------------------------------------------------------

REPLY_GRACE = 1.0
"""How long a call may exceed its caller's deadline, in seconds, so that a single try has time for a reply."""
SHORTEST = 0.05
"""The minimum time for a reply, in seconds, however long it took to connect, and to try before."""

UNLIMITED = math.inf
"""No limit beyond ``Server.reply_limit``."""
PATIENCE = 30.0
"""How long a call without a deadline retries an unreachable server, in seconds."""
_BACKOFF = 0.05, 1.0
_DOUBLED = 32
"""How often a pause is doubled at most: by then it has reached its maximum, and floats would overflow."""
_RETRIES_AT_ONCE = 2
"""How often a broken connection is retried without a pause, even if the caller has no time left."""

Exchange = Callable[[ScriptCall, bytes, bytes, float], Awaitable[list[Any]]]
"""Sends a packed call within a number of seconds: as ``Binding.exchange``."""


class Topology:
    """The part of a driver that all topologies have: how its binding's callers sleep, wait and own locks.

    ``listening`` is None if waiters are not notified; they retry now and then.
    """

    now = staticmethod(monotonic)

    def __init__(self, binding: Caller, at: Callable[[str], Driver], listening: Listening | None = None) -> None:
        self.owner = binding.owner
        self.sleep = binding.sleep
        self.call = binding.call
        self.at = at
        self._listening = listening
        self.channels: Collection[str] = () if listening is None else listening.channels

    def listen_if_subscribed(self, channel: str, token: str | None) -> QueueWaiter | None:
        return None if self._listening is None else self._listening.listen_if_subscribed(channel, token)

    def listen(self, channel: str, token: str | None, until: float | None = None) -> Coroutine[Any, Any, QueueWaiter]:
        if self._listening is None:
            raise AssertionError("This alias has no listener to wake waiters.")
        return self._listening.listen(channel, token, until)


class RetryingTopology(Topology):
    """A topology whose calls go to one server each, over ``exchange``, and are retried while that may help.

    ``refused_wait_time`` is the alias's REFUSED_WAIT_TIME.
    """

    def __init__(
        self,
        binding: Caller,
        at: Callable[[str], Driver],
        exchange: Exchange,
        refused_wait_time: float | None,
        listening: Listening | None,
    ) -> None:
        super().__init__(binding, at, listening)
        self._exchange = exchange
        self._refused_wait_time = math.inf if refused_wait_time is None else refused_wait_time

    async def run(self, call: ScriptCall, until: float | None = None, undo: Undo | None = None) -> list[Any]:
        nonce = next_nonce()
        # Before it is sent, so that a hold's deadline is never later than the end of its lease: rule 7.
        call.sent_at = now = monotonic()
        limit = math.inf if until is None else REPLY_GRACE
        if until is not None and until > now:
            limit += until - now
        try:
            return await self._exchange(call, pack(call, nonce), nonce, limit)
        except (RedisError, OSError) as error:
            failure: Exception = error
        return await self._run_again(call, until, failure)

    async def _run_again(self, call: ScriptCall, until: float | None, failure: Exception) -> list[Any]:
        # Counts are absolute, so a call that was executed can be sent again: rules 1 and 4 of
        # docs/design/architecture.md. All tries share one REPLY_GRACE.
        give_up_at = call.sent_at + PATIENCE if until is None else max(until, call.sent_at)
        pauses = retries = 0
        with_source = refused = False
        down_since = None
        reason = failure
        while True:
            if isinstance(failure, NoScriptError):
                call.sends -= 1  # certainly not executed
                with_source = True
            elif is_final(failure):
                if refused:
                    self.note_refusal(failure)
                    raise unavailable(call.name, failure, call.noun) from failure
                # Even an error reply may belong to another command; only a second one, on a new connection, counts.
                refused = True
            elif retries >= _RETRIES_AT_ONCE or isinstance(failure, RedisTimeoutError | MasterNotFoundError):
                pauses += 1
                down_since = (down_since or call.sent_at) if is_down(failure) else None
                end = give_up_at if down_since is None else min(give_up_at, down_since + self._refused_wait_time)
                now = monotonic()
                if now >= end:
                    # A refusal that came once may be another command's, and the server may have executed the last try.
                    cause = failure if is_final(reason) else reason
                    raise unavailable(call.name, reason, call.noun) from cause
                await self.sleep(min(backoff(pauses, *_BACKOFF), end - now))
            # The traceback refers to all frames of the call, and one of the frames to the exception. Without this line,
            # the objects of an interrupted caller would live until the garbage collector runs.
            failure.__traceback__ = None
            retries += 1
            nonce = next_nonce()
            call.sent_at = now = monotonic()
            limit = max(give_up_at + REPLY_GRACE - now, SHORTEST)
            try:
                return await self._exchange(call, pack(call, nonce, with_source), nonce, limit)
            except (RedisError, OSError) as error:
                failure, reason = error, clearer(error, reason)

    def note_refusal(self, error: Exception) -> None:
        """Called with the errors by which the server finally refuses a call."""

    async def _alone(self, call: ScriptCall, reply: Any) -> Any:
        """The reply to a call that was sent with others; if it is an error of the server, the result of sending the
        call again by itself."""
        if not isinstance(reply, RedisError):
            return reply
        call.sends -= 1  # certainly not executed
        try:
            return await self.run(call, monotonic())
        except LockUnavailableError as error:
            return error


def backoff(tries: int, shortest: float, longest: float) -> float:
    """How long to sleep after a number of tries, in seconds. It doubles each time, minus a random part of up to half of
    it, so that callers that failed together do not retry together.
    """
    return EqualJitterBackoff(longest, shortest).compute(min(tries - 1, _DOUBLED))


def unavailable(name: str, error: Exception, noun: str = "lock") -> LockUnavailableError:
    """The error for a server that is unreachable or refuses, with advice if the reason is known."""
    meaning = meaning_of(error)
    text = reason_of(error) if meaning is None or meaning.text is None else meaning.text.format(noun=noun)
    advice = FILE_ADVICE if unreadable_in(error) else getattr(meaning, "advice", None)
    if advice is not None:
        advice = f"Nothing was changed; {advice[0].lower()}{advice[1:]}"
    return LockUnavailableError(name, reason=text, advice=advice, noun=noun)
