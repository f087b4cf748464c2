"""Runs every order of the actors' steps, as far as they lead to different states; in the short form some of them.

Coroutines cannot be copied, so each order starts from the beginning and repeats another one up to the step in which it
differs. Its flows are really run; the server's part need not be. The server's replies are stored and repeated, and its
state at the end is restored.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import pytest
import redis

from django_rlock._redis import scripts
from django_rlock._transport import identity
from django_rlock.locks import watchdog
from django_rlock.locks.holds import HOLDS, WAITS
from tests.background import no_threads
from tests.flows.stepping import Action
from tests.flows.worlds import World
from tests.forms import THOROUGH

LONG = {"CLAIM_TIME": 600, "WAITER_ALIVE_TIME": 1000, "WATCHDOG_TIMEOUT": 1000}
"""No stall of the machine ends them, nor what is put back after a while, in seconds."""

_KEEP = """
local all = {}
for _, key in ipairs(redis.call('keys', '*')) do
    all[#all + 1] = key
    all[#all + 1] = math.max(redis.call('pttl', key), 0)
    all[#all + 1] = redis.call('dump', key)
end
return all
"""
_PUT_BACK = """
redis.call('flushdb')
for i = 1, #ARGV, 3 do
    redis.call('restore', ARGV[i], ARGV[i + 1], ARGV[i + 2])
end
"""

SAMPLE = math.inf if THOROUGH else 200
"""With how many states an exploration is content. In the short form these are always the same ones."""

Reply = tuple[Any, Any]
"""What was asked, and what the server replied."""


class Server(redis.Redis):
    """A client of the suite's server. On a way that was gone before, it gives the replies that came then."""

    replies: list[Reply] | None = None
    """Those of the way that is being gone; None in between."""
    given = 0

    def execute_command(self, *args: Any, **options: Any) -> Any:
        return self.remembered(args, partial(super().execute_command, *args, **options))

    def remembered(self, question: Any, ask: Callable[[], Any]) -> Any:
        """The reply to a question, which is only asked where it has not been asked on this way."""
        if self.replies is None:
            return ask()
        if self.given == len(self.replies):
            self.replies.append((question, ask()))
        asked, reply = self.replies[self.given]
        assert asked == question, f"The same steps led to something else: {asked!r}, and now {question!r}"
        self.given += 1
        return reply

    def go(self, replies: Sequence[Reply]) -> list[Reply]:
        """Begin a way, of which these are the first replies."""
        self.replies, self.given = list(replies), 0
        return self.replies

    def keep(self) -> list[Any]:
        """All that the server has."""
        kept: list[Any] = self.eval(_KEEP, 0)
        return kept

    def put_back(self, kept: list[Any]) -> None:
        self.eval(_PUT_BACK, 0, *kept)


class Branch(NamedTuple):
    """A step that has yet to be done, the steps before it, and what the server replied to them and then had."""

    before: tuple[Action, ...]
    step: Action
    replies: tuple[Reply, ...]
    kept: list[Any]


class Explorer:
    """What has been seen, and where to go on from."""

    def __init__(self, server: Server, build: Callable[[], World], check: Callable[[World], None], limit: int) -> None:
        self.server = server
        self.build = build
        self.check = check
        self.limit = limit
        self.seen: set[Any] = set()
        self.branches: list[Branch] = []
        self.random = random.Random(0)

    def run(self) -> None:
        self._go(None)
        while self.branches and len(self.seen) < SAMPLE:
            self._go(self.branches.pop(self._next()))

    def _next(self) -> int:
        """Depth first, so that few branches are kept; a sample has some from everywhere."""
        return -1 if THOROUGH else self.random.randrange(len(self.branches))

    def _go(self, branch: Branch | None) -> None:
        path: list[Action] = []
        replies = self.server.go(branch.replies if branch else ())
        try:
            with self.build() as world:
                if branch:
                    for action in branch.before:
                        path.append(action)
                        world.do(action)
                    self.server.replies = None
                    self.server.put_back(branch.kept)
                    self.server.replies = replies
                    path.append(branch.step)
                    world.do(branch.step)
                while first := self._look(world, path, replies):
                    path.append(first)
                    world.do(first)
        except BaseException as error:
            error.add_note("After: " + ", ".join(f"{kind} {number}" for kind, number in path))
            raise
        finally:
            self.server.replies = None

    def _look(self, world: World, path: list[Action], replies: list[Reply]) -> Action | None:
        """The step to do next; the others that are possible are done later. None in a state that was seen before."""
        self.server.replies = None
        state = world.state()
        if state in self.seen:
            return None
        self.seen.add(state)
        assert len(self.seen) <= self.limit, "more states than this test has time for"
        actions = world.actions()
        if not actions:
            self.check(world)
            return None
        first, *others = actions
        if others:
            before, kept = tuple(path), self.server.keep()
            self.branches += [Branch(before, other, tuple(replies), kept) for other in others]
        self.server.replies = replies
        return first


def explore(build: Callable[[], World], check: Callable[[World], None], limit: int = 4000) -> int:
    """Run orders of steps until nothing can happen any more, then ``check``; returns how many states were seen."""
    with build() as world:
        server = world.client
    assert isinstance(server, Server)
    explorer = Explorer(server, build, check, limit)
    explorer.run()
    return len(explorer.seen)


@pytest.fixture
def make_world(
    redis_client: redis.Redis, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., World]]:
    """Makes worlds on the suite's server, one after the other; what the flows defer goes to the last of them."""
    settings.RLOCK = {"default": LONG}
    monkeypatch.setattr(identity, "_process", identity._process)
    with Server.from_url(_url(redis_client), protocol=2) as client, client.pubsub() as listener:
        for script in vars(scripts).values():
            if isinstance(script, scripts.Script):
                client.script_load(script.source)
        listener.psubscribe("*")
        worlds: list[World] = []

        def make(kind: type[World] = World) -> World:
            worlds[:] = [kind(client, listener)]
            return worlds[0]

        monkeypatch.setattr(watchdog, "background_driver", lambda _using: worlds[0].driver)
        with no_threads():
            yield make
        HOLDS.clear()
        WAITS.clear()


def _url(client: redis.Redis) -> str:
    return f"unix://{client.connection_pool.connection_kwargs['path']}?db=0"
