"""One listening connection for each alias of a process, read by one thread, shared by all waiters.

Waiters of threads and of asyncio tasks alike are woken by that thread. A channel is subscribed when somebody first
waits on it and kept for a while after the last left, so a contended lock costs no SUBSCRIBE for each wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable

from django.core.signals import setting_changed

from django_rlock.cluster import Address
from django_rlock.connections import background_pool, is_cluster
from django_rlock.drivers.base import EVERYBODY
from django_rlock.drivers.subscriber import Subscriber

KEEP_CHANNEL = 60.0
"""How long a channel stays subscribed after its last waiter left, in seconds."""
CONFIRM_WITHIN = 1.0
"""How long to wait for a subscription's confirmation; without it a waiter depends on its next poll or beat."""

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
    """A subscription, who makes it, and when the last waiter left it or looked for it."""

    __slots__ = ("asked", "confirmed", "idle_since", "lapsed", "subscriber")

    def __init__(self) -> None:
        self.subscriber: Subscriber | None = None
        self.asked = False
        self.confirmed = threading.Event()
        self.lapsed = False
        self.idle_since = time.monotonic()


class Listener:
    """Waiters by channel and token, and what wakes them.

    ``_mutex`` guards the tables and is never held during I/O, so an event loop may take it. The lines hold their
    waiters weakly: one whose attempt was interrupted before it could leave is gone, and takes nobody's wake-up.
    """

    def __init__(self, using: str) -> None:
        self.using = using
        self._subscribers: dict[Address | None, Subscriber] = {}
        # Re-entrant: an abandoned task's waiter leaves when it is collected, which may happen under the mutex.
        self._mutex = threading.RLock()
        self._channels: dict[str, _Channel] = {}
        self._lines: dict[tuple[str, str | None], deque[weakref.ref[ListenerWaiter]]] = {}

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

    def settle(self, name: str) -> None:
        """Block until a channel that somebody waits on is subscribed, or CONFIRM_WITHIN has passed."""
        channel = self._channels[name]
        if not channel.asked:
            self._subscribe(name, channel)
        channel.confirmed.wait(CONFIRM_WITHIN)

    def _subscribe(self, name: str, channel: _Channel) -> None:
        channel.subscriber = self._subscriber_at(self._place(name))
        # Where it fails, or a signal comes in between, whoever settles next asks again; and the subscriber does.
        channel.asked = channel.subscriber.subscribe(name)

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
        before = time.monotonic() - KEEP_CHANNEL
        with self._mutex:
            self._drop_gone()
            busy = {channel for channel, _ in list(self._lines)}
            idle = [name for name, it in self._channels.items() if name not in busy and it.idle_since < before]
            leaving = [(name, self._channels.pop(name).subscriber) for name in idle]
        for subscriber in {subscriber for _, subscriber in leaving if subscriber}:
            subscriber.unsubscribe([name for name, its in leaving if its is subscriber])

    def stop(self) -> None:
        """End the reading threads."""
        for subscriber in list(self._subscribers.values()):
            subscriber.stop()

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

    def deliver(self, channel: str, payload: str) -> None:
        """Wake those whom a message is for."""
        self.wake_all(channel, EVERYBODY)
        exact = (channel, payload) in self._lines
        self.wake_next(channel, payload if exact else None)

    def confirm(self, name: str) -> None:
        """A channel is subscribed."""
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

    def wanted(self, subscriber: Subscriber) -> list[str]:
        """The channels that a subscriber should hear."""
        with self._mutex:
            return [name for name, channel in self._channels.items() if channel.subscriber is subscriber]

    def lapse(self, names: Iterable[str]) -> None:
        """Channels are not heard until they are confirmed again."""
        with self._mutex:
            for channel in filter(None, map(self._channels.get, names)):
                channel.confirmed.clear()
                channel.lapsed = True

    def _place(self, channel: str) -> Address | None:
        """Which node of a cluster publishes to a channel."""
        return None

    def _subscriber_at(self, place: Address | None) -> Subscriber:
        found = self._subscribers.get(place)
        return found or self._subscribers.setdefault(place, self._make_subscriber(place))

    def _make_subscriber(self, place: Address | None) -> Subscriber:
        return Subscriber(self, background_pool(self.using, place))


_listeners: dict[str, Listener] = {}


def listener(using: str) -> Listener:
    """This process's listener of an alias."""
    found = _listeners.get(using)
    if found is None:
        found = _listeners.setdefault(using, _make_listener(using))
    return found


def _make_listener(using: str) -> Listener:
    if is_cluster(using):
        from django_rlock.drivers.shards import ClusterListener

        return ClusterListener(using)
    return Listener(using)


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
