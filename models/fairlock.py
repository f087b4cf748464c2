"""The fair lock: its queue, its grants, and when a waiter believes them.

Time passes in ticks. A client may be paused between any two of its steps. The network delivers in any order, late, or
never; a command that was sent twice may be executed twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

Name = tuple[int, int]
"""A client, and the number of its owner id."""
Message = tuple[str, Name, int, int]
"""What, the owner id, the number of the command (0: none), and the ticket (0: none)."""

IDLE, ASKING, WAITING, INSIDE, LEAVING, DEAD = "idle", "asking", "waiting", "inside", "leaving", "dead"
COMMANDS = {"try", "renew", "release", "undo"}
NOBODY: Name = (-1, 0)


class Server(NamedTuple):
    """The lock: its holder, the ticks that are left of its lease, whether it is a grant; and the queue, by ticket."""

    holder: Name = NOBODY
    left: int = 0
    granted: bool = False
    queue: tuple[tuple[Name, int], ...] = ()
    tickets: int = 0


class Client(NamedTuple):
    """One owner. ``age`` is how many ticks ago its last command was sent, ``left`` how long it believes in its hold."""

    doing: str = IDLE
    number: int = 0
    command: int = 0
    ticket: int = 0
    left: int = 0
    age: int = 0
    doubt: bool = False
    attempts: int = 1


class State(NamedTuple):
    server: Server
    clients: tuple[Client, ...]
    network: tuple[Message, ...]
    again: int
    """How many commands may still be sent a second time, or for a second time in a wait."""
    crashes: int


class FairLock:
    """The lock, with what the package does where a step of it is in doubt. Mutants override one method each."""

    lease = 1
    renewed = 2
    claim = 2

    def __init__(self, attempts: tuple[int, ...] = (1, 1), again: int = 0, crashes: int = 0) -> None:
        self._attempts = attempts
        self._again = again
        self._crashes = crashes

    def start(self) -> State:
        clients = tuple(Client(attempts=attempts) for attempts in self._attempts)
        return State(Server(), clients, (), self._again, self._crashes)

    def fault(self, state: State) -> str | None:
        if sum(client.doing == INSIDE for client in state.clients) > 1:
            return "two are inside"
        if any(message[0] in COMMANDS for message in state.network):
            return None
        known = {state.server.holder, *(name for name, _ in state.server.queue)}
        for at, client in enumerate(state.clients):
            if client.doing == IDLE and any(name[0] == at for name in known):
                return "an owner that has left is still there"
        waits = any(client.doing == WAITING for client in state.clients)
        if waits and state.server.holder == NOBODY and state.server.queue and not self.heartbeats:
            return "nobody is handed the free lock"
        return None

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for step, after in self._steps(state):
            yield step, _renumbered(after)

    def _steps(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._time(state)
        for message in dict.fromkeys(state.network):
            if message[0] in COMMANDS:
                yield from self._execute(state, message)
            else:
                yield from self._hear(state, message)
        for at in range(len(state.clients)):
            for step, after in self._act(state, at):
                yield f"client {at} {step}", after
        if self.heartbeats and state.server.holder == NOBODY and state.server.queue:
            server, sent = self._hand_on(state.server)
            yield "a heartbeat hands the lock on", state._replace(server=server, network=_with(state.network, *sent))

    # --- what the protocol relies on ---------------------------------------------------------------------------------

    heartbeats = True

    def belief(self, client: Client, ticket: int) -> int:
        """How long a grant may be believed that comes by a message."""
        return min(self.claim, self.lease) - client.age if client.ticket and ticket == client.ticket else 0

    def age_when_queued(self, client: Client) -> int:
        return client.age

    def next_number(self, client: Client) -> int:
        """The owner id of the next attempt: commands under earlier ones may come late."""
        return client.number + 1

    def undo(self, name: Name) -> list[Message]:
        return [("undo", name, 0, 0)]

    def prolonged(self, server: Server) -> int:
        """The lease after an acquire of the holder itself: only a grant's may become shorter."""
        return self.lease if server.granted else max(server.left, self.lease)

    def tick(self, client: Client) -> Client:
        """A client's clock goes on, whether it runs or not."""
        return client._replace(age=min(client.age + 1, self.claim + 1), left=max(client.left - 1, 0))

    # --- time --------------------------------------------------------------------------------------------------------

    def _time(self, state: State) -> Iterator[tuple[str, State]]:
        server = state.server
        if server.holder != NOBODY:
            left = server.left - 1
            server = server._replace(left=left) if left else server._replace(holder=NOBODY, left=0, granted=False)
        clients, sent = [], list[Message]()
        for at, before in enumerate(state.clients):
            client = self.tick(before)
            if client.doing == INSIDE and not client.left:
                sent += self.undo((at, client.number))
                client = self._gone(client)
            clients.append(client)
        after = State(server, tuple(clients), _with(state.network, *sent), state.again, state.crashes)
        if after != state:
            yield "a tick passes", after

    def _gone(self, client: Client) -> Client:
        return Client(number=client.number, command=client.command, attempts=client.attempts)

    # --- the server --------------------------------------------------------------------------------------------------

    def _execute(self, state: State, message: Message) -> Iterator[tuple[str, State]]:
        what, name, command, _ = message
        network = _without(state.network, message)
        # A command that may come late is undone until it has come.
        if what == "undo" and any(kind == "try" and other == name for kind, other, _, _ in network):
            network = state.network
        server, sent = self._obey(state.server, what, name, command)
        yield f"the server obeys {what} of {name}", state._replace(server=server, network=_with(network, *sent))

    def _obey(self, server: Server, what: str, name: Name, command: int) -> tuple[Server, list[Message]]:
        if what == "try":
            return self._obey_try(server, name, command)
        if what == "renew":
            if server.holder != name:
                return server, [("gone", name, command, 0)]
            return server._replace(left=max(server.left, self.renewed)), [("renewed", name, command, 0)]
        queue = tuple(each for each in server.queue if each[0] != name) if what == "undo" else server.queue
        server = server._replace(queue=queue)
        sent = [("released", name, command, 0)] if what == "release" else []
        if server.holder == name:
            server, grants = self._hand_on(server)
            sent += grants
        return server, sent

    def _obey_try(self, server: Server, name: Name, command: int) -> tuple[Server, list[Message]]:
        if server.holder == name:
            return server._replace(left=self.prolonged(server), granted=False), [("ok", name, command, 0)]
        if server.holder == NOBODY and not server.queue:
            return server._replace(holder=name, left=self.lease, granted=False), [("ok", name, command, 0)]
        grants: list[Message] = []
        if server.holder == NOBODY and server.queue[0][0] == name:
            return server._replace(holder=name, left=self.lease, queue=server.queue[1:]), [("ok", name, command, 0)]
        if server.holder == NOBODY:
            server, grants = self._hand_on(server)
        if any(each == name for each, _ in server.queue):
            return server, [*grants, ("queued", name, command, 0)]
        ticket = server.tickets + 1
        queue = (*server.queue, (name, ticket))
        return server._replace(queue=queue, tickets=ticket), [*grants, ("queued", name, command, ticket)]

    def _hand_on(self, server: Server) -> tuple[Server, list[Message]]:
        if not server.queue:
            return server._replace(holder=NOBODY, left=0, granted=False), []
        (name, ticket), *others = server.queue
        server = server._replace(holder=name, left=self.claim, granted=True, queue=tuple(others))
        return server, [("grant", name, 0, ticket)]

    # --- the clients -------------------------------------------------------------------------------------------------

    def _hear(self, state: State, message: Message) -> Iterator[tuple[str, State]]:
        what, (at, number), command, ticket = message
        client = state.clients[at]
        state = state._replace(network=_without(state.network, message))
        meant = number == client.number and (what == "grant" or command == client.command)
        if not meant or (heard := self._understand(at, client, what, ticket)) is None:
            yield f"client {at} drops {what}", state
        else:
            client, sent = heard
            yield f"client {at} hears {what}", _put(state, at, client, *sent)

    def _understand(self, at: int, client: Client, what: str, ticket: int) -> tuple[Client, list[Message]] | None:
        name = at, client.number
        if what == "ok" and client.doing == ASKING:
            return self._enter(client, self.lease - client.age, name)
        if what == "queued" and client.doing == ASKING:
            return client._replace(doing=WAITING, ticket=ticket, age=self.age_when_queued(client)), []
        if what == "grant" and client.doing == WAITING:
            if (left := self.belief(client, ticket)) > 0:
                return client._replace(doing=INSIDE, left=left), []
            return self._ask(client, at)
        if what == "renewed" and client.doing == INSIDE:
            return client._replace(left=max(self.renewed - client.age, client.left)), []
        if what == "gone" and client.doing == INSIDE:
            return self._gone(client), self.undo(name)
        if what == "released" and client.doing == LEAVING:
            return self._left(client, name)
        return None

    def _enter(self, client: Client, left: int, name: Name) -> tuple[Client, list[Message]]:
        return (client._replace(doing=INSIDE, left=left), []) if left > 0 else (self._gone(client), self.undo(name))

    def _left(self, client: Client, name: Name) -> tuple[Client, list[Message]]:
        return self._gone(client), self.undo(name) if client.doubt else []

    def _ask(self, client: Client, at: int) -> tuple[Client, list[Message]]:
        return self._send(client._replace(doing=ASKING, ticket=0), at, "try")

    def _send(self, client: Client, at: int, what: str) -> tuple[Client, list[Message]]:
        command = client.command + 1
        return client._replace(command=command, age=0), [(what, (at, client.number), command, 0)]

    def _act(self, state: State, at: int) -> Iterable[tuple[str, State]]:
        client = state.clients[at]
        if client.doing == DEAD:
            return
        if client.doing == IDLE and client.attempts:
            asking = client._replace(attempts=client.attempts - 1, number=self.next_number(client))
            yield "asks", self._acted(state, at, *self._ask(asking, at))
        if client.doing == WAITING and state.again:
            yield "asks again", self._acted(state._replace(again=state.again - 1), at, *self._ask(client, at))
        if client.doing in {ASKING, WAITING, LEAVING}:
            yield "gives up", self._acted(state, at, self._gone(client), self.undo((at, client.number)))
        if client.doing in {ASKING, LEAVING} and state.again:
            what = "try" if client.doing == ASKING else "release"
            once_more = state._replace(again=state.again - 1)
            yield f"sends {what} again", self._acted(once_more, at, *self._send(client._replace(doubt=True), at, what))
        if client.doing == INSIDE:
            if client.left < self.renewed and not _renews(state, at, client):
                yield "renews", self._acted(state, at, *self._send(client, at, "renew"))
            leaving = client._replace(doing=LEAVING, left=0)
            yield "releases", self._acted(state, at, *self._send(leaving, at, "release"))
        if state.crashes and client.doing != IDLE:
            crashed = state._replace(crashes=state.crashes - 1)
            yield "dies", self._acted(crashed, at, Client(DEAD, client.number, client.command, attempts=0), [])

    def _acted(self, state: State, at: int, client: Client, sent: Iterable[Message]) -> State:
        return _put(state, at, client, *sent)


def _renews(state: State, at: int, client: Client) -> bool:
    return any(what in {"renew", "renewed"} and name == (at, client.number) for what, name, _, _ in state.network)


def _renumbered(state: State) -> State:
    """The same state under the lowest numbers: of commands it matters only which was a client's last, and of tickets,
    which are the same. Replies that their client does not wait for are dropped.
    """
    network = [message for message in state.network if _is_of_use(state, message)]
    drawn = {ticket for _, ticket in state.server.queue} | {client.ticket for client in state.clients}
    drawn |= {ticket for *_, ticket in network}
    ranks = {0: 0} | {ticket: rank for rank, ticket in enumerate(sorted(drawn - {0}), 1)}
    queue = tuple((name, ranks[ticket]) for name, ticket in state.server.queue)
    return state._replace(
        server=state.server._replace(queue=queue, tickets=len(ranks)),
        clients=tuple(client._replace(command=1, ticket=ranks[client.ticket]) for client in state.clients),
        network=tuple(
            sorted(
                (what, name, int(command == state.clients[name[0]].command), ranks[ticket])
                for what, name, command, ticket in network
            )
        ),
    )


def _is_of_use(state: State, message: Message) -> bool:
    what, (at, number), command, _ = message
    if what in COMMANDS:
        return True
    client = state.clients[at]
    if what == "grant":
        return number == client.number and client.doing in {ASKING, WAITING}
    return number == client.number and command == client.command and client.doing not in {IDLE, DEAD}


def _put(state: State, at: int, client: Client, *sent: Message) -> State:
    clients = (*state.clients[:at], client, *state.clients[at + 1 :])
    return state._replace(clients=clients, network=_with(state.network, *sent))


def _with(network: tuple[Message, ...], *sent: Message) -> tuple[Message, ...]:
    return tuple(sorted((*network, *sent))) if sent else network


def _without(network: tuple[Message, ...], message: Message) -> tuple[Message, ...]:
    at = network.index(message)
    return network[:at] + network[at + 1 :]


# --- mutants: each leaves one protection out -------------------------------------------------------------------------


class AnyWakeUp(FairLock):
    """A waiter that wakes believes that it was granted the lock."""

    def _act(self, state: State, at: int) -> Iterable[tuple[str, State]]:
        yield from super()._act(state, at)
        client = state.clients[at]
        if client.doing == WAITING and (left := self.belief(client, client.ticket)) > 0:
            yield "wakes and enters", _put(state, at, client._replace(doing=INSIDE, left=left))


class DeadlineFromReply(FairLock):
    """The claim counts from the reply that has queued the owner."""

    def age_when_queued(self, client: Client) -> int:
        return 0


class NameUsedTwice(FairLock):
    """All attempts have the same owner id, though commands of earlier ones may come late."""

    def next_number(self, client: Client) -> int:
        return client.number


class NoBeat(FairLock):
    """Nobody hands on a lock whose holder died."""

    heartbeats = False


class NoUndo(FairLock):
    """An attempt that was given up is not taken back."""

    def undo(self, name: Name) -> list[Message]:
        return []


class ConfirmationShortens(FairLock):
    """Each copy of an acquire sets its own lease, also a shorter one."""

    def prolonged(self, server: Server) -> int:
        return self.lease


class GrantNotAtomic(FairLock):
    """The release frees the lock and names the next owner, and who comes in between may take it."""

    def _hand_on(self, server: Server) -> tuple[Server, list[Message]]:
        after, sent = super()._hand_on(server)
        return after._replace(holder=NOBODY, left=0, granted=False), sent


class ClockStandsStill(FairLock):
    """No time passes for a client whose machine is suspended; here, for the second one."""

    def _time(self, state: State) -> Iterator[tuple[str, State]]:
        yield from super()._time(state)
        for step, after in super()._time(state):
            yield f"{step}, but for client 1", after._replace(clients=(after.clients[0], *state.clients[1:]))


MUTANTS = (
    AnyWakeUp,
    DeadlineFromReply,
    NameUsedTwice,
    NoBeat,
    NoUndo,
    ConfirmationShortens,
    GrantNotAtomic,
    ClockStandsStill,
)
