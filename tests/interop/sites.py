"""Where both sides meet: a server or a cluster, and what can be seen there of who asks and tells."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

from django_rlock.locks.holds import WAITS
from tests.eventually import PATIENCE
from tests.interop.redisson import Address
from tests.topologies.servers import Topology

HASTY_WATCHDOG = 2.0
"""The watchdogs' timeout on our alias "hasty", and of Java's clients at the address ``hasty``, in seconds."""


NEWEST = "4.7.0"
OLDEST = "3.13.6"
OLD = "3.17.7"
VERSIONS = [OLDEST, OLD, "3.52.0", NEWEST]
"""Of Redisson."""


class Scene(NamedTuple):
    """The binding of our side, where both sides meet, whether names have a hash tag, and which Redisson it is.

    With ``sharded="OFF"`` Redisson uses no sharded channels in a cluster; versions before 3.22 cannot.
    """

    binding: str
    place: str
    naming: str
    version: str = NEWEST
    sharded: str = "AUTO"

    def __str__(self) -> str:
        return "-".join(self)

    @property
    def plain(self) -> bool:
        """Whether Redisson publishes to all nodes of a cluster, and not to the shard of the channel's slot."""
        return self.place != "cluster" or self.version in {OLDEST, OLD} or self.sharded == "OFF"


SCENES = [
    Scene("sync", "single", "bare"),
    Scene("async", "single", "tagged"),
    Scene("async", "cluster", "bare"),
    Scene("sync", "cluster", "tagged"),
]
"""Each pair of choices once, instead of all eight triples."""
PLACES = [SCENES[0], SCENES[2]]
"""For tests that take long."""
PLAIN = Scene("async", "cluster", "bare", sharded="OFF")
"""As all versions before 3.22 are in a cluster."""
FIELD = [
    *(Scene("sync", place, "bare", version) for version in VERSIONS[:3] for place in ("single", "sentinel", "cluster")),
    Scene("sync", "sentinel", "bare"),
    PLAIN,
]
"""What else is out there."""

_OPTIONS = {"CACHE": "interop", "KEY_PREFIX": "", "FENCE_TTL": None}
_PATIENT = {"WAITER_ALIVE_TIME": 600.0, "CLAIM_TIME": 500.0}
"""A process's heartbeats come later than a test has patience."""
_HASTY = {"WATCHDOG_TIMEOUT": HASTY_WATCHDOG, "WAITER_ALIVE_TIME": 1.0, "CLAIM_TIME": 0.5}


class Site:
    """A running topology, as both sides reach it. ``client`` is the test's own."""

    def __init__(self, topology: Topology) -> None:
        self.client = topology.redis
        self.plain = True
        # Not as the user with the documented rights: they are for names with a prefix.
        options = {name: value for name, value in topology.options.items() if name not in {"USERNAME", "PASSWORD"}}
        self.caches = {"interop": {**topology.cache, "OPTIONS": options}}
        self.locks = {"default": _OPTIONS, "hasty": {**_OPTIONS, **_HASTY}, "patient": {**_OPTIONS, **_PATIENT}}
        entrances = [topology.sentinel] if topology.sentinel else topology.servers
        nodes = tuple(f"redis://127.0.0.1:{server.port}" for server in entrances)
        self.address = Address(nodes, cast("Any", topology.name), topology.service)
        # A replica would show each key a second time.
        primaries = topology.servers[:1] if topology.sentinel else topology.servers
        self._nodes = {server.port: server.client() for server in primaries}

    def set(self, scene: Scene) -> None:
        """Let a scene begin: empty servers, and Redisson's clients with its options."""
        self.plain = scene.plain
        options = () if scene.sharded == "AUTO" else (("setShardedSubscriptionMode", scene.sharded),)
        self.address = self.address._replace(options=options)
        self.empty()

    @property
    def hasty(self) -> Address:
        """The same with a short watchdog."""
        return self.address._replace(watchdog=int(HASTY_WATCHDOG * 1000))

    def empty(self) -> None:
        for node in self._nodes.values():
            node.flushall()

    def names(self) -> list[str]:
        """All keys there are, but the reports of our processes, and the requests of forced releases."""
        names = sorted(str(key) for node in self._nodes.values() for key in node.keys("*"))
        return [name for name in names if not name.startswith(("rlock_process", "rlock_requests"))]

    def start_counting(self) -> None:
        for node in self._nodes.values():
            node.config_resetstat()

    def tries(self, *commands: str) -> int:
        """How many scripts have run since the counting started, or how often these commands."""
        names = [f"cmdstat_{command}" for command in commands or ("eval", "evalsha")]
        stats = [node.info("commandstats") for node in self._nodes.values()]
        called = [each[name] for each in stats for name in names if name in each]
        return sum(stat["calls"] - stat["failed_calls"] for stat in called)

    @contextmanager
    def overheard(self, channel: str) -> Iterator[list[str]]:
        """The payloads that are published while the block runs, as Redisson's clients hear them; they are there at its
        end."""
        payloads: list[str] = []
        with self._node_of(channel).pubsub() as pubsub:
            (pubsub.subscribe if self.plain else pubsub.ssubscribe)(channel)
            assert _next(pubsub)["type"] in {"subscribe", "ssubscribe"}
            yield payloads
            pubsub.ping()
            while (message := _next(pubsub))["type"] in {"message", "smessage"}:
                payloads.append(str(int(message["data"])))  # of a copy, zeros before the number tell our side

    def _node_of(self, key: str) -> Any:
        if self.address.mode != "cluster":
            return next(iter(self._nodes.values()))
        return self._nodes[self.client.get_node_from_key(key).port]


def waiting_here() -> int:
    """How many threads and tasks of this process wait for something, whether they sleep or look a last time."""
    return len(WAITS.snapshot())


def _next(pubsub: Any) -> dict[str, Any]:
    message = pubsub.get_message(timeout=PATIENCE)
    assert message is not None, "nothing came"
    return message
