"""A driver for N independent nodes: a call goes to all of them, and their votes make one answer.

What the votes mean is the call's business (``quorum_calls``). The nodes are reached through a ``Conversation``, which
threads, asyncio tasks and the tests' simulator each bring.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol

from django.core.exceptions import ImproperlyConfigured
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_rlock.drivers.base import PATIENCE, Argument, ScriptCall, Waiter, is_final
from django_rlock.drivers.census import Census
from django_rlock.exceptions import QuorumNotReachedError
from django_rlock.scripts import Script

_GRACE = 0.001
_BATCH = 500
_BACKOFF = 0.01, 0.5


class NodeDownError(RedisConnectionError):
    """A node could not be connected to: surely nothing was sent."""


_NO_VOTER = RedisConnectionError("has no vote")


class Answer(NamedTuple):
    """What a node replied to a call, or why it did not."""

    node: int
    call: QuorumCall
    reply: list[Any] | Exception


class Conversation(Protocol):
    """Calls to the nodes, which are numbered, and their replies. A node obeys them in the order they were sent in."""

    def send(self, call: QuorumCall, nodes: Iterable[int]) -> None:
        """Send a call to some nodes at once. What fails is received as an error."""

    async def receive(self, until: float) -> Answer | None:
        """The next answer; None when none comes before the monotonic time ``until``, or none is left to come."""


class Ballot:
    """The nodes' votes on one call: the replies for and against, and the errors of those that could not be asked."""

    def __init__(self, call: QuorumCall, size: int) -> None:
        self.call = call
        self.size = size
        self.quorum = size // 2 + 1
        self.yes: dict[int, list[Any]] = {}
        self.no: dict[int, list[Any]] = {}
        self.errors: dict[int, Exception] = {}

    def add(self, node: int, reply: list[Any] | Exception) -> None:
        """Note a vote; a node has one."""
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
        """Whether more votes would change nothing."""
        return self.won or len(self.no) + len(self.errors) > self.size - self.quorum

    @property
    def refused(self) -> bool:
        """Whether a quorum can no longer be for it."""
        return len(self.no) > self.size - self.quorum

    @property
    def answered(self) -> dict[int, list[Any]]:
        return self.yes | self.no

    @property
    def out_of_reach(self) -> bool:
        """Whether no quorum can be asked."""
        return len(self.errors) > self.size - self.quorum

    def is_complete(self) -> bool:
        return len(self.yes) + len(self.no) + len(self.errors) == self.size

    def close(self) -> None:
        """Time is up: who has not voted did not answer."""
        for node in range(self.size):
            self.add(node, RedisTimeoutError("did not answer in time"))


class QuorumCall(ScriptCall):
    """A call that all nodes get. Answers as the script does, or as the kind's hook says."""

    __slots__ = ("lease", "undo")

    repeatable = True
    """Whether it may be sent again under the same name, while the caller has time."""
    grace = 0.0
    """For how long it is sent again after that, in seconds."""

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
        super().__init__(name, script, keys, args)
        self.lease = lease
        self.undo = undo

    def is_vote_for(self, reply: list[Any]) -> bool:
        return bool(reply[1] == 1)

    def screen(self, node: int, reply: list[Any], nodes: Nodes) -> list[Any] | Exception:
        """The reply, or the error that stands for one that must not count."""
        return reply

    async def over(self, nodes: Nodes) -> list[Any]:
        """Have the nodes answer it."""
        return await self.settle(await nodes.ask(self), nodes)

    async def settle(self, votes: Ballot, nodes: Nodes) -> list[Any]:
        """What follows from the votes."""
        raise NotImplementedError


class Nodes:
    """A conversation with all nodes, as the calls need it."""

    def __init__(self, driver: QuorumDriver, talk: Conversation) -> None:
        self._driver = driver
        self._talk = talk
        self.now = driver.now
        self.send = talk.send
        self.census = driver.census
        self.timeout = driver.timeout
        self._ballots: dict[QuorumCall, Ballot] = {}

    async def ask(self, call: QuorumCall, voters: Collection[int] | None = None, until: float | None = None) -> Ballot:
        """Send a call to all nodes, or to some, who alone have a vote then, and count the votes until they decide.

        Votes that come later are counted too, as long as anything else is received.
        """
        return (await self.ask_all([call], voters, until))[0]

    async def ask_all(
        self, calls: Sequence[QuorumCall], voters: Collection[int] | None = None, until: float | None = None
    ) -> list[Ballot]:
        """The same for many calls at once."""
        if until is None:
            until = self.now() + self.timeout
        ballots = [self._open(call, voters) for call in calls]
        undecided = set(calls)
        while undecided and (vote := await self._next_vote(until)):
            if vote.decided:
                undecided.discard(vote.call)
        for call in undecided:
            self._ballots[call].close()
        return ballots

    async def tell(self, call: QuorumCall) -> Ballot:
        """Send a call that every node should obey.

        Waits for a quorum, and for the other nodes as long again as that took.
        """
        started = self.now()
        until = started + self.timeout
        ballot = self._open(call)
        while len(ballot.answered) < ballot.quorum and await self._next_vote(until):
            pass
        await self.hear_out(ballot, min(until, 2 * self.now() - started + _GRACE))
        ballot.close()
        return ballot

    async def hear_out(self, ballot: Ballot, until: float) -> None:
        """Count votes until all nodes have voted."""
        while not ballot.is_complete() and await self._next_vote(until):
            pass

    def _open(self, call: QuorumCall, voters: Collection[int] | None = None) -> Ballot:
        everybody = range(self._driver.size)
        ballot = self._ballots[call] = Ballot(call, self._driver.size)
        if voters is not None:
            ballot.errors = {node: _NO_VOTER for node in everybody if node not in voters}
        self._talk.send(call, everybody if voters is None else voters)
        return ballot

    async def _next_vote(self, until: float) -> Ballot | None:
        """The ballot of the next answer that concerns one."""
        while (answer := await self._talk.receive(until)) is not None:
            ballot = self._ballots.get(answer.call)
            if ballot is not None:
                reply = answer.reply
                if not isinstance(reply, Exception):
                    reply = ballot.call.screen(answer.node, reply, self)
                ballot.add(answer.node, reply)
                return ballot
        return None

    async def undo_everywhere(self, call: QuorumCall, asked: Ballot) -> None:
        """Give back what a call may have been granted; nodes that may have granted and do not hear of it, later."""
        if call.undo is None:
            return
        told = await self.tell(call.undo)
        innocent = {node for node, error in asked.errors.items() if isinstance(error, NodeDownError)} | asked.no.keys()
        self.reap(call.undo, told.errors.keys() - innocent)

    def reap(self, undo: QuorumCall, nodes: Collection[int]) -> None:
        """Have nodes give back later what they could not be told to give back now."""
        if nodes:
            self._driver.reap(undo, nodes)

    def not_reached(self, call: QuorumCall, votes: Ballot) -> QuorumNotReachedError:
        names = self._driver.node_names
        errors = {names[node]: error for node, error in sorted(votes.errors.items())}
        return QuorumNotReachedError(call.name, errors, len(names))


class QuorumDriver:
    """Runs calls over all nodes of an alias; how to reach them, and to wait, is the business of who inherits."""

    node_names: Sequence[str]
    timeout: float
    census: Census
    _cut_off_since: float | None = None

    @property
    def size(self) -> int:
        return len(self.node_names)

    def now(self) -> float:
        raise NotImplementedError

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError

    def conversation(self) -> AbstractAsyncContextManager[Conversation]:
        """Connections to the nodes, for as long as one call takes."""
        raise NotImplementedError

    def reap(self, undo: QuorumCall, nodes: Collection[int]) -> None:
        """Have a call obeyed later by nodes that could not be told in time, until its lease has ended."""
        raise NotImplementedError

    def take(
        self, call: ScriptCall, until: float | None, undo: Callable[[], ScriptCall]
    ) -> Coroutine[Any, Any, list[Any]]:
        return self.run(call, until)

    async def run(self, script_call: ScriptCall, until: float | None = None) -> list[Any]:
        """Have the nodes answer a call; QuorumNotReachedError when too few of them can be asked until then."""
        call = self._suited(script_call)
        pause = _BACKOFF[0]
        while True:
            try:
                reply = await self._run_once(call)
            except QuorumNotReachedError as error:
                if self._cut_off_since is None:
                    self._cut_off_since = self.now()
                if self.now() >= self._give_up_at(call, until) or _is_refused(error):
                    raise
                if not call.repeatable:
                    return [b"", 0]  # the waiter tries again under another name
            else:
                self._cut_off_since = None
                return reply
            await self.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - jitter
            pause = min(2 * pause, _BACKOFF[1])

    def _give_up_at(self, call: QuorumCall, until: float | None) -> float:
        if until is None:
            # Nodes that have just started vote again then.
            return (self._cut_off_since or self.now()) + PATIENCE + self.census.quarantine
        return until + call.grace

    async def _run_once(self, call: QuorumCall) -> list[Any]:
        async with self.conversation() as talk:
            call.sent_at = self.now()  # when all are connected, or known to be down
            call.sends += 1
            return await call.over(Nodes(self, talk))

    async def run_all(self, calls: list[ScriptCall]) -> list[Any]:
        """Run many calls at once, for the background thread; an exception stands in for a reply that did not come."""
        replies: list[Any] = []
        for start in range(0, len(calls), _BATCH):
            batch = [self._suited(call) for call in calls[start : start + _BATCH]]
            async with self.conversation() as talk:
                nodes = Nodes(self, talk)
                sent_at = self.now()
                for call in batch:
                    call.sent_at = sent_at
                    call.sends += 1
                for votes in await nodes.ask_all(batch):
                    try:
                        replies.append(await votes.call.settle(votes, nodes))
                    except QuorumNotReachedError as error:
                        replies.append(error)
        return replies

    def _suited(self, call: ScriptCall) -> QuorumCall:
        if not isinstance(call, QuorumCall):
            raise ImproperlyConfigured(
                f"{call.name!r} is of a kind that needs one server, on an alias with NODES, where only RedLock works. "
                f"Use rlock() without kind=, or an alias with CACHE."
            )
        return call

    def overhear(self, channel: str, token: str | None) -> Waiter | None:
        """Nobody listens: waiters ask again."""
        return None


def _is_refused(error: QuorumNotReachedError) -> bool:
    """Whether trying again cannot help: the nodes understood and refused."""
    return all(is_final(each) for each in error.errors.values())
