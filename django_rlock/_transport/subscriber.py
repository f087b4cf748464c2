"""The connections on which an alias's messages arrive, and the threads that own them: one for each server."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, cast

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import MovedError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_rlock._core import threads
from django_rlock._core.callbacks import log
from django_rlock._core.clock import monotonic
from django_rlock._core.errors import meaning_of
from django_rlock._core.foreign import server_error
from django_rlock._core.redis_py import slot_of
from django_rlock._redis.keys import is_redissons, marked, plain_mark
from django_rlock._transport.calls import backoff, pack_command
from django_rlock._transport.cluster import Address, SlotMap
from django_rlock._transport.connection import Connection, ErrorReply
from django_rlock._transport.listener import Listener

# --- subscriber -------------------------------------------------------------------------------------------------------

# One listening connection, and the thread that owns it.
#
# Only this thread reads, writes and connects. Other threads put the channels that they want into its inbox, and wake
# it by a byte on a socket.

logger = logging.getLogger("django_rlock.listening")

PING_AFTER = 10.0
"""How long a connection may be silent before a PING checks whether it is alive, in seconds."""
_RECONNECT_AFTER = 0.05, 1.0
_PRUNE_EVERY = 15.0
_LEAST_AGE = 0.5
"""How long a connection is kept at least, in seconds: a server may be a replica for long, and each caller tells it."""
_PING_MARK = ""
"""Stands for a PING among the channels of commands without a reply. A refusal is a sign of life, too."""
_FORBIDDEN = "The server refuses to subscribe to %r, so its waiters only try again now and then: %s"
_yield_processor: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))
"""Lets threads that were just woken run first; it releases the GIL too."""


class Subscriber:
    """Subscribes to the channels that its listener wants from one server, over a connection that ``connect`` opens.

    A connection that brings no reply to SUBSCRIBE or PING within ``reply_limit`` seconds is closed, and a new one is
    opened.
    """

    def __init__(self, listener: Listener, connect: Callable[[], Connection], reply_limit: float) -> None:
        self._listener = listener
        self._open = connect
        self._reply_limit = reply_limit
        self._inbox: deque[str] = deque()
        self._instance = threads.SingleInstance()
        self._runs = self._stopped = False
        self._inner, self._outer = socket.socketpair()
        self._inner.setblocking(False)
        self._outer.setblocking(False)
        self.connection: Connection | None = None
        self._heard_at = self._prune_at = self._connected_at = 0.0
        self._reconnect_at = math.inf
        self._reply_by: float | None = None
        self._tries = 0
        self._has_warned = False
        self._asked: deque[str] = deque()
        """The channels of the commands that subscribe and have no reply yet, in order: an error names no channel."""

    # --- what other threads do ---------------------------------------------------------------------------------------

    def subscribe(self, channel: str) -> None:
        """Subscribe to a channel, soon."""
        self._inbox.append(channel)
        self._wake()

    def prune(self) -> None:
        """Drop the channels that have had no waiter for a while, soon."""
        self._prune_at = 0.0
        self._wake()

    def reconnect(self) -> None:
        """Connect anew, because the server has become a replica; it may leave the connection open."""
        self._reconnect_at = max(monotonic(), self._connected_at + _LEAST_AGE)
        self._wake()

    def stop(self) -> None:
        """End the thread."""
        self._stopped = True
        if self._instance.enter():  # no thread has started, and none will
            self._close()
        else:
            self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # its buffer is full of wake-ups, or it is closed
            self._outer.send(b"\0")
        if not self._runs:
            with contextlib.suppress(RuntimeError):  # interpreter exit, or no threads left; heartbeats go on
                threads.start(self._run, name="rlock-listener")

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        if not self._instance.enter():
            return  # another thread runs it
        self._runs = True
        with selectors.DefaultSelector() as self._selector:
            self._selector.register(self._inner, selectors.EVENT_READ)
            lost: BaseException | None = None
            while not self._stopped:
                try:
                    if lost is None:
                        self._round()
                    else:
                        error, lost = lost, None
                        self._lose(error)  # it sleeps: the thread may be stopped meanwhile
                except BaseException as failure:  # noqa: BLE001 - no waiter would be woken any more
                    lost = failure
            self._hang_up()
        self._close()

    def _close(self) -> None:
        self._inner.close()
        self._outer.close()

    def _round(self) -> None:
        now = monotonic()
        if self._inbox or self.connection is None:
            self._subscribe_to_new()
        left: float | None = None
        if self.connection is not None:
            self._look_after(now)
        if self.connection is not None:  # else there was nothing left to listen for
            reply_by = self._heard_at + PING_AFTER if self._reply_by is None else self._reply_by
            left = max(min(self._prune_at, self._reconnect_at, reply_by) - now, 0.0)
        for key, _ in self._selector.select(left):
            if key.fileobj is self._inner:
                with contextlib.suppress(BlockingIOError):
                    self._inner.recv(4096)  # what is left makes it readable again
            elif self.connection is not None:
                self._read(self.connection)

    def _subscribe_to_new(self) -> None:
        names = []
        with contextlib.suppress(IndexError):
            while True:
                names.append(self._inbox.popleft())
        if self.connection is None:
            names = self._listener.wanted(self)
            if not names:
                return
            self._connect()
            if self._stopped:  # meanwhile
                return
            self._listener.lapse(names)
        if names:
            for name in dict.fromkeys(names):
                self._ask_for(name, self._subscription(name))

    def _ask_for(self, channel: str, command: bytes) -> None:
        """Send a command that subscribes."""
        self._asked.append(channel)
        self._send(command)

    def _subscription(self, channel: str) -> bytes:
        """The command that subscribes to a channel."""
        return pack_command("SUBSCRIBE", *_with_mark(channel))

    def _farewell(self, channel: str) -> bytes:
        """The command that undoes it."""
        return pack_command("UNSUBSCRIBE", *_with_mark(channel))

    def _connect(self) -> None:
        self._reconnect_at = math.inf
        self.connection = connection = self._open()  # first, so that it is closed if the rest fails
        self._selector.register(connection.sock, selectors.EVENT_READ)
        self._heard_at = self._connected_at = now = monotonic()
        self._reply_by = None
        self._prune_at = now + _PRUNE_EVERY

    def _send(self, *commands: bytes) -> None:
        if self.connection is not None:
            self.connection.send(b"".join(commands), self._reply_limit)
            self.connection.sock.settimeout(0)
            # Further commands do not put this off: a process that sends them all the time would never notice a dead
            # connection. An arriving message clears the limit; after that, PING checks that the connection still lives.
            if self._reply_by is None:
                self._reply_by = monotonic() + self._reply_limit

    def _read(self, connection: Connection) -> None:
        while replies := connection.arrived():
            self._heard_at = monotonic()
            self._reply_by = None
            for reply in replies:
                self._take(reply)
            _yield_processor()
            if connection.is_plain:
                return

    def _take(self, reply: Any) -> None:
        if isinstance(reply, ErrorReply):
            error = server_error(str(reply))
            meaning = meaning_of(error)
            if meaning is None or not meaning.is_of_command or not self._asked:
                raise error
            channel = self._asked.popleft()
            if channel != _PING_MARK:  # any reply to that is a sign of life
                log(logger, logging.DEBUG if self._has_warned else logging.WARNING, _FORBIDDEN, channel, error)
                self._has_warned = True
                self._listener.refuse(channel)
            return
        if not isinstance(reply, list):  # PONG, without a subscription
            reply = [b"pong", _PING_MARK.encode()]
        kind, channel, data = _text(reply[0]), _text(reply[1]), reply[2] if len(reply) > 2 else b""
        if self._asked and self._asked[0] == channel and kind in {"subscribe", "ssubscribe", "pong"}:
            self._asked.popleft()
        self._deliver(kind, channel, data)

    def _deliver(self, kind: str, channel: str, data: Any) -> None:
        if kind == "message":
            self._listener.deliver(channel, _text(data))
        elif kind == "subscribe":
            self._tries = 0
            self._listener.confirm(channel)
        elif kind == "unsubscribe" and self._listener.wants(self, channel):
            # A waiter joined while the channel was dropped as idle, and UNSUBSCRIBE reached the server after SUBSCRIBE.
            self._listener.lapse([channel])
            self.subscribe(channel)

    def _look_after(self, now: float) -> None:
        if now >= self._reconnect_at:
            raise RedisConnectionError("its server has become a replica")
        if self._reply_by is not None and now >= self._reply_by:
            raise RedisTimeoutError("The server did not reply on the listening connection.")
        if self._reply_by is None and now >= self._heard_at + PING_AFTER:
            self._ask_for(_PING_MARK, pack_command("PING"))
        if now >= self._prune_at:
            self._prune_at = now + _PRUNE_EVERY
            idle = self._listener.idle_channels(self)
            if idle:
                self._send(*map(self._farewell, idle))
            if not self._listener.wanted(self):
                self._hang_up()

    def _hang_up(self) -> None:
        connection, self.connection = self.connection, None
        self._asked.clear()
        if connection is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(connection.sock)
            connection.close()

    def _lose(self, error: BaseException) -> None:
        self._hang_up()
        self._listener.lapse(self._listener.wanted(self))
        if self._stopped:
            return
        log(logger, logging.INFO, "Listening connection lost (%s); subscribing again.", error)
        self._tries += 1
        time.sleep(backoff(self._tries, *_RECONNECT_AFTER))


def _with_mark(channel: str) -> list[str]:
    """The channel, and for Redisson's locks the mark by which scripts leave this subscriber out of account."""
    return [channel, plain_mark(channel)] if is_redissons(channel) else [channel]


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


# --- a cluster's subscribers ------------------------------------------------------------------------------------------

# Listening to a Redis Cluster: sharded channels, each on the node that serves its slot.
#
# Redisson before 3.22 uses the channels of all nodes (``PUBLISH``), later versions may. So Redisson's channels are
# subscribed both ways, with a sharded channel of our own as the mark of the plain subscription. A script that frees a
# lock publishes to all nodes only if the plain channel has more subscribers than marks: see ``publish_both.lua``.

PLAIN_COPY = b"00"
"""How the plain copy of a sharded message begins: both have been sent, and a process must be woken once. No client
writes a number like that, and Redisson's read it as the same number."""
_TURN_BACK_AFTER = 0.05
"""A pause, in seconds: while a slot moves, two nodes may redirect a subscriber to each other without end."""


class ClusterListener(Listener):
    """Has a subscriber for each node. A channel moves to another subscriber when its slot moves."""

    def __init__(
        self,
        slots: SlotMap,
        connect: Callable[[Address], Connection],
        reply_limit: float,
        decline: Callable[[str, str], object],
    ) -> None:
        super().__init__(lambda _, node: ShardSubscriber(self, cast("Address", node), connect, reply_limit), decline)
        self.slots = slots

    def follow(self, names: Iterable[str]) -> None:
        """Subscribe to channels where their slots are now. Their waiters retry: messages may have been lost."""
        for name in names:
            self.lapse([name])
            if channel := self.channels.get(name):
                self.subscribe(channel)

    def _location(self, channel: str) -> Address:
        # The map may be old: a node that has lost the slot replies with the address of its new node.
        return self.slots.owner(slot_of(channel))


class ShardSubscriber(Subscriber):
    """Subscribes to the channels whose slots one node serves."""

    _listener: ClusterListener

    def __init__(
        self, listener: ClusterListener, address: Address, connect: Callable[[Address], Connection], reply_limit: float
    ) -> None:
        super().__init__(listener, lambda: connect(address), reply_limit)
        self._address = address

    def _subscription(self, channel: str) -> bytes:
        return pack_command("SSUBSCRIBE", channel)

    def _farewell(self, channel: str) -> bytes:
        return pack_command("SUNSUBSCRIBE", plain_mark(channel), channel)

    def _take(self, reply: Any) -> None:
        try:
            super()._take(reply)
        except MovedError as error:
            self._asked.popleft()
            slot = error.slot_id
            slots = self._listener.slots
            slots.moved(slot, slots.redirected(error.host, error.port, self._address))
            time.sleep(_TURN_BACK_AFTER)
            self._listener.follow([name for name in self._listener.wanted(self) if slot_of(name) == slot])

    def _deliver(self, kind: str, channel: str, data: Any) -> None:
        if kind == "smessage" or (kind == "message" and not data.startswith(PLAIN_COPY)):
            super()._deliver("message", channel, data)
        # Three subscriptions, one after the other: had the slot moved, the plain channel would be subscribed on two
        # nodes, and messages come twice. The mark comes last: too few marks cost a message, too many a wake-up.
        elif kind == "ssubscribe" and is_redissons(channel):
            self._ask_for(channel, pack_command("SUBSCRIBE", channel))
        elif kind == "subscribe":
            self._ask_for(plain_mark(channel), pack_command("SSUBSCRIBE", plain_mark(channel)))
        elif kind == "ssubscribe":
            super()._deliver("subscribe", marked(channel), b"")
        elif kind == "sunsubscribe":
            if is_redissons(channel):
                self._send(pack_command("UNSUBSCRIBE", channel))
            if self._listener.wants(self, channel):
                # This process did not unsubscribe: the slot has moved to another node.
                self._listener.slots.doubt(self._address)
                self._listener.follow([channel])

    def _lose(self, error: BaseException) -> None:
        super()._lose(error)
        self._listener.slots.doubt(self._address)
        self._listener.slots.refresh()
        self._listener.follow(
            [name for name in self._listener.wanted(self) if self._listener.slots.owner(slot_of(name)) != self._address]
        )
