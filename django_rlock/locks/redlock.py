"""RedLock: a lock held on a majority of independent servers, so that no single server is indispensable."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Unpack

from django_rlock._core.process import owned_table
from django_rlock._redis import keys, scripts
from django_rlock._redis.scripts import ENDLESS, LOST, OK
from django_rlock._transport.calls import REMEMBERED, REPLY_GRACE, ScriptCall, backoff
from django_rlock._transport.quorum.votes import QuorumCall, VoteTally, VotingRound
from django_rlock.locks.base import BaseLock
from django_rlock.locks.kinds import SETTLE, Kind, settled_keys
from django_rlock.locks.options import LockOptions, milliseconds
from django_rlock.locks.ownership import fencing_token
from django_rlock.locks.places import PLACES
from django_rlock.settings import QUORUM_KIND, SHORTEST_LEASES, get_settings, settings_of

# --- calls ------------------------------------------------------------------------------------------------------------

# What each call needs from N independent nodes.
#
# A lock is acquired when a quorum of nodes grants it and, for its fencing token, when a quorum raises its counters to
# that token while the owner has the lock there. It is renewed by a quorum, and released on all nodes. This is Redis's
# Redlock, described at https://redis.io/docs/latest/develop/use/patterns/distributed-locks/, with fencing added, and
# without the votes of nodes that have restarted.

MIN_VALIDITY = 0.5
"""The share of its lease that must be left when a lock has been acquired; if less is left, it is released."""


NO_PROPOSAL = 0
"""The proposal that lets each node draw its own token."""


class Acquire(QuorumCall):
    """Takes the lock. Returns OK and the fencing token, or the time in ms until enough leases may have expired.

    ``fresh`` is the proposed token; ``valid_for`` is the lease minus the clock drift, in seconds. ``fencing`` is
    whether the lock has a token. The keys are those of the lock, of its counter and of the owner's tombstone, and those
    of the marks of the node's data, unless nodes forget nothing.
    """

    fresh = NO_PROPOSAL
    vote_for = OK
    repeatable = False  # its undo makes the nodes refuse the owner from then on

    def __init__(self, *args: Any, valid_for: float, fencing: bool, **options: Any) -> None:
        super().__init__(*args, **options)
        self.valid_for = valid_for
        self.fencing = fencing

    def screen(self, node: int, reply: list[Any], voting: VotingRound) -> list[Any] | Exception:
        return _screened(self, node, reply, voting)

    async def over(self, voting: VotingRound) -> list[Any]:
        valid_until = self.sent_at + self.valid_for  # no node can have begun the lease before it was asked
        if self.fencing:
            self.fresh = voting.nodes.proposals.next(self.sent_at)
        grants = await voting.ask(self, until=self.sent_at + voting.nodes.timeout)
        if grants.won:
            if voting.nodes.restarts.quarantine:
                self._vouch(grants, voting)
            token = await self._fence(grants, voting)
            if token is not None and valid_until - voting.now() >= self.lease * MIN_VALIDITY:
                return [b"", OK, token] if self.fencing else [b"", OK]
        # On all nodes: one that has not replied may have granted it, and would refuse others until the lease ends.
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
        voting.nodes.proposals.learn([reply[3] for reply in grants.yes.values()], self.sent_at)
        until = self.sent_at + 2 * voting.nodes.timeout
        token = await self._count_on(grants, voting, until)
        if token is None:
            await voting.hear_out(grants, self.sent_at + voting.nodes.timeout)
            token = await self._count_on(grants, voting, until)
        return token

    async def _count_on(self, grants: VoteTally, voting: VotingRound, until: float) -> int | None:
        token: int = max(reply[2] for reply in grants.yes.values())
        return token if (await voting.ask(self.bump(token), list(grants.yes), until)).won else None

    def bump(self, token: int) -> Bump:
        """The call that raises counters to a token."""
        owner, _, _, fence_ttl, *_ = self.args
        return Bump(self.name, scripts.REDLOCK_BUMP, self.keys[:2], (owner, token, fence_ttl))

    def _vouch(self, grants: VoteTally, voting: VotingRound) -> None:
        """Vouch for the nodes whose votes other processes do not count yet. No reply is waited for.

        A majority has replied which quarantine is the longest, so these nodes have kept their data for so long.
        """
        for node, grant in grants.yes.items():
            mark, *_ = _mark_in(grant)
            if known := voting.nodes.restarts.unknown_to_others(node, mark):
                voting.send(Vouch(self.name, scripts.REDLOCK_VOUCH, self.keys[3:4], (mark, *known)), [node])


class Bump(QuorumCall):
    """Raises the counters of the nodes that granted the lock."""


def _doubted(call: QuorumCall, node: int, found: Sequence[Any], voting: VotingRound) -> Exception | None:
    """Why a vote does not count: the node may have forgotten that it voted for another owner."""
    mark, longest_ms, other_lists = found
    nodes, now = voting.nodes, voting.now()
    nodes.restarts.learn(longest_ms)
    doubt = nodes.restarts.doubt(node, mark, call.sent_at, now)
    if doubt is None:  # else it may have forgotten who uses it
        nodes.note_lists(node, other_lists, now)
    return doubt


def _screened(call: Acquire | AcquireAgain, node: int, reply: list[Any], voting: VotingRound) -> list[Any] | Exception:
    """A grant, or why it does not count."""
    return (_doubted(call, node, _mark_in(reply), voting) if call.is_vote_for(reply) else None) or reply


def _mark_in(grant: list[Any]) -> tuple[bytes, int, bytes]:
    """The mark of the node's data, empty if it has none; the longest quarantine that its users have, in ms; and the
    other lists of nodes that they have."""
    return (grant[4], grant[5], grant[6]) if len(grant) > 6 else (b"", 0, b"")


class Vouch(QuorumCall):
    """Says of a node's data that they are known for longer than any lease."""


class AcquireAgain(QuorumCall):
    """Takes a lock again for the owner that holds it: OK, or LOST when no quorum has it."""

    fresh = NO_PROPOSAL
    vote_for = OK

    def screen(self, node: int, reply: list[Any], voting: VotingRound) -> list[Any] | Exception:
        return _screened(self, node, reply, voting)

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
        return (_doubted(self, node, reply[2:], voting) if self.is_vote_for(reply) else None) or reply

    async def settle(self, votes: VoteTally, voting: VotingRound) -> list[Any]:
        if votes.won:
            # Only now is it certain that the lock is held. A node that knows nothing of it counts from the next renewal
            # on.
            taken = {node for node, reply in votes.no.items() if reply[1] != NOT_HELD}
            others = set(range(votes.size)) - votes.yes.keys() - taken
            if self.seed is not None and others:
                voting.send(self.seed(max(reply[1] for reply in votes.yes.values())), others)
            return [b"", 1]
        if votes.refused:
            await voting.undo_everywhere(self, votes)
            return [b"", 0]
        raise voting.not_reached(self, votes)


NOT_HELD = -1
"""A node's reply to a renewal if the lock is not held there."""


class Seed(QuorumCall):
    """Adds a holder's lock on nodes that lost it or never had it, unless another owner has it there."""


class Release(QuorumCall):
    """Releases a hold on all nodes: 1, or 0 when no quorum had it."""

    # A node that did not execute it, as its connection broke, keeps the hold until the lease ends.
    for_all_nodes = True

    def lasting(self) -> Release:
        owner, left, lease_ms, _ = self.args
        refused = int(1000 * max(self.lease, REMEMBERED))
        return Release(self.name, self.script, self.keys, (owner, left, lease_ms, refused), lease=self.lease)

    async def over(self, voting: VotingRound) -> list[Any]:
        sent = self.lasting() if voting.nodes.lost_connections else self
        votes = await voting.send_to_all(sent)
        if sent is not self:
            self.sends += sent.sends  # of nodes that were asked again
        return await self.settle(votes, voting)

    async def settle(self, votes: VoteTally, voting: VotingRound) -> list[Any]:
        if not votes.is_executed:
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
        if not votes.is_executed:
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
    """Returns the record of a task: its success, and whether what follows the body is done, as known to any node; and
    the next copy if a quorum agrees on it.
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


# --- the kind, and its public class -----------------------------------------------------------------------------------

ROUNDING = 0.002
"""Subtracted from the lease in addition to the clocks' drift, in seconds: servers count whole milliseconds."""
REFUSED = 10.0
"""How long nodes refuse an owner that has released, in seconds: longer than a server stalls without losing connections.
A node that has not replied yet may execute the acquire after the release, if they came over two connections."""
_VOTE_BACKOFF = 0.005, 0.5


class Majority(Kind["RedLock"]):
    """Each call goes to all nodes, and combines their votes. Waiters are not woken."""

    drifts = True
    fresh_names = True
    release_renews = False  # nodes that may have forgotten another owner execute it, too
    votes = {
        scripts.LOCK_STATE: AskState,
        scripts.LOCK_HOLDERS: AskHolders,
        scripts.LOCK_KEEP: Keep,
        scripts.LOCK_FORCE_RELEASE: ForceRelease,
        scripts.REQUEST_RETIRE: ForceRelease,
    }

    def acquire(
        self, lock: RedLock, asker: str, count: int, lease: float, waiting: bool = False, beside: str = ""
    ) -> ScriptCall:
        self.check_lease(lock, lease)
        options = settings_of(lock.using)
        kept = 0 if options.fence_ttl is None else milliseconds(options.fence_ttl)
        script = scripts.REDLOCK_ACQUIRE
        all_keys = lock.key, keys.token_key(lock.key), keys.tombstone_key(lock.key, asker), *_marks(lock)
        args = (asker, count, milliseconds(lease), kept, _quarantine_ms(lock), _LIST_NAMES.value[lock.using])
        if count > 1:
            return AcquireAgain(lock.name, script, all_keys, args, lease=lease)
        # A tombstone refuses each abandoned attempt by its name, and would refuse the next attempt under the same one.
        if lock.owner == asker:
            raise ValueError(f"RedLock {lock.name!r} is acquired under a new name each time; it takes no owner=.")
        return Acquire(
            lock.name,
            script,
            all_keys,
            args,
            lease=lease,
            # Votes that come later count for nothing: the first node's lease may be over by its own clock.
            valid_for=lease - self.drift(lock, lease),
            fencing=lock.fencing,
            undo=partial(self.leave, lock, asker, lease),
        )

    def release(self, lock: RedLock, owner_id: str, left: int, lease: float) -> Release:
        all_keys = lock.key, keys.redisson_channel(lock.key), keys.tombstone_key(lock.key, owner_id)
        refused = milliseconds(max(REFUSED, 2 * settings_of(lock.using).node_timeout))
        args = (owner_id, left, milliseconds(lease), refused)
        return Release(lock.name, scripts.REDLOCK_RELEASE, all_keys, args, lease=lease)

    def leave(self, lock: RedLock, asker: str, lease: float | None = None) -> Release:
        return self.release(lock, asker, 0, lease or settings_of(lock.using).watchdog_timeout)

    def lease(self, lock: RedLock, owner_id: str, lease: float, mode: int) -> Renew:
        marks = _marks(lock)
        return Renew(
            lock.name,
            scripts.REDLOCK_RENEW,
            (lock.key, *(marks or (lock.key, lock.key)), *settled_keys(lock, owner_id, mode)),
            (owner_id, milliseconds(lease), mode, _quarantine_ms(lock), _LIST_NAMES.value[lock.using]),
            lease=lease,
            undo=partial(self.leave, lock, owner_id, lease),
            # A settling call gives no new lease, and may come after a forced release.
            seed=None if mode == SETTLE else partial(self._seed, lock, owner_id, lease),
        )

    def _seed(self, lock: RedLock, owner_id: str, lease: float, holds: int) -> Seed:
        all_keys = lock.key, keys.tombstone_key(lock.key, owner_id)
        return Seed(lock.name, scripts.REDLOCK_SEED, all_keys, (owner_id, holds, milliseconds(lease)))

    def check_keep(self, lock: RedLock, seconds: float) -> None:
        longest = settings_of(lock.using).longest_lease
        if longest is not None and seconds > longest:
            raise ValueError(
                f"RedLock {lock.name!r} can be kept for at most {longest:g} s after its release, because a restarted "
                f"node has no vote for that long; not {seconds:g} s. Raise QUARANTINE, or use another alias."
            )

    def channel(self, lock: RedLock) -> None:
        return None

    def pauses(self, lock: RedLock, left_ms: int, tries: int) -> tuple[float, float]:
        # Jitter, so that clients that have split the votes do not collide again.
        return backoff(tries, *_VOTE_BACKOFF), math.inf

    def drift(self, lock: RedLock, lease: float) -> float:
        return lease * settings_of(lock.using).clock_drift + ROUNDING

    def check_lease(self, lock: RedLock, lease: float) -> None:
        options = settings_of(lock.using)
        shortest = SHORTEST_LEASES * options.node_timeout
        if lease < shortest:
            raise ValueError(
                f"The lease of RedLock {lock.name!r} must be at least {shortest:g} s, {SHORTEST_LEASES} times "
                f"NODE_TIMEOUT, so that it outlasts the calls to the nodes; not {lease:g} s."
            )
        if options.longest_lease is not None and lease > options.longest_lease:
            raise ValueError(
                f"The lease of RedLock {lock.name!r} must be at most {options.longest_lease:g} s, because a restarted "
                f"node has no vote for that long; not {lease:g} s. Raise QUARANTINE, or let the watchdog renew it."
            )


def _marks(lock: RedLock) -> tuple[str, ...]:
    """The keys of the marks of each node's data: ours and that of release 0.1. None where nodes forget nothing."""
    options = settings_of(lock.using)
    longest = options.longest_lease
    return (keys.NODE_KEY, keys.voter_key(longest)) if options.nodes and longest else ()


def _name_list(using: str) -> str:
    """The name of an alias's list of nodes, for ``nodes.OtherLists``: the same for two spellings of one list, as far as
    settings show."""
    options = get_settings(using)
    prefix, nodes = (_digest(text) for text in (options.key_prefix, PLACES.value[using]))
    return f"{prefix[:8]}:{len(options.nodes or ())}:{nodes[:12]}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


_LIST_NAMES = owned_table("settings", _name_list, lambda _name: None)


def _quarantine_ms(lock: RedLock) -> int:
    """What the scripts need beside the marks; 0 where nodes forget nothing."""
    options = settings_of(lock.using)
    return milliseconds(options.longest_lease) if options.nodes and options.longest_lease else 0


class RedLock(BaseLock):
    """A re-entrant lock over the independent servers of an alias with ``NODES``, with a fencing token::

        with rlock("invoice:7", using="quorum") as lock:
            lock.token

    A majority of them must grant it: https://github.com/django-rlock/django-rlock/blob/main/docs/redlock.md describes
    how, and https://github.com/django-rlock/django-rlock/blob/main/docs/guarantees.md what it assumes. It counts as
    held for its lease, less CLOCK_DRIFT of it and 2 ms, from before the first command was sent. ``suspect`` says that
    renewals fail while the lease still runs.

    Acquire takes one round trip. A second one raises the nodes' counters if the nodes did not accept the proposed
    token. With ``fencing=False`` it is never needed, and the lock has no token.

    Raises ValueError for a lease longer than QUARANTINE or shorter than twenty times NODE_TIMEOUT, and for acquiring
    with ``owner=``, which can only be used to release or extend a hold.
    """

    __slots__ = ("fencing",)

    kind = QUORUM_KIND
    _kind = Majority()
    token = fencing_token

    def __init__(self, name: str, *, fencing: bool = True, **options: Unpack[LockOptions]) -> None:
        super().__init__(name, **options)
        self.fencing = fencing
