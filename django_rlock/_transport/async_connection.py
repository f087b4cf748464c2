"""A connection for asyncio: it carries the commands of all tasks of a loop; replies come in the order of the
commands."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections import deque
from typing import Any, Protocol

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_rlock._core.clock import monotonic
from django_rlock._core.threads import snapshot
from django_rlock._redis.scripts import Script
from django_rlock._transport.connection import (
    ALIVE_WITHIN,
    DOUBTED_AFTER,
    INCOMPLETE,
    LATER,
    Connection,
    ErrorReply,
    check_reply,
    gone_silently,
    stray,
)

_LIMIT_LOOK_AGAIN = 0.1
"""How long after a timer a second one goes off, in seconds: a signal may interrupt what the first one calls."""


class ReplySlot(Protocol):
    """Takes the reply to a command, or the exception instead; an asyncio future is a slot.

    An exception is set as a result, too: asyncio logs an exception that nobody retrieves, as after a cancellation.
    """

    def done(self) -> bool:
        """Whether nothing waits for the result."""

    def set_result(self, reply: Any, /) -> None: ...


Owed = tuple[tuple[bytes, Script] | None, ReplySlot, float, float]
"""A reply to come: the nonce that it echoes and its script, its slot, and the times of its limit and of its command."""


class TaskConnection:
    """A connection used by an event loop, from ``attach`` until it is released or closed.

    A cancelled task leaves its slot in the queue, so that its reply is dropped when it comes. Each reply must echo the
    nonce stored with its slot, and be a reply of its script; otherwise the connection is closed. One pair of timers
    serves all limits. A slot whose time is up gets a TimeoutError; if no reply at all has arrived since its command was
    sent, the connection is closed for all tasks.
    """

    def __init__(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        self.connection = connection
        self.loop = loop
        self.is_open = False
        self.is_introduced = False  # set by RedLock, when it knows which server this leads to
        self._is_attached = False
        self._is_given = False
        self.fileno = connection.fileno()
        self._owed: deque[Owed] = deque()
        self._unsent = bytearray()
        self._timers: list[asyncio.TimerHandle] = []
        self._timers_at = -math.inf
        self.heard_at = -math.inf if connection.is_doubted else monotonic()

    def attach(self) -> None:
        """Have the loop read the connection. Record it first, since from now on the loop refers to it; and break it off
        after an exception."""
        self._is_attached = True
        self.connection.sock.settimeout(0)
        # The loop polls again by itself; but what TLS has decrypted already makes no socket readable.
        self.loop.add_reader(self.fileno, self.read, self.connection.is_plain)
        self.is_open = True

    def ask(self, packed: bytes, expected: tuple[bytes, Script], limit: float) -> asyncio.Future[Any]:
        """Return a future for the reply, which comes within ``limit`` seconds. A server's error is an ErrorReply. That
        of the connection is a result, too, which many commands share: code that raises it drops its traceback."""
        future = self.loop.create_future()
        now = monotonic()
        until = now + limit
        try:
            if now - self.heard_at > DOUBTED_AFTER:
                self._expect_life(now)
            self._owed.append((expected, future, until, now))
            if not now < self._timers_at <= until:
                self._look_by(until)
            self._write(packed)
        except BaseException:  # see ask_all
            self.break_off_interrupted()
            raise
        return future

    async def ask_all(self, packed: bytes, replies: int, limit: float) -> list[Any]:
        """Send commands and return that many replies; raises the error of the connection."""
        now = monotonic()
        until = now + limit
        slots = [self.loop.create_future() for _ in range(replies)]
        try:
            self._expect_life(now)
            self._owed.extend([(None, slot, until, now) for slot in slots])
            self._write(packed)
        except BaseException:
            # Errors echo no nonce: a slot whose command was never sent would take the error meant for the next one.
            self.break_off_interrupted()
            raise
        self._look_by(until)
        try:
            return [_raised(await slot) for slot in slots]
        finally:
            for slot in slots:
                slot.cancel()

    def send(self, packed: bytes, expected: tuple[bytes, Script], slot: ReplySlot) -> None:
        """Send a command whose reply goes to ``slot``, without a time limit."""
        now = monotonic()
        try:
            if now - self.heard_at > DOUBTED_AFTER:
                self._expect_life(now)
            self._owed.append((expected, slot, math.inf, now))
            self._write(packed)
        except BaseException:  # see ask_all
            self.break_off_interrupted()
            raise

    @property
    def owes(self) -> bool:
        """Whether replies are still to come."""
        return bool(self._owed)

    def silent_since(self) -> float | None:
        """When the oldest command without a reply was sent, or a reply last arrived if that is later; else None."""
        return max(self.heard_at, self._owed[0][3]) if self._owed else None

    # --- writing -----------------------------------------------------------------------------------------------------

    def _write(self, packed: bytes) -> None:
        if self._unsent:
            self._unsent += packed
            return
        sent = self._send(packed)
        if sent < len(packed) and self.is_open:
            self._unsent += packed[sent:]
            self.loop.add_writer(self.fileno, self._on_writable)

    def _send(self, data: bytes | bytearray) -> int:
        try:
            return self.connection.sock.send(data)
        except LATER:
            return 0
        except OSError as error:
            self.break_off(RedisConnectionError(f"The connection broke: {error}"))
            return 0

    def _on_writable(self) -> None:
        try:
            del self._unsent[: self._send(self._unsent)]
            if not self._unsent and self.is_open:
                self.loop.remove_writer(self.fileno)
        except BaseException:
            self.break_off_interrupted()
            raise

    # --- reading -----------------------------------------------------------------------------------------------------

    def read(self, once: bool = False) -> bool:
        """Pass arrived replies to their slots; with ``once``, read from the socket a single time. Returns whether the
        connection is still open: the server may have closed it, and stray data closes it.
        """
        try:
            try:
                self._read(once)
            except RedisError as error:
                self.break_off(error)
        except BaseException:
            self.break_off_interrupted()
            raise
        return self.is_open

    def _read(self, once: bool) -> None:
        connection, owed = self.connection, self._owed
        while True:
            expected = owed[0][0] if owed else None
            came = connection.receive() if expected is None else connection.receive(expected[0])
            if not came:
                return
            if not owed:
                raise stray()
            for reply in iter(connection.next_reply, INCOMPLETE) if came is True else (came,):
                self.heard_at = monotonic()  # of a whole reply: what begins another one may never end
                self._take(reply)
            if once:
                return

    def _take(self, reply: Any) -> None:
        owed = self._owed
        if not owed:
            raise stray()
        expected, slot, _, _ = owed[0]
        if expected is not None and type(reply) is not ErrorReply:
            nonce, script = expected
            # As check_reply(), without a call.
            reply = [nonce, script.usual[0]] if reply is nonce and script.usual else check_reply(reply, nonce, script)
        if not slot.done():
            slot.set_result(reply)
        # Last, since a slot must be found until it has its reply; a slot may have broken the connection off.
        if owed:
            owed.popleft()

    # --- signs of life -----------------------------------------------------------------------------------------------

    def _expect_life(self, now: float) -> None:
        """Look soon whether anything has come, if the connection was idle for long until now."""
        if not self._owed and now - self.heard_at > DOUBTED_AFTER:
            self.loop.call_later(ALIVE_WITHIN, self._look_for_life, now)

    def _look_for_life(self, since: float) -> None:
        # What has come while the loop was blocked may not have been read yet.
        if self.heard_at < since and self.is_open and self.read() and self.heard_at < since:
            self.break_off(gone_silently())

    # --- limits ------------------------------------------------------------------------------------------------------

    def _look_by(self, at: float) -> None:
        now = monotonic()
        # A timer whose time has passed has gone off, even if ``_look`` was interrupted before it began.
        if at == math.inf or now < self._timers_at <= at:
            return
        timers = [self.loop.call_later(at - now + more, self._look) for more in (0.0, _LIMIT_LOOK_AGAIN)]
        for timer in self._timers:
            timer.cancel()
        # In this order, since an interrupted caller must not leave the time of a timer that was never set.
        self._timers = timers
        self._timers_at = at

    def _look(self) -> None:
        try:
            self._timers_at = -math.inf
            self._end_late(monotonic())
            owed = snapshot(self._owed)
            self._look_by(min((until for _, slot, until, _ in owed if not slot.done()), default=math.inf))
        except BaseException:
            self.break_off_interrupted()
            raise

    def _end_late(self, now: float) -> None:
        """Give an error to each slot whose time is up."""
        late = RedisTimeoutError("Timeout reading from the server")
        for _, slot, until, sent_at in snapshot(self._owed):
            if until <= now and not slot.done():
                if sent_at >= self.heard_at:  # no reply has arrived since
                    self.break_off(late)
                    return
                slot.set_result(late)

    # --- the end -----------------------------------------------------------------------------------------------------

    def give(self) -> Connection:
        """Detach the connection from the loop, and return it for use by others. It must not owe any reply."""
        self._detach()
        self._is_given = True
        self.connection.block()
        self.connection.used_at = monotonic()
        return self.connection

    def take_back(self) -> None:
        """End the connection if its loop does not run and waits for no reply. Any thread may call this."""
        # The loop may start meanwhile. Then its tasks find that the connection has ended, and open another one.
        now = monotonic()
        if not self.loop.is_running() and all(slot.done() or until < now for _, slot, until, _ in snapshot(self._owed)):
            self.is_open = False
            with contextlib.suppress(OSError):  # it is broken or closed already
                # Not closed: a loop that runs again sees the end, and closes it. TLS's own shutdown() changes what the
                # loop reads from.
                socket.socket.shutdown(self.connection.sock, socket.SHUT_RDWR)
            self.connection.free_slot()

    def break_off(self, error: Exception) -> None:
        """Close the connection, unless it was given away; everything that waits for a reply gets the error."""
        try:
            self._end(error)
        except BaseException:  # from a signal handler
            self._end(error)
            raise

    def break_off_interrupted(self) -> None:
        """Close the connection after a signal handler has raised inside it: half a command may have been sent, or a
        reply have been read for nobody. The loop may log what was raised, and go on.
        """
        self.break_off(RedisConnectionError("The connection was closed, because its use was interrupted."))

    # What follows may be interrupted anywhere, and is then done again.

    def _detach(self) -> None:
        self.is_open = False
        for timer in self._timers:
            timer.cancel()
        if self._is_attached and not self.loop.is_closed():
            self.loop.remove_reader(self.fileno)
            self.loop.remove_writer(self.fileno)
        self._is_attached = False  # before the socket is closed: then its number may be that of another one

    def _end(self, error: Exception) -> None:
        self._detach()
        if not self._is_given:
            self.connection.close()
        self._unsent.clear()
        owed = self._owed
        while owed:
            _, slot, _, _ = owed[0]
            if not slot.done():
                with contextlib.suppress(RuntimeError):  # the loop was closed, and its tasks do not go on
                    slot.set_result(error)
            if owed:
                owed.popleft()


def _raised(reply: Any) -> Any:
    if isinstance(reply, Exception) and not isinstance(reply, ErrorReply):
        raise reply.with_traceback(None)
    return reply
