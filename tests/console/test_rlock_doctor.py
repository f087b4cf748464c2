"""``rlock_doctor``, on servers that have what it warns of."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import redis

from django_rlock._redis.keys import JAVA_QUEUE_ENTRY, NODE_KEY, voter_key
from django_rlock.testing import override_locks
from tests.answering import counting, serving
from tests.conftest import OwnServer
from tests.console.test_commands import ERROR, USAGE, fails, run
from tests.eventually import PATIENCE
from tests.redlock.conftest import _five_servers, nodes  # noqa: F401 - fixtures
from tests.topologies.conftest import Started, started, topology, use  # noqa: F401 - fixtures


def findings(*args: str) -> list[dict[str, Any]]:
    return list(json.loads(run("rlock_doctor", "--format", "json", *args)))


def levels(*args: str) -> dict[str, str]:
    return {finding["check"]: finding["level"] for finding in findings(*args)}


def errors() -> dict[str, dict[str, Any]]:
    status, _, printed = fails("rlock_doctor", "--format", "json")
    assert status == ERROR
    return {finding["check"]: finding for finding in json.loads(printed) if finding["level"] == "error"}


def test_a_good_server_has_no_errors_and_java_is_not_looked_for(own_server: OwnServer) -> None:
    own_server(args=["--appendonly", "yes", "--maxmemory-policy", "noeviction"])
    told = levels()
    depends_on_the_machine = {check for check in told if check == "latency" or check.startswith("django_rlock.W")}
    assert {check: level for check, level in told.items() if check not in depends_on_the_machine} == dict.fromkeys(
        {"version", "eviction", "persistence", "replicas", "pubsub", "lock"} | ({"settings"} & told.keys()), "ok"
    )


def test_it_leaves_nothing_behind(redis_client: redis.Redis) -> None:
    run("rlock_doctor")
    assert redis_client.keys("*rlock_doctor*") == []


def test_findings_come_with_advice(own_server: OwnServer) -> None:
    own_server(args=["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"])
    status, message, printed = fails("rlock_doctor")
    lines = printed.splitlines()
    [(told, advice)] = [pair for pair in pairwise(lines) if "eviction: " in pair[0]]
    assert told.startswith("error    default")
    assert advice.strip().startswith("→ Set maxmemory-policy to noeviction")
    assert (status, message.startswith("1 of ")) == (ERROR, True)


def test_doubts_are_warnings(own_server: OwnServer) -> None:
    own_server(args=["--maxmemory-policy", "volatile-lru", "--appendonly", "no"])
    advice = {finding["check"]: finding["advice"] for finding in findings() if finding["level"] == "warning"}
    assert advice["eviction"]
    assert advice["persistence"]


def test_a_distant_server_is_asked_in_few_round_trips(own_server: OwnServer, settings: Any) -> None:
    turns: list[str] = []
    with serving(counting(own_server(None), turns)) as url:
        settings.CACHES = {**settings.CACHES, "default": settings.CACHES["default"] | {"LOCATION": url}}
        settings.RLOCK = {"default": {"KIND": "rlock"}}
        assert levels()["lock"] == "ok"
    assert len(turns) <= 60, turns  # 18 of them at once with others


def test_missing_replicas_are_reported(settings: Any) -> None:
    settings.RLOCK = {"default": {"REPLICA_ACKS": 2}}
    assert "REPLICA_ACKS needs 2" in errors()["replicas"]["text"]


def test_a_server_that_is_down_is_reported_and_others_are_checked(own_server: OwnServer) -> None:
    own_server()
    own_server("reports").kill()
    assert {(finding["alias"], finding["check"]) for finding in errors().values()} == {
        ("reports", "connection"),
        ("reports", "lock"),
    }


def test_a_proxy_that_closes_connections_during_the_checks_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def close(*_: object, **__: object) -> None:
        raise redis.ConnectionError("Connection closed by server.")

    monkeypatch.setattr(redis.client.Pipeline, "execute", close)
    assert "read the log of the server" in errors()["connection"]["advice"]


@pytest.mark.parametrize("topology", ["single", "acl", "django", "sentinel", "cluster"], indirect=True)
def test_every_topology_is_looked_at(topology: Any) -> None:  # noqa: F811
    told = levels()
    assert told["lock"] == "ok"
    assert told["latency"] in {"ok", "warning"}
    assert ("info" in told) == (topology.name in {"acl", "django", "cluster"})  # whose users may not look
    assert told.get("pubsub", "ok") == "ok"


def test_nodes_are_looked_at_one_by_one(nodes: list[Any]) -> None:  # noqa: F811
    told = findings("--using", "quorum")
    assert [finding["check"] for finding in told].count("version") == 5
    assert {finding["check"]: finding["level"] for finding in told}["clocks"] == "ok"
    nodes[0].pause()
    try:
        status, _, printed = fails("rlock_doctor", "--using", "quorum", "--format", "json")
    finally:
        nodes[0].resume()
    told = json.loads(printed)
    assert status == ERROR
    assert [finding["server"] for finding in told if finding["level"] == "error"] == ["locks0"]
    assert {finding["check"]: finding["level"] for finding in told}["lock"] == "ok"


def test_nodes_whose_locks_last_for_less_than_a_minute_are_looked_at(nodes: list[Any], settings: Any) -> None:  # noqa: F811
    with_quarantine(nodes, settings)
    told = levels("--using", "quorum")
    assert (told["lock"], "quarantine" in told) == ("ok", False)


def with_quarantine(nodes: list[Any], settings: Any) -> None:  # noqa: F811
    """Nodes that have kept their data for long enough."""
    settings.RLOCK = {"quorum": {**settings.RLOCK["quorum"], "QUARANTINE": 30}}
    for server in nodes:
        with server.client() as client:
            client.set(voter_key(30.0), client.info("server")["run_id"])


def test_other_quarantines_on_the_same_nodes_are_reported(nodes: list[Any], settings: Any) -> None:  # noqa: F811
    with_quarantine(nodes, settings)
    with nodes[1].client() as client:
        client.hset(NODE_KEY, "quarantine", 60_000)
    [found] = [each for each in findings("--using", "quorum") if each["check"] == "quarantine"]
    assert (found["server"], found["level"]) == ("locks1", "warning")
    assert "60 s" in found["text"]
    assert "30 s" in found["text"]


def test_an_unknown_alias_is_wrong_usage() -> None:
    assert fails("rlock_doctor", "--using", "nowhere")[0] == USAGE


def test_locks_within_the_process_are_looked_at() -> None:
    pytest.importorskip("fakeredis", reason="lupa, which fakeredis needs, has no wheels for this Python")
    with override_locks():
        # It fails, because in a deployment each process would have locks of its own.
        _, _, shown = fails("rlock_doctor", "--format", "json")
    assert {finding["check"]: finding["level"] for finding in json.loads(shown)}["lock"] == "ok"


def test_traces_of_java_clients_are_found(own_server: OwnServer) -> None:
    with own_server().client() as client, client.pubsub() as theirs:
        client.hset("rlock:rlock:books", "mode", "read")
        client.rpush("redisson_lock_queue:{books}", JAVA_QUEUE_ENTRY, "a:1", "b:1")
        client.rpush("redisson_lock_queue:{ours}", JAVA_QUEUE_ENTRY)
        client.rpush("redisson_lock_queue:{rlock:pens}", "c:1")
        theirs.subscribe("redisson_lock__channel:{rlock:books}")
        theirs.get_message(timeout=5)
        told = {each["check"]: each for each in findings("--java") if each["check"].startswith("java ")}
    assert told["java subscribers"]["text"] == "1 wait for messages on 1 channels"
    assert "'rlock:rlock:': rlock:rlock:books" in told["java doubled names"]["text"]
    assert told["java fair waiters"]["text"].startswith("3 wait in 2 queues")
    assert told["java fair waiters"]["text"].endswith("redisson_lock_queue:{books}")
    assert {check: each["level"] for check, each in told.items()} == {
        "java versions": "ok",
        "java subscribers": "ok",
        "java doubled names": "warning",
        "java fair waiters": "warning",
    }


def test_plain_and_sharded_java_clients_are_distinguished(started: Started, use: Callable[..., None]) -> None:  # noqa: F811
    topology = started("cluster")  # noqa: F811
    use(replace(topology, options={**topology.options, "USERNAME": None, "PASSWORD": None}))
    channel = "redisson_lock__channel:{rlock:books}"
    node = topology.redis.get_node_from_key(channel).redis_connection
    with node.pubsub() as plain, node.pubsub() as sharded:
        plain.subscribe(channel)
        sharded.ssubscribe(channel)
        for each in plain, sharded:
            assert each.get_message(timeout=5)
        told = [each for each in findings("--java") if each["check"] == "java subscribers"]
    assert sorted(each["level"] for each in told) == ["ok", "ok", "warning"]


def test_it_is_watched_until_it_is_interrupted(own_server: OwnServer) -> None:
    server = own_server()
    environ = {**os.environ, "RLOCK_TEST_URL": server.url}
    command = [sys.executable, "-m", "django", "rlock_doctor", "--watch", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert any("findings are warnings or errors" in line for line in lines)
        server.kill()
        assert any(line.startswith("error") and "nothing listens at" in line for line in lines)
        process.send_signal(signal.SIGINT)
        _, notes = process.communicate(timeout=PATIENCE)
    assert (process.returncode, notes) == (0, "")
    assert fails("rlock_doctor", "--watch", "--format", "json")[0] == USAGE
