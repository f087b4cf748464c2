"""Our locks beside those of other systems: redis-py, PostgreSQL, MariaDB and ZooKeeper, on private servers."""

from __future__ import annotations

from benchmarks.results import Table
from benchmarks.systems import deaths, handover, pairs, servers
from benchmarks.systems.contenders import SYSTEMS


def run(quick: bool) -> list[Table]:
    with servers.running() as found:
        urls = {
            name: found.servers[system.server].url for name, system in SYSTEMS.items() if system.server in found.servers
        }

        def kill_servers() -> None:
            for server in found.servers.values():
                server.kill()

        return [
            *pairs.run(urls, quick, found.note),
            *handover.run(urls, quick, found.note),
            *deaths.run(urls, kill_servers, quick, found.note),
        ]
