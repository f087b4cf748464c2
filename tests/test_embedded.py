"""The server under all other tests: a real one, that disturbs no one and outlives nothing."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from example_project import embedded
from example_project.embedded import EmbeddedServer, ServerError
from tests.eventually import eventually

PARENT = """
import sys
from example_project.embedded import EmbeddedServer

server = EmbeddedServer(port=int(sys.argv[1]) if sys.argv[1:] else None)
server.start()
print(server.pid, server.folder, flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=[None, 0], ids=["unix", "tcp"])
def running(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(port=request.param) as server:
        yield server


def ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_writes_nothing_to_disk_and_listens_only_where_it_was_told(running: EmbeddedServer) -> None:
    with running.client() as client:
        config = client.config_get("*")
    assert config["save"] == ""
    assert config["appendonly"] == "no"
    assert config["bind"] == "127.0.0.1"
    assert int(config["port"]) == (running.port or 0)


def test_stop_leaves_neither_process_nor_folder(running: EmbeddedServer) -> None:
    pid, folder = running.pid, running.folder
    running.stop()
    assert ended(pid)
    assert not folder.exists()
    running.stop()  # once more does no harm


def test_keeps_its_data_on_request(running: EmbeddedServer) -> None:
    with running.client() as client:
        client.set("key", "value")
        running.restart(keep_data=True)
        assert client.get("key") == "value"
        running.restart()
        assert client.get("key") is None


def test_kill_refuses_clients_until_it_is_started_again(running: EmbeddedServer) -> None:
    pid = running.pid
    running.kill()
    assert ended(pid)
    with running.client() as client:
        with pytest.raises(redis.ConnectionError):
            client.ping()
        running.start()
        assert client.ping()


@pytest.mark.parametrize("port", [[], ["0"]], ids=["unix", "tcp"])
def test_dies_with_a_parent_that_is_killed(port: list[str]) -> None:
    command = [sys.executable, "-c", PARENT, *port]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, folder = parent.stdout.readline().split()
        assert not ended(int(pid))
        parent.kill()
    eventually(lambda: ended(int(pid)))
    eventually(lambda: not Path(folder).exists())


def test_names_a_program_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLOCK_TEST_SERVER", "no-such-server")
    with pytest.raises(ServerError, match=r"'no-such-server'.*RLOCK_TEST_SERVER"):
        EmbeddedServer()


def test_shows_the_log_of_a_server_that_does_not_start() -> None:
    server = EmbeddedServer(args=["--nonsense", "1"])
    with pytest.raises(ServerError, match=r"ended at once(?s:.*)nonsense"):
        server.start()
    with pytest.raises(ServerError, match="not started"):
        _ = server.folder


def test_says_that_the_program_cannot_be_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "my-server"
    program.write_text("\x7fnot a program")
    program.chmod(0o700)
    monkeypatch.setenv("RLOCK_TEST_SERVER", str(program))
    with pytest.raises(ServerError, match="Exec format error"):
        EmbeddedServer().start()


def test_looks_for_another_port_when_the_free_one_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedServer(port=0) as first:
        free_port = embedded.free_port
        ports = iter([first.port, free_port()])
        monkeypatch.setattr(embedded, "free_port", lambda: next(ports))
        with EmbeddedServer(port=0) as second:
            assert second.port != first.port
            assert second.pid != first.pid


def test_own_server_is_the_default_cache_until_the_test_ends(own_server, server: EmbeddedServer) -> None:
    from django_redis import get_redis_connection

    mine = own_server()
    assert get_redis_connection("default").info("server")["process_id"] == mine.pid != server.pid
    other = own_server("locks1")
    assert get_redis_connection("locks1").info("server")["process_id"] == other.pid
    assert get_redis_connection("default").info("server")["process_id"] == mine.pid


def test_each_test_finds_an_empty_server(redis_client: redis.Redis) -> None:
    assert redis_client.dbsize() == 0
    redis_client.set("left", "behind")


def test_really_each_test_finds_an_empty_server(redis_client: redis.Redis) -> None:
    assert redis_client.dbsize() == 0
    redis_client.set("left", "behind")
