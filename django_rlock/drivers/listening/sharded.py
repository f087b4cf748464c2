"""Listening to a Redis Cluster: sharded channels, each on the node that serves its slot.

Redisson before 3.22 uses the channels of all nodes (``PUBLISH``), later versions may. So Redisson's channels are
subscribed both ways, with a sharded channel of our own as the mark of the plain subscription. A script that frees a
lock publishes to all nodes only if the plain channel has more subscribers than marks: see ``publish_both.lua``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, cast

from redis.exceptions import MovedError

from django_rlock.cluster import Address, SlotMap, slot_of
from django_rlock.drivers.calls import pack_command
from django_rlock.drivers.listening.listener import Listener
from django_rlock.drivers.listening.subscriber import Subscriber
from django_rlock.keys import is_redissons, marked, plain_mark
from django_rlock.links.link import Link

COPY = b"00"
"""How the plain copy of a sharded message begins: both have been sent, and a process must be woken once. No client
writes a number like that, and Redisson's read it as the same number."""
_TURN_BACK_AFTER = 0.05
"""A pause, in seconds: while a slot moves, two nodes may redirect a subscriber to each other without end."""


class ClusterListener(Listener):
    """Has a subscriber for each node. A channel moves to another subscriber when its slot moves."""

    def __init__(self, slots: SlotMap, connect: Callable[[Address], Link], reply_limit: float) -> None:
        super().__init__(lambda _, place: ShardSubscriber(self, cast("Address", place), connect, reply_limit))
        self.slots = slots

    def follow(self, names: Iterable[str]) -> None:
        """Subscribe to channels where their slots are now. Their waiters retry: messages may have been lost."""
        for name in names:
            self.lapse([name])
            if channel := self.channels.get(name):
                self.subscribe(channel)

    def place(self, channel: str) -> Address:
        # According to the current map; a node that no longer serves the slot replies with the one that does.
        return self.slots.owner(slot_of(channel))


class ShardSubscriber(Subscriber):
    """Subscribes to the channels whose slots one node serves."""

    _listener: ClusterListener

    def __init__(
        self, listener: ClusterListener, address: Address, connect: Callable[[Address], Link], reply_limit: float
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

    def _tell(self, kind: str, channel: str, data: Any) -> None:
        if kind == "smessage" or (kind == "message" and not data.startswith(COPY)):
            super()._tell("message", channel, data)
        elif kind in {"ssubscribe", "subscribe"}:
            self._has_subscribed(kind, channel)
        elif kind == "sunsubscribe":
            self._has_unsubscribed(channel)

    def _has_subscribed(self, kind: str, channel: str) -> None:
        # One after the other: had the slot moved, the plain channel would be subscribed on two nodes, and messages come
        # twice. The mark comes last: too few marks cost a message, too many a wake-up.
        if kind == "subscribe":
            self._ask_for(plain_mark(channel), pack_command("SSUBSCRIBE", plain_mark(channel)))
        elif is_redissons(channel):
            self._ask_for(channel, pack_command("SUBSCRIBE", channel))
        else:
            super()._tell("subscribe", marked(channel), b"")

    def _has_unsubscribed(self, channel: str) -> None:
        if is_redissons(channel):
            self._send(pack_command("UNSUBSCRIBE", channel))
        if channel in self._listener.wanted(self):
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
