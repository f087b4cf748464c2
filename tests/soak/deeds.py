"""The deeds of the nemesis. A deed leaves everything as it ought to be, but for data that a server has forgotten."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any

import redis

from django_rlock._redis import scripts
from django_rlock._redis.scripts import Script
from example_project.embedded import EmbeddedServer
from tests.proxy import Proxy, Rule
from tests.soak.crew import Worker
from tests.soak.grips import ONE, PAIR, QUORUM, WATCHDOG_TIMEOUT
from tests.soak.nemesis import COMPILER, LIBFAKETIME, TO_COMMANDS, Deed, Scene, add
from tests.soak.records import DOUBTS, ENDS, FORGETS, NODE_FORGETS, STEPS_BACK, WIRE, now
from tests.soak.servers import PATIENCE, Single, start
from tests.topologies.servers import begin_failover, command, primary_port

PROCESSES = "processes"
"""A place besides WIRE and those where locks live; what is done to one place is done one after another."""
HOUR = 3600.0
_BUSY = "local sum = 0 for number = 1, ARGV[1] do sum = sum + number end"
_SCRIPTS = {name: each for name, each in vars(scripts).items() if isinstance(each, Script)}
_OF_NODES = [each for name, each in _SCRIPTS.items() if name.startswith("REDLOCK")]
_OF_ONE = [each for name, each in _SCRIPTS.items() if not name.startswith("REDLOCK")]


DEEDS: list[Deed] = []
deed = partial(add, DEEDS)


# --- to processes -------------------------------------------------------------------------------------------------


def _victim(scene: Scene, chance: Random) -> int:
    return chance.randrange(1, len(scene.crew.workers))  # the first one lives through it all, and shows leaks


@deed(PROCESSES)
def kill_a_process(scene: Scene, chance: Random) -> None:
    place = _victim(scene, chance)
    scene.crew.workers[place].kill()
    scene.crew.replace(place)


@deed(PROCESSES)
def end_a_process(scene: Scene, chance: Random) -> None:
    place = _victim(scene, chance)
    worker = scene.crew.workers[place]
    scene.log.event(ENDS, PROCESSES, now(), name=worker.name)
    worker.end()
    scene.crew.replace(place)


@deed(PROCESSES)
def stop_a_process_for_less_than_a_lease(scene: Scene, chance: Random) -> None:
    _stop(scene, _victim(scene, chance), chance.uniform(0.05, 0.6 * WATCHDOG_TIMEOUT))


@deed(PROCESSES)
def stop_a_process_for_longer_than_a_lease(scene: Scene, chance: Random) -> None:
    _stop(scene, chance.randrange(len(scene.crew.workers)), chance.uniform(1.1, 2) * WATCHDOG_TIMEOUT)


@deed(PROCESSES)
def stop_a_process_and_kill_it(scene: Scene, chance: Random) -> None:
    place = _victim(scene, chance)
    _stop(scene, place, chance.uniform(0, WATCHDOG_TIMEOUT))
    scene.crew.workers[place].kill()
    scene.crew.replace(place)


@deed(PROCESSES)
def let_a_process_stutter(scene: Scene, chance: Random) -> None:
    place = _victim(scene, chance)
    for _ in range(10):
        _stop(scene, place, chance.uniform(0.001, 0.1))
        scene.last(chance.uniform(0.001, 0.1))


@deed(PROCESSES, DOUBTS, needs=COMPILER)
def suspend_the_machine_of_a_process(scene: Scene, chance: Random) -> None:
    _clocks_of(scene, chance, lambda worker, seconds: worker.suspend(seconds, scene.last))


@deed(PROCESSES, DOUBTS, needs=COMPILER)
def pause_the_virtual_machine_of_a_process(scene: Scene, chance: Random) -> None:
    _clocks_of(scene, chance, lambda worker, seconds: worker.suspend(seconds, scene.last, paused_machine=True))


@deed(PROCESSES, DOUBTS, needs=COMPILER)
def set_the_clock_of_a_process_by_an_hour(scene: Scene, chance: Random) -> None:
    def set_for_a_while(worker: Worker, seconds: float) -> None:
        worker.set_clock(step)
        scene.last(seconds)
        worker.set_clock(-step)

    step = chance.choice((HOUR, -HOUR))
    _clocks_of(scene, chance, set_for_a_while)


def _clocks_of(scene: Scene, chance: Random, do: Callable[[Worker, float], None]) -> None:
    do(_with_a_long_hold(scene, chance), chance.uniform(0.3, 2) * WATCHDOG_TIMEOUT)


def _with_a_long_hold(scene: Scene, chance: Random) -> Worker:
    """Only who holds something for a while can believe for too long that it does."""
    workers = chance.sample(scene.crew.workers, len(scene.crew.workers))
    for _ in range(40):
        if holder := next((worker for worker in workers if worker.call("long_holds")), None):
            return holder
        scene.last(0.05)
    return workers[0]


def _stop(scene: Scene, place: int, seconds: float) -> None:
    scene.hang(scene.crew.workers[place], seconds)


# --- to one server, and to nodes of a RedLock -------------------------------------------------------------------------


ALONE, EITHER = (None,), (None, None)
"""Without an effect, on the one server alone, or on a node, too."""
TO_A_SERVER: dict[str, tuple[Callable[[Scene, Random, Single], object], Sequence[str | None]]] = {
    "crash with its data": (lambda _scene, _chance, single: single.crash(keep_data=True), EITHER),
    "crash without its data": (lambda _scene, _chance, single: single.crash(keep_data=False), (FORGETS, NODE_FORGETS)),
    "be down for a while": (lambda scene, chance, it: scene.be_down(it.server, chance.uniform(0.2, 2.5)), ALONE),
    "hang for less than a lease": (lambda scene, chance, it: scene.hang(it.server, chance.uniform(0.02, 2)), EITHER),
    "hang for longer than a lease": (
        lambda scene, chance, it: scene.hang(it.server, chance.uniform(1.1, 1.6) * WATCHDOG_TIMEOUT), ALONE,
    ),
    "lose all keys": (lambda _scene, _chance, it: _command(it, "FLUSHALL"), (FORGETS, FORGETS)),
    "forget all scripts": (lambda _scene, _chance, it: _command(it, "SCRIPT FLUSH"), ALONE),
    "close connections": (lambda _scene, _chance, it: _close_connections(it, "normal"), ALONE),
    "close connections of listeners": (lambda _scene, _chance, it: _close_connections(it, "pubsub"), ALONE),
    "pause clients": (
        lambda _scene, chance, it: _command(
            it, "CLIENT PAUSE", chance.randrange(50, 1500), chance.choice(("ALL", "WRITE"))
        ),
        ALONE,
    ),
    "be out of memory": (lambda scene, chance, it: _set_for_a_while(scene, chance, it, "maxmemory"), EITHER),
    "want replicas": (lambda scene, chance, it: _set_for_a_while(scene, chance, it, "min-replicas-to-write"), ALONE),
}  # fmt: skip
"""What is done to a single server: the one that most locks live on, or any node. The effects are those for the one and
for a node; without the second, it is done to the one alone.
"""


def to_a_server(*effects: str | None, needs: str = "") -> Callable[..., Any]:
    """The decorator of what is done to a single server, too."""

    def register(do: Callable[[Scene, Random, Single], object]) -> Callable[[Scene, Random, Single], object]:
        _add_to_a_server(do.__name__.replace("_", " "), do, effects, needs)
        return do

    return register


def _add_to_a_server(
    name: str, do: Callable[[Scene, Random, Single], object], effects: Sequence[str | None], needs: str = ""
) -> None:
    for effect, place in zip(effects, (ONE, QUORUM), strict=False):
        what = f"{name}, a node" if place == QUORUM else name
        DEEDS.append(Deed(what, place, partial(_to_single, do, place), effect, needs))


def _to_single(do: Callable[[Scene, Random, Single], object], place: str, scene: Scene, chance: Random) -> None:
    do(scene, chance, scene.servers.one if place == ONE else chance.choice(scene.servers.nodes))


for _name, (_do, _effects) in TO_A_SERVER.items():
    _add_to_a_server(_name, _do, _effects)


@to_a_server(FORGETS)
def come_back_with_older_data(scene: Scene, chance: Random, single: Single) -> None:
    kept = single.data.with_name("kept")
    shutil.copytree(single.data, kept)
    scene.last(chance.uniform(0.1, 2))
    single.server.kill()
    shutil.rmtree(single.data)
    kept.rename(single.data)
    start(single.server)


@to_a_server(FORGETS)
def hang_and_crash_without_its_data(scene: Scene, chance: Random, single: Single) -> None:
    single.server.pause()
    scene.last(chance.uniform(0.1, 2))
    single.crash(keep_data=False)


@to_a_server(FORGETS)
def lose_some_keys(scene: Scene, chance: Random, single: Single) -> None:
    with single.client() as client:
        for key in sorted(client.scan_iter("rlock:*")):
            # Without its number alone, a semaphore would have too many permits for good.
            if key != "rlock:permits" and chance.random() < 0.3:
                client.delete(key)


@to_a_server(None)
def take_no_new_connections(scene: Scene, chance: Random, single: Single) -> None:
    with _configured(single, "maxclients", 1, 10000) as client:
        client.client_kill_filter(_type="normal", skipme=True)
        scene.last(chance.uniform(0.1, 1))


@to_a_server(None)
def be_a_replica_for_a_while(scene: Scene, chance: Random, single: Single) -> None:
    _command(single, "REPLICAOF", "127.0.0.1", 1)
    try:
        scene.last(chance.uniform(0.1, 1.5))
    finally:
        _command(single, "REPLICAOF", "NO", "ONE")


@to_a_server(None)
def be_busy_with_a_script(scene: Scene, chance: Random, single: Single) -> None:
    with _configured(single, "busy-reply-threshold", 20, 5000) as client:
        client.eval(_BUSY, 0, chance.randrange(50_000_000))


@to_a_server(None)
def refuse_messages(scene: Scene, chance: Random, single: Single) -> None:
    _command(single, "ACL SETUSER", "default", "resetchannels")
    try:
        scene.last(chance.uniform(0.1, 2))
    finally:
        _command(single, "ACL SETUSER", "default", "allchannels")


@to_a_server(FORGETS, FORGETS, needs=LIBFAKETIME)
def set_the_clock_forward(scene: Scene, chance: Random, single: Single) -> None:
    _step(single, chance.uniform(0.1, 2) * WATCHDOG_TIMEOUT)


@to_a_server(STEPS_BACK, STEPS_BACK, needs=LIBFAKETIME)
def set_the_clock_back(scene: Scene, chance: Random, single: Single) -> None:
    _step(single, -chance.uniform(0.1, 1) * WATCHDOG_TIMEOUT)


@to_a_server(FORGETS, FORGETS, needs=LIBFAKETIME)
def set_the_clock_by_an_hour_for_a_while(scene: Scene, chance: Random, single: Single) -> None:
    """There and back. What a clock that was fast has left for an hour, an operator removes."""
    began, step = now(), chance.choice((HOUR, -HOUR))
    _step(single, step)
    try:
        scene.last(chance.uniform(0.1, 2))
    finally:
        _step(single, -step)
        with single.client() as client:
            for key in client.scan_iter():
                if client.pttl(key) > 1000 * HOUR / 2:
                    client.delete(key)
        place = ONE if single is scene.servers.one else QUORUM
        scene.log.event("set the clock back by an hour", place, began, effect=STEPS_BACK)


def _command(single: Single, name: str, *args: Any) -> Any:
    return command(single.server, name, *args)


def _close_connections(single: Single, kind: str) -> None:
    with single.client() as client:
        client.client_kill_filter(_type=kind, skipme=True)


@contextmanager
def _configured(single: Single, option: str, value: int, usual: int) -> Iterator[redis.Redis]:
    with single.client() as client:
        client.config_set(option, value)
        try:
            yield client
        finally:
            client.config_set(option, usual)


def _set_for_a_while(scene: Scene, chance: Random, single: Single, option: str) -> None:
    with _configured(single, option, 1, 0):
        scene.last(chance.uniform(0.1, 1.5))


def _step(single: Single, seconds: float) -> None:
    with single.client() as client:
        single.clock.set(single.clock.offset + seconds, client)


# --- to the wire between --------------------------------------------------------------------------------------------


@deed(WIRE)
def obey_anything_late(scene: Scene, chance: Random) -> None:
    """Also two commands of a pipeline, a subscription, a report."""
    proxy, _ = _proxy(scene, chance)
    _let_go(scene, chance, proxy, [proxy.copy_late(b"\r\n") for _ in range(chance.randint(1, 4))])


def _meet(scene: Scene, chance: Random, meet: Callable[[Proxy, Script], Rule]) -> None:
    proxy, passing = _proxy(scene, chance)
    _let_go(scene, chance, proxy, [meet(proxy, script) for script in chance.choices(passing, k=chance.randint(1, 12))])


def _let_go(scene: Scene, chance: Random, proxy: Proxy, rules: list[Rule]) -> None:
    for rule in rules:
        scene.last(chance.random() ** 3 * 2 * WATCHDOG_TIMEOUT / len(rules) + 0.05)
        proxy.withdraw(rule)


def _proxy(scene: Scene, chance: Random) -> tuple[Proxy, list[Script]]:
    """A proxy, mostly the one before the one server, and the scripts that pass it."""
    proxies = [node.proxy for node in scene.servers.nodes if node.proxy]
    before_one = scene.servers.one.proxy
    assert before_one is not None
    return (chance.choice(proxies), _OF_NODES) if chance.random() < 0.3 else (before_one, _OF_ONE)


TO_SCRIPTS = TO_COMMANDS | {"never reply": Proxy.swallow_reply, "obey late what was sent again": Proxy.copy_late}
DEEDS += [Deed(name, WIRE, partial(_meet, meet=meet)) for name, meet in TO_SCRIPTS.items()]


# --- to the pair with its sentinel ----------------------------------------------------------------------------------


@deed(PAIR, FORGETS)
def fail_over_when_the_primary_dies(scene: Scene, chance: Random) -> None:
    old, new = _primary_and_replica(scene)
    old.kill()
    try:
        _fail_over(scene, new)
    finally:
        start(old)
        _follow(old, new)


@deed(PAIR, FORGETS)
def fail_over_while_the_primary_lives(scene: Scene, chance: Random) -> None:
    old, new = _primary_and_replica(scene)
    try:
        _fail_over(scene, new)
    finally:
        _follow(old, new)


@deed(PAIR)
def hang_the_primary(scene: Scene, chance: Random) -> None:
    scene.hang(_primary_and_replica(scene)[0], chance.uniform(0.1, 2))


@deed(PAIR)
def hang_the_replica(scene: Scene, chance: Random) -> None:
    scene.hang(_primary_and_replica(scene)[1], chance.uniform(0.1, 2))


def _primary_and_replica(scene: Scene) -> tuple[EmbeddedServer, EmbeddedServer]:
    one, other = scene.servers.pair.servers
    return (one, other) if command(one, "ROLE")[0] == "master" else (other, one)


def _fail_over(scene: Scene, new: EmbeddedServer) -> None:
    """Make the sentinel promote the replica."""
    pair = scene.servers.pair
    _until(lambda: begin_failover(pair))
    _until(lambda: primary_port(pair) == new.port)
    _until(lambda: command(new, "ROLE")[0] == "master")


def _follow(replica: EmbeddedServer, primary: EmbeddedServer) -> None:
    if command(primary, "ROLE")[0] != "master":
        return  # the sentinel has not made it one
    command(replica, "REPLICAOF", "127.0.0.1", primary.port)
    with replica.client() as client:
        _until(lambda: client.info("replication").get("master_link_status") == "up")


def _until(condition: Callable[[], object]) -> None:
    give_up_at = now() + PATIENCE
    while not condition():
        if now() > give_up_at:
            raise TimeoutError(f"The servers were not as they should be within {PATIENCE:g} s.")
        time.sleep(0.02)


# --- to several nodes of a RedLock ----------------------------------------------------------------------------------


@deed(QUORUM, NODE_FORGETS)
def crash_nodes_one_after_another(scene: Scene, chance: Random) -> None:
    for node in chance.sample(scene.servers.nodes, chance.randint(2, 5)):
        node.crash(keep_data=False)
        scene.last(chance.uniform(0, WATCHDOG_TIMEOUT))


@deed(QUORUM, NODE_FORGETS)
def be_without_a_minority(scene: Scene, chance: Random) -> None:
    nodes = chance.sample(scene.servers.nodes, 2)
    for node in nodes:
        node.server.kill()
    try:
        scene.last(chance.uniform(0.5, 3))
    finally:
        for node in nodes:
            node.crash(keep_data=False)


@deed(QUORUM)
def be_without_a_majority(scene: Scene, chance: Random) -> None:
    nodes = chance.sample(scene.servers.nodes, 3)
    for node in nodes:
        node.server.pause()
    try:
        scene.last(chance.uniform(0.2, 2))
    finally:
        for node in nodes:
            node.server.resume()


@deed(QUORUM)
def let_nodes_stutter(scene: Scene, chance: Random) -> None:
    for _ in range(10):
        scene.hang(chance.choice(scene.servers.nodes).server, chance.uniform(0.01, 0.15))


@deed(QUORUM)
def close_connections_of_nodes(scene: Scene, chance: Random) -> None:
    for node in chance.sample(scene.servers.nodes, chance.randint(1, 5)):
        _close_connections(node, "normal")


@deed(QUORUM)
def have_nodes_forget_all_scripts(scene: Scene, chance: Random) -> None:
    for node in scene.servers.nodes:
        _command(node, "SCRIPT FLUSH")
