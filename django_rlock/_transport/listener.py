"""The channels of an alias, and the waiters on each of them."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Protocol

from django_rlock._core import threads
from django_rlock._core.clock import monotonic
from django_rlock._core.interruptions import disarm, guard
from django_rlock._core.threads import LoopEvent, snapshot
from django_rlock._transport.calls import EVERYBODY
from django_rlock._transport.cluster import Address

# --- channels ---------------------------------------------------------------------------------------------------------

# The waiters on each channel of an alias, and what wakes them.
#
# A channel is subscribed when a caller first waits on it, and stays subscribed for a while after the last waiter
# left, so a contended lock costs no SUBSCRIBE for each wait. Callers change the tables by single calls into C and
# take no mutex; if two change the same thing at once, the later one checks whether its change still holds. The queues
# refer to their waiters weakly: a waiter whose attempt was interrupted before it could leave is collected, and takes
# no wake-up from another one.

KEEP_CHANNEL = 60.0
"""How long a channel stays subscribed after its last waiter left, in seconds."""
CONFIRM_WITHIN = 1.0
"""How long to wait for a subscription's confirmation; without it a waiter depends on its next poll or heartbeat."""
_SAME_MESSAGE = 1.0
"""For how long after a message has woken a waiter another alias of the server may hear that message, in seconds."""
_MOST_WOKEN = 1000

_SHARED = None, EVERYBODY
"""The tokens that many waiters share: their queues are kept, since another waiter may join as the last one leaves."""

MakeWaiter = Callable[["Listener", str, str | None], "ListenerWaiter"]
WaitLine = deque[weakref.ref["ListenerWaiter"]]


class Subscribing(Protocol):
    """The part of ``Subscriber`` that listeners use."""

    def subscribe(self, channel: str) -> None: ...

    def reconnect(self) -> None: ...

    def stop(self) -> None: ...


class Channel:
    """A subscription and its waiters.

    ``lines`` are the queues of waiters by token. The other fields are written by the subscriber's thread, except
    ``subscriber``, which makes the subscription, and ``idle_since``: when a waiter last left or checked the channel.
    """

    __slots__ = ("confirmed", "idle_since", "lapsed", "lines", "name", "settling", "subscriber")

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines: dict[str | None, WaitLine] = {}
        self.settling: WaitLine = deque()
        self.subscriber: Subscribing | None = None
        self.confirmed = False
        self.lapsed = False
        self.idle_since = monotonic()

    def waiters(self) -> list[ListenerWaiter]:
        return [waiter for line in snapshot(self.lines.values()) for ref in snapshot(line) if (waiter := ref())]

    def tidy(self) -> None:
        """Remove waiters that were dropped from their queues."""
        for line in snapshot(self.lines.values()):
            for ref in snapshot(line):
                if ref() is None:
                    self.idle_since = monotonic()
                    with contextlib.suppress(ValueError):  # another thread was faster
                        line.remove(ref)


class Listener:
    """The channels of an alias. ``make_subscriber`` connects to a node of the cluster, or to the one server (None).
    ``decline`` is called with the channel and the token of each message for a single waiter that does not wait here."""

    def __init__(
        self,
        make_subscriber: Callable[[Listener, Address | None], Subscribing],
        decline: Callable[[str, str], object] = lambda _channel, _token: None,
    ) -> None:
        self._make_subscriber = make_subscriber
        self._decline = decline
        self.subscribers: dict[Address | None, Subscribing] = {}
        self._is_stopped = False
        self.channels: dict[str, Channel] = {}
        self._woken: deque[tuple[str, float]] = deque(maxlen=_MOST_WOKEN)

    # --- what callers do ---------------------------------------------------------------------------------------------

    def listen_if_subscribed(self, name: str, token: str | None, make: MakeWaiter) -> ListenerWaiter | None:
        """Return a waiter if the channel is already subscribed and confirmed, else None."""
        channel = self.channels.get(name)
        if channel is None or not channel.confirmed:
            return None
        waiter = make(self, name, token)
        self._add(channel, waiter)
        # The channel may just have been dropped as idle.
        return waiter if self.channels.get(name) is channel and channel.confirmed else None

    async def listen(self, name: str, token: str | None, make: MakeWaiter, until: float | None) -> ListenerWaiter:
        """Return a waiter, once the channel is subscribed, or CONFIRM_WITHIN has passed, or ``until`` has come."""
        waiter = make(self, name, token)
        try:
            channel = self._join(waiter)
            if not channel.confirmed:
                self._settle(channel, waiter)
                left = math.inf if until is None else until - monotonic()
                await waiter.wait(min(CONFIRM_WITHIN, left))  # a message wakes it too, and proves the subscription
        except BaseException:
            waiter.close(asked=False)
            raise
        return waiter

    def call_at(self, name: str, function: Callable[[str], object]) -> ListenerWaiter:
        """Call a function with each message of a channel, for as long as the returned waiter is kept.

        The function is also called with an empty string whenever the subscription is confirmed, for the first time or
        again, because messages may have been missed before.
        """
        waiter = CallingWaiter(self, name, function)
        channel = self._join(waiter)
        if channel.confirmed:
            waiter.wake()
        else:
            self._settle(channel, waiter)
        return waiter

    def _settle(self, channel: Channel, waiter: ListenerWaiter) -> None:
        """Subscribe to a channel, and wake a waiter when that is confirmed."""
        channel.settling.append(weakref.ref(waiter))
        self.subscribe(channel)

    def _join(self, waiter: ListenerWaiter) -> Channel:
        while True:
            channel = self.channels.setdefault(waiter.channel, Channel(waiter.channel))
            self._add(channel, waiter)
            if self.channels.get(waiter.channel) is channel:
                return channel

    def _add(self, channel: Channel, waiter: ListenerWaiter) -> None:
        ref = weakref.ref(waiter)
        while True:
            line = channel.lines.setdefault(waiter.token, deque())
            line.append(ref)
            if channel.lines.get(waiter.token) is line:
                return

    def remove(self, waiter: ListenerWaiter) -> None:
        """Take a waiter out of its queue, if it is still there."""
        channel = self.channels.get(waiter.channel)
        if channel is None:
            return
        channel.idle_since = monotonic()
        line = channel.lines.get(waiter.token)
        if line is None:
            return
        with contextlib.suppress(ValueError):
            line.remove(weakref.ref(waiter))
        self._remove_empty_line(channel, waiter.token)

    def lose(self, name: str, token: str | None) -> None:
        """A waiter was dropped that has not left its queue. The next one gets its wake-up."""
        channel = self.channels.get(name)
        if channel is None:
            return
        channel.tidy()
        if token is None:
            self.wake_next(name, None)
        self._remove_empty_line(channel, token)

    def _remove_empty_line(self, channel: Channel, token: str | None) -> None:
        if channel.lines.get(token) or token in _SHARED:
            return
        line = channel.lines.pop(token, None)
        for ref in snapshot(line or ()):  # waiters that joined meanwhile
            channel.lines.setdefault(token, deque()).append(ref)

    # --- waking ------------------------------------------------------------------------------------------------------

    def wake_next(self, name: str, token: str | None, ticket: str = "") -> None:
        """Wake the waiter that has waited longest in the queue of this token, if there is one."""
        channel = self.channels.get(name)
        line = channel.lines.get(token) if channel else None
        while line:
            # Rotate it to the end, so that a second message wakes the next waiter. Two threads may wake the same waiter
            # at once, and both then look further; rotate() is one call, which an interruption cannot leave half done.
            line.rotate(-1)
            try:
                ref = line[-1]
            except IndexError:  # the waiter has just left
                return
            if waiter := ref():
                waiter.ticket = ticket
                waiter.wake()
                if not waiter.has_left:
                    return
            with contextlib.suppress(ValueError):  # collected, or left without using its wake-up
                line.remove(ref)

    def waits_for(self, name: str, token: str) -> bool:
        """Whether a waiter has this token on a channel, or had it until a message woke it a moment ago."""
        channel = self.channels.get(name)
        if channel is not None and token in channel.lines:
            return True
        since = monotonic() - _SAME_MESSAGE
        return any(woken == token and at > since for woken, at in snapshot(self._woken))

    def deliver(self, name: str, payload: str) -> None:
        """Wake the waiters that a message is for. One for a single waiter is its ticket, a space and its token."""
        channel = self.channels.get(name)
        if channel is None:
            return
        for ref in snapshot(channel.lines.get(EVERYBODY, ())):
            if waiter := ref():
                waiter.receive(payload)
        ticket, _, token = payload.partition(" ")
        if token in channel.lines:
            self._woken.append((token, monotonic()))
            self.wake_next(name, token, ticket)
        else:
            self.wake_next(name, None)
            if token:
                self._decline(name, token)

    # --- what the subscribers' threads do ----------------------------------------------------------------------------

    def subscribe(self, channel: Channel) -> None:
        """Let the subscriber of the channel's node subscribe to it."""
        node = self._location(channel.name)
        subscriber = self.subscribers.get(node)
        if subscriber is None:
            made = self._make_subscriber(self, node)
            subscriber = self.subscribers.setdefault(node, made)
            if subscriber is not made:  # another thread was faster
                made.stop()
            if self._is_stopped:  # meanwhile, or before: who asks has the listener of former settings
                subscriber.stop()
        channel.subscriber = subscriber
        subscriber.subscribe(channel.name)

    def confirm(self, name: str) -> None:
        """A channel is subscribed."""
        channel = self.channels.get(name)
        if channel is None:
            return
        channel.confirmed = True
        settled = self._wake_settling(channel)
        if channel.lapsed:
            channel.lapsed = False
            # Messages were lost while the channel was not subscribed, so every waiter must try again. Earlier tickets
            # may come from a server that is no longer the primary. Waiters that have just joined will try anyway.
            for waiter in channel.waiters():
                waiter.ticket = ""
                if waiter not in settled:
                    waiter.wake()

    def refuse(self, name: str) -> None:
        """A channel is not subscribed, and will not be: its waiters continue without messages."""
        if channel := self.channels.get(name):
            self._wake_settling(channel)

    def _wake_settling(self, channel: Channel) -> list[ListenerWaiter | None]:
        """Wake the waiters for the subscription itself, and return them."""
        settled = []
        with contextlib.suppress(IndexError):
            while True:
                settled.append(channel.settling.popleft()())
        for waiter in filter(None, settled):
            waiter.wake()
        return settled

    def wanted(self, subscriber: Subscribing) -> list[str]:
        """The channels that a subscriber should be subscribed to."""
        return [channel.name for channel in snapshot(self.channels.values()) if channel.subscriber is subscriber]

    def wants(self, subscriber: Subscribing, name: str) -> bool:
        """Whether a subscriber should be subscribed to a channel."""
        channel = self.channels.get(name)
        return channel is not None and channel.subscriber is subscriber

    def lapse(self, names: Iterable[str]) -> None:
        """Mark channels as not subscribed, until they are confirmed again."""
        for channel in filter(None, map(self.channels.get, names)):
            channel.confirmed = False
            channel.lapsed = True

    def idle_channels(self, subscriber: Subscribing) -> list[str]:
        """Forget the channels that have had no waiter for a while, and return their names."""
        before = monotonic() - KEEP_CHANNEL
        mine = [channel for channel in snapshot(self.channels.values()) if channel.subscriber is subscriber]
        for channel in mine:
            channel.tidy()
        idle = [channel for channel in mine if channel.idle_since < before and not channel.waiters()]
        return [channel.name for channel in idle if self._forget(channel)]

    def _forget(self, channel: Channel) -> bool:
        """Forget a channel; returns False if a waiter has joined it meanwhile."""
        self.channels.pop(channel.name, None)
        if not channel.waiters():
            channel.confirmed = False
            if not channel.waiters():
                return True
        channel.confirmed = False
        channel.lapsed = True
        kept = self.channels.setdefault(channel.name, channel)
        if kept is not channel:
            for waiter in channel.waiters():
                self._add(kept, waiter)
        self.subscribe(kept)
        return False

    def _location(self, channel: str) -> Address | None:
        """The node of a cluster that publishes to a channel."""
        return None

    def stop(self) -> None:
        """End the reading threads."""
        self._is_stopped = True
        for subscriber in snapshot(self.subscribers.values()):
            subscriber.stop()


# --- waiters ----------------------------------------------------------------------------------------------------------


class ListenerWaiter:
    """Waits in a channel's queue; threads and tasks differ in how they sleep."""

    __slots__ = ("__weakref__", "_closed", "_listener", "channel", "has_left", "ticket", "token")

    def __init__(self, listener: Listener, channel: str, token: str | None) -> None:
        self._listener = listener
        self._closed = self.has_left = False
        self.channel = channel
        self.token = token
        self.ticket = ""

    async def wait(self, timeout: float | None) -> bool:
        raise NotImplementedError

    def wake(self) -> None:
        raise NotImplementedError

    def receive(self, payload: str) -> None:
        """Called for each message of the channel, if the waiter's token is EVERYBODY."""
        self.wake()

    def close(self, asked: bool = True) -> None:
        if self._closed:
            return
        self.has_left = True
        self._listener.remove(self)
        if self.token is None and (not asked or self._has_unused_wake_up()):
            self._listener.wake_next(self.channel, None)
        self._closed = True

    def _has_unused_wake_up(self) -> bool:
        raise NotImplementedError


class _SleepingWaiter(ListenerWaiter):
    """Sleeps on an event."""

    __slots__ = ("_event", "_guard")

    _event: threads.AutoResetEvent | LoopEvent

    def __init__(self, listener: Listener, channel: str, token: str | None) -> None:
        super().__init__(listener, channel, token)
        # An interrupted attempt may not have left, or not have used its wake-up, which then belongs to the next waiter.
        self._guard = guard(self, partial(listener.lose, channel, token))

    def wake(self) -> None:
        self._event.set()

    def close(self, asked: bool = True) -> None:
        super().close(asked)
        disarm(self._guard)

    def _has_unused_wake_up(self) -> bool:
        return self._event.is_set


class ThreadWaiter(_SleepingWaiter):
    """Sleeps on a raw lock that ``wake`` opens; a signal interrupts the sleep too."""

    __slots__ = ()

    _event: threads.AutoResetEvent

    def __init__(self, listener: Listener, channel: str, token: str | None) -> None:
        super().__init__(listener, channel, token)
        self._event = threads.AutoResetEvent()

    async def wait(self, timeout: float | None) -> bool:
        return self._event.wait_for_long(timeout)


class TaskWaiter(_SleepingWaiter):
    """Sleeps on an event of its loop."""

    __slots__ = ()

    _event: LoopEvent

    def __init__(self, listener: Listener, channel: str, token: str | None) -> None:
        super().__init__(listener, channel, token)
        self._event = LoopEvent()

    async def wait(self, timeout: float | None) -> bool:
        return await self._event.wait(timeout)


class CallingWaiter(ListenerWaiter):
    """Never sleeps: it calls a function with each message, or with an empty string when it is woken without one.

    It may be dropped instead of closed: it has no wake-up that would belong to another one.
    """

    __slots__ = ("_function",)

    def __init__(self, listener: Listener, channel: str, function: Callable[[str], object]) -> None:
        super().__init__(listener, channel, EVERYBODY)
        self._function = function

    def wake(self) -> None:
        self._function("")

    def receive(self, payload: str) -> None:
        self._function(payload)

    def _has_unused_wake_up(self) -> bool:
        return False


class BoundListener:
    """A listener, as the callers of one binding use it; ``make`` makes their waiters."""

    def __init__(self, listener: Listener, make: MakeWaiter) -> None:
        self.channels = listener.channels
        self._listener = listener
        self._make = make

    def listen_if_subscribed(self, channel: str, token: str | None) -> ListenerWaiter | None:
        return self._listener.listen_if_subscribed(channel, token, self._make)

    def listen(
        self, channel: str, token: str | None, until: float | None = None
    ) -> Coroutine[Any, Any, ListenerWaiter]:
        return self._listener.listen(channel, token, self._make, until)
