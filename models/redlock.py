"""RedLock: votes, the nodes' marks and their quarantine, renewals, and copies that come late.

Time passes in ticks. A client asks one node after the other, and may be paused between any two of its steps. A reply
may be lost. A node may lose its data at any time, or go on with an older state of them: after a restart, a failover, or
a failover there and back. A command may be executed once more at any later time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

Name = tuple[int, int]
"""An owner id: the client, and how many it has used before."""
Copy = tuple[str, Name, int]
"""A command that may come late: TRY, RENEW or RELEASE, under which owner id, to which node."""

NOBODY = -1, -1
TRY, RENEW, RELEASE = "try", "renew", "release"
IDLE, ASKING, INSIDE, RENEWING = "idle", "asking", "inside", "renewing"
KNOWN = 0
"""The mark of data that are known for longer than any lease; other marks are numbers from 1."""


class Node(NamedTuple):
    """Who holds the lock here, and the ticks that are left; the mark of the data, and the longest lease of all users.

    ``refused`` are the owner ids that were released here, as long as a copy of their acquire may come.
    """

    holder: Name = NOBODY
    left: int = 0
    mark: int = KNOWN
    longest: int = 0
    refused: frozenset[Name] = frozenset()


class Sight(NamedTuple):
    """The mark that a client has seen at a node, and how many ticks ago first (-1: none)."""

    mark: int = -1
    ago: int = 0


class Client(NamedTuple):
    """``votes`` are the nodes that have granted or renewed it, ``asked`` those that were asked, ``against`` how many do
    not have it at a renewal. ``doubtful`` are votes of nodes that are known only because they kept their mark for
    ``longest``, the longest lease that the client knows of. ``age`` is how many ticks ago it began to ask, ``left`` how
    long it believes in its hold.
    """

    sights: tuple[Sight, ...]
    doing: str = IDLE
    asked: frozenset[int] = frozenset()
    votes: frozenset[int] = frozenset()
    age: int = 0
    left: int = 0
    attempts: int = 1
    number: int = 0
    against: int = 0
    longest: int = 0
    doubtful: frozenset[int] = frozenset()


class State(NamedTuple):
    nodes: tuple[Node, ...]
    clients: tuple[Client, ...]
    losses: int
    """How many nodes may still lose data."""
    again: int = 0
    """How many commands may still be copied."""
    lost: int = 0
    """How many replies may still be lost."""
    late: frozenset[Copy] = frozenset()


class RedLock:
    """The lock on three nodes. Mutants override one method each."""

    lease = 2

    def __init__(
        self,
        attempts: tuple[int, ...] = (1, 1),
        losses: int = 1,
        nodes: int = 3,
        again: int = 0,
        lost: int = 0,
        leases: tuple[int, ...] = (),
    ) -> None:
        self._leases = leases or (self.lease,) * len(attempts)
        self._attempts = attempts
        self._losses = losses
        self._nodes = nodes
        self._again = again
        self._lost = lost

    def start(self) -> State:
        unseen = (Sight(),) * self._nodes
        users = zip(self._attempts, self._leases, strict=True)
        clients = tuple(Client(unseen, attempts=attempts, longest=lease) for attempts, lease in users)
        return State((Node(longest=max(self._leases)),) * self._nodes, clients, self._losses, self._again, self._lost)

    def fault(self, state: State) -> str | None:
        if sum(client.left > 0 for client in state.clients) > 1:
            return "two are inside"
        if any(node.holder in node.refused for node in state.nodes):
            return "a node is held for an owner that has left"
        return None

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for step, after in self._steps(state):
            yield step, _sorted(after)

    def _steps(self, state: State) -> Iterator[tuple[str, State]]:
        yield "a tick passes", self._tick(state)
        for at in range(len(state.clients)):
            yield from self._act(state, at)
        for at, node in enumerate(state.nodes):
            if state.losses:
                fewer = state._replace(losses=state.losses - 1)
                yield f"node {at} loses its data", _at_node(fewer, at, self.emptied(node))
                yield f"node {at} goes on with older data", _at_node(fewer, at, self.older(node))
        for copy in sorted(state.late):
            what, name, at = copy
            after = state._replace(late=state.late - {copy})
            yield (
                f"node {at} obeys {what} of {name} late",
                _at_node(after, at, self._obeyed(state.nodes[at], what, name)),
            )

    # --- what the protocol relies on ---------------------------------------------------------------------------------

    def quarantine(self, client: Client) -> int:
        """The longest lease that anybody may have at a node, as far as a client knows."""
        return client.longest

    @property
    def quorum(self) -> int:
        return self._nodes // 2 + 1

    def emptied(self, node: Node) -> Node:
        """The next grant marks new data."""
        return _to_be_marked(node)

    def older(self, node: Node) -> Node:
        """Whichever process has them, the mark belongs to another replication id, so the next grant replaces it."""
        return _to_be_marked(node)

    def may_renew(self, client: Client) -> bool:
        """Whether a node's vote counts whatever it may have forgotten."""
        return False

    def valid_for(self, client: Client, lease: int) -> int:
        """How long a lease may be believed after a majority has given it: from before the first node was asked."""
        return lease - client.age

    def refuses(self, node: Node, name: Name) -> bool:
        """Whether a copy of an acquire comes after its release."""
        return name in node.refused

    def next_number(self, client: Client) -> int:
        """Each attempt has an owner id of its own."""
        return client.number + 1

    # --- steps -------------------------------------------------------------------------------------------------------

    def _tick(self, state: State) -> State:
        nodes = tuple(
            node._replace(left=node.left - 1) if node.left > 1 else node._replace(holder=NOBODY, left=0)
            for node in state.nodes
        )
        return state._replace(nodes=nodes, clients=tuple(map(self._older, state.clients)))

    def _older(self, client: Client) -> Client:
        sights = tuple(self._aged(sight) for sight in client.sights)
        age = self.counted(client.age + 1) if client.doing in {ASKING, RENEWING} else 0
        client = client._replace(sights=sights, age=age, left=max(client.left - 1, 0))
        return self._idle(client) if client.doing in {INSIDE, RENEWING} and not client.left else client

    def counted(self, ticks: int) -> int:
        """How far a time is counted, so that the number of states is finite. A client that is slower than that counts
        votes no sooner than the code does."""
        return min(ticks, max(self._leases) + 1)

    def _aged(self, sight: Sight) -> Sight:
        return sight if sight.mark < 0 else sight._replace(ago=self.counted(sight.ago + 1))

    def _idle(self, client: Client) -> Client:
        sights = client.sights if client.attempts else (Sight(),) * self._nodes
        number = self.next_number(client)
        return Client(sights, attempts=client.attempts, number=number, longest=client.longest)

    def _act(self, state: State, at: int) -> Iterator[tuple[str, State]]:
        client = state.clients[at]
        if client.doing == IDLE and client.attempts:
            begun = client._replace(doing=ASKING, attempts=client.attempts - 1)
            yield f"client {at} begins", _at_client(state, at, begun)
        if client.doing == INSIDE:
            nobody: frozenset[int] = frozenset()
            begun = client._replace(doing=RENEWING, age=0, asked=nobody, votes=nobody, doubtful=nobody, against=0)
            yield f"client {at} renews", _at_client(state, at, begun)
            yield from self._leave(state, at, "releases")
        if client.doing == ASKING:
            yield from self._leave(state, at, "gives up")
        if client.doing in {ASKING, RENEWING}:
            yield from self._go_on(state, at)

    def _go_on(self, state: State, at: int) -> Iterator[tuple[str, State]]:
        client = state.clients[at]
        if self._may_win(client):
            for number in range(self._nodes):
                if number not in client.asked:
                    yield from self._ask(state, at, number)
        elif client.doing == RENEWING and client.against > self._nodes - self.quorum:
            yield from self._leave(state, at, "has lost it")
        elif client.doing == RENEWING:
            yield f"client {at} ends its renewal", _at_client(state, at, self._inside(client, client.left))
        what = TRY if client.doing == ASKING else RENEW
        for number in range(self._nodes):
            yield from self._copy(state, at, what, number)

    def _may_win(self, client: Client) -> bool:
        return len(client.asked) - len(client.votes) <= self._nodes - self.quorum

    def _copy(self, state: State, at: int, what: str, number: int) -> Iterator[tuple[str, State]]:
        copy = what, (at, state.clients[at].number), number
        if state.again and copy not in state.late:
            after = state._replace(again=state.again - 1, late=state.late | {copy})
            yield f"a copy of client {at}'s {what} is on its way to node {number}", after

    def _leave(self, state: State, at: int, how: str) -> Iterator[tuple[str, State]]:
        """Free all nodes; a copy of that command may come late."""
        client = state.clients[at]
        name = at, client.number
        for number in range(self._nodes):
            for _, copied in self._copy(state, at, RELEASE, number):
                left = self._released_everywhere(copied, name)
                yield f"client {at} {how}, and again at node {number}", _at_client(left, at, self._idle(client))
        yield f"client {at} {how}", _at_client(self._released_everywhere(state, name), at, self._idle(client))

    def _released_everywhere(self, state: State, name: Name) -> State:
        nodes = []
        for number, node in enumerate(state.nodes):
            freed = self._obeyed(node, RELEASE, name)
            may_come = (TRY, name, number) in state.late
            nodes.append(freed._replace(refused=freed.refused | {name}) if may_come else freed)
        return state._replace(nodes=tuple(nodes))

    def _obeyed(self, node: Node, what: str, name: Name) -> Node:
        """A node after a command."""
        if what == TRY:
            return node if self.refuses(node, name) else self._granted(node, name)._replace(refused=node.refused)
        if what == RENEW:
            return self._granted(node, name) if node.holder == name else node
        return node._replace(holder=NOBODY, left=0) if node.holder == name else node

    def _granted(self, node: Node, name: Name) -> Node:
        if node.holder not in {NOBODY, name}:
            return node
        lease = self._leases[name[0]]
        longest = max(node.longest, lease)
        return node._replace(holder=name, left=max(node.left, lease), mark=abs(node.mark), longest=longest)

    def _ask(self, state: State, at: int, number: int) -> Iterator[tuple[str, State]]:
        """Ask one node; the reply may be lost."""
        client = state.clients[at]
        name = at, client.number
        node = self._obeyed(state.nodes[number], TRY if client.doing == ASKING else RENEW, name)
        state = _at_node(state, number, node)
        asked = client._replace(asked=client.asked | {number})
        if state.lost:
            yield f"client {at} does not hear node {number}", _at_client(state._replace(lost=state.lost - 1), at, asked)
        if node.holder != name:
            against = client.against + (client.doing == RENEWING)
            yield f"client {at} is refused by node {number}", _at_client(state, at, asked._replace(against=against))
            return
        sight = asked.sights[number]
        if node.mark not in {KNOWN, sight.mark}:
            sight = Sight(node.mark)
            asked = asked._replace(sights=(*asked.sights[:number], sight, *asked.sights[number + 1 :]))
        asked = self._learned(asked, node.longest)
        if self.may_renew(client) or node.mark == KNOWN:
            asked = asked._replace(votes=asked.votes | {number})
        elif self._has_kept(asked, number):
            asked = asked._replace(votes=asked.votes | {number}, doubtful=asked.doubtful | {number})
        yield f"client {at} hears node {number}", self._after_vote(state, at, asked)

    def _learned(self, client: Client, longest: int) -> Client:
        """Somebody may have a longer lease: earlier votes may not count any more."""
        client = client._replace(longest=max(client.longest, longest))
        too_soon = frozenset(number for number in client.doubtful if not self._has_kept(client, number))
        return client._replace(votes=client.votes - too_soon, doubtful=client.doubtful - too_soon)

    def _has_kept(self, client: Client, number: int) -> bool:
        """Whether a node had kept its mark for long enough when the client began to ask."""
        return client.sights[number].ago - client.age >= self.quarantine(client)

    def _inside(self, client: Client, left: int) -> Client:
        attempts, number, longest = client.attempts, client.number, client.longest
        return Client(client.sights, INSIDE, left=left, attempts=attempts, number=number, longest=longest)

    def _after_vote(self, state: State, at: int, client: Client) -> State:
        if len(client.votes) < self.quorum:
            return _at_client(state, at, client)
        lease = self._leases[at]
        left = self.valid_for(client, lease)
        if client.doing == ASKING and 2 * left < lease:  # too little to begin with
            state = self._released_everywhere(state, (at, client.number))
            return _at_client(state, at, self._idle(client))
        return _at_client(state, at, self._inside(client, max(left, client.left)))


def _to_be_marked(node: Node) -> Node:
    """Its mark is below 0 until the next grant."""
    return Node(mark=-abs(node.mark) - 1)


def _sorted(state: State) -> State:
    """The same state with the nodes in a fixed order: none is special."""
    seen = [
        (
            tuple(sorted(each) if isinstance(each, frozenset) else each for each in node),
            tuple(
                (at in client.asked, at in client.votes, client.sights[at], at in client.doubtful)
                for client in state.clients
            ),
            sorted((what, name) for what, name, number in state.late if number == at),
            node,
        )
        for at, node in enumerate(state.nodes)
    ]
    seen.sort()
    late = frozenset((what, name, at) for at, (_, _, copies, _) in enumerate(seen) for what, name in copies)
    clients = tuple(
        client._replace(
            asked=frozenset(at for at, (_, known, _, _) in enumerate(seen) if known[number][0]),
            votes=frozenset(at for at, (_, known, _, _) in enumerate(seen) if known[number][1]),
            sights=tuple(known[number][2] for _, known, _, _ in seen),
            doubtful=frozenset(at for at, (_, known, _, _) in enumerate(seen) if known[number][3]),
        )
        for number, client in enumerate(state.clients)
    )
    return State(tuple(node for *_, node in seen), clients, state.losses, state.again, state.lost, late)


def _at_node(state: State, at: int, node: Node) -> State:
    return state._replace(nodes=(*state.nodes[:at], node, *state.nodes[at + 1 :]))


def _at_client(state: State, at: int, client: Client) -> State:
    return state._replace(clients=(*state.clients[:at], client, *state.clients[at + 1 :]))


# --- mutants: each leaves one protection out -------------------------------------------------------------------------


class DataNotMarked(RedLock):
    """A node that lost its data votes at once."""

    def emptied(self, node: Node) -> Node:
        return Node()


class ReplicationNotCompared(RedLock):
    """A mark is believed whatever the replication id: the server may have been a replica since."""

    def older(self, node: Node) -> Node:
        return Node(mark=node.mark)


class ShortQuarantine(RedLock):
    """Data count as known sooner than the longest lease ends."""

    def quarantine(self, client: Client) -> int:
        return client.longest - 1


class LongestNotMarked(RedLock):
    """A node does not say how long the leases of others are."""

    def _learned(self, client: Client, longest: int) -> Client:
        return client


class EarlierVotesStand(RedLock):
    """Votes that were counted before a longer lease was known are not doubted again."""

    def _learned(self, client: Client, longest: int) -> Client:
        return client._replace(longest=max(client.longest, longest))


class HalfIsEnough(RedLock):
    """A quorum is half of the nodes, rounded down."""

    @property
    def quorum(self) -> int:
        return self._nodes // 2


class ValidFromReply(RedLock):
    """The lease counts from the last reply."""

    def valid_for(self, client: Client, lease: int) -> int:
        return lease


class CopiesNotRefused(RedLock):
    """A node does not remember which owner ids were released."""

    def refuses(self, node: Node, name: Name) -> bool:
        return False


class NameUsedTwice(RedLock):
    """The next attempt has the owner id of the one before."""

    def next_number(self, client: Client) -> int:
        return client.number


class RenewalsUndoubted(RedLock):
    """A renewal counts the nodes that may have forgotten another owner's vote."""

    def may_renew(self, client: Client) -> bool:
        return client.doing == RENEWING


MUTANTS = (
    *(DataNotMarked, ReplicationNotCompared, ShortQuarantine, LongestNotMarked, EarlierVotesStand),
    *(HalfIsEnough, ValidFromReply, CopiesNotRefused, NameUsedTwice, RenewalsUndoubted),
)
