"""Each situation that ``rlock_doctor`` knows has a finding of its own, with one piece of advice, in text and JSON."""

import io
import json
import shutil
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from django.core.management import call_command
from django.core.management.base import CommandError
from redis.backoff import NoBackoff
from redis.retry import Retry

from django_rlock.console import diagnosis
from django_rlock.console.diagnosis import Finding
from django_rlock.management.commands.rlock_doctor import Command
from example_project.embedded import EmbeddedServer
from tests.answering import Answer, in_turn, late, refusing, rewriting, saying, serving, sharding
from tests.conftest import OwnServer
from tests.eventually import PATIENCE, eventually
from tests.topologies.conftest import started, use  # noqa: F401 - fixtures
from tests.topologies.documented import entry, least_rights
from tests.topologies.servers import Topology, command, is_ready, log_in
from tests.topologies.slots import Move
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


def files_of_tls(**options: str) -> Callable[[Stage], None]:
    """A server whose TLS is never reached."""

    def unreadable(stage: Stage) -> None:
        stage.use(stage.server().url.replace("redis:", "rediss:"), {"CONNECTION_POOL_KWARGS": options})

    return unreadable


def cluster_with_a_missing_file(stage: Stage) -> None:
    node = Plain(stage.stack).start_node()
    options = entry("cluster")["OPTIONS"] | {"STARTUP_NODES": [], "CONNECTION_POOL_KWARGS": {"ssl_ca_certs": MISSING}}
    stage.use(node.url.removesuffix("/0").replace("redis:", "rediss:"), options)


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


def a_slot_left_open(stage: Stage) -> None:
    cluster = stage.shared("cluster")
    for node in cluster.servers:
        command(node, "ACL SETUSER", "more", "reset", "on", f">{PASSWORD}", "allcommands", "allkeys", "allchannels")
    stage.use(str(cluster.location), {**cluster.options, "USERNAME": "more"})
    move = Move(cluster, 93)
    move.begin()
    stage.stack.callback(move.finish)


def a_cluster_of_redis_6(stage: Stage) -> None:
    """A node that says so, and lacks what it lacks."""
    node = Plain(stage.stack).start_node("--rename-command", "SSUBSCRIBE", "")
    command(node, "CLUSTER ADDSLOTSRANGE", 0, 16383)
    eventually(lambda: is_ready(node))
    version = command(node, "INFO", "server")["redis_version"]
    older = f"6.2{version[3:]}"
    url = stage.stack.enter_context(
        serving(rewriting(node, f"redis_version:{version}".encode(), f"redis_version:{older}".encode()))
    )
    command(node, "CONFIG SET", "cluster-announce-port", urlsplit(url).port)
    stage.use(url.removesuffix("/0"), entry("cluster")["OPTIONS"] | {"STARTUP_NODES": []})


def another_database_of_a_cluster(stage: Stage) -> None:
    stage.use(str(stage.shared("one address").location).replace("/0", "/1"))


def no_databases(stage: Stage) -> None:
    stage.serve(refusing("ERR SELECT is not allowed in cluster mode"))


def slots_without_a_node(stage: Stage) -> None:
    node = Plain(stage.stack).start_node()
    command(node, "CLUSTER ADDSLOTSRANGE", 0, 8191)
    stage.use(node.url.removesuffix("/0"), entry("cluster")["OPTIONS"] | {"STARTUP_NODES": []})


def a_node_without_slots(stage: Stage) -> None:
    stage.use(Plain(stage.stack).start_node().url)


def writes_are_paused(stage: Stage) -> None:
    server = stage.server()
    stage.use(server.url)
    command(server, "CLIENT PAUSE", 60_000, "WRITE")


def runs_for_ever(start: str, *prepare: str) -> Callable[[Stage], None]:
    """A server that executes Lua code, and refuses all other commands after a millisecond."""

    def busy_with(stage: Stage) -> None:
        after_its_end = stage.stack.enter_context(ExitStack())
        server = stage.server("--lua-time-limit", "1")
        stage.use(server.url)
        with server.client() as client:
            if prepare:
                client.execute_command(*prepare)
            runner = threading.Thread(target=_until_killed, args=(server, *start.split("|")), daemon=True)
            runner.start()
            after_its_end.callback(runner.join)
            eventually(lambda: _refuses(client, "BUSY"))

    return busy_with


def _until_killed(server: EmbeddedServer, *words: str) -> None:
    with server.client(retry=Retry(NoBackoff(), 0)) as client, suppress(redis.RedisError):
        client.execute_command(*words)


def _refuses(client: redis.Redis, code: str) -> bool:
    try:
        client.ping()
    except redis.RedisError as error:
        return code in str(error)
    return False


def a_replica_without_its_primary(stage: Stage) -> None:
    stage.use(stage.server("--replicaof", "127.0.0.1", "1", "--replica-serve-stale-data", "no").url)


def too_few_replicas(stage: Stage) -> None:
    stage.use(stage.server("--min-replicas-to-write", "1").url)


def cannot_save(stage: Stage) -> None:
    server = stage.server("--save", "3600 1")
    stage.use(server.url)
    shutil.rmtree(server.folder)
    with server.client() as client:
        client.set("key", "value")
        client.bgsave()
        eventually(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err")


def protected(stage: Stage) -> None:
    text = "DENIED Redis is running in protected mode because protected mode is enabled and no password is set"
    stage.serve(refusing(text, close=True))


def over_its_quota(stage: Stage) -> None:
    stage.serve(refusing("ERR max requests limit exceeded. Limit: 500000, Usage: 500000."))


def a_web_server(stage: Stage) -> None:
    stage.serve(saying(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"))


def a_shell_server(stage: Stage) -> None:
    stage.serve(saying(b"SSH-2.0-OpenSSH_9.2\r\n"))


def closes_connections(stage: Stage) -> None:
    stage.serve(saying(b""))


def a_sentinel_with_a_password(stage: Stage) -> None:
    server, sentinel = stage.server(), Plain(stage.stack).start("--sentinel", "--requirepass", PASSWORD)
    with sentinel.client(password=PASSWORD) as client:
        client.sentinel_monitor("locked", "127.0.0.1", server.port, 1)
    watch = stage.shared("sentinel")
    options = {**watch.options, "SENTINELS": [("127.0.0.1", port_of(sentinel))]}
    stage.settings.CACHES = {"default": replace(watch, location="redis://locked/0", options=options).cache}
    stage.settings.RLOCK = {"default": {}}


def a_sentinel_with_a_missing_file(stage: Stage) -> None:
    watch = stage.shared("sentinel")
    options = {**watch.options, "SENTINEL_KWARGS": {"ssl": True, "ssl_ca_certs": MISSING}}
    stage.settings.CACHES = {"default": replace(watch, options=options).cache}
    stage.settings.RLOCK = {"default": {}}


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


LOOP = "while true do end"
FUNCTION = f"#!lua name=endless\nredis.register_function('endless', function() {LOOP} end)"

MISSING, BELOW = "/nowhere/ca.pem", f"{__file__}/key.pem"
DEAD = [("127.0.0.1", 1), ("127.0.0.1", 2)]
SITUATIONS: list[tuple[Callable[[Stage], None], str, str, str, str]] = [
    (no_server, "connection", "error", "nothing listens at 127.0.0.1:", "Start the server"),
    (hangs, "connection", "error", "no reply from 127.0.0.1:", "firewalls"),
    (unknown_host, "name", "error", "nowhere.invalid", "Correct the host name"),
    (slow_to_connect, "connection", "warning", "longer than a call may wait for a reply", "the cause of the delay"),
    (no_tls_there, "connection", "error", "127.0.0.1:", "Check that this port uses TLS, or write redis://"),
    (tls_only, "connection", "error", "127.0.0.1:", "Write rediss://"),
    (unknown_authority, "tls", "error", "certificate verify failed", "ssl_ca_certs"),
    (
        files_of_tls(ssl_ca_certs=MISSING),
        "tls",
        "error",
        f"{MISSING} cannot be read: No such file",
        "Restore this file",
    ),
    (files_of_tls(ssl_ca_certs=MISSING), "lock", "error", f"{MISSING} cannot be read: No such file", "findings above"),
    (files_of_tls(ssl_ca_certs=MISSING), "django_rlock.W014", "warning", f"{MISSING!r} cannot be read", "Restore"),
    (files_of_tls(ssl_certfile=__file__, ssl_keyfile=BELOW), "tls", "error", f"{BELOW} cannot be", "Restore this file"),
    (files_of_tls(ssl_ca_path=MISSING), "tls", "error", f"{MISSING} cannot be read", "Restore this file"),
    (files_of_tls(ssl_certfile=__file__), "tls", "error", "127.0.0.1:", "PEM"),
    (cluster_with_a_missing_file, "tls", "error", f"{MISSING} cannot be read", "Restore this file"),
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
    (cluster_without(), "slots", "warning", "slots that are being moved are unknown", "+cluster|nodes"),
    (a_slot_left_open, "slots", "error", "slot 93 is being moved from here", "redis-cli --cluster fix 127.0.0.1:"),
    (a_slot_left_open, "slots", "warning", "slot 93 is being moved to here", "redis-cli --cluster fix 127.0.0.1:"),
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
    (a_sharding_proxy, "shards", "error", "are on another server", "sharding proxy"),
    (another_database_of_a_cluster, "database", "error", "", "has only 0"),
    (no_databases, "database", "error", "SELECT is not allowed in cluster mode", "has only 0"),
    (slots_without_a_node, "cluster", "error", "slots", "--cluster fix"),
    (a_node_without_slots, "cluster", "error", "Hash slot not served", "slots"),
    (writes_are_paused, "connection", "error", "no reply", "CLIENT UNPAUSE"),
    (runs_for_ever(f"EVAL|{LOOP}|0"), "busy", "error", "SCRIPT KILL", "SCRIPT KILL"),
    (runs_for_ever("FCALL|endless|0", "FUNCTION", "LOAD", FUNCTION), "busy", "error", "FUNCTION KILL", "FUNCTION KILL"),
    (a_replica_without_its_primary, "replicas", "error", "Link with MASTER is down", "Name the primary"),
    (too_few_replicas, "lock", "error", "NOREPLICAS", "min-replicas-to-write"),
    (cannot_save, "lock", "error", "MISCONF", "look into its log"),
    (protected, "protected", "error", "protected mode", "give it a password"),
    (over_its_quota, "refused", "error", "max requests limit", "its text says why"),
    (a_web_server, "protocol", "error", "Protocol error", "Correct the port"),
    (a_shell_server, "protocol", "error", "Protocol error", "Correct the port"),
    (closes_connections, "connection", "error", "127.0.0.1:", "Write rediss://"),
    (a_sentinel_with_a_password, "sentinels", "error", "0 of 1 sentinels reply", "SENTINEL_KWARGS"),
    (a_sentinel_with_a_missing_file, "sentinels", "error", f"{MISSING} cannot be read", "Restore this file"),
    (sentinels(*DEAD, own=True), "sentinels", "warning", "1 of 3 sentinels reply", "Start or correct"),
    (sentinels(*DEAD, own=False), "sentinels", "error", "0 of 2 sentinels reply", "Start or correct"),
    (a_primary_that_is_down, "connection", "error", "nothing listens at gone at 127.0.0.1:", "Start the server"),
    (one_flat_option, "django_rlock.E001", "error", "must be a dict of options", "Correct RLOCK"),
    (no_mapping, "django_rlock.E001", "error", "RLOCK must be a dict", "Correct RLOCK"),
    (another_alias_is_wrong, "django_rlock.E001", "error", "'fare'", "Correct RLOCK"),
]

GUESSES = "Write rediss://", "Start the server", "Check that Redis is up", "firewalls", "Grant the rights"
"""Advice that is wrong in all situations whose finding does not give it: nothing is to be guessed there."""


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
    wrong = {
        guess for each in found for guess in GUESSES if guess in each["advice"] and guess not in meant[0]["advice"]
    }
    assert not wrong, "\n".join(map(str, found))
    printed = as_text(meant[0])
    assert f"{check}: " in printed
    assert advice in printed
    assert all(len(each["text"]) < 500 for each in found)
    assert [each for each in found if each["level"] != "ok" and not each["advice"]] == []
