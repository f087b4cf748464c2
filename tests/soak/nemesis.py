"""When which deed is done, and to whom: all from one seed."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple, Protocol

import redis

from example_project.embedded import EmbeddedServer, ServerError
from tests.proxy import Proxy, Rule
from tests.soak.records import Log, now
from tests.soak.servers import start

LIBFAKETIME, COMPILER = "libfaketime", "a C compiler"
"""What a deed may need that is not found everywhere."""
SOONEST, LATEST = 0.05, 2.5
"""Seconds between two deeds to one place."""
MOST = 10_000
"""Deeds to one place at most."""


class Pausable(Protocol):
    def pause(self) -> None: ...

    def resume(self) -> None: ...


class Deed(NamedTuple):
    """``effect`` says what it explains, see ``records``; ``needs`` what is not found everywhere."""

    name: str
    place: str
    do: Callable[..., Any]
    effect: str | None = None
    needs: str = ""


TO_COMMANDS: dict[str, Callable[..., Rule]] = {
    "close before commands": Proxy.cut_before,
    "lose replies": Proxy.lose_reply,
    "delay commands": Proxy.hold,
    "delay replies": Proxy.hold_reply,
}
"""What a proxy does to a command or its reply."""


def add(
    deeds: list[Deed], place: str, effect: str | None = None, needs: str = ""
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The decorator of functions that are to be among these deeds."""

    def register(do: Callable[..., None]) -> Callable[..., None]:
        deeds.append(Deed(do.__name__.replace("_", " "), place, do, effect, needs))
        return do

    return register


@dataclass
class Scene:
    """What deeds are done to: servers, and processes that use them. ``over`` is set when the nemesis has to end."""

    log: Log
    over: threading.Event
    servers: Any
    crew: Any

    def last(self, seconds: float) -> None:
        """Let what was done be for so long."""
        self.over.wait(seconds)

    def hang(self, program: Pausable, seconds: float) -> None:
        """Let a server or a worker stand still for so long."""
        program.pause()
        try:
            self.last(seconds)
        finally:
            program.resume()

    def be_down(self, server: EmbeddedServer, seconds: float) -> None:
        """Let a server be dead for so long."""
        server.kill()
        try:
            self.last(seconds)
        finally:
            start(server)


class Nemesis:
    """Does deeds to each place in a thread of its own, until ``scene.over`` is set.

    ``done`` counts them by name, ``failed`` those that came to nothing because a server did not do as it was bid.
    """

    def __init__(self, scene: Scene, deeds: Sequence[Deed], seed: str) -> None:
        self.scene = scene
        self.seed = seed
        self.done: Counter[str] = Counter()
        self.failed: list[str] = []
        self._threads = [
            threading.Thread(target=self._act, args=([deed for deed in deeds if deed.place == place], place))
            for place in sorted({deed.place for deed in deeds})
        ]

    def rage(self, seconds: float) -> None:
        """For so long, and until what is under way has been mended."""
        for thread in self._threads:
            thread.start()
        try:
            time.sleep(seconds)
        finally:
            self.scene.over.set()
            for thread in self._threads:
                thread.join()

    def _act(self, deeds: Sequence[Deed], place: str) -> None:
        for deed, chance in plan(deeds, f"{self.seed}/{place}"):
            if self.scene.over.wait(chance.uniform(SOONEST, LATEST)):
                return
            began = now()
            try:
                deed.do(self.scene, chance)
                self.done[deed.name] += 1
            except (redis.RedisError, ServerError, OSError) as error:
                self.failed.append(f"{deed.name}: {error}")
            finally:
                self.scene.log.event(deed.name, deed.place, began, effect=deed.effect)


def plan(deeds: Sequence[Deed], seed: str) -> Iterator[tuple[Deed, Random]]:
    """Each deed once, then each once more, in ever new orders, and the chance by which it is done."""
    source = Random(seed)
    number = 0
    while number < MOST:
        for deed in source.sample(deeds, len(deeds)):
            number += 1
            yield deed, Random(f"{seed}/{number}")
