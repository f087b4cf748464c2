"""What the nemesis does. A deed leaves everything as it ought to be, save for what was forgotten meanwhile."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import redis

from django_rlock._redis import scripts
from django_rlock._redis.scripts import Script
from example_project.embedded import EmbeddedServer
from tests.proxy import Proxy, Rule
from tests.soak import nemesis
from tests.soak.crew import Crew, Worker
from tests.soak.grips import ONE, PAIR, QUORUM, WATCHDOG_TIMEOUT
from tests.soak.nemesis import COMPILER, LIBFAKETIME, Deed, registering
from tests.soak.records import DOUBTS, ENDS, FORGETS, NODE_FORGETS, STEPS_BACK, WIRE, now
from tests.soak.servers import PATIENCE, Servers, Single, start
from tests.topologies.servers import begin_failover, command, primary_port

PROCESSES = "processes"
"""A place besides WIRE and those where locks live; what is done to one place is done one after another."""
HOUR = 3600.0
_BUSY = "local sum = 0 for number = 1, ARGV[1] do sum = sum + number end"
_SCRIPTS = {name: each for name, each in vars(scripts).items() if isinstance(each, Script)}
_OF_NODES = [each for name, each in _SCRIPTS.items() if name.startswith("REDLOCK")]
_OF_ONE = [each for name, each in _SCRIPTS.items() if not name.startswith("REDLOCK")]


@dataclass
class Scene(nemesis.Scene):
    """The servers, and the processes that use them."""

    servers: Servers
    crew: Crew


DEEDS: list[Deed] = []
deed = registering(DEEDS)


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
    worker = scene.crew.workers[place]
    worker.pause()
    try:
        scene.last(seconds)
    finally:
        worker.resume()


# --- to one server ------------------------------------------------------------------------------------------------


@deed(ONE)
def crash_with_its_data(scene: Scene, chance: Random) -> None:
    scene.servers.one.crash(keep_data=True)


@deed(ONE, FORGETS)
def crash_without_its_data(scene: Scene, chance: Random) -> None:
    scene.servers.one.crash(keep_data=False)


@deed(ONE, FORGETS)
def come_back_with_older_data(scene: Scene, chance: Random) -> None:
    one = scene.servers.one
    kept = one.data.with_name("kept")
    shutil.copytree(one.data, kept)
    scene.last(chance.uniform(0.1, 2))
    one.server.kill()
    shutil.rmtree(one.data)
    kept.rename(one.data)
    start(one.server)


@deed(ONE)
def be_down_for_a_while(scene: Scene, chance: Random) -> None:
    scene.be_down(scene.servers.one.server, chance.uniform(0.2, 2.5))


@deed(ONE)
def hang_for_a_moment(scene: Scene, chance: Random) -> None:
    scene.hang(scene.servers.one.server, chance.uniform(0.05, 0.8))


@deed(ONE)
def hang_for_longer_than_a_lease(scene: Scene, chance: Random) -> None:
    scene.hang(scene.servers.one.server, chance.uniform(1.1, 1.6) * WATCHDOG_TIMEOUT)


@deed(ONE, FORGETS)
def hang_and_crash_without_its_data(scene: Scene, chance: Random) -> None:
    one = scene.servers.one
    one.server.pause()
    scene.last(chance.uniform(0.1, 2))
    one.crash(keep_data=False)


@deed(ONE, FORGETS)
def lose_all_keys(scene: Scene, chance: Random) -> None:
    _command(scene.servers.one, "FLUSHALL")


@deed(ONE, FORGETS)
def lose_some_keys(scene: Scene, chance: Random) -> None:
    with scene.servers.one.client() as client:
        for key in sorted(client.scan_iter("rlock:*")):
            # Without its number alone, a semaphore would have too many permits for good.
            if key != "rlock:permits" and chance.random() < 0.3:
                client.delete(key)


@deed(ONE)
def forget_all_scripts(scene: Scene, chance: Random) -> None:
    _command(scene.servers.one, "SCRIPT FLUSH")


@deed(ONE)
def close_connections(scene: Scene, chance: Random) -> None:
    _close_connections(scene.servers.one, "normal")


@deed(ONE)
def close_connections_of_listeners(scene: Scene, chance: Random) -> None:
    _close_connections(scene.servers.one, "pubsub")


@deed(ONE)
def pause_all_clients(scene: Scene, chance: Random) -> None:
    _command(scene.servers.one, "CLIENT PAUSE", chance.randrange(50, 1500), "ALL")


@deed(ONE)
def pause_clients_that_write(scene: Scene, chance: Random) -> None:
    _command(scene.servers.one, "CLIENT PAUSE", chance.randrange(50, 1500), "WRITE")


@deed(ONE)
def be_out_of_memory(scene: Scene, chance: Random) -> None:
    with _configured(scene.servers.one, "maxmemory", 1, 0):
        scene.last(chance.uniform(0.1, 1.5))


@deed(ONE)
def take_no_new_connections(scene: Scene, chance: Random) -> None:
    with _configured(scene.servers.one, "maxclients", 1, 10000) as client:
        client.client_kill_filter(_type="normal", skipme=True)
        scene.last(chance.uniform(0.1, 1))


@deed(ONE)
def want_replicas(scene: Scene, chance: Random) -> None:
    with _configured(scene.servers.one, "min-replicas-to-write", 1, 0):
        scene.last(chance.uniform(0.1, 1.5))


@deed(ONE)
def be_a_replica_for_a_while(scene: Scene, chance: Random) -> None:
    with scene.servers.one.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", 1)
        try:
            scene.last(chance.uniform(0.1, 1.5))
        finally:
            client.execute_command("REPLICAOF", "NO", "ONE")


@deed(ONE)
def be_busy_with_a_script(scene: Scene, chance: Random) -> None:
    with _configured(scene.servers.one, "busy-reply-threshold", 20, 5000) as client:
        client.eval(_BUSY, 0, chance.randrange(50_000_000))


@deed(ONE)
def refuse_messages(scene: Scene, chance: Random) -> None:
    _command(scene.servers.one, "ACL SETUSER", "default", "resetchannels")
    try:
        scene.last(chance.uniform(0.1, 2))
    finally:
        _command(scene.servers.one, "ACL SETUSER", "default", "allchannels")


@deed(ONE, FORGETS, needs=LIBFAKETIME)
def set_the_clock_forward(scene: Scene, chance: Random) -> None:
    _step(scene.servers.one, chance.uniform(0.1, 2) * WATCHDOG_TIMEOUT)


@deed(ONE, STEPS_BACK, needs=LIBFAKETIME)
def set_the_clock_back(scene: Scene, chance: Random) -> None:
    _step(scene.servers.one, -chance.uniform(0.1, 1) * WATCHDOG_TIMEOUT)


@deed(ONE, FORGETS, needs=LIBFAKETIME)
def set_the_clock_by_an_hour_for_a_while(scene: Scene, chance: Random) -> None:
    _step_by_an_hour(scene, chance, scene.servers.one)


def _step_by_an_hour(scene: Scene, chance: Random, single: Single) -> None:
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
        scene.log.event(
            "set the clock back by an hour", ONE if single is scene.servers.one else QUORUM, began, effect=STEPS_BACK
        )


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


def _step(single: Single, seconds: float) -> None:
    with single.client() as client:
        single.clock.set(single.clock.offset + seconds, client)


# --- to the wire between --------------------------------------------------------------------------------------------


@deed(WIRE)
def close_before_commands(scene: Scene, chance: Random) -> None:
    _meet(scene, chance, Proxy.cut_before)


@deed(WIRE)
def lose_replies(scene: Scene, chance: Random) -> None:
    _meet(scene, chance, Proxy.lose_reply)


@deed(WIRE)
def never_reply(scene: Scene, chance: Random) -> None:
    _meet(scene, chance, Proxy.swallow_reply)


@deed(WIRE)
def delay_commands(scene: Scene, chance: Random) -> None:
    _meet(scene, chance, Proxy.hold)


@deed(WIRE)
def delay_replies(scene: Scene, chance: Random) -> None:
    _meet(scene, chance, Proxy.hold_reply)


@deed(WIRE)
def obey_late_what_was_sent_again(scene: Scene, chance: Random) -> None:
    _meet(scene, chance, Proxy.copy_late)


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


# --- to nodes of a RedLock ------------------------------------------------------------------------------------------


def _node(scene: Scene, chance: Random) -> Single:
    return chance.choice(scene.servers.nodes)


@deed(QUORUM, NODE_FORGETS)
def crash_a_node_without_its_data(scene: Scene, chance: Random) -> None:
    _node(scene, chance).crash(keep_data=False)


@deed(QUORUM)
def crash_a_node_with_its_data(scene: Scene, chance: Random) -> None:
    _node(scene, chance).crash(keep_data=True)


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
def hang_a_node(scene: Scene, chance: Random) -> None:
    scene.hang(_node(scene, chance).server, chance.uniform(0.02, 2))


@deed(QUORUM)
def let_nodes_stutter(scene: Scene, chance: Random) -> None:
    for _ in range(10):
        scene.hang(_node(scene, chance).server, chance.uniform(0.01, 0.15))


@deed(QUORUM)
def close_connections_of_nodes(scene: Scene, chance: Random) -> None:
    for node in chance.sample(scene.servers.nodes, chance.randint(1, 5)):
        _close_connections(node, "normal")


@deed(QUORUM)
def have_a_node_out_of_memory(scene: Scene, chance: Random) -> None:
    with _configured(_node(scene, chance), "maxmemory", 1, 0):
        scene.last(chance.uniform(0.1, 2))


@deed(QUORUM)
def have_nodes_forget_all_scripts(scene: Scene, chance: Random) -> None:
    for node in scene.servers.nodes:
        _command(node, "SCRIPT FLUSH")


@deed(QUORUM, FORGETS)
def lose_all_keys_of_a_node(scene: Scene, chance: Random) -> None:
    _command(_node(scene, chance), "FLUSHALL")


@deed(QUORUM, FORGETS, needs=LIBFAKETIME)
def set_the_clock_of_a_node_forward(scene: Scene, chance: Random) -> None:
    _step(_node(scene, chance), chance.uniform(0.1, 2) * WATCHDOG_TIMEOUT)


@deed(QUORUM, STEPS_BACK, needs=LIBFAKETIME)
def set_the_clock_of_a_node_back(scene: Scene, chance: Random) -> None:
    _step(_node(scene, chance), -chance.uniform(0.1, 1) * WATCHDOG_TIMEOUT)


@deed(QUORUM, FORGETS, needs=LIBFAKETIME)
def set_the_clock_of_a_node_by_an_hour_for_a_while(scene: Scene, chance: Random) -> None:
    _step_by_an_hour(scene, chance, _node(scene, chance))
