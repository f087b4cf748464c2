"""A count that was planted in a read-write lock's hash does not occupy the server; a large honest one is heeded."""

from collections.abc import Iterator

import pytest
import redis

from django_rlock._redis import scripts
from django_rlock._redis.scripts import Script
from tests.conftest import OwnServer
from tests.eventually import PATIENCE
from tests.scripts.conftest import KEY, ME, OTHER, READS, keys_of, written_out

LEASE = 30_000
MOST = 10_000
"""Holds that a script looks at."""
ROUNDS = 4
"""How often one script may go through the holds of one reader."""
PLANTED = [10**15, "9" * 400, "1e15", "inf", "nan", "0x7fffffffffff", "-1", "many", ""]
CALLS: list[tuple[Script, list[str | int]]] = [
    (scripts.READ_ACQUIRE, [ME, 1, LEASE, 0, ""]),
    (scripts.READ_ACQUIRE, [ME, 2, LEASE, 0, ""]),
    (scripts.READ_RELEASE, [ME, 0, LEASE]),
    (scripts.READ_RELEASE, [ME, 1, LEASE]),
    (scripts.SIDE_RENEW, [LEASE, ME]),
    (scripts.SIDE_EXTEND, [ME, LEASE, 0]),
    (scripts.READ_STATE, [ME]),
    (scripts.WRITE_ACQUIRE, [ME, 1, LEASE, 0]),
    (scripts.WRITE_RELEASE, [ME, 0, LEASE]),
    (scripts.SIDE_RENEW, [LEASE, f"{ME}:write"]),
    (scripts.SIDE_EXTEND, [f"{ME}:write", LEASE, 0]),
    (scripts.LOCK_FORCE_RELEASE, ["", 5000, "", "r1"]),
    (scripts.LOCK_FORCE_RELEASE, [ME, 5000, "read", "r1"]),
    (scripts.LOCK_FORCE_RELEASE, [f"{ME}:write", 5000, "", "r1"]),
]


@pytest.fixture
def client(own_server: OwnServer) -> Iterator[redis.Redis]:
    """Of a server that a script may occupy without harm to other tests."""
    with own_server(None).client(socket_timeout=PATIENCE) as client:
        yield client


def run(client: redis.Redis, script: Script, args: list[str | int]) -> tuple[list[object], int]:
    """The reply, and how many commands the server ran for it."""
    names = keys_of(script)
    before = client.info("stats")["total_commands_processed"]
    reply = client.eval(script.source, len(names), *names, "7", *args)
    return written_out(script, reply), client.info("stats")["total_commands_processed"] - before


def hold(owner: str, number: int = 1) -> str:
    return f"{READS}:{owner}:rwlock_timeout:{number}"


def plant(client: redis.Redis, mode: str, count: object, owners: list[str]) -> None:
    client.flushall()
    client.hset(KEY, mapping={"mode": mode, **dict.fromkeys(owners, str(count))})
    client.pexpire(KEY, LEASE)
    for owner in owners:
        client.set(hold(owner), 1, px=LEASE)


@pytest.mark.parametrize("count", PLANTED, ids=lambda count: str(count)[:20])
@pytest.mark.parametrize("owners", [[ME], [OTHER], [f"{ME}:write", ME]], ids=["own", "another's", "writer's"])
def test_planted_count(client: redis.Redis, count: object, owners: list[str]) -> None:
    for script, args in CALLS:
        plant(client, "write" if len(owners) > 1 else "read", count, owners)
        _reply, commands = run(client, script, args)
        assert commands <= ROUNDS * MOST, script.name


def test_a_reader_of_no_count_is_dead(client: redis.Redis) -> None:
    plant(client, "read", "many", [OTHER])
    assert run(client, scripts.WRITE_ACQUIRE, [ME, 1, LEASE, 0])[0] == ["7", "OK"]


def test_a_large_honest_count_is_heeded_to_its_last_hold(client: redis.Redis) -> None:
    plant(client, "read", MOST, [OTHER])
    client.delete(hold(OTHER))
    client.set(hold(OTHER, MOST), 1, px=LEASE)
    assert run(client, scripts.READ_STATE, [OTHER])[0][1] == MOST
    assert run(client, scripts.WRITE_ACQUIRE, [ME, 1, LEASE, 0])[0][1] != "OK"
    assert run(client, scripts.READ_RELEASE, [OTHER, MOST - 1, LEASE])[0] == ["7", 1]
    assert not client.exists(hold(OTHER, MOST))
    assert client.exists(hold(OTHER, MOST - 1))


def test_a_planted_hold_that_lasts_counts_as_any_other(client: redis.Redis) -> None:
    plant(client, "read", 10**15, [OTHER])
    assert run(client, scripts.WRITE_ACQUIRE, [ME, 1, LEASE, 0])[0][1] != "OK"
    assert run(client, scripts.READ_RELEASE, [OTHER, 0, LEASE])[0] == ["7", 1]
    assert client.keys() == []


def test_an_honest_lock_costs_few_commands(client: redis.Redis) -> None:
    """The counts above are counts of commands in scripts."""
    plant(client, "read", 3, [OTHER])
    client.set(hold(OTHER, 2), 1, px=LEASE)
    _reply, commands = run(client, scripts.READ_STATE, [ME])
    assert 5 <= commands <= 10
