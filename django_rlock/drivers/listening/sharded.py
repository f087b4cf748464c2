"""Listening to a Redis Cluster: sharded channels, each on the node that serves its slot."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, cast

from redis.exceptions import MovedError

from django_rlock.cluster import Address, SlotMap, slot_of
from django_rlock.drivers.listening.listener import Listener
from django_rlock.drivers.listening.subscriber import Subscriber
from django_rlock.links.link import Link

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

    subscribe, unsubscribe = "SSUBSCRIBE", "SUNSUBSCRIBE"

    _listener: ClusterListener

    def __init__(
        self, listener: ClusterListener, address: Address, connect: Callable[[Address], Link], reply_limit: float
    ) -> None:
        super().__init__(listener, lambda: connect(address), reply_limit)
        self._address = address

    def _take(self, reply: Any) -> None:
        try:
            super()._take(reply)
        except MovedError as error:
            slot = error.slot_id
            slots = self._listener.slots
            slots.moved(slot, slots.redirected(error.host, error.port, self._address))
            time.sleep(_TURN_BACK_AFTER)
            self._listener.follow([name for name in self._listener.wanted(self) if slot_of(name) == slot])

    def _tell(self, kind: str, channel: str, data: Any) -> None:
        if kind == "sunsubscribe" and channel in self._listener.wanted(self):
            # This process did not unsubscribe: the slot has moved to another node.
            self._listener.slots.doubt(self._address)
            self._listener.follow([channel])
        else:
            super()._tell(kind.removeprefix("s") if kind in {"smessage", "ssubscribe"} else kind, channel, data)

    def _lose(self, error: BaseException) -> None:
        super()._lose(error)
        self._listener.slots.doubt(self._address)
        self._listener.slots.refresh()
        self._listener.follow(
            [name for name in self._listener.wanted(self) if self._listener.slots.owner(slot_of(name)) != self._address]
        )
