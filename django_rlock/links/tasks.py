"""A link for asyncio: it carries the commands of all tasks of a loop; replies come in the order of the commands."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from typing import Any, Protocol

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_rlock.links.link import LATER, Link, check_nonce
from django_rlock.links.resp import INCOMPLETE, ErrorReply

_monotonic = time.monotonic


class Slot(Protocol):
    """Takes the reply to a command; an asyncio future is a slot."""

    def done(self) -> bool:
        """Whether nothing waits for it any more."""

    def set_result(self, reply: Any, /) -> None: ...

    def set_exception(self, error: BaseException, /) -> None: ...


class TaskLink:
    """A link used by an event loop, until it is ``released``.

    A cancelled task leaves its slot in the queue, so that its reply is dropped when it comes. Each reply must echo the
    nonce stored with its slot, else the link is closed. One timer serves all limits. A slot whose time is up gets a
    TimeoutError; if nothing at all has arrived since its command was sent, the link is closed for all tasks.
    """

    def __init__(self, link: Link, loop: asyncio.AbstractEventLoop) -> None:
        self.link = link
        self.loop = loop
        self.is_open = True
        self._fileno = link.fileno()
        self._owed: deque[tuple[bytes | None, Slot, float, float]] = deque()
        self._unsent = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = -math.inf
        self._heard_at = _monotonic()
        link.sock.settimeout(0)
        loop.add_reader(self._fileno, self._on_readable)

    def ask(self, packed: bytes, nonce: bytes, limit: float) -> asyncio.Future[Any]:
        """Return a future for the reply, which comes within ``limit`` seconds; a server's error is an ErrorReply."""
        future = self.loop.create_future()
        now = _monotonic()
        until = now + limit
        self._owed.append((nonce, future, until, now))
        if not now < self._timer_at <= until:
            self._look_by(until)
        self._write(packed)
        return future

    async def ask_all(self, packed: bytes, replies: int, limit: float) -> list[Any]:
        """Send commands and return that many replies."""
        now = _monotonic()
        until = now + limit
        slots = [self.loop.create_future() for _ in range(replies)]
        self._owed.extend((None, slot, until, now) for slot in slots)
        self._write(packed)
        self._look_by(until)
        try:
            return [await slot for slot in slots]
        finally:
            for slot in slots:
                slot.cancel()

    def send(self, packed: bytes, nonce: bytes, slot: Slot) -> None:
        """Send a command whose reply goes to ``slot``, without a time limit."""
        self._owed.append((nonce, slot, math.inf, _monotonic()))
        self._write(packed)

    @property
    def owes(self) -> bool:
        """Whether replies are still to come."""
        return bool(self._owed)

    def silent_since(self) -> float | None:
        """When the oldest command without a reply was sent, or data last arrived if that is later; else None."""
        return max(self._heard_at, self._owed[0][3]) if self._owed else None

    # --- writing -----------------------------------------------------------------------------------------------------

    def _write(self, packed: bytes) -> None:
        if self._unsent:
            self._unsent += packed
            return
        try:
            sent = self._send(packed)
            if sent < len(packed) and self.is_open:
                self._unsent += packed[sent:]
                self.loop.add_writer(self._fileno, self._on_writable)
        except BaseException:
            self._break_off_interrupted()
            raise

    def _send(self, data: bytes | bytearray) -> int:
        try:
            return self.link.sock.send(data)
        except LATER:
            return 0
        except OSError as error:
            self.break_off(RedisConnectionError(f"The connection broke: {error}"))
            return 0

    def _on_writable(self) -> None:
        try:
            del self._unsent[: self._send(self._unsent)]
            if not self._unsent and self.is_open:
                self.loop.remove_writer(self._fileno)
        except BaseException:
            self._break_off_interrupted()
            raise

    # --- reading -----------------------------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        try:
            self._read()
        except RedisError as error:
            self.break_off(error)
        except BaseException:
            self._break_off_interrupted()
            raise

    def _read(self) -> None:
        link = self.link
        while link.receive():
            self._heard_at = _monotonic()
            for reply in iter(link.next_reply, INCOMPLETE):
                self._take(reply)
            if link.is_plain:
                return

    def _take(self, reply: Any) -> None:
        owed = self._owed
        if not owed:
            raise RedisConnectionError("The connection brought a reply that belongs to no command; it was closed.")
        nonce, slot, _, _ = owed[0]
        if nonce is not None and type(reply) is not ErrorReply:
            check_nonce(reply, nonce)
        if not slot.done():
            slot.set_result(reply)
        # Last, since a slot must be found until it has its reply; a slot may have broken the link off.
        if owed:
            owed.popleft()

    # --- limits ------------------------------------------------------------------------------------------------------

    def _look_by(self, at: float) -> None:
        now = _monotonic()
        # A time that has passed is no timer's: it has gone off, even if ``_look`` was interrupted before it began.
        if at == math.inf or now < self._timer_at <= at:
            return
        timer = self.loop.call_later(at - now, self._look)
        if self._timer is not None:
            self._timer.cancel()
        # In this order, since an interrupted caller must not leave the time of a timer that was never set.
        self._timer = timer
        self._timer_at = at

    def _look(self) -> None:
        try:
            self._timer_at = -math.inf
            self._end_late(_monotonic())
            self._look_by(min((until for _, slot, until, _ in self._owed if not slot.done()), default=math.inf))
        except BaseException:
            self._break_off_interrupted()
            raise

    def _end_late(self, now: float) -> None:
        """Give an error to each slot whose time is up."""
        late = RedisTimeoutError("Timeout reading from the server")
        for _, slot, until, sent_at in list(self._owed):
            if until <= now and not slot.done():
                if sent_at >= self._heard_at:  # nothing has arrived since
                    self.break_off(late)
                    return
                slot.set_exception(late)

    # --- the end -----------------------------------------------------------------------------------------------------

    def release(self) -> None:
        """Detach the link from the loop."""
        if not self.is_open:
            return
        self.is_open = False
        if self._timer is not None:
            self._timer.cancel()
        if not self.loop.is_closed():
            with contextlib.suppress(RuntimeError, OSError):
                self.loop.remove_reader(self._fileno)
                self.loop.remove_writer(self._fileno)

    def _break_off_interrupted(self) -> None:
        """Close the link after a signal handler has raised inside it: half a command may have been sent, or a reply
        have been read for nobody. The loop may log what was raised, and go on.
        """
        self.break_off(RedisConnectionError("The connection was closed, because its use was interrupted."))

    def break_off(self, error: Exception) -> None:
        """Close the link; everything that waits for a reply gets the error."""
        self.release()
        self.link.close()
        while self._owed:
            _, slot, _, _ = self._owed.popleft()
            if not slot.done():
                with contextlib.suppress(RuntimeError):  # the loop was closed, and its tasks do not go on
                    slot.set_exception(error)
