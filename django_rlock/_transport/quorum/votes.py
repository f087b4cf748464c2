"""A call that goes to N independent nodes: which nodes may vote, and what their votes mean together."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol

from django.core.exceptions import ImproperlyConfigured
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_rlock._core.errors import ends_connection
from django_rlock._core.threads import snapshot
from django_rlock._redis.scripts import Script
from django_rlock._transport.calls import Argument, ScriptCall, Template, kept
from django_rlock.exceptions import QuorumNotReachedError

# --- restarts ---------------------------------------------------------------------------------------------------------

# Which nodes may vote: a node that has restarted, or lost its data, may have forgotten locks that are still held.


class NodeRestartedError(RedisError):
    """A node has lost data, and has no vote until the leases that it may have forgotten have expired."""


UNMARKED = b"", math.inf


class _SeenNode:
    """A node's run id, and the mark of its data with the monotonic time at which this process first saw it."""

    __slots__ = ("mark", "run_id")

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.mark: tuple[bytes, float] = UNMARKED


class Restarts:
    """This process's knowledge about the data of an alias's nodes. Times are monotonic seconds.

    Each node has a mark among its data, which a grant returns. It is lost with the data. The first grant afterwards
    sets a new one, and the node has no vote for ``quarantine`` seconds, which is the longest lease (0: nodes that
    forget nothing). Others who use the nodes may have longer leases, so each node also stores the longest quarantine.
    After that time with an unchanged mark, by its own clock, a process counts the node again, and vouches for it: it
    stores the node's run id, which grants return instead of the mark. From then on other processes count the node too.
    A server that was restarted, or was a replica, may have an older state of the data. Then its replication id is
    another, and the script replaces the mark (``voter.lua``). Another server's run id is not believed either. No clock
    of a server matters.

    A server is identified once for each connection, which ends when the server does, so every reply on a connection
    comes from the same server. Therefore NODES must not name a proxy that puts another server behind an open
    connection.
    """

    def __init__(self, names: tuple[str, ...], quarantine: float, clock_drift: float) -> None:
        self._names = names
        self._longest_ms = round(1000 * quarantine)
        self._slowness = 1 + clock_drift  # of the server's clock
        self.quarantine = quarantine * self._slowness
        self._seen: dict[int, _SeenNode] = {}

    def meet(self, node: int, run_id: str) -> None:
        """Record the server that a new connection leads to.

        Raises ImproperlyConfigured when two names lead to the same server, which would vote twice.
        """
        seen = self._seen.get(node)
        if seen is not None and seen.run_id == run_id:
            return
        for other, its in snapshot(self._seen.items()):
            if other != node and its.run_id == run_id:
                raise ImproperlyConfigured(
                    f"{self._names[other]!r} and {self._names[node]!r} in NODES are one and the same server, which "
                    f"would vote twice. RedLock needs nodes that are independent of each other."
                )
        self._seen[node] = _SeenNode(run_id)

    def learn(self, longest_ms: int) -> None:
        """Wait for the leases of others, too: ``longest_ms`` is the longest quarantine of all who use a node."""
        if longest_ms > self._longest_ms:
            self._longest_ms = longest_ms
            self.quarantine = longest_ms / 1000 * self._slowness

    def doubt(self, node: int, mark: bytes, sent_at: float, now: float) -> Exception | None:
        """Why a vote does not count that came now from a node with this mark; None if it does. ``sent_at`` is when the
        node was asked."""
        seen = self._seen[node]
        if not self.quarantine or mark == seen.run_id.encode():
            return None
        if mark != seen.mark[0]:
            seen.mark = (mark, now) if mark else UNMARKED  # by one assignment, for other threads
        left = seen.mark[1] + self.quarantine - sent_at
        if left <= 0:
            return None
        return NodeRestartedError(f"it was emptied or has restarted, and gets no votes for another {left:.1f} s")

    def unknown_to_others(self, node: int, mark: bytes) -> tuple[str, int] | None:
        """The run id that grants should return instead of the mark of a node whose vote counts, and for how many ms its
        data are known; None if they return it already."""
        run_id = self._seen[node].run_id
        return (run_id, self._longest_ms) if self.quarantine and mark != run_id.encode() else None


# --- proposals --------------------------------------------------------------------------------------------------------

# The fencing token that a client proposes, so that the nodes agree on it in one round: see docs/design/redlock.md.

AHEAD = 100_000
"""How far a node lets a proposal be ahead of its clock, in µs; ``token.lua`` has the same."""
LEAD = 2_000
"""How far a proposal is ahead of the nodes' estimated clock when it arrives, in µs. It covers commands that take longer
than usual, and the drift of clocks until they are read again."""


class Proposals:
    """The nodes' clock as this process last saw it, advanced by its own monotonic clock.

    A node accepts a proposal that is above its counter and its clock, and at most AHEAD above its clock; otherwise it
    draws its own token. So a wrong guess costs a round, but never the order of tokens. No wall clock is used.
    """

    def __init__(self) -> None:
        self._seen: tuple[int, float] | None = None

    def next(self, now: float) -> int:
        """The proposal for calls sent at ``now`` (monotonic seconds); 0 as long as no node's clock is known."""
        if self._seen is None:
            return 0
        clock, at = self._seen
        return clock + int((now - at) * 1e6) + LEAD

    def learn(self, clocks: Sequence[int], sent_at: float) -> None:
        """Record the nodes' clocks, in µs, as replied to a call that was sent at a monotonic time.

        The next proposal must exceed the highest of them; a clock so far ahead that most nodes would refuse it is
        ignored.
        """
        usual = sorted(clocks)[len(clocks) // 2]
        self._seen = max(clock for clock in clocks if clock <= usual + AHEAD), sent_at


# --- votes ------------------------------------------------------------------------------------------------------------

_GRACE = 0.001


class NodeDownError(RedisConnectionError):
    """A connection to a node failed, so nothing was sent. ``refused``: nothing listens at its address."""

    def __init__(self, reason: str, refused: bool = False) -> None:
        super().__init__(reason)
        self.refused = refused


_NO_VOTER = RedisConnectionError("has no vote")


def may_ask_again(error: BaseException) -> bool:
    """Whether the call that got this error should be sent over a new connection: its own broke, or is of no more use.

    Scripts are safe to repeat: an owner's second acquire finds its hold, and a second release finds none.
    """
    return ends_connection(error) and not isinstance(error, NodeDownError)


class Answer(NamedTuple):
    """A node's reply to a call, or the reason why there is none."""

    node: int
    call: QuorumCall
    reply: list[Any] | Exception


Count = Callable[[Answer], bool]
"""Counts an answer; returns whether those counted are enough."""


class Session(Protocol):
    """Calls to the numbered nodes, and their replies. Each node executes them in the order in which they were sent."""

    def send(self, call: QuorumCall, nodes: Iterable[int]) -> None:
        """Send a call to some nodes at once. Failures are received as errors by ``listen``."""

    async def listen(self, count: Count, until: float) -> None:
        """Count answers as they come, until enough have, none is left to come, or at the monotonic time ``until``.

        Answers that come while nothing listens are counted by the next ``listen``.
        """

    def end_by(self, until: float) -> None:
        """For ``count``: listen no longer than until this earlier time."""


class Nodes(Protocol):
    """What this process knows of an alias's nodes; see ``nodes.NodeSet``."""

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
    def note_lists(self) -> Callable[[int, bytes, float], object]:
        """Takes the names of the other lists of nodes that are in use on a node, as replied at a monotonic time."""

    @property
    def lost_connections(self) -> bool:
        """Whether a connection was given up recently on which a command may still be under way."""

    def send_later(self, undo: QuorumCall, nodes: Collection[int]) -> None:
        """Let nodes that could not be reached in time execute a call later, while what it undoes may come."""


class QuorumTransport(Protocol):
    """How a binding reaches the nodes of an alias."""

    @property
    def nodes(self) -> Nodes: ...

    def session(self) -> AbstractAsyncContextManager[Session]:
        """Connections to the nodes, for the duration of one call."""


class VoteTally:
    """The nodes' votes on one call: the replies for and against, and the errors of nodes that did not reply."""

    def __init__(self, call: QuorumCall, size: int) -> None:
        self.call = call
        self.size = size
        self.quorum = size // 2 + 1  # any two share a node, which has one owner at a time
        self.yes: dict[int, list[Any]] = {}
        self.no: dict[int, list[Any]] = {}
        self.errors: dict[int, Exception] = {}
        self.unheard = set(range(size))

    def add(self, node: int, reply: list[Any] | Exception) -> None:
        """Record a vote; only the first one of a node counts."""
        if node not in self.unheard:  # it was asked again, and has one vote
            return
        if isinstance(reply, Exception):
            self.errors[node] = reply
        elif self.call.is_vote_for(reply):
            self.yes[node] = reply
        else:
            self.no[node] = reply
        self.unheard.discard(node)

    @property
    def won(self) -> bool:
        return len(self.yes) >= self.quorum

    @property
    def decided(self) -> bool:
        """Whether further votes could not change the result."""
        return len(self.yes) >= self.quorum or len(self.no) + len(self.errors) > self.size - self.quorum

    @property
    def is_executed(self) -> bool:
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

    def time_out(self) -> None:
        """Record a timeout for each node that has not voted."""
        for node in self.unheard.copy():
            self.add(node, RedisTimeoutError("did not reply in time"))


class QuorumCall(ScriptCall):
    """A call that goes to all nodes. Its reply is the script's, unless the call's class says otherwise. ``keys`` are
    its keys, or the key for which the script knows them: then other calls use its template, too."""

    repeatable = True
    """Whether it may be sent again under the same owner name, while the caller has time."""
    vote_for: bytes | int = 1
    """What the reply of a node that votes for it begins with, after the nonce."""
    for_all_nodes = False
    """Whether all nodes must execute it, at once or later, and not only a quorum."""
    grace = 0.0
    """How much longer than the caller's time it may be retried, in seconds."""

    def __init__(
        self,
        name: str,
        script: Script,
        keys: tuple[str, ...] | str,
        args: tuple[Argument, ...],
        *,
        lease: float = 0.0,
        undo: Callable[[], QuorumCall] | None = None,
    ) -> None:
        if isinstance(keys, str):
            super().__init__(name, kept(script, args[1:]), keys, args[0])
        else:
            super().__init__(name, Template(script, args[1:], keys), keys[0], args[0])
        self.lease = lease
        self.undo = undo

    def is_vote_for(self, reply: list[Any]) -> bool:
        return bool(reply[1] == self.vote_for)

    def lasting(self) -> QuorumCall:
        """A variant of an undo, for a call that may arrive late: nodes refuse that one while it could hold the lock."""
        return self

    def screen(self, node: int, reply: list[Any], voting: VotingRound) -> list[Any] | Exception:
        """The reply, or an error instead of a reply that must not count because the node may have lost its data."""
        return reply

    async def over(self, voting: VotingRound) -> list[Any]:
        """Let the nodes vote on this call, and return the combined reply."""
        return await self.settle(await voting.ask(self), voting)

    async def settle(self, votes: VoteTally, voting: VotingRound) -> list[Any]:
        """The combined reply that follows from the votes."""
        raise NotImplementedError


class VotingRound:
    """Sends calls over one session until they are decided, and counts the votes on them."""

    def __init__(self, nodes: Nodes, session: Session, now: Callable[[], float]) -> None:
        self.nodes = nodes
        self.now = now
        self.send = session.send
        self._session = session
        self._size = len(nodes.names)
        self._quarantine = nodes.restarts.quarantine
        self._tallies: dict[QuorumCall, VoteTally] = {}

    async def ask(
        self, call: QuorumCall, voters: Collection[int] | None = None, until: float | None = None
    ) -> VoteTally:
        """Send a call to all nodes, or only to ``voters``, and count the votes until the result is decided.

        Later votes are still counted, as long as this session listens for anything.
        """
        tally = self._open(call, voters)

        def count(answer: Answer) -> bool:
            self._count(answer)
            return tally.decided

        await self._session.listen(count, self.now() + self.nodes.timeout if until is None else until)
        if not tally.decided:
            tally.time_out()
        return tally

    async def ask_all(self, calls: Sequence[QuorumCall]) -> list[VoteTally]:
        """Send many calls to all nodes at once, and count the votes until all of them are decided; those of calls for
        all nodes until all nodes have voted.
        """
        tallies = [self._open(call) for call in calls]
        waited_for = set(calls)

        def count(answer: Answer) -> bool:
            tally = self._count(answer)
            if tally is not None and (not tally.unheard if tally.call.for_all_nodes else tally.decided):
                waited_for.discard(tally.call)
            return not waited_for

        await self._session.listen(count, self.now() + self.nodes.timeout)
        for call in waited_for:
            self._tallies[call].time_out()
        return tallies

    async def send_to_all(self, call: QuorumCall) -> VoteTally:
        """Send a call that every node should execute.

        It waits for a quorum, and then for the other nodes as long again as the quorum took.
        """
        session, started = self._session, self.now()
        tally = self._open(call)
        until = latest = started + self.nodes.timeout

        def count(answer: Answer) -> bool:
            nonlocal until
            self._count(answer)
            if not tally.unheard:
                return True
            if until == latest and tally.is_executed:  # a node that is down must not delay each release by its timeout
                until = min(until, 2 * self.now() - started + _GRACE)
                session.end_by(until)
            return False

        await session.listen(count, until)
        tally.time_out()
        return tally

    async def hear_out(self, tally: VoteTally, until: float) -> None:
        """Count votes until all nodes have voted."""

        def count(answer: Answer) -> bool:
            self._count(answer)
            return not tally.unheard

        if tally.unheard:
            await self._session.listen(count, until)

    def _open(self, call: QuorumCall, voters: Collection[int] | None = None) -> VoteTally:
        everybody = range(self._size)
        tally = self._tallies[call] = VoteTally(call, self._size)
        if voters is not None:
            for node in everybody:
                if node not in voters:
                    tally.add(node, _NO_VOTER)
        self._session.send(call, everybody if voters is None else voters)
        return tally

    def _count(self, answer: Answer) -> VoteTally | None:
        """Count an answer, and return the ballot that it belongs to."""
        node, call, reply = answer
        tally = self._tallies.get(call)
        if tally is not None:
            if self._quarantine and not isinstance(reply, Exception):
                reply = call.screen(node, reply, self)
                self._screen_again()
            tally.add(node, reply)
        return tally

    def _screen_again(self) -> None:
        """Doubt earlier votes, too, once a node has replied that another process has longer leases."""
        if self.nodes.restarts.quarantine > self._quarantine:
            self._quarantine = self.nodes.restarts.quarantine
            for tally in self._tallies.values():
                for node, reply in snapshot(tally.yes.items()):
                    screened = tally.call.screen(node, reply, self)
                    if isinstance(screened, Exception):
                        del tally.yes[node]
                        tally.errors[node] = screened

    async def undo_everywhere(self, call: QuorumCall, asked: VoteTally) -> None:
        """Undo a call on all nodes. Nodes that may have granted it and cannot be reached now receive the undo later."""
        if call.undo is None:
            return
        undo = call.undo()
        # A copy of the call may still be under way on a connection that broke before the node was asked again.
        tally = await self.send_to_all(undo.lasting() if self.nodes.lost_connections else undo)
        innocent = {node for node, error in asked.errors.items() if isinstance(error, NodeDownError)} | asked.no.keys()
        # Nodes that did not reply may still execute the call after the undo.
        unheard = set(range(self._size)) - asked.answered.keys()
        self.reap(undo, (tally.errors.keys() | unheard) - innocent)

    def reap(self, undo: QuorumCall, nodes: Collection[int]) -> None:
        """Let nodes execute an undo later, if they could not execute it now."""
        if nodes:
            self.nodes.send_later(undo.lasting(), nodes)

    def not_reached(self, call: QuorumCall, votes: VoteTally) -> QuorumNotReachedError:
        names = self.nodes.names
        errors = {names[node]: error for node, error in sorted(votes.errors.items())}
        return QuorumNotReachedError(call.name, errors, len(names))
