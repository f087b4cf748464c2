"""RedLock's transport: an alias with NODES, whose locks are held on a majority of independent servers.

* This file has the driver, ``Quorum``, which runs calls. What each call asks the nodes is in ``locks.redlock``.
* ``votes`` is one call at work. A ``Session`` has the connections to the nodes, sends calls and hears the replies. A
  ``VotingRound`` sends a call over a session until its result is decided; a ``VoteTally`` has the votes on it. Two
  things are known from earlier calls: which nodes have restarted (``Restarts``), and their clocks (``Proposals``).
* ``threads`` and ``tasks`` are the two bindings. Each has a ``QuorumTransport``, which opens sessions and keeps
  connections between them.
* ``nodes`` is the knowledge of all threads and tasks of the process about the nodes: which are down, and what they
missed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from django_rlock._core.errors import clearer, ends_connection, is_final
from django_rlock._transport.calls import PATIENCE, Caller, Driver, ScriptCall, Topology, Undo, backoff
from django_rlock._transport.quorum.votes import NodeDownError, QuorumCall, QuorumTransport, VotingRound
from django_rlock.exceptions import QuorumNotReachedError
from django_rlock.settings import get_settings

_BATCH = 100
_QUORUM_BACKOFF = 0.01, 0.5


class Quorum(Topology):
    """Runs calls over all nodes of an alias."""

    def __init__(self, using: str, transport: QuorumTransport, binding: Caller, at: Callable[[str], Driver]) -> None:
        super().__init__(binding, at)
        self.transport = transport
        self._using = using
        self._cut_off_since: float | None = None
        self._refused_since: float | None = None
        self._reasons: dict[str, Exception] = {}

    def location(self, key: str) -> object:
        """All keys live on all nodes."""
        return None

    async def run(self, call: ScriptCall, until: float | None = None, undo: Undo | None = None) -> list[Any]:
        """Let the nodes vote on a call; QuorumNotReachedError when too few of them were reachable until ``until``."""
        suited = _suited(call)
        tries = 0
        while True:
            tries += 1
            try:
                reply = await self._run_once(suited)
            except QuorumNotReachedError as error:
                if self._cut_off_since is None:
                    self._cut_off_since = self.now()
                reasons = self._reasons_of(error)
                # If the nodes understood the call and refused it, retrying cannot help.
                if all(is_final(each) and not ends_connection(each) for each in error.errors.values()):
                    raise
                if self.now() >= self._give_up_at(suited, until) or self._is_down(error):
                    raise QuorumNotReachedError(call.name, reasons, error.nodes) from None
                if not suited.repeatable:
                    return [b"", 0]  # the waiter retries under another name
            else:
                self._cut_off_since = self._refused_since = None
                self._reasons.clear()
                return reply
            await self.sleep(backoff(tries, *_QUORUM_BACKOFF))

    def _give_up_at(self, call: QuorumCall, until: float | None) -> float:
        if until is None:
            # By then, nodes that have just restarted vote again.
            return (self._cut_off_since or self.now()) + PATIENCE + self.transport.nodes.restarts.quarantine
        return until + call.grace

    def _reasons_of(self, error: QuorumNotReachedError) -> dict[str, Exception]:
        """Why the nodes did not vote. The nodes may have told other callers, or this one for an earlier try."""
        for node, failure in error.errors.items():
            failure.__traceback__ = None  # it refers to all frames of the call
            self._reasons[node] = clearer(failure, self._reasons.get(node, failure))
        return {node: self._reasons[node] for node in error.errors}

    def _is_down(self, error: QuorumNotReachedError) -> bool:
        """Whether too few nodes have listened for longer than callers wait for them, according to all callers
        together."""
        refused = sum(isinstance(each, NodeDownError) and each.refused for each in error.errors.values())
        if 2 * (error.nodes - refused) > error.nodes:
            self._refused_since = None
            return False
        now = self.now()
        self._refused_since = self._refused_since or now
        patience = get_settings(self._using).refused_wait_time
        return patience is not None and now >= self._refused_since + patience

    async def _run_once(self, call: QuorumCall) -> list[Any]:
        async with self.transport.session() as session:
            call.sent_at = self.now()  # all nodes are now connected, or known to be down
            call.sends += 1
            return await call.over(VotingRound(self.transport.nodes, session, self.now))

    async def run_all(self, calls: Sequence[ScriptCall]) -> list[Any]:
        replies: list[Any] = []
        for start in range(0, len(calls), _BATCH):
            replies += await self._run_batch([_suited(call) for call in calls[start : start + _BATCH]])
        return replies

    async def _run_batch(self, batch: Sequence[QuorumCall]) -> list[Any]:
        replies: list[Any] = []
        async with self.transport.session() as session:
            voting = VotingRound(self.transport.nodes, session, self.now)
            sent_at = self.now()
            for call in batch:
                call.sent_at = sent_at
                call.sends += 1
            for votes in await voting.ask_all(batch):
                try:
                    replies.append(await votes.call.settle(votes, voting))
                except QuorumNotReachedError as error:
                    replies.append(error)
        return replies


def _suited(call: ScriptCall) -> QuorumCall:
    if not isinstance(call, QuorumCall):
        raise ImproperlyConfigured(
            f"{call.name!r} is of a kind that needs one server, on an alias with NODES, where only RedLock works. "
            f"Use rlock() without kind=, or an alias with CACHE."
        )
    return call
