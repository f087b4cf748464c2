"""Each situation that ``rlock_doctor`` knows has a finding of its own, with one piece of advice, in text and JSON."""

import io
import json
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from django_rlock.console import diagnosis
from django_rlock.console.diagnosis import Finding
from django_rlock.management.commands.rlock_doctor import Command
from example_project.embedded import EmbeddedServer
from tests.answering import Answer, in_turn, late, refusing, rewriting, serving, sharding
from tests.conftest import OwnServer
from tests.eventually import PATIENCE, eventually
from tests.topologies.conftest import started, use  # noqa: F401 - fixtures
from tests.topologies.documented import entry, least_rights
from tests.topologies.servers import Topology, command, is_ready, log_in
from tests.topologies.ways import PASSWORD, Encrypted, Plain, port_of

BACKEND = "django_redis.cache.RedisCache"


class Stage:
    """Where a situation is set up."""

    def __init__(self, stack: ExitStack, settings: Any, shared: Callable[[str], Topology]) -> None:
        self.stack = stack
        self.settings = settings
        self.shared = shared

    def use(self, url: str, options: dict[str, Any] | None = None, **locks: Any) -> None:
        entry = {"BACKEND": BACKEND, "LOCATION": url, "OPTIONS": {"SOCKET_TIMEOUT": 0.5, **(options or {})}}
        self.settings.CACHES = {"default": entry}
        self.settings.RLOCK = {"default": {"KIND": "rlock", **locks}}

    def server(self, *args: str, port: int | None = 0) -> EmbeddedServer:
        return self.stack.enter_context(EmbeddedServer(port=port, args=args))

    def serve(self, answer: Answer) -> None:
        self.use(self.stack.enter_context(serving(answer)))

    def encrypted(self) -> tuple[Encrypted, str]:
        way = Encrypted(self.stack)
        return way, f"://:correct-horse@127.0.0.1:{port_of(way.start())}/0"


def no_server(stage: Stage) -> None:
    server = stage.server()
    stage.use(server.url)
    server.stop()


def hangs(stage: Stage) -> None:
    server = stage.server()
    stage.use(server.url)
    server.pause()
    stage.stack.callback(server.resume)


def unknown_host(stage: Stage) -> None:
    stage.use("redis://nowhere.invalid:6379/0")


def slow_to_connect(stage: Stage) -> None:
    stage.serve(late(stage.server(port=None), 0.2))


def no_tls_there(stage: Stage) -> None:
    stage.use(stage.server().url.replace("redis:", "rediss:"))


def tls_only(stage: Stage) -> None:
    stage.use(f"redis{stage.encrypted()[1]}")


def unknown_authority(stage: Stage) -> None:
    stage.use(f"rediss{stage.encrypted()[1]}", {"CONNECTION_POOL_KWARGS": {"ssl_validate_ocsp_stapled": False}})


def no_password(stage: Stage) -> None:
    stage.use(stage.server("--requirepass", "wanted").url)


def wrong_password(stage: Stage) -> None:
    stage.use(stage.server("--requirepass", "wanted").url.replace("://", "://:other@"))


def no_rights(stage: Stage) -> None:
    server = stage.server()
    stage.use(server.url, log_in(server, ["+ping"]))


def without(*rights: str) -> Callable[[Stage], None]:
    def missing(stage: Stage) -> None:
        server = stage.server()
        stage.use(server.url, log_in(server, [right for right in least_rights("single") if right not in rights]))

    return missing


def loading(stage: Stage) -> None:
    stage.serve(refusing("LOADING Redis is loading the dataset in memory"))


def busy(stage: Stage) -> None:
    stage.serve(refusing("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."))


def knows_no_hello(stage: Stage) -> None:
    stage.serve(refusing("ERR unknown command 'HELLO', with args beginning with: '3'"))


def no_room(stage: Stage) -> None:
    stage.serve(refusing("ERR max number of clients reached", close=True))


def nearly_no_room(stage: Stage) -> None:
    server = stage.server("--maxclients", "20")
    stage.use(server.url)
    for _ in range(18):
        stage.stack.enter_context(server.client()).ping()


def full_memory(stage: Stage) -> None:
    server = stage.server("--maxmemory", "100mb")
    stage.use(server.url)
    with server.client() as client:
        client.config_set("maxmemory", client.info()["used_memory"] - 1)


def a_replica(stage: Stage) -> None:
    stage.use(stage.server("--replicaof", "127.0.0.1", str(stage.server().port)).url)


def a_node_of_a_cluster(stage: Stage) -> None:
    cluster = stage.shared("cluster")
    stage.use(str(cluster.location), {"USERNAME": "locks", "PASSWORD": cluster.options["PASSWORD"]})


def a_cluster_behind_one_address(stage: Stage) -> None:
    stage.use(str(stage.shared("one address").location))


def cluster_without(*rights: str) -> Callable[[Stage], None]:
    def missing(stage: Stage) -> None:
        cluster = stage.shared("cluster")
        left = [right for right in least_rights("single", "cluster") if right not in rights]
        for node in cluster.servers:
            command(node, "ACL SETUSER", "fewer", "reset", "on", f">{PASSWORD}", *left)
        stage.use(str(cluster.location), {**cluster.options, "USERNAME": "fewer"})

    return missing


def a_cluster_of_redis_6(stage: Stage) -> None:
    """A node that says so, and lacks what it lacks."""
    node = Plain(stage.stack).start_node("--rename-command", "SSUBSCRIBE", "")
    command(node, "CLUSTER ADDSLOTSRANGE", 0, 16383)
    eventually(lambda: is_ready(node))
    version = command(node, "INFO", "server")["redis_version"]
    older = f"6.{version[2:]}"
    url = stage.stack.enter_context(
        serving(rewriting(node, f"redis_version:{version}".encode(), f"redis_version:{older}".encode()))
    )
    command(node, "CONFIG SET", "cluster-announce-port", urlsplit(url).port)
    stage.use(url.removesuffix("/0"), entry("cluster")["OPTIONS"] | {"STARTUP_NODES": []})


def two_servers_at_one_address(stage: Stage) -> None:
    stage.serve(in_turn([stage.server(port=None), stage.server(port=None)]))


def a_sharding_proxy(stage: Stage) -> None:
    proxy = sharding([stage.server(port=None) for _ in range(3)])
    stage.use(stage.stack.enter_context(serving(proxy)), {"CONNECTION_POOL_KWARGS": {"protocol": 2}})


def sentinels(*places: tuple[str, int], own: bool) -> Callable[[Stage], None]:
    def start(stage: Stage) -> None:
        watch = stage.shared("sentinel")
        found = [*(watch.options["SENTINELS"] if own else ()), *places]
        stage.settings.CACHES = {"default": replace(watch, options={**watch.options, "SENTINELS": found}).cache}
        stage.settings.RLOCK = {"default": {}}

    return start


def a_primary_that_is_down(stage: Stage) -> None:
    server, sentinel = stage.server(), Plain(stage.stack).start("--sentinel")
    command(sentinel, "SENTINEL MONITOR", "gone", "127.0.0.1", server.port, 1)
    server.stop()
    watch = stage.shared("sentinel")
    options = {**watch.options, "SENTINELS": [("127.0.0.1", port_of(sentinel))]}
    stage.settings.CACHES = {"default": replace(watch, location="redis://gone/0", options=options).cache}
    stage.settings.RLOCK = {"default": {}}


def one_flat_option(stage: Stage) -> None:
    stage.settings.RLOCK = {"CACHE": "default"}


def no_mapping(stage: Stage) -> None:
    stage.settings.RLOCK = ["default"]


def another_alias_is_wrong(stage: Stage) -> None:
    stage.settings.RLOCK = {"default": {}, "orders": {"KIND": "fare"}}


DEAD = [("127.0.0.1", 1), ("127.0.0.1", 2)]
SITUATIONS: list[tuple[Callable[[Stage], None], str, str, str, str]] = [
    (no_server, "connection", "error", "nothing listens at 127.0.0.1:", "Start the server"),
    (hangs, "connection", "error", "no reply from 127.0.0.1:", "firewalls"),
    (unknown_host, "name", "error", "nowhere.invalid", "Correct the host name"),
    (slow_to_connect, "connection", "warning", "longer than a call may wait for a reply", "the cause of the delay"),
    (no_tls_there, "connection", "error", "127.0.0.1:", "Check that this port uses TLS, or write redis://"),
    (tls_only, "connection", "error", "127.0.0.1:", "Write rediss://"),
    (unknown_authority, "tls", "error", "certificate verify failed", "ssl_ca_certs"),
    (no_password, "login", "error", "127.0.0.1:", "credentials"),
    (wrong_password, "login", "error", "invalid username-password pair", "credentials"),
    (no_rights, "rights", "error", "no permissions", "ACL"),
    (without("+time"), "time", "warning", "rlock_list and the admin cannot read this server", "grant +time"),
    (without("&redisson_*"), "pubsub", "warning", "the channels redisson_lock__channel:* are refused", "least-rights"),
    (without("&rlock_wake:*"), "pubsub", "warning", "the channels rlock_wake:* are refused", "least-rights"),
    (without("+publish"), "pubsub", "warning", "are refused", "least-rights"),
    (cluster_without("&redisson_*"), "pubsub", "warning", "redisson_lock__channel:* are refused", "least-rights"),
    (cluster_without("&rlock_wake:*"), "pubsub", "warning", "rlock_wake:* are refused", "least-rights"),
    (cluster_without("+ssubscribe"), "pubsub", "warning", "'ssubscribe' command", "least-rights"),
    (cluster_without("+spublish"), "pubsub", "warning", "'spublish' command", "least-rights"),
    (cluster_without("+subscribe"), "pubsub", "warning", "'subscribe' command", "least-rights"),
    (cluster_without(), "pubsub", "ok", "a message arrives", ""),
    (a_cluster_of_redis_6, "version", "error", "has no sharded channels", "Use Redis 7"),
    (a_cluster_of_redis_6, "pubsub", "warning", "unknown command", "older than"),
    (loading, "loading", "error", "loading", "Wait until the server has loaded"),
    (busy, "busy", "error", "busy", "SCRIPT KILL"),
    (knows_no_hello, "protocol", "error", "HELLO", "'protocol': 2"),
    (no_room, "clients", "error", "max number of clients", "maxclients"),
    (nearly_no_room, "clients", "warning", "of 20 connections are open", "maxclients"),
    (full_memory, "memory", "error", "MB are used", "Raise maxmemory"),
    (a_replica, "replicas", "error", "slave", "Connect to the primary"),
    (a_node_of_a_cluster, "cluster", "error", "127.0.0.1:", "django_rlock.cluster.ConnectionFactory"),
    (a_cluster_behind_one_address, "slots", "ok", "one address before many slots", ""),
    (two_servers_at_one_address, "servers", "error", "2 servers reply at 127.0.0.1:", "all connections to one server"),
    (a_sharding_proxy, "shards", "error", "taken twice at once", "sharding proxy"),
    (sentinels(*DEAD, own=True), "sentinels", "warning", "1 of 3 sentinels reply", "Start or correct"),
    (sentinels(*DEAD, own=False), "sentinels", "error", "0 of 2 sentinels reply", "Start or correct"),
    (a_primary_that_is_down, "connection", "error", "nothing listens at gone at 127.0.0.1:", "Start the server"),
    (one_flat_option, "django_rlock.E001", "error", "must be a dict of options", "Correct RLOCK"),
    (no_mapping, "django_rlock.E001", "error", "RLOCK must be a dict", "Correct RLOCK"),
    (another_alias_is_wrong, "django_rlock.E001", "error", "'fare'", "Correct RLOCK"),
]


def name_of(value: object) -> str:
    return getattr(value, "__name__", "").replace("_", " ") if callable(value) else ""


def doctor(*args: str) -> str:
    out = io.StringIO()
    with suppress(CommandError):  # where there is an error
        call_command("rlock_doctor", *args, stdout=out, stderr=io.StringIO())
    return out.getvalue()


def as_text(finding: dict[str, Any]) -> str:
    """As the command prints it, without asking the servers once more."""
    out = io.StringIO()
    Command(stdout=out)._print(Finding(**finding))
    return out.getvalue()


@pytest.mark.lengthy
@pytest.mark.parametrize(("situation", "check", "level", "text", "advice"), SITUATIONS, ids=name_of)
def test_each_situation_has_a_finding_of_its_own(
    settings: Any,
    started: Callable[[str], Topology],  # noqa: F811
    own_server: OwnServer,  # which has the test wait no longer than callers do
    monkeypatch: pytest.MonkeyPatch,
    situation: Callable[[Stage], None],
    check: str,
    level: str,
    text: str,
    advice: str,
) -> None:
    monkeypatch.setattr(diagnosis, "WITHIN", 0.5)
    monkeypatch.setattr(diagnosis, "SLOW_CONNECT", 0.1 if situation is slow_to_connect else PATIENCE)
    monkeypatch.setattr(diagnosis, "REPLY_GRACE", 0.1)
    with ExitStack() as stack:
        situation(Stage(stack, settings, started))
        found = json.loads(doctor("--format", "json"))
    meant = [each for each in found if (each["check"], each["level"]) == (check, level) and text in each["text"]]
    assert len(meant) == max(len({each["server"] for each in meant}), 1), "\n".join(map(str, found))
    assert advice in meant[0]["advice"]
    printed = as_text(meant[0])
    assert f"{check}: " in printed
    assert advice in printed
    assert all(len(each["text"]) < 500 for each in found)
    assert [each for each in found if each["level"] != "ok" and not each["advice"]] == []
