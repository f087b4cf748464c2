"""Listening to a Redis Cluster: sharded channels, each on the node that serves its slot."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from typing import Any, cast

from redis.exceptions import MovedError, RedisError

from django_rlock.cluster import Address, slot_of
from django_rlock.connections import background_pool, slot_map
from django_rlock.drivers.pubsub import Listener
from django_rlock.drivers.subscriber import Subscriber

_TURN_BACK_AFTER = 0.05
"""While a slot moves, two nodes may send a subscriber to each other, which must not keep it busy, in seconds."""


class ClusterListener(Listener):
    """Has a subscriber for each node, and sends channels after their slots."""

    def __init__(self, using: str) -> None:
        super().__init__(using)
        self.slots = slot_map(using)

    def follow(self, names: Iterable[str]) -> None:
        """Subscribe to channels where their slots are now. Whoever waits asks again: messages may have been lost."""
        for name in names:
            self.lapse([name])
            if channel := self._channels.get(name):
                self._subscribe(name, channel)

    def _place(self, channel: str) -> Address:
        if self.slots.stale:
            self.slots.refresh()
        return self.slots.owner(slot_of(channel))

    def _make_subscriber(self, place: Address | None) -> Subscriber:
        return ShardSubscriber(self, cast("Address", place))


class ShardSubscriber(Subscriber):
    """Hears the channels of one node's slots."""

    _listener: ClusterListener

    def __init__(self, listener: ClusterListener, address: Address) -> None:
        super().__init__(listener, background_pool(listener.using, address))
        self._address = address

    def unsubscribe(self, channels: Iterable[str]) -> None:
        with self._io, contextlib.suppress(RedisError, OSError):
            for channel in channels:
                self._pubsub.sunsubscribe(channel)

    def _ask_for(self, channels: list[str]) -> None:
        for channel in channels:  # in one command they would have to share a slot
            self._pubsub.ssubscribe(channel)

    def _receive(self) -> Any:
        try:
            return super()._receive()
        except MovedError as error:
            slot = error.slot_id
            self._listener.slots.moved(slot, (error.host or self._address[0], error.port))
            time.sleep(_TURN_BACK_AFTER)
            self._listener.follow([name for name in self._listener.wanted(self) if slot_of(name) == slot])
            return None

    def _tell(self, kind: str, channel: str, data: Any) -> None:
        if kind == "sunsubscribe" and channel in self._listener.wanted(self):
            # Nobody here left it: its slot has moved away.
            self._listener.slots.doubt(self._address)
            self._listener.follow([channel])
        else:
            super()._tell(kind.removeprefix("s") if kind in {"smessage", "ssubscribe"} else kind, channel, data)

    def _reconnect(self) -> bool:
        self._listener.slots.doubt(self._address)
        self._listener.slots.refresh()
        gone = [
            name for name in self._listener.wanted(self) if self._listener.slots.owner(slot_of(name)) != self._address
        ]
        self._listener.follow(gone)
        return super()._reconnect()
