"""The interfaces of a lock's flows to the outside world.

A *binding* knows the caller: a thread or an asyncio task. A *topology* knows the servers of the locks: one server, a
cluster, or a quorum of nodes. ``registry`` joins the two into the driver that the flows of an alias use.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from django_rlock._transport.calls import ScriptCall
from django_rlock._transport.connection import Expected
from django_rlock._transport.identity import Owner
from django_rlock._transport.pool import Server

T = TypeVar("T")

EVERYBODY = "*"
"""The token of waiters that every message of their channel wakes."""


class Waiter(Protocol):
    """A caller that sleeps until it is woken. One wake-up is kept if it comes before the sleep.

    ``ticket`` comes from the last message that carried this waiter's token, or is empty: see ``Listener.deliver``.
    """

    ticket: str

    async def wait(self, timeout: float | None) -> bool:
        """Sleep until woken (returns True) or for ``timeout`` seconds (returns False); None means no time limit."""

    def wake(self) -> None:
        """Wake it, from any thread."""

    def close(self, asked: bool = True) -> None:
        """Leave the queue; an unused wake-up goes to the next waiter of the channel.

        ``asked`` is False for a waiter that may have been woken, but did not try to acquire afterwards.
        """


class Undo(Protocol):
    """Makes the call that undoes another one."""

    def __call__(self) -> ScriptCall: ...


class Driver(Protocol):
    """The interface that flows use. The coroutines of a blocking driver block instead of suspending."""

    def now(self) -> float:
        """Monotonic time, in seconds."""

    def owner(self) -> Owner:
        """The owner on whose behalf the current thread or task calls."""

    def at(self, using: str) -> Driver:
        """The driver of the same binding for another alias."""

    def location(self, key: str) -> object:
        """Where a key lives. One script may use several keys only if their locations are equal."""

    def run(self, call: ScriptCall, until: float | None = None) -> Coroutine[Any, Any, list[Any]]:
        """Run a script and return its reply, whose first element is the nonce.

        Connection failures are retried until the monotonic time ``until`` (None: for PATIENCE seconds).
        Raises LockUnavailableError when the server is unreachable or refuses.
        """

    def take(self, call: ScriptCall, until: float | None, undo: Undo) -> Coroutine[Any, Any, list[Any]]:
        """Like ``run``, for a script that takes a lock. If fewer replicas confirm it than REPLICA_ACKS requires,
        ``undo`` is run and LockUnavailableError says how many confirmed."""

    def is_subscribed(self, channel: str) -> bool:
        """Whether this process is subscribed to a channel, or soon will be."""

    def listen_if_subscribed(self, channel: str, token: str | None) -> Waiter | None:
        """A waiter on a channel to which this process is already subscribed, else None."""

    def listen(self, channel: str, token: str | None, until: float | None = None) -> Coroutine[Any, Any, Waiter]:
        """Return a waiter on a channel, once the server has confirmed the subscription, or the monotonic time ``until``
        has come.

        It is woken by messages that carry ``token`` after a ticket, or by every message if ``token`` is EVERYBODY. With
        None it waits in turn with the other such waiters of this process; each message wakes one of them.
        """

    def sleep(self, seconds: float) -> Coroutine[Any, Any, None]:
        """Sleep when no message could wake the caller."""

    def call(self, function: Callable[..., Any], *args: Any) -> Coroutine[Any, Any, Any]:
        """Call a blocking function without blocking an event loop."""


class Binding(Protocol):
    """The caller: its owner, how it sleeps, and how it exchanges commands with a server."""

    def owner(self) -> Owner:
        """The owner on whose behalf the current thread or task calls."""

    async def sleep(self, seconds: float) -> None:
        """Sleep."""

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a blocking function without blocking an event loop."""

    async def gather(self, coros: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Run coroutines concurrently, because each may wait for another server, and return their results."""

    async def exchange(self, server: Server, call: ScriptCall, packed: bytes, nonce: bytes, limit: float) -> list[Any]:
        """Return the reply to one packed call, within ``limit`` seconds and within the server's ``reply_limit``.

        The call counts as sent once there is a connection. Raises what redis-py raises. After any exception,
        BaseException included, a connection in an unknown state is closed.
        """

    async def converse(self, server: Server, packed: bytes, expected: Sequence[Expected], limit: float) -> list[Any]:
        """Return a reply for each that is expected, over a connection that no other command uses; server errors are
        returned. Limits and exceptions are as for ``exchange``.
        """


class Topology(Protocol):
    """The servers of an alias's locks, for one binding. ``Driver`` describes the methods."""

    def location(self, key: str) -> object: ...

    def run(self, call: ScriptCall, until: float | None = None) -> Coroutine[Any, Any, list[Any]]: ...

    def take(self, call: ScriptCall, until: float | None, undo: Undo) -> Coroutine[Any, Any, list[Any]]: ...

    async def run_all(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Run many calls in few round trips; a reply that did not come is replaced by an exception.

        Calls may be sent twice, so they must be safe to repeat: renewals, queries, and clean-up.
        """
