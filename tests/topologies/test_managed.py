"""Traits of managed services, tried on servers of our own: docs/managed.md says which services have them."""

from contextlib import ExitStack
from typing import Any

import pytest

from django_rlock import FairLock, RLock
from tests.bindings import BlockingBinding as Binding
from tests.bindings import visit
from tests.conftest import OwnServer
from tests.topologies.servers import command, watched
from tests.topologies.ways import PASSWORD, Encrypted, port_of

BACKEND = "django_redis.cache.RedisCache"


async def taken_and_waited_for(binding: Binding) -> None:
    async with binding.inside(FairLock("stock:42")):
        waiting = binding.start(visit, binding, FairLock("stock:42"))
    await binding.result(waiting)


async def test_a_certificate_of_its_own(binding: Binding, settings: Any) -> None:
    """As Heroku has it: encrypted, and checked by nobody."""
    with ExitStack() as stack:
        server = Encrypted(stack).start()
        options = {"ssl_cert_reqs": None, "ssl_check_hostname": False, "ssl_validate_ocsp_stapled": False}
        location = f"rediss://:{PASSWORD}@127.0.0.1:{port_of(server)}/0"
        entry = {"BACKEND": BACKEND, "LOCATION": location, "OPTIONS": {"CONNECTION_POOL_KWARGS": options}}
        settings.CACHES = {"default": entry}
        await taken_and_waited_for(binding)
        settings.CACHES = {"default": {**entry, "OPTIONS": {}, "LOCATION": f"{location}?ssl_cert_reqs=none"}}
        async with binding.inside(RLock("stock:43")):
            pass


@pytest.mark.parametrize("withheld", ["CONFIG", "CLIENT", "KEYS"])
async def test_commands_that_are_withheld(binding: Binding, own_server: OwnServer, withheld: str) -> None:
    own_server(args=["--rename-command", withheld, ""])
    await taken_and_waited_for(binding)


async def test_sentinels_that_name_hosts(binding: Binding, settings: Any) -> None:
    with watched() as topology:
        sentinel, primary = topology.sentinel, topology.servers[0]
        command(sentinel, "SENTINEL CONFIG SET", "resolve-hostnames", "yes")
        command(sentinel, "SENTINEL CONFIG SET", "announce-hostnames", "yes")
        command(sentinel, "SENTINEL MONITOR", f"{topology.service}-named", "localhost", primary.port, 1)
        settings.CACHES = {"default": {**topology.cache, "LOCATION": f"redis://{topology.service}-named/0"}}
        await taken_and_waited_for(binding)
