"""One listening connection for each alias of a process, read by one thread, shared by all waiters.

Waiters of threads and of asyncio tasks alike are woken by that thread. A channel is subscribed when somebody first
waits on it and kept for a while after the last left, so a contended lock costs no SUBSCRIBE for each wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import redis
from django.core.signals import setting_changed
from redis.exceptions import RedisError

from django_rlock.connections import background_pool
from django_rlock.drivers.base import EVERYBODY

logger = logging.getLogger("django_rlock.pubsub")

KEEP_CHANNEL = 60.0
"""How long a channel stays subscribed after its last waiter left, in seconds."""
CONFIRM_WITHIN = 1.0
"""How long to wait for a subscription's confirmation; without it a waiter depends on its next poll or beat."""
_READ_FOR = 60.0
_RECONNECT_AFTER = 0.05, 1.0


MakeWaiter = Callable[["Listener", str, str | None], "ListenerWaiter"]


class ListenerWaiter:
    """A place in a channel's line; threads and tasks differ in how they sleep."""

    __slots__ = ("__weakref__", "_listener", "channel", "token")

    def __init__(self, listener: Listener, channel: str, token: str | None) -> None:
        self._listener = listener
        self.channel = channel
        self.token = token

    async def wait(self, timeout: float | None) -> bool:
        raise NotImplementedError

    def wake(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self._listener.remove(self)
        if self._has_unused_wake_up() and self.token is None:
            self._listener.wake_next(self.channel, None)

    def _has_unused_wake_up(self) -> bool:
        raise NotImplementedError


class ThreadWaiter(ListenerWaiter):
    """Sleeps in a lock that ``wake`` opens: half the cost of an Event, and a signal interrupts it as well."""

    __slots__ = ("_gate",)

    def __init__(self, listener: Listener, channel: str, token: str | None) -> None:
        super().__init__(listener, channel, token)
        self._gate = threading.Lock()
        self._gate.acquire()

    async def wait(self, timeout: float | None) -> bool:
        return self._gate.acquire(timeout=-1 if timeout is None else min(timeout, threading.TIMEOUT_MAX))

    def wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # open already: one wake-up is kept, not two
            self._gate.release()

    def _has_unused_wake_up(self) -> bool:
        return self._gate.acquire(blocking=False)


class TaskWaiter(ListenerWaiter):
    """Sleeps on an event of its loop."""

    __slots__ = ("_closed", "_event", "_loop")

    def __init__(self, listener: Listener, channel: str, token: str | None) -> None:
        super().__init__(listener, channel, token)
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._closed = False

    async def wait(self, timeout: float | None) -> bool:
        try:
            async with asyncio.timeout(timeout):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True

    def wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # its loop was closed
            self._loop.call_soon_threadsafe(self._arrive)

    def _arrive(self) -> None:
        self._event.set()
        if self._closed and self.token is None:
            self._listener.wake_next(self.channel, None)

    def close(self) -> None:
        self._closed = True
        super().close()

    def _has_unused_wake_up(self) -> bool:
        return self._event.is_set()


class _Channel:
    """A subscription, and when the last waiter left it or looked for it."""

    __slots__ = ("asked", "confirmed", "idle_since", "lapsed")

    def __init__(self) -> None:
        self.asked = False
        self.confirmed = threading.Event()
        self.lapsed = False
        self.idle_since = time.monotonic()


class Listener:
    """Waiters by channel and token, and the thread that wakes them.

    ``_mutex`` guards the tables and is never held during I/O, so an event loop may take it; ``_io`` keeps commands on
    the connection in order. The lines hold their waiters weakly: one whose attempt was interrupted before it could
    leave is gone, and takes nobody's wake-up.
    """

    def __init__(self, using: str) -> None:
        self._client = redis.Redis(connection_pool=background_pool(using))
        self._pubsub = self._new_pubsub()
        # Re-entrant: an abandoned task's waiter leaves when it is collected, which may happen under the mutex.
        self._mutex = threading.RLock()
        self._io = threading.Lock()
        self._channels: dict[str, _Channel] = {}
        self._lines: dict[tuple[str, str | None], deque[weakref.ref[ListenerWaiter]]] = {}
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def overhear(self, channel: str, token: str | None, make: MakeWaiter) -> ListenerWaiter | None:
        """A waiter, when the channel is subscribed and confirmed; else None."""
        with self._mutex:
            known = self._channels.get(channel)
            if known is None or not known.confirmed.is_set():
                return None
            return self._add(make(self, channel, token))

    def join(self, waiter: ListenerWaiter) -> None:
        """Put a waiter in line. It may hear nothing until ``settle`` has returned."""
        with self._mutex:
            self._channels.setdefault(waiter.channel, _Channel())
            self._add(waiter)

    def settle(self, channel: str) -> None:
        """Block until a channel that somebody waits on is subscribed, or CONFIRM_WITHIN has passed."""
        subscription = self._channels[channel]
        with self._io:
            # A signal may come at any point of this, and whoever settles next goes on from there.
            if not subscription.asked:
                # Where it fails the reading thread connects again, and subscribes to all that is wanted.
                with contextlib.suppress(RedisError, OSError):
                    self._pubsub.subscribe(channel)
                    subscription.asked = True
            self._start()
        subscription.confirmed.wait(CONFIRM_WITHIN)

    def remove(self, waiter: ListenerWaiter) -> None:
        """Take a waiter out of its line, if it still stands there."""
        with self._mutex, contextlib.suppress(KeyError, ValueError):
            self._channels[waiter.channel].idle_since = time.monotonic()
            line = self._lines[waiter.channel, waiter.token]
            line.remove(weakref.ref(waiter))
            if not line:
                del self._lines[waiter.channel, waiter.token]

    def wake_all(self, channel: str, token: str | None) -> None:
        """Wake every waiter in the line of this token."""
        with self._mutex:
            for waiter in filter(None, (place() for place in list(self._lines.get((channel, token), ())))):
                waiter.wake()

    def wake_next(self, channel: str, token: str | None) -> None:
        """Wake the waiter that has stood longest in the line of this token, if there is one."""
        with self._mutex:
            line = self._lines.get((channel, token))
            while line:
                # The front goes to the back, so a second message wakes the next one and not the same again.
                line.rotate(-1)
                waiter = line[-1]()
                if waiter is not None:
                    waiter.wake()
                    return
                line.pop()

    def prune(self) -> None:
        """Unsubscribe from channels that nobody has waited on for a while."""
        with self._io:
            before = time.monotonic() - KEEP_CHANNEL
            with self._mutex:
                self._drop_gone()
                busy = {channel for channel, _ in list(self._lines)}
                idle = [name for name, it in self._channels.items() if name not in busy and it.idle_since < before]
                for name in idle:
                    del self._channels[name]
            if idle:
                with contextlib.suppress(RedisError, OSError):
                    self._pubsub.unsubscribe(*idle)

    def stop(self) -> None:
        """End the reading thread."""
        self._stopped.set()
        with self._io, contextlib.suppress(RedisError, OSError):
            self._pubsub.close()

    def _add(self, waiter: ListenerWaiter) -> ListenerWaiter:
        self._lines.setdefault((waiter.channel, waiter.token), deque()).append(weakref.ref(waiter))
        return waiter

    def _drop_gone(self) -> None:
        for key, line in list(self._lines.items()):
            alive = deque(place for place in list(line) if place() is not None)
            if alive:
                self._lines[key] = alive
            else:
                del self._lines[key]

    def _new_pubsub(self) -> Any:  # redis-py's PubSub is half typed
        return self._client.pubsub()  # type: ignore[no-untyped-call]

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._read, name="rlock-listener", daemon=True)
            self._thread.start()

    def _read(self) -> None:
        pause = _RECONNECT_AFTER[0]
        lost = False
        while not self._stopped.is_set():
            try:
                if lost or self._is_deaf():
                    self._reconnect()
                    lost = False
                message = self._pubsub.get_message(timeout=_READ_FOR)
            except Exception as error:  # noqa: BLE001 - a failed SUBSCRIBE takes the socket away in several ways
                if self._stopped.is_set():
                    return
                logger.info("Listening connection lost (%s); subscribing again.", error)
                time.sleep(pause)
                pause = min(pause * 2, _RECONNECT_AFTER[1])
                lost = True
            else:
                pause = _RECONNECT_AFTER[0]
                if message is not None:
                    self._dispatch(message)

    def _dispatch(self, message: dict[str, Any]) -> None:
        channel = _text(message["channel"])
        if message["type"] == "subscribe":
            self._confirm(channel)
        elif message["type"] == "message":
            self._deliver(channel, _text(message["data"]))

    def _deliver(self, channel: str, payload: str) -> None:
        self.wake_all(channel, EVERYBODY)
        exact = (channel, payload) in self._lines
        self.wake_next(channel, payload if exact else None)

    def _confirm(self, name: str) -> None:
        with self._mutex:
            channel = self._channels.get(name)
            if channel is None:
                return
            channel.confirmed.set()
            if channel.lapsed:
                channel.lapsed = False
                # Messages were lost while nobody listened, so whoever waits asks again.
                for line in [line for line in self._lines if line[0] == name]:
                    self.wake_all(*line)

    def _is_deaf(self) -> bool:
        # redis-py raises nothing while it has no subscription: it would wait for one that nobody makes.
        return bool(self._channels) and not self._pubsub.subscribed

    def _reconnect(self) -> None:
        with self._io:
            with contextlib.suppress(RedisError, OSError):
                self._pubsub.close()
            self._pubsub = self._new_pubsub()
            with self._mutex:
                for channel in self._channels.values():
                    channel.confirmed.clear()
                    channel.lapsed = True
                wanted = list(self._channels)
            if wanted:
                self._pubsub.subscribe(*wanted)


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


_listeners: dict[str, Listener] = {}


def listener(using: str) -> Listener:
    """This process's listener of an alias."""
    found = _listeners.get(using)
    if found is None:
        found = _listeners.setdefault(using, Listener(using))
    return found


def prune() -> None:
    """Let every listener drop the channels that it no longer needs."""
    for each in list(_listeners.values()):
        each.prune()


def _stop_on_setting(*, setting: str, **_: object) -> None:
    if setting in {"RLOCK", "CACHES"}:
        while _listeners:
            _listeners.popitem()[1].stop()


setting_changed.connect(_stop_on_setting, dispatch_uid="django_rlock.pubsub")
# The thread and the sockets are the parent's.
os.register_at_fork(after_in_child=_listeners.clear)
