"""RedLock's algorithm: what each of its calls needs from N independent nodes, and the topology that sends them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from django_rlock._core.errors import ends_connection, is_final
from django_rlock._redis import scripts
from django_rlock._redis.scripts import ENDLESS, LOST, OK
from django_rlock._transport.calls import (
    PATIENCE,
    REMEMBERED,
    REPLY_GRACE,
    Caller,
    Driver,
    ScriptCall,
    Topology,
    Undo,
    backoff,
)
from django_rlock._transport.quorum.votes import NodeDownError, QuorumCall, QuorumTransport, VoteTally, VotingRound
from django_rlock.exceptions import QuorumNotReachedError
from django_rlock.settings import get_settings

# --- calls ------------------------------------------------------------------------------------------------------------

# RedLock's algorithm: what each of its calls needs from N independent nodes.
#
# A lock is acquired when a quorum of nodes grants it and, for its fencing token, when a quorum raises its counters to
# that token while the owner has the lock there. It is renewed by a quorum, and released on all nodes. This is Redis's
# Redlock, described at https://redis.io/docs/latest/develop/use/patterns/distributed-locks/, with fencing added, and
# without the votes of nodes that have restarted (``restarts``).

MIN_VALIDITY = 0.5
"""The share of its lease that must be left when a lock has been acquired; if less is left, it is released."""


NO_PROPOSAL = 0
"""The proposal that lets each node draw its own token."""


class Acquire(QuorumCall):
    """Takes the lock. Returns OK and the fencing token, or the time in ms until enough leases may have expired.

    ``fresh`` is the proposed token; ``valid_for`` is the lease minus the clock drift, in seconds. ``fencing`` is
    whether the lock has a token. The keys are those of the lock, of its counter and of the owner's tombstone, and that
    of the mark of the node's data, unless nodes forget nothing.
    """

    fresh = NO_PROPOSAL
    repeatable = False

    def __init__(self, *args: Any, valid_for: float, fencing: bool, **options: Any) -> None:
        super().__init__(*args, **options)
        self.valid_for = valid_for
        self.fencing = fencing

    def is_vote_for(self, reply: list[Any]) -> bool:
        return bool(reply[1] == OK)

    def screen(self, node: int, reply: list[Any], voting: VotingRound) -> list[Any] | Exception:
        if reply[1] != OK:
            return reply
        return _doubted(self, node, _mark_in(reply), voting) or reply

    async def over(self, voting: VotingRound) -> list[Any]:
        valid_until = self.sent_at + self.valid_for
        if self.fencing:
            self.fresh = voting.proposals.next(self.sent_at)
        grants = await voting.ask(self, until=self.sent_at + voting.timeout)
        if voting.restarts.quarantine:
            self._vouch(grants, voting)
        if grants.won:
            token = await self._fence(grants, voting)
            if token is not None and valid_until - voting.now() >= self.lease * MIN_VALIDITY:
                return [b"", OK, token] if self.fencing else [b"", OK]
        await voting.undo_everywhere(self, grants)
        if grants.out_of_reach:
            raise voting.not_reached(self, grants)
        return [b"", _free_in_ms(grants)]

    async def _fence(self, grants: VoteTally, voting: VotingRound) -> int | None:
        """The token, once a quorum of the granting nodes has raised its counter to it; 0 without fencing. None: failed.

        Each node that granted has raised its counter to the token that it replied. If a quorum replied the same token,
        because they accepted the proposal, that is the token. Otherwise the nodes that formed the quorum must raise
        their counters to the highest token. If one of them fails, all nodes that have granted by then are sent the
        highest of all their tokens, because a node with a higher counter refuses a lower token.
        """
        if not self.fencing:
            return 0
        tokens = [reply[2] for reply in grants.yes.values()]
        if tokens.count(tokens[0]) >= grants.quorum:
            return int(tokens[0])
        voting.proposals.learn([reply[3] for reply in grants.yes.values()], self.sent_at)
        until = self.sent_at + 2 * voting.timeout
        token = await self._count_on(grants, voting, until)
        if token is None:
            await voting.hear_out(grants, self.sent_at + voting.timeout)
            token = await self._count_on(grants, voting, until)
        return token

    async def _count_on(self, grants: VoteTally, voting: VotingRound, until: float) -> int | None:
        token: int = max(reply[2] for reply in grants.yes.values())
        return token if (await voting.ask(self.bump(token), list(grants.yes), until)).won else None

    def bump(self, token: int) -> Bump:
        """The call that raises counters to a token."""
        owner, _, _, fence_ttl = self.args
        return Bump(self.name, scripts.REDLOCK_BUMP, self.keys[:2], (owner, token, fence_ttl))

    def _vouch(self, grants: VoteTally, voting: VotingRound) -> None:
        """Vouch for the nodes whose votes other processes do not count yet. No reply is waited for."""
        for node, grant in grants.yes.items():
            mark = _mark_in(grant)
            if run_id := voting.restarts.unknown_to_others(node, mark):
                voting.send(Vouch(self.name, scripts.REDLOCK_VOUCH, self.keys[3:], (mark, run_id)), [node])


class Bump(QuorumCall):
    """Raises the counters of the nodes that granted the lock."""


def _doubted(call: QuorumCall, node: int, mark: bytes, voting: VotingRound) -> Exception | None:
    """Why a vote does not count: the node may have forgotten that it voted for another owner."""
    return voting.restarts.doubt(node, mark, call.sent_at, voting.now())


def _mark_in(grant: list[Any]) -> bytes:
    """The mark of the node's data; empty if it has none."""
    return grant[4] if len(grant) > 4 else b""


class Vouch(QuorumCall):
    """Replaces the mark of a node's data by its run id: they are known for longer than any lease."""


class AcquireAgain(QuorumCall):
    """Takes a lock again for the owner that holds it: OK, or LOST when no quorum has it."""

    fresh = NO_PROPOSAL

    def is_vote_for(self, reply: list[Any]) -> bool:
        return bool(reply[1] == OK)

    async def settle(self, votes: VoteTally, voting: VotingRound) -> list[Any]:
        if votes.won:
            return [b"", OK]
        if votes.refused:
            return [b"", LOST]
        raise voting.not_reached(self, votes)


class Renew(QuorumCall):
    """Renews the lease: 1, or 0 when no quorum has the lock. ``seed`` returns, for a number of holds, the call that
    adds nodes that know nothing of the lock; None adds none.
    """

    def __init__(self, *args: Any, seed: Callable[[int], Seed] | None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.seed = seed

    def is_vote_for(self, reply: list[Any]) -> bool:
        return bool(reply[1] > 0)

    def screen(self, node: int, reply: list[Any], voting: VotingRound) -> list[Any] | Exception:
        return _doubted(self, node, reply[2], voting) or reply if self.is_vote_for(reply) else reply

    async def settle(self, votes: VoteTally, voting: VotingRound) -> list[Any]:
        if votes.won:
            if self.seed is not None:
                self._add_nodes(self.seed, votes, voting)
            return [b"", 1]
        if votes.refused:
            await voting.undo_everywhere(self, votes)
            return [b"", 0]
        raise voting.not_reached(self, votes)

    def _add_nodes(self, seed: Callable[[int], Seed], votes: VoteTally, voting: VotingRound) -> None:
        # Only now is it certain that the lock is held. Such a node counts from the next renewal on.
        taken = {node for node, reply in votes.no.items() if reply[1] != NOT_HELD}
        others = set(range(votes.size)) - votes.yes.keys() - taken
        if others:
            voting.send(seed(max(reply[1] for reply in votes.yes.values())), others)


NOT_HELD = -1
"""A node's reply to a renewal if the lock is not held there."""


class Seed(QuorumCall):
    """Adds a holder's lock on nodes that lost it or never had it, unless another owner has it there."""


class Release(QuorumCall):
    """Releases a hold on all nodes: 1, or 0 when no quorum had it."""

    def lasting(self) -> Release:
        owner, left, lease_ms, _ = self.args
        refused = int(1000 * max(self.lease, REMEMBERED))
        return Release(self.name, self.script, self.keys, (owner, left, lease_ms, refused), lease=self.lease)

    async def over(self, voting: VotingRound) -> list[Any]:
        sent = self.lasting() if voting.lost_connections else self
        votes = await voting.send_to_all(sent)
        if sent is not self:
            self.sends += sent.sends  # of nodes that were asked again
        return await self.settle(votes, voting)

    async def settle(self, votes: VoteTally, voting: VotingRound) -> list[Any]:
        if len(votes.answered) < votes.quorum:
            raise voting.not_reached(self, votes)
        if votes.errors:
            voting.reap(self, votes.errors)
        return [b"", 0 if votes.refused else 1]


class Keep(Release):
    """Releases a hold, but keeps the lock taken on all nodes: 1, or 0 when no quorum had it."""

    def lasting(self) -> Keep:
        return self


class Poll(QuorumCall):
    """A call to all nodes, which combines the replies of a quorum."""

    async def over(self, voting: VotingRound) -> list[Any]:
        return await self.settle(await voting.send_to_all(self), voting)

    async def settle(self, votes: VoteTally, voting: VotingRound) -> list[Any]:
        if len(votes.answered) < votes.quorum:
            raise voting.not_reached(self, votes)
        return [b"", *self.outcome(votes)]

    def outcome(self, votes: VoteTally) -> list[Any]:
        """The combined reply, without the nonce."""
        raise NotImplementedError


class ForceRelease(Poll):
    """Frees the lock from any holder: 1, or 0 if no node has it."""

    def outcome(self, votes: VoteTally) -> list[Any]:
        return [1 if votes.yes else 0]


class Question(Poll):
    """Changes no lock. It is retried for as long as a call to a single server, because NODE_TIMEOUT is short."""

    grace = REPLY_GRACE


class AskState(Question):
    """Returns the owner's holds and the remaining lease in ms: the values that a quorum of nodes has, or may have."""

    def outcome(self, votes: VoteTally) -> list[Any]:
        states, enough = votes.answered.values(), _enough(votes)
        holds = sorted((reply[1] for reply in states), reverse=True)[enough - 1]
        left = sorted((_lasting(reply[2]) for reply in states), reverse=True)[enough - 1]
        return [holds, ENDLESS if left == math.inf else left]


class AskHolders(Question):
    """Returns the owners that hold the lock on any node; none of them need have a quorum."""

    def outcome(self, votes: VoteTally) -> list[Any]:
        return [sorted({owner for reply in votes.answered.values() for owner in reply[1]})]


class AskTask(Question):
    """Returns the record of a task: its success, and whether its outcome was stored, as known to any node; and the next
    copy if a quorum agrees on it.
    """

    def outcome(self, votes: VoteTally) -> list[Any]:
        known = list(votes.answered.values())
        copies = Counter(reply[2] for reply in known)
        copy = next((copy for copy, nodes in copies.items() if copy and nodes >= _enough(votes)), b"")
        return [max(reply[1] for reply in known), copy, max(reply[3] for reply in known)]


class NoteTask(Question):
    """Records something about a task: 1 when a quorum did, else 0."""

    def outcome(self, votes: VoteTally) -> list[Any]:
        return [int(votes.won)]


def _enough(votes: VoteTally) -> int:
    """How many replies must agree for a quorum to be possible: nodes that did not reply may belong to it."""
    return len(votes.answered) + votes.quorum - votes.size


def _free_in_ms(votes: VoteTally) -> int:
    """When a quorum may be free, judging by the leases reported by the nodes that refused; ENDLESS for never."""
    lasting = [_lasting(reply[1]) for reply in votes.no.values()]
    # Nodes that have not replied yet are assumed to be like the slowest of the others.
    lasting += [max(lasting, default=0.0)] * len(votes.unheard)
    lasting += [0.0] * len(votes.yes) + [math.inf] * len(votes.errors)
    free_in = sorted(lasting)[votes.quorum - 1]
    return ENDLESS if free_in == math.inf else int(free_in)


def _lasting(pttl: int) -> float:
    return math.inf if pttl == ENDLESS else pttl


# --- topology ---------------------------------------------------------------------------------------------------------

# The topology of an alias with NODES: each call goes to all of them, and their votes are combined into one reply.

_BATCH = 100
_BACKOFF = 0.01, 0.5


class Quorum(Topology):
    """Runs calls over all nodes of an alias."""

    def __init__(self, using: str, transport: QuorumTransport, binding: Caller, at: Callable[[str], Driver]) -> None:
        super().__init__(binding, at)
        self.transport = transport
        self._using = using
        self._cut_off_since: float | None = None
        self._refused_since: float | None = None

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
                    self._cut_off_since = self.transport.now()
                if self.transport.now() >= self._give_up_at(suited, until) or _is_refused(error):
                    raise
                if self._is_down(error):
                    raise
                if not suited.repeatable:
                    return [b"", 0]  # the waiter retries under another name
            else:
                self._cut_off_since = self._refused_since = None
                return reply
            await self.transport.sleep(backoff(tries, *_BACKOFF))

    def _give_up_at(self, call: QuorumCall, until: float | None) -> float:
        if until is None:
            # By then, nodes that have just restarted vote again.
            return (self._cut_off_since or self.transport.now()) + PATIENCE + self.transport.restarts.quarantine
        return until + call.grace

    def _is_down(self, error: QuorumNotReachedError) -> bool:
        """Whether too few nodes have listened for longer than callers wait for them, according to all callers
        together."""
        if not _too_few_listen(error):
            self._refused_since = None
            return False
        now = self.transport.now()
        self._refused_since = self._refused_since or now
        patience = get_settings(self._using).refused_wait_time
        return patience is not None and now >= self._refused_since + patience

    async def _run_once(self, call: QuorumCall) -> list[Any]:
        async with self.transport.session() as session:
            call.sent_at = self.transport.now()  # all nodes are now connected, or known to be down
            call.sends += 1
            return await call.over(VotingRound(self.transport, session))

    async def run_all(self, calls: Sequence[ScriptCall]) -> list[Any]:
        replies: list[Any] = []
        for start in range(0, len(calls), _BATCH):
            replies += await self._run_batch([_suited(call) for call in calls[start : start + _BATCH]])
        return replies

    async def _run_batch(self, batch: Sequence[QuorumCall]) -> list[Any]:
        replies: list[Any] = []
        async with self.transport.session() as session:
            voting = VotingRound(self.transport, session)
            sent_at = self.transport.now()
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


def _is_refused(error: QuorumNotReachedError) -> bool:
    """Whether retrying cannot help, because the nodes understood the call and refused it."""
    return all(is_final(each) and not ends_connection(each) for each in error.errors.values())


def _too_few_listen(error: QuorumNotReachedError) -> bool:
    """Whether so many nodes refuse connections that the others cannot form a quorum."""
    refused = sum(isinstance(each, NodeDownError) and each.refused for each in error.errors.values())
    return 2 * (error.nodes - refused) <= error.nodes
