"""A call that goes to N independent nodes, and their votes on it.

What the votes mean depends on the call (``calls``). The nodes are reached through a ``Conversation``, of which threads,
asyncio tasks and the tests' simulator each have their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_rlock.drivers.calls import Argument, ScriptCall, prepare
from django_rlock.drivers.quorum.proposals import Proposals
from django_rlock.drivers.quorum.restarts import Restarts
from django_rlock.exceptions import QuorumNotReachedError
from django_rlock.scripts import Script

_GRACE = 0.001


class NodeDownError(RedisConnectionError):
    """A connection to a node failed, so nothing was sent. ``refused``: nothing listens at its address."""

    def __init__(self, reason: str, refused: bool = False) -> None:
        super().__init__(reason)
        self.refused = refused


_NO_VOTER = RedisConnectionError("has no vote")


class Answer(NamedTuple):
    """A node's reply to a call, or the reason why there is none."""

    node: int
    call: QuorumCall
    reply: list[Any] | Exception


Count = Callable[[Answer], bool]
"""Counts an answer; returns whether those counted are enough."""


class Conversation(Protocol):
    """Calls to the numbered nodes, and their replies. Each node executes them in the order in which they were sent."""

    def send(self, call: QuorumCall, nodes: Iterable[int]) -> None:
        """Send a call to some nodes at once. Failures are received as errors by ``listen``."""

    async def listen(self, count: Count, until: float) -> None:
        """Count answers as they come, until enough have, none is left to come, or at the monotonic time ``until``.

        Answers that come while nothing listens are counted by the next ``listen``.
        """


class QuorumTransport(Protocol):
    """How a face reaches the nodes of an alias. Times are monotonic seconds."""

    @property
    def names(self) -> Sequence[str]:
        """The names of the nodes in error messages."""

    @property
    def timeout(self) -> float:
        """How long a node may take, in seconds."""

    @property
    def restarts(self) -> Restarts:
        """Which nodes may vote."""

    @property
    def proposals(self) -> Proposals:
        """Which tokens are proposed to them."""

    @property
    def lost_links(self) -> bool:
        """Whether a connection was given up recently on which a command may still be under way."""

    def now(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...

    def conversation(self) -> AbstractAsyncContextManager[Conversation]:
        """Connections to the nodes, for the duration of one call."""

    def reap(self, undo: QuorumCall, nodes: Collection[int]) -> None:
        """Let nodes that could not be reached in time execute a call later, while what it undoes may come."""


class VoteTally:
    """The nodes' votes on one call: the replies for and against, and the errors of nodes that did not reply."""

    def __init__(self, call: QuorumCall, size: int) -> None:
        self.call = call
        self.size = size
        self.quorum = size // 2 + 1
        self.yes: dict[int, list[Any]] = {}
        self.no: dict[int, list[Any]] = {}
        self.errors: dict[int, Exception] = {}

    def add(self, node: int, reply: list[Any] | Exception) -> None:
        """Record a vote; only the first one of a node counts."""
        if node in self.yes or node in self.no or node in self.errors:
            return
        if isinstance(reply, Exception):
            self.errors[node] = reply
        elif self.call.is_vote_for(reply):
            self.yes[node] = reply
        else:
            self.no[node] = reply

    @property
    def won(self) -> bool:
        return len(self.yes) >= self.quorum

    @property
    def decided(self) -> bool:
        """Whether further votes could not change the result."""
        return self.won or len(self.no) + len(self.errors) > self.size - self.quorum

    @property
    def is_obeyed(self) -> bool:
        """Whether a quorum has replied, for or against."""
        return len(self.yes) + len(self.no) >= self.quorum

    @property
    def refused(self) -> bool:
        """Whether a quorum for it has become impossible."""
        return len(self.no) > self.size - self.quorum

    @property
    def answered(self) -> dict[int, list[Any]]:
        return self.yes | self.no

    @property
    def out_of_reach(self) -> bool:
        """Whether so many nodes failed that no quorum can reply."""
        return len(self.errors) > self.size - self.quorum

    def is_complete(self) -> bool:
        return len(self.yes) + len(self.no) + len(self.errors) == self.size

    def close(self) -> None:
        """Record a timeout for each node that has not voted."""
        if not self.is_complete():
            for node in range(self.size):
                self.add(node, RedisTimeoutError("did not reply in time"))


class QuorumCall(ScriptCall):
    """A call that goes to all nodes. Its reply is the script's, unless the call's class says otherwise."""

    repeatable = True
    """Whether it may be sent again under the same owner name, while the caller has time."""
    grace = 0.0
    """How much longer than the caller's time it may be retried, in seconds."""

    def __init__(
        self,
        name: str,
        script: Script,
        keys: tuple[str, ...],
        args: tuple[Argument, ...],
        *,
        lease: float = 0.0,
        undo: QuorumCall | None = None,
    ) -> None:
        super().__init__(name, prepare(script, keys, args[1:], self.fresh is not None), args[0])
        self.lease = lease
        self.undo = undo

    def is_vote_for(self, reply: list[Any]) -> bool:
        return bool(reply[1] == 1)

    def lasting(self) -> QuorumCall:
        """A variant of an undo, for a call that may arrive late: nodes refuse that one while it could hold the lock."""
        return self

    def screen(self, node: int, reply: list[Any], voting: VotingRound) -> list[Any] | Exception:
        """The reply, or an error in place of a reply that must not count."""
        return reply

    async def over(self, voting: VotingRound) -> list[Any]:
        """Let the nodes vote on this call, and return the combined reply."""
        return await self.settle(await voting.ask(self), voting)

    async def settle(self, votes: VoteTally, voting: VotingRound) -> list[Any]:
        """The combined reply that follows from the votes."""
        raise NotImplementedError


class VotingRound:
    """One conversation with all nodes, in the form that the calls need."""

    def __init__(self, transport: QuorumTransport, session: Conversation) -> None:
        self._transport = transport
        self._size = len(transport.names)
        self._session = session
        self.now = transport.now
        self.send = session.send
        self.restarts = transport.restarts
        self.proposals = transport.proposals
        self.timeout = transport.timeout
        self._tallies: dict[QuorumCall, VoteTally] = {}

    @property
    def lost_links(self) -> bool:
        return self._transport.lost_links

    async def ask(
        self, call: QuorumCall, voters: Collection[int] | None = None, until: float | None = None
    ) -> VoteTally:
        """Send a call to all nodes, or only to ``voters``, and count the votes until the result is decided.

        Later votes are still counted, as long as this conversation listens for anything.
        """
        return (await self.ask_all([call], voters, until))[0]

    async def ask_all(
        self, calls: Sequence[QuorumCall], voters: Collection[int] | None = None, until: float | None = None
    ) -> list[VoteTally]:
        """The same for many calls at once."""
        if until is None:
            until = self.now() + self.timeout
        tallies = [self._open(call, voters) for call in calls]
        undecided = set(calls)

        def count(answer: Answer) -> bool:
            tally = self._count(answer)
            if tally is not None and tally.decided:
                undecided.discard(tally.call)
            return not undecided

        await self._session.listen(count, until)
        for call in undecided:
            self._tallies[call].close()
        return tallies

    async def tell(self, call: QuorumCall) -> VoteTally:
        """Send a call that every node should execute.

        It waits for a quorum, and then for the other nodes as long again as the quorum took.
        """
        started = self.now()
        until = started + self.timeout
        tally = self._open(call)

        def count(answer: Answer) -> bool:
            self._count(answer)
            return tally.is_obeyed

        await self._session.listen(count, until)
        await self.hear_out(tally, min(until, 2 * self.now() - started + _GRACE))
        tally.close()
        return tally

    async def hear_out(self, tally: VoteTally, until: float) -> None:
        """Count votes until all nodes have voted."""

        def count(answer: Answer) -> bool:
            self._count(answer)
            return tally.is_complete()

        if not tally.is_complete():
            await self._session.listen(count, until)

    def _open(self, call: QuorumCall, voters: Collection[int] | None = None) -> VoteTally:
        everybody = range(self._size)
        tally = self._tallies[call] = VoteTally(call, self._size)
        if voters is not None:
            tally.errors = {node: _NO_VOTER for node in everybody if node not in voters}
        self._session.send(call, everybody if voters is None else voters)
        return tally

    def _count(self, answer: Answer) -> VoteTally | None:
        """Count an answer, and return the ballot that it belongs to."""
        node, call, reply = answer
        tally = self._tallies.get(call)
        if tally is not None:
            if not isinstance(reply, Exception):
                reply = call.screen(node, reply, self)
            tally.add(node, reply)
        return tally

    async def undo_everywhere(self, call: QuorumCall, asked: VoteTally) -> None:
        """Undo a call on all nodes. Nodes that may have granted it and cannot be reached now receive the undo later."""
        if call.undo is None:
            return
        told = await self.tell(call.undo)
        innocent = {node for node, error in asked.errors.items() if isinstance(error, NodeDownError)} | asked.no.keys()
        # Nodes that did not reply may still execute the call after the undo.
        unheard = set(range(self._size)) - asked.answered.keys()
        self.reap(call.undo, (told.errors.keys() | unheard) - innocent)

    def reap(self, undo: QuorumCall, nodes: Collection[int]) -> None:
        """Let nodes execute an undo later, if they could not execute it now."""
        if nodes:
            self._transport.reap(undo.lasting(), nodes)

    def not_reached(self, call: QuorumCall, votes: VoteTally) -> QuorumNotReachedError:
        names = self._transport.names
        errors = {names[node]: error for node, error in sorted(votes.errors.items())}
        return QuorumNotReachedError(call.name, errors, len(names))
