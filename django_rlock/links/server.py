"""One server as this process reaches it: its idle links, their limit, and the callers that wait for one.

A link is opened in a thread of its own, where threads can be started. So no signal interrupts redis-py while it
connects and logs in (it then holds mutexes that all threads share, and hiredis packs the login), and a server that
accepts a connection but never replies delays no caller beyond its own time limit. Shared state is changed by single
calls into C. A link that an interruption left unused, and its place, are free again when the link is collected.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_rlock import threads
from django_rlock.clock import monotonic
from django_rlock.links.link import DOUBTED_AFTER, Link, Place

Connect = Callable[[Place | None], Link]
"""Opens a link; raises what redis-py does."""

FRESH = 1.0
"""A link used within this time is assumed to be alive, in seconds."""
KEEP_IDLE = 60.0
"""How long an unused link is kept, in seconds."""
_LOOK_AGAIN = 0.05
"""How often a caller checks for a free place by itself, in seconds: the thread that should wake it may have been
interrupted."""


class LinkWait:
    """A caller that waits for a link; ``opening`` is whether one is being opened for it."""

    __slots__ = ("_error", "opening", "wake")

    def __init__(self, wake: Callable[[], object]) -> None:
        self.wake = wake
        self.opening = False
        self._error: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        """Have the caller raise an error."""
        self._error = error

    def check(self) -> None:
        """Raise the error with which opening a link has failed, if it has."""
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback refers to this frame


class Server:
    """Links to one server. ``reply_limit`` is the maximum time for a reply, ``places`` the maximum number of
    connections (None: no limit). Times are seconds.

    ``leave`` closes all links to the server, those of other purposes too, because it has become a replica.
    """

    def __init__(
        self, connect: Connect, reply_limit: float, places: int | None = None, leave: Callable[[], object] | None = None
    ) -> None:
        self._connect = connect
        self.leave = self.close_idle if leave is None else leave
        self.reply_limit = reply_limit
        self._places = math.inf if places is None else places
        self._taken = threads.Alive()
        self._claims: deque[LinkWait] = deque()
        self._closed = False
        self.idle: deque[Link] = deque()

    # --- taking a link -----------------------------------------------------------------------------------------------

    def take(self, limit: float) -> Link:
        """Return an idle or a new link, within ``limit`` seconds. Raises what redis-py raises if it cannot connect."""
        link = self.take_idle()
        if link is not None:
            return link
        event = threads.AutoResetEvent()
        claim = LinkWait(event.ring)
        try:
            return self._await(claim, event, monotonic() + limit)
        finally:
            self.forget(claim)

    def _await(self, claim: LinkWait, event: threads.AutoResetEvent, until: float) -> Link:
        while True:
            opens = self.ask_for(claim)
            link = self.take_idle()
            if link is not None:
                return link
            left = until - monotonic()
            if left <= 0:
                raise self.none_in_time(opens)
            event.wait(left if opens else min(left, _LOOK_AGAIN))
            claim.check()
            link = self.take_idle()
            if link is not None:
                return link

    def none_in_time(self, opens: bool) -> RedisTimeoutError:
        """The error for a caller whose time is up; ``opens`` is whether a link was being opened for it."""
        return RedisTimeoutError(
            "Timeout connecting to the server"
            if opens
            else f"All {self._places} connections are in use; raise MAX_CONNECTIONS, or use locks in fewer threads"
        )

    def take_idle(self) -> Link | None:
        """Return an idle link that is alive, if there is one."""
        while True:
            try:
                link = self.idle.pop()
            except IndexError:
                return None
            now = monotonic()
            if now - link.used_at < FRESH or link.is_quiet:
                if now - link.used_at > DOUBTED_AFTER:
                    link.doubt()
                link.used_at = now
                return link
            link.close()

    def ask_for(self, claim: LinkWait) -> bool:
        """Start opening a link for a claim, which is woken when the link is open. Returns False if the limit is
        reached; the claim is then queued for the next link that is released."""
        if claim.opening:
            return True
        place = Place(self._taken)
        if len(self._taken) > self._places:
            place.free()
            if claim not in self._claims:
                self._claims.append(claim)
            return False
        claim.opening = True
        try:
            threads.start(self._open_for, claim, place)
        except RuntimeError:  # no threads left, or the interpreter exits
            self._open_for(claim, place)
        return True

    def forget(self, claim: LinkWait) -> None:
        """Remove a claim from the queue."""
        with contextlib.suppress(ValueError):
            self._claims.remove(claim)

    def _open_for(self, claim: LinkWait, place: Place) -> None:
        try:
            self.idle.append(self.open(place))
        except BaseException as error:  # noqa: BLE001 - the claim raises it
            place.free()
            claim.fail(error)
        claim.opening = False
        claim.wake()
        if self._closed:
            self.close()

    def open(self, place: Place | None = None) -> Link:
        """Open a new link in this thread. Raises what redis-py raises."""
        try:
            return self._connect(place)
        except TimeoutError as error:
            raise RedisTimeoutError("Timeout connecting to the server") from error
        except OSError as error:
            raise RedisConnectionError(f"Error connecting to the server: {error}") from error

    # --- giving it back ----------------------------------------------------------------------------------------------

    def give_back(self, link: Link) -> None:
        """Keep a link for the next caller, after all its replies have been read."""
        self.idle.append(link)
        if self._claims:
            with contextlib.suppress(IndexError):
                self._claims.popleft().wake()
        if self._closed:
            self.close()

    def drop(self, link: Link, broken: bool) -> None:
        """Close a link. If its connection is ``broken``, close the idle links too, which are probably broken."""
        link.close()
        if broken:
            self.close_idle()

    def close_idle(self) -> None:
        """Close the idle links."""
        with contextlib.suppress(IndexError):
            while True:
                self.idle.popleft().close()

    def prune(self, now: float) -> float:
        """Close all links but one that were unused for KEEP_IDLE; return when to check again."""
        while len(self.idle) > 1:
            try:
                link = self.idle.popleft()
            except IndexError:  # callers have taken them meanwhile
                break
            if link.used_at + KEEP_IDLE > now:
                self.idle.appendleft(link)
                return link.used_at + KEEP_IDLE
            link.close()
        return math.inf

    def close(self) -> None:
        """Close idle links now, and links in use when they are returned: the settings no longer name the server."""
        self._closed = True
        self.close_idle()

    @property
    def may_grow(self) -> bool:
        """Whether a place is free; if not, a failure to get a link proves nothing about the server."""
        return len(self._taken) < self._places

    @property
    def size(self) -> int:
        """How many connections are open or being opened."""
        return len(self._taken)
