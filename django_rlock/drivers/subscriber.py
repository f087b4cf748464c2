"""One listening connection, and the thread that reads it."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import redis
from redis.exceptions import RedisError

if TYPE_CHECKING:
    from django_rlock.drivers.pubsub import Listener

logger = logging.getLogger("django_rlock.pubsub")

_READ_FOR = 60.0
_RECONNECT_AFTER = 0.05, 1.0


class Subscriber:
    """Hears the channels that its listener wants from it, and tells the listener.

    ``_io`` keeps commands on the connection in order. The thread runs while there is something to hear.
    """

    def __init__(self, listener: Listener, pool: redis.ConnectionPool) -> None:
        self._listener = listener
        client: Any = redis.Redis(connection_pool=pool)  # redis-py's PubSub is half typed
        self._client = client
        self._pubsub = client.pubsub()
        self._io = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def subscribe(self, channel: str) -> bool:
        """Ask to hear a channel; answers whether the server was asked. If not, the thread will ask it."""
        asked = False
        with self._io:
            with contextlib.suppress(RedisError, OSError):
                self._ask_for([channel])
                asked = True
            self._start()
        return asked

    def unsubscribe(self, channels: Iterable[str]) -> None:
        """Hear no more of some channels."""
        with self._io, contextlib.suppress(RedisError, OSError):
            self._pubsub.unsubscribe(*channels)

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        with self._io, contextlib.suppress(RedisError, OSError):
            self._pubsub.close()

    def _ask_for(self, channels: list[str]) -> None:
        self._pubsub.subscribe(*channels)

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._read, name="rlock-listener", daemon=True)
            self._thread.start()

    def _read(self) -> None:
        pause = _RECONNECT_AFTER[0]
        lost = False
        while not self._stopped.is_set():
            try:
                if (lost or self._is_deaf()) and not self._reconnect():
                    return
                lost = False
                message = self._receive()
                if message is not None:
                    self._tell(message["type"], _text(message["channel"]), message["data"])
                pause = _RECONNECT_AFTER[0]
            except Exception as error:  # noqa: BLE001 - a failed SUBSCRIBE takes the socket away in several ways
                if self._stopped.is_set():
                    return
                logger.info("Listening connection lost (%s); subscribing again.", error)
                time.sleep(pause)
                pause = min(pause * 2, _RECONNECT_AFTER[1])
                lost = True

    def _receive(self) -> Any:
        return self._pubsub.get_message(timeout=_READ_FOR)

    def _tell(self, kind: str, channel: str, data: Any) -> None:
        if kind == "message":
            self._listener.deliver(channel, _text(data))
        elif kind == "subscribe":
            self._listener.confirm(channel)
        elif kind == "unsubscribe" and channel in self._listener.wanted(self):
            # It was dropped as idle while somebody asked for it again, and the server was told so in the wrong order.
            self._listener.lapse([channel])
            self.subscribe(channel)

    def _is_deaf(self) -> bool:
        # redis-py raises nothing while it has no subscription: it would wait for one that nobody makes.
        return not self._pubsub.subscribed and bool(self._listener.wanted(self))

    def _reconnect(self) -> bool:
        """Subscribe to all that is wanted on a new connection; False where that is nothing, and the thread ends."""
        with self._io:
            with contextlib.suppress(RedisError, OSError):
                self._pubsub.close()
            self._pubsub = self._client.pubsub()
            wanted = self._listener.wanted(self)
            if not wanted:
                self._thread = None
                return False
            self._listener.lapse(wanted)
            self._ask_for(wanted)
            return True


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
