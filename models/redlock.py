"""RedLock: votes, the nodes' marks and their quarantine, and renewals.

Time passes in ticks. A client asks one node after the other, and may be paused between any two of its steps. A node may
lose its data at any time, or go on with an older state of them under another run id.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

NOBODY = -1
IDLE, ASKING, INSIDE, RENEWING = "idle", "asking", "inside", "renewing"
KNOWN = 0
"""The mark of data that are known for longer than any lease; other marks are numbers from 1."""


class Node(NamedTuple):
    """Who holds the lock here, and the ticks that are left; the mark of the data, and the run that began with them."""

    holder: int = NOBODY
    left: int = 0
    mark: int = KNOWN
    run: int = 0


class Sight(NamedTuple):
    """The mark that a client has seen at a node, in which run, and how many ticks ago first (-1: none)."""

    mark: int = -1
    run: int = 0
    ago: int = 0


class Client(NamedTuple):
    """``votes`` are the nodes that have granted or renewed it, ``asked`` those that were asked. ``age`` is how many
    ticks ago it began to ask, ``left`` how long it believes in its hold.
    """

    sights: tuple[Sight, ...]
    doing: str = IDLE
    asked: frozenset[int] = frozenset()
    votes: frozenset[int] = frozenset()
    age: int = 0
    left: int = 0
    attempts: int = 1


class State(NamedTuple):
    nodes: tuple[Node, ...]
    clients: tuple[Client, ...]
    losses: int
    """How many nodes may still lose data."""


class RedLock:
    """The lock on three nodes. Mutants override one method each."""

    lease = 2

    def __init__(self, attempts: tuple[int, ...] = (1, 1), losses: int = 1, nodes: int = 3) -> None:
        self._attempts = attempts
        self._losses = losses
        self._nodes = nodes

    def start(self) -> State:
        unseen = (Sight(),) * self._nodes
        clients = tuple(Client(unseen, attempts=attempts) for attempts in self._attempts)
        return State((Node(),) * self._nodes, clients, self._losses)

    def fault(self, state: State) -> str | None:
        return "two are inside" if sum(client.left > 0 for client in state.clients) > 1 else None

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
                older = Node(mark=node.mark, run=node.run + 1)
                yield f"node {at} goes on with older data", _at_node(fewer, at, older)

    # --- what the protocol relies on ---------------------------------------------------------------------------------

    @property
    def quarantine(self) -> int:
        return self.lease

    @property
    def quorum(self) -> int:
        return self._nodes // 2 + 1

    def emptied(self, node: Node) -> Node:
        """The next grant marks new data; until then the mark is below 0."""
        return Node(mark=-abs(node.mark) - 1, run=node.run)

    def is_known(self, node: Node) -> bool:
        """Whether the mark says that the data are known for longer than any lease: it is that of the node's run."""
        return node.mark == KNOWN and node.run == 0

    def may_renew(self, client: Client) -> bool:
        """Whether a node's vote counts whatever it may have forgotten."""
        return False

    def valid_for(self, client: Client) -> int:
        """How long a lease may be believed after a majority has given it: from before the first node was asked."""
        return self.lease - client.age

    # --- steps -------------------------------------------------------------------------------------------------------

    def _tick(self, state: State) -> State:
        nodes = tuple(
            node._replace(left=node.left - 1) if node.left > 1 else node._replace(holder=NOBODY, left=0)
            for node in state.nodes
        )
        return state._replace(nodes=nodes, clients=tuple(map(self._older, state.clients)))

    def _older(self, client: Client) -> Client:
        sights = tuple(self._aged(sight) for sight in client.sights)
        age = min(client.age + 1, self.lease + 1) if client.doing in {ASKING, RENEWING} else 0
        client = client._replace(sights=sights, age=age, left=max(client.left - 1, 0))
        return self._idle(client) if client.doing in {INSIDE, RENEWING} and not client.left else client

    def _aged(self, sight: Sight) -> Sight:
        return sight if sight.mark < 0 else sight._replace(ago=min(sight.ago + 1, self.lease + 1))

    def _idle(self, client: Client) -> Client:
        sights = client.sights if client.attempts else (Sight(),) * self._nodes
        return Client(sights, attempts=client.attempts)

    def _act(self, state: State, at: int) -> Iterator[tuple[str, State]]:
        client = state.clients[at]
        if client.doing == IDLE and client.attempts:
            begun = Client(client.sights, ASKING, attempts=client.attempts - 1)
            yield f"client {at} begins", _at_client(state, at, begun)
        if client.doing == INSIDE:
            yield f"client {at} renews", _at_client(state, at, client._replace(doing=RENEWING, age=0))
            freed = tuple(self._freed(node, at) for node in state.nodes)
            yield f"client {at} releases", _at_client(state._replace(nodes=freed), at, self._idle(client))
        if client.doing in {ASKING, RENEWING}:
            for number in range(self._nodes):
                if number not in client.asked:
                    yield from self._ask(state, at, number)
        if client.doing == ASKING:
            freed = tuple(self._freed(node, at) for node in state.nodes)
            yield f"client {at} gives up", _at_client(state._replace(nodes=freed), at, self._idle(client))

    def _freed(self, node: Node, at: int) -> Node:
        return node._replace(holder=NOBODY, left=0) if node.holder == at else node

    def _granted(self, node: Node, at: int) -> Node:
        if node.holder not in {NOBODY, at}:
            return node
        return node._replace(holder=at, left=max(node.left, self.lease), mark=abs(node.mark))

    def _ask(self, state: State, at: int, number: int) -> Iterator[tuple[str, State]]:
        """Ask one node; the command may come, the reply may be lost."""
        client, node = state.clients[at], state.nodes[number]
        asked = client._replace(asked=client.asked | {number})
        if client.doing == RENEWING and node.holder != at:
            yield f"client {at} hears that node {number} does not have it", _at_client(state, at, asked)
            return
        node = self._granted(node, at)
        state = _at_node(state, number, node)
        if node.holder != at:
            yield f"client {at} is refused by node {number}", _at_client(state, at, asked)
            return
        sight = asked.sights[number]
        if not self.is_known(node) and (sight.mark, sight.run) != (node.mark, node.run):
            sight = Sight(node.mark, node.run)
            asked = asked._replace(sights=(*asked.sights[:number], sight, *asked.sights[number + 1 :]))
        if self.may_renew(client) or self.is_known(node) or sight.ago - client.age >= self.quarantine:
            asked = asked._replace(votes=asked.votes | {number})
        yield f"client {at} hears node {number}", _at_client(state, at, self._counted(asked))

    def _counted(self, client: Client) -> Client:
        if len(client.votes) < self.quorum:
            return client
        left = self.valid_for(client)
        if left <= client.left and client.doing == ASKING:
            return self._idle(client)
        return Client(client.sights, INSIDE, left=max(left, client.left), attempts=client.attempts)


def _sorted(state: State) -> State:
    """The same state with the nodes in a fixed order: none is special."""
    seen = [
        (node, tuple((at in client.asked, at in client.votes, client.sights[at]) for client in state.clients))
        for at, node in enumerate(state.nodes)
    ]
    seen.sort()
    clients = tuple(
        client._replace(
            asked=frozenset(at for at, (_, known) in enumerate(seen) if known[number][0]),
            votes=frozenset(at for at, (_, known) in enumerate(seen) if known[number][1]),
            sights=tuple(known[number][2] for _, known in seen),
        )
        for number, client in enumerate(state.clients)
    )
    return State(tuple(node for node, _ in seen), clients, state.losses)


def _at_node(state: State, at: int, node: Node) -> State:
    return state._replace(nodes=(*state.nodes[:at], node, *state.nodes[at + 1 :]))


def _at_client(state: State, at: int, client: Client) -> State:
    return state._replace(clients=(*state.clients[:at], client, *state.clients[at + 1 :]))


# --- mutants: each leaves one protection out -------------------------------------------------------------------------


class DataNotMarked(RedLock):
    """A node that lost its data votes at once."""

    def emptied(self, node: Node) -> Node:
        return Node(run=node.run)


class RunNotCompared(RedLock):
    """A mark is believed in whatever run of the server."""

    def is_known(self, node: Node) -> bool:
        return node.mark == KNOWN


class ShortQuarantine(RedLock):
    """Data count as known sooner than the longest lease ends."""

    @property
    def quarantine(self) -> int:
        return self.lease - 1


class HalfIsEnough(RedLock):
    """A quorum is half of the nodes, rounded down."""

    @property
    def quorum(self) -> int:
        return self._nodes // 2


class ValidFromReply(RedLock):
    """The lease counts from the last reply."""

    def valid_for(self, client: Client) -> int:
        return self.lease


class RenewalsUndoubted(RedLock):
    """A renewal counts the nodes that may have forgotten another owner's vote."""

    def may_renew(self, client: Client) -> bool:
        return client.doing == RENEWING


MUTANTS = DataNotMarked, RunNotCompared, ShortQuarantine, HalfIsEnough, ValidFromReply, RenewalsUndoubted
