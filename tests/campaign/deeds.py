"""The deeds of the nemesis. A deed leaves everything as it ought to be; no server loses data.

The wire is left alone while a message is delivered: Kombu takes it from the queue and notes then that it has it, so
what strikes between these two loses it, whatever the task. A broker or a worker that ends does so still; see ``trail``.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random

from django_rlock._redis import scripts
from django_rlock._redis.scripts import Script
from example_project.embedded import EmbeddedServer
from tests import namespaces
from tests.campaign.plan import WATCHDOG_TIMEOUT
from tests.campaign.staff import CampaignWorker, Staff
from tests.proxy import Proxy, Rule
from tests.soak.nemesis import TO_COMMANDS, Deed, Scene, add

WORKERS, BROKER, LOCKS, WIRE = "workers", "the broker", "locks", "wire"
"""Deeds to one of these places follow one another."""
BEYOND = 1.1, 1.6
"""Watchdog timeouts that a pause takes which no lease survives."""
FROM_WORKERS = b"LPUSH", b"HDEL", b"ZREM"
"""The commands that workers send to the broker: a new message, or an acknowledgement."""
FOR_LOCKS: list[Script | bytes] = [
    scripts.FAIR_ACQUIRE, scripts.FAIR_RELEASE,
    scripts.TASK_READ, scripts.TASK_DONE, scripts.TASK_FINISH, scripts.TASK_EXPECT,
]  # fmt: skip


DEEDS: list[Deed] = []
deed = partial(add, DEEDS)


# --- to workers -------------------------------------------------------------------------------------------------------


def _any(scene: Scene, chance: Random) -> int:
    return chance.randrange(len(scene.crew.workers))


@deed(WORKERS)
def kill_a_child(scene: Scene, chance: Random) -> None:
    scene.crew.workers[_any(scene, chance)].kill_child(chance)


@deed(WORKERS)
def stop_a_child_beyond_the_lease(scene: Scene, chance: Random) -> None:
    child = scene.crew.workers[_any(scene, chance)].child(chance)
    if child is not None:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGSTOP)
            scene.last(chance.uniform(*BEYOND) * WATCHDOG_TIMEOUT)
            os.kill(child, signal.SIGCONT)


@deed(WORKERS)
def stop_a_worker_beyond_the_lease(scene: Scene, chance: Random) -> None:
    scene.hang(scene.crew.workers[_any(scene, chance)], chance.uniform(*BEYOND) * WATCHDOG_TIMEOUT)


def _succeeded(
    leave: Callable[[CampaignWorker], None], replace: Callable[[Staff, int], None], scene: Scene, chance: Random
) -> None:
    """Let a worker go, and put another worker there."""
    number = _any(scene, chance)
    leave(scene.crew.workers[number])
    replace(scene.crew, number)


KILL = CampaignWorker.kill
SUCCESSIONS: dict[str, tuple[Callable[[CampaignWorker], None], Callable[[Staff, int], None]]] = {
    "kill a worker": (KILL, Staff.replace),
    "end a worker": (CampaignWorker.end, Staff.replace),
}
if namespaces.why_not() is None:
    SUCCESSIONS["hire a stranger"] = KILL, Staff.replace_by_stranger
    SUCCESSIONS["fill the disk of a worker"] = KILL, Staff.replace_by_full
DEEDS += [Deed(name, WORKERS, partial(_succeeded, *how)) for name, how in SUCCESSIONS.items()]
DEEDS.append(Deed("kill another child", WORKERS, kill_a_child))


# --- to servers, and to the wire between ------------------------------------------------------------------------------


def _broker(scene: Scene) -> EmbeddedServer:
    server: EmbeddedServer = scene.servers.broker.server
    return server


def _locks(scene: Scene) -> EmbeddedServer:
    server: EmbeddedServer = scene.servers.locks.server
    return server


def _meet(scene: Scene, chance: Random, how: Callable[[Proxy, Script | bytes], Rule]) -> None:
    """Apply it to a few commands, of those that the broker gets and of those that the locks get."""
    proxies = scene.servers.broker.proxy, scene.servers.locks.proxy
    assert proxies[0] is not None
    assert proxies[1] is not None
    rules = [(proxies[0], how(proxies[0], chance.choice(FROM_WORKERS)))]
    rules += [(proxies[1], how(proxies[1], chance.choice(FOR_LOCKS))) for _ in range(3)]
    scene.last(chance.uniform(0.1, 1))
    for proxy, rule in rules:
        proxy.withdraw(rule)


DEEDS += [
    Deed("restart the broker", BROKER, lambda scene, chance: scene.be_down(_broker(scene), chance.uniform(0, 1))),
    Deed("let the broker hang", BROKER, lambda scene, chance: scene.hang(_broker(scene), chance.uniform(0.1, 1))),
    Deed("restart the locks", LOCKS, lambda scene, _: scene.be_down(_locks(scene), 0)),
    Deed("be without locks", LOCKS, lambda scene, chance: scene.be_down(_locks(scene), chance.uniform(0.2, 2.5))),
    Deed("let the locks hang", LOCKS, lambda scene, chance: scene.hang(_locks(scene), chance.uniform(0.05, 1))),
    Deed(
        "let the locks hang beyond the lease",
        LOCKS,
        lambda scene, chance: scene.hang(_locks(scene), chance.uniform(*BEYOND) * WATCHDOG_TIMEOUT),
    ),
    *(Deed(name, WIRE, partial(_meet, how=how)) for name, how in TO_COMMANDS.items()),
]
