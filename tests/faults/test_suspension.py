"""Machines that are suspended, virtual machines that are paused, and clocks that are set, while locks are held."""

import shutil
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from django_rlock import rlock
from tests.eventually import UNTIL_SERVED, eventually
from tests.processes import ClientProcess, RemoteError

LEASE = 1.0
HOUR = 3600.0
SHORT = {"WATCHDOG_TIMEOUT": LEASE, "WAITER_ALIVE_TIME": 1.0, "CLAIM_TIME": 0.5}
LONG = {"WATCHDOG_TIMEOUT": 600, "WAITER_ALIVE_TIME": 200, "CLAIM_TIME": 150}
CLAIM = 3.0


class Clocks:
    """The clocks of a process, ahead of this process's by some seconds each."""

    def __init__(self, folder: Path) -> None:
        self.environment = {"CLOCKS_FILE": str(folder / "clocks"), "LD_PRELOAD": str(folder / "suspending.so")}
        self._ahead = [0.0, 0.0, 0.0]
        self._file = folder / "clocks"
        self._file.write_bytes(bytes(24))

    def move(self, monotonic: float = 0.0, boottime: float = 0.0, wall: float = 0.0) -> None:
        self._ahead = [at + by for at, by in zip(self._ahead, (monotonic, boottime, wall), strict=True)]
        with self._file.open("r+b") as file:
            file.write(struct.pack("3q", *(int(ahead * 1e9) for ahead in self._ahead)))

    def suspend(self, process: ClientProcess, seconds: float, *, paused_machine: bool = False) -> None:
        """Suspend a process's machine; if it is a virtual one that its host pauses, only the wall clock goes on."""
        process.pause()
        time.sleep(seconds)
        self.move(monotonic=-seconds, boottime=-seconds if paused_machine else 0.0)
        process.resume()


@pytest.fixture(scope="module")
def clocks(tmp_path_factory: pytest.TempPathFactory) -> Clocks:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("clocks")
    source = Path(__file__).with_name("suspending.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(folder / "suspending.so"), str(source), "-ldl"], check=True)
    return Clocks(folder)


@pytest.fixture
def start(server, clocks) -> Iterator[Callable[[dict[str, Any]], ClientProcess]]:
    """Starts a client process on the clocks."""
    started: list[ClientProcess] = []

    def start(options):
        started.append(ClientProcess(server.url, options, clocks.environment))
        return started[-1]

    yield start
    for each in started:
        each.__exit__()


TAKE_ALL = """
[
    lock("stock:fair").acquire(),
    lock("stock:rlock", "rlock").acquire(),
    lock("stock:fixed").acquire(lease_time=%(lease)s),
    lock("stock:spin", "spin").acquire(),
    lock("stock:fenced", "fenced").acquire(),
    state.setdefault("rw", module("django_rlock").ReadWriteLock("stock:write")).write_lock.acquire(),
    state.setdefault("ro", module("django_rlock").ReadWriteLock("stock:read")).read_lock.acquire(),
    state.setdefault("multi", module("django_rlock").rlock("stock:one", "stock:two")).acquire(),
    state.setdefault("renewed", state.setdefault("s", module("django_rlock").PermitExpirableSemaphore("places"))
        .try_set_permits(2) and state["s"].acquire(renewed=True)) is not None,
    state.setdefault("permit", state["s"].acquire(lease_time=%(lease)s)) is not None,
]
"""
ALL_LOST = """
[each.lost for each in (
    lock("stock:fair"), lock("stock:rlock", "rlock"), lock("stock:fixed"), lock("stock:spin", "spin"),
    lock("stock:fenced", "fenced"), state["rw"].write_lock, state["ro"].read_lock, state["multi"],
    state["renewed"], state["permit"],
)]
"""


def one_line(expression: str) -> str:
    return " ".join(expression.split())


def take_all(process: ClientProcess, lease: float) -> None:
    assert process.do(one_line(TAKE_ALL % {"lease": lease})) == [True] * 10


@pytest.mark.lengthy
@pytest.mark.parametrize("paused_machine", [True, False])
def test_who_was_suspended_past_its_lease_knows_at_once(start, clocks, paused_machine):
    holder = start(SHORT)
    take_all(holder, LEASE)
    began = holder.do("time.monotonic()")
    clocks.suspend(holder, 2 * LEASE, paused_machine=paused_machine)
    assert rlock("stock:fair").acquire(blocking=False)
    assert holder.do(one_line(ALL_LOST)) == [True] * 10
    assert holder.do("time.monotonic()") < began + 2 * LEASE  # it did stand still
    with pytest.raises(RemoteError, match="LockLostError"):
        holder.do("lock('stock:fair').check()")
    rlock("stock:fair").force_release()


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_wall_clock_that_is_set_loses_nothing(start, clocks, step):
    holder = start(LONG)
    take_all(holder, 600)
    clocks.move(wall=step)
    assert holder.do(one_line(ALL_LOST)) == [False] * 10
    assert holder.do("[lock('stock:fair').check(), lock('stock:fair').release()]") == [None, None]


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


@pytest.mark.parametrize("paused_machine", [False, True])
def test_a_waiter_that_was_suspended_past_its_claim_does_not_enter(
    start, clocks, redis_client, settings, paused_machine
):
    options = {**SHORT, "WATCHDOG_TIMEOUT": 30, "CLAIM_TIME": CLAIM, "WAITER_ALIVE_TIME": 3 * CLAIM}
    settings.RLOCK = {"default": options}
    waiter = start(options)
    ours = rlock("stock:fair")
    ours.acquire()
    entered = waiter.begin("lock('stock:fair').acquire(wait_time=60)")
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
    waiter.do("lock('stock:fair').release()")
