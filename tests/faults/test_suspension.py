"""Machines that are suspended, virtual machines that are paused, and clocks that are set, while locks are held."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from django_rlock import ReadWriteLock, rlock
from example_project.embedded import EmbeddedServer
from tests.clocks import Clocks, build, preloading
from tests.eventually import UNTIL_SERVED, eventually
from tests.processes import ClientProcess

pytestmark = pytest.mark.lengthy

LEASE = 1.0
HOUR = 3600.0
SHORT = {"WATCHDOG_TIMEOUT": LEASE, "WAITER_ALIVE_TIME": 1.0, "CLAIM_TIME": 0.5}
LONG = {"WATCHDOG_TIMEOUT": 600, "WAITER_ALIVE_TIME": 200, "CLAIM_TIME": 150}
CLAIM = 3.0


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("library")) or pytest.skip("there is no C compiler")


@pytest.fixture(scope="module")
def clocks(tmp_path_factory: pytest.TempPathFactory) -> Clocks:
    return Clocks(tmp_path_factory.mktemp("clocks") / "clocks")


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[EmbeddedServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(EmbeddedServer()) for _ in range(3)]


@pytest.fixture
def start(server, library, clocks, nodes) -> Iterator[Callable[[dict[str, Any]], ClientProcess]]:
    """Starts a client process on the clocks; its alias "nodes" is a RedLock's."""
    environment = preloading(library) | {"CLOCKS_FILE": str(clocks.file)}
    for node in nodes:
        with node.client() as client:
            client.flushall()
    with ExitStack() as started:

        def start(options):
            process = started.enter_context(ClientProcess(server.url, options, environment))
            quorum = {"NODES": [node.url for node in nodes], "QUARANTINE": 0}
            quorum["WATCHDOG_TIMEOUT"] = options["WATCHDOG_TIMEOUT"]
            process.do(f"module('django.conf').settings.RLOCK.update(nodes={quorum})")
            return process

        yield start


BINDINGS = pytest.mark.parametrize("binding", ["by_thread", "by_task"])


def hold_all(process: ClientProcess, binding: str, lease: float) -> Future[list[str]]:
    """Have a process take a lock of each kind; returns what these say of themselves when they are looked at."""
    helper = "module('tests.faults.suspended')"
    says = process.begin(f"{helper}.{binding}({lease})", "holder")
    eventually(lambda: says.done() or process.do(f"{helper}.held.is_set()"))
    return says


def look(process: ClientProcess, says: Future[list[str]]) -> set[str]:
    process.do("module('tests.faults.suspended').look.set()")
    return set(says.result(UNTIL_SERVED))


@pytest.fixture
def long_reader(redis_client):
    """Another reader, who stays: what the server says of the others' lease is no news of one's own."""
    lock = ReadWriteLock("stock:shared").read_lock
    lock.acquire(lease_time=600)
    yield
    lock.release()


@BINDINGS
@pytest.mark.lengthy
@pytest.mark.parametrize("paused_machine", [True, False])
def test_who_was_suspended_past_its_lease_knows_at_once(start, clocks, long_reader, binding, paused_machine):
    holder = start(SHORT)
    says = hold_all(holder, binding, LEASE)
    began = holder.do("time.monotonic()")
    clocks.suspend(holder, 2 * LEASE, paused_machine=paused_machine)
    assert rlock("stock:fair").acquire(blocking=False)
    assert look(holder, says) == {"lost"}
    assert holder.do("time.monotonic()") < began + 2 * LEASE  # it did stand still
    rlock("stock:fair").force_release()


@BINDINGS
@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_wall_clock_that_is_set_loses_nothing(start, clocks, long_reader, binding, step):
    holder = start(LONG)
    says = hold_all(holder, binding, 600)
    clocks.move(wall=step)
    assert look(holder, says) == {"held"}


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_lease_ends_in_time_though_the_wall_clock_was_set(start, clocks, step):
    holder = start(LONG)
    holder.do("lock('stock:fair').acquire(lease_time=1)")
    clocks.move(wall=step)
    assert rlock("stock:fair").acquire(wait_time=UNTIL_SERVED)
    assert holder.do("lock('stock:fair').lost") is True
    rlock("stock:fair").release()


def test_a_readers_fixed_lease_ends_when_the_server_says_so(start, clocks, redis_client, long_reader):
    """The others' leases are longer. The clock of the virtual machine stood still for a second of its own."""
    others = redis_client.keys("*rwlock_timeout*")
    holder = start(LONG)
    holder.do(
        "state.setdefault('lock', module('django_rlock').ReadWriteLock('stock:shared').read_lock).acquire(lease_time=3)"
    )
    clocks.suspend(holder, 1.0, paused_machine=True)
    assert holder.do("state['lock'].lost") is False
    eventually(lambda: redis_client.keys("*rwlock_timeout*") == others)
    assert holder.do("state['lock'].lost") is True


def test_a_fixed_lease_ends_when_the_server_says_so(start, clocks):
    """The clock of the virtual machine stood still for a second of the lease."""
    holder = start(LONG)
    holder.do("lock('stock:fair').acquire(lease_time=3)")
    clocks.suspend(holder, 1.0, paused_machine=True)
    assert holder.do("lock('stock:fair').lost") is False
    assert rlock("stock:fair").acquire(wait_time=UNTIL_SERVED)
    assert holder.do("lock('stock:fair').lost") is True
    rlock("stock:fair").release()


@pytest.mark.thorough
def test_a_renewal_is_in_time_for_what_is_left(start, clocks, redis_client):
    """The machine was paused for longer than the time to the next renewal."""
    holder = start({**SHORT, "WATCHDOG_TIMEOUT": 6.0})
    holder.do("lock('stock:fair').acquire()")
    clocks.suspend(holder, 3.0, paused_machine=True)
    eventually(lambda: redis_client.pttl("rlock:stock:fair") > 4500)
    assert holder.do("lock('stock:fair').lost") is False
    holder.do("lock('stock:fair').release()")


@BINDINGS
@pytest.mark.lengthy
@pytest.mark.parametrize("paused_machine", [False, True])
def test_a_waiter_that_was_suspended_past_its_claim_does_not_enter(
    start, clocks, redis_client, settings, binding, paused_machine
):
    options = {**SHORT, "WATCHDOG_TIMEOUT": 30, "CLAIM_TIME": CLAIM, "WAITER_ALIVE_TIME": 3 * CLAIM}
    settings.RLOCK = {"default": options}
    waiter = start(options)
    ours = rlock("stock:fair")
    ours.acquire()
    entered = waiter.begin(f"module('tests.faults.suspended').enter_{binding}()")
    queued = partial(redis_client.zcard, "rlock_queue:{rlock:stock:fair}")
    eventually(lambda: queued() == 1)
    waiter.pause()
    paused_at = time.monotonic()
    ours.release()
    assert ours.acquire(wait_time=2 * CLAIM)  # when its claim has ended
    paused = time.monotonic() - paused_at
    clocks.move(monotonic=-paused, boottime=-paused if paused_machine else 0.0)
    waiter.resume()
    eventually(lambda: entered.done() or queued() == 1)
    assert not entered.done()
    ours.release()
    assert entered.result(UNTIL_SERVED)
