"""RedLock's algorithm: what each of its calls takes from N independent nodes.

A lock is acquired by a quorum of grants and, for its fencing token, a quorum of nodes that still have them; it is
renewed by a quorum, and released everywhere. Redis's Redlock, which
https://redis.io/docs/latest/develop/use/patterns/distributed-locks/ describes, with fencing, and without the votes of
nodes that have restarted (``census``).
"""

from __future__ import annotations

import math
from typing import Any

from django_rlock.drivers.base import REPLY_GRACE
from django_rlock.drivers.quorum import Ballot, Nodes, QuorumCall

MIN_VALIDITY = 0.5
"""The share of its lease that a lock must have left when it has been acquired; with less it is given back."""


class Acquire(QuorumCall):
    """Takes the lock: OK and the fencing token, or the time in ms until others' leases may let a quorum be free.

    ``valid_for`` is the lease without the drift of the clocks, in seconds; ``bump`` raises the nodes' counters.
    """

    __slots__ = ("bump", "valid_for")

    repeatable = False

    def __init__(self, *args: Any, valid_for: float, bump: Bump | None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.valid_for = valid_for
        self.bump = bump

    def is_vote_for(self, reply: list[Any]) -> bool:
        return bool(reply[1] == b"OK")

    def screen(self, node: int, reply: list[Any], nodes: Nodes) -> list[Any] | Exception:
        if reply[1] != b"OK":
            return reply
        return nodes.census.doubt(node, nodes.now()) or reply

    async def over(self, nodes: Nodes) -> list[Any]:
        valid_until = self.sent_at + self.valid_for
        grants = await nodes.ask(self, until=self.sent_at + nodes.timeout)
        if grants.won:
            token = await self._fence(grants, nodes)
            if token is not None and valid_until - nodes.now() >= self.lease * MIN_VALIDITY:
                return [b"", b"OK", token] if self.bump else [b"", b"OK"]
        await nodes.undo_everywhere(self, grants)
        if grants.out_of_reach:
            raise nodes.not_reached(self, grants)
        return [b"", _free_in_ms(grants)]

    async def _fence(self, grants: Ballot, nodes: Nodes) -> int | None:
        """The token, once a quorum of those that granted, and still do, counts on from it; 0 without fencing.

        Those whose grants were a quorum are asked alone. If one fails, so are all that granted meanwhile, with the
        highest of all their tokens: whose own is higher has no vote on a lower one.
        """
        if self.bump is None:
            return 0
        until = self.sent_at + 2 * nodes.timeout
        token = await self._count_on(self.bump, grants, nodes, until)
        if token is None:
            await nodes.hear_out(grants, self.sent_at + nodes.timeout)
            token = await self._count_on(self.bump, grants, nodes, until)
        return token

    async def _count_on(self, bump: Bump, grants: Ballot, nodes: Nodes, until: float) -> int | None:
        token: int = max(reply[2] for reply in grants.yes.values())
        return token if (await nodes.ask(bump.to(token), list(grants.yes), until)).won else None


class Bump(QuorumCall):
    """Raises the counters of the nodes that granted the lock."""

    __slots__ = ()

    def to(self, token: int) -> Bump:
        owner, _, fence_ttl = self.args
        return Bump(self.name, self.script, self.keys, (owner, token, fence_ttl))


class AcquireAgain(QuorumCall):
    """Takes a lock that its owner has once more: OK, or LOST when no quorum has it."""

    __slots__ = ()

    def is_vote_for(self, reply: list[Any]) -> bool:
        return bool(reply[1] == b"OK")

    async def settle(self, votes: Ballot, nodes: Nodes) -> list[Any]:
        if votes.won:
            return [b"", b"OK"]
        if votes.refused:
            return [b"", b"LOST"]
        raise nodes.not_reached(self, votes)


class Renew(QuorumCall):
    """Gives the lock a new lease: 1, or 0 when no quorum has it. ``seed`` takes nodes that know nothing of it."""

    __slots__ = ("seed",)

    def __init__(self, *args: Any, seed: Seed, **options: Any) -> None:
        super().__init__(*args, **options)
        self.seed = seed

    def is_vote_for(self, reply: list[Any]) -> bool:
        return bool(reply[1] > 0)

    async def settle(self, votes: Ballot, nodes: Nodes) -> list[Any]:
        if votes.won:
            # Only now, when the lock is surely still held; such a node counts from the next renewal on.
            taken = {node for node, reply in votes.no.items() if reply[1] != ABSENT}
            others = set(range(votes.size)) - votes.yes.keys() - taken
            if others:
                nodes.send(self.seed.with_holds(max(reply[1] for reply in votes.yes.values())), others)
            return [b"", 1]
        if votes.refused:
            await nodes.undo_everywhere(self, votes)
            return [b"", 0]
        raise nodes.not_reached(self, votes)


ABSENT = -1
"""What a node answers to a renewal when nobody has the lock there."""


class Seed(QuorumCall):
    """Gives a holder the nodes that lost its lock, or never had it, where nobody else has it."""

    __slots__ = ()

    def with_holds(self, holds: int) -> Seed:
        owner, _, lease_ms = self.args
        return Seed(self.name, self.script, self.keys, (owner, holds, lease_ms))


class Release(QuorumCall):
    """Gives back a hold, everywhere: 1, or 0 when no quorum had it."""

    __slots__ = ()

    async def over(self, nodes: Nodes) -> list[Any]:
        return await self.settle(await nodes.tell(self), nodes)

    async def settle(self, votes: Ballot, nodes: Nodes) -> list[Any]:
        if len(votes.answered) < votes.quorum:
            raise nodes.not_reached(self, votes)
        if votes.errors:
            nodes.reap(self.undo or self, votes.errors)
        return [b"", 0 if votes.refused else 1]


class ForceRelease(QuorumCall):
    """Frees the lock whoever has it: 1, or 0 when no node knew of it."""

    __slots__ = ()

    async def over(self, nodes: Nodes) -> list[Any]:
        votes = await nodes.tell(self)
        if len(votes.answered) < votes.quorum:
            raise nodes.not_reached(self, votes)
        return [b"", 1 if votes.yes else 0]


class AskState(QuorumCall):
    """Tells the owner's holds and the lease left in ms: what a quorum of nodes has, or may have."""

    __slots__ = ()

    grace = REPLY_GRACE  # who asks one server once waits that long, and NODE_TIMEOUT is short

    async def over(self, nodes: Nodes) -> list[Any]:
        votes = await nodes.tell(self)
        states = votes.answered.values()
        # Nodes that did not answer may be among a quorum that holds it.
        enough = len(states) + votes.quorum - votes.size
        if len(states) < votes.quorum:
            raise nodes.not_reached(self, votes)
        holds = sorted((reply[1] for reply in states), reverse=True)[enough - 1]
        left = sorted((_lasting(reply[2]) for reply in states), reverse=True)[enough - 1]
        return [b"", holds, -1 if left == math.inf else left]


def _free_in_ms(votes: Ballot) -> int:
    """When a quorum may be free, as far as the leases of those tell that refused; -1 for never."""
    lasting = [_lasting(reply[1]) for reply in votes.no.values()]
    # Who has not been heard is taken to be like the others.
    unheard = votes.size - len(votes.yes) - len(votes.no) - len(votes.errors)
    lasting += [0.0] * len(votes.yes) + [max(lasting, default=0.0)] * unheard + [math.inf] * len(votes.errors)
    free_in = sorted(lasting)[votes.quorum - 1]
    return -1 if free_in == math.inf else int(free_in)


def _lasting(pttl: int) -> float:
    return math.inf if pttl == -1 else pttl
