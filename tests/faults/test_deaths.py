"""The table "When someone dies" of the hand-off queue, with real processes, signals and servers."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from uuid import UUID

import pytest

from django_rlock import FairLock
from django_rlock._redis import scripts
from django_rlock._redis.keys import JAVA_QUEUE_ENTRY, java_queue_keys
from django_rlock._transport.worker import worker
from django_rlock.locks.heartbeats import Heartbeats, heartbeat_soon
from tests.beside import beside, visit
from tests.eventually import UNTIL_SERVED, eventually
from tests.processes import MAIN_THREAD, ClientProcess, RemoteError

KEY = "rlock:stock:42"
QUEUE, ALIVE = f"rlock_queue:{{{KEY}}}", f"rlock_alive:{{{KEY}}}"
SHORT = {"WATCHDOG_TIMEOUT": 3.0, "WAITER_ALIVE_TIME": 1.0, "CLAIM_TIME": 0.5}
"""A heartbeat comes every 0.3 s then."""
PATIENT = {"WATCHDOG_TIMEOUT": 600, "WAITER_ALIVE_TIME": 200, "CLAIM_TIME": 150}
"""Nothing that takes a lease, a heartbeat or a claim happens within a test."""

ACQUIRE, RELEASE = "lock('stock:42').acquire()", "lock('stock:42').release()"


@pytest.fixture
def start(server):
    """Starts client processes, which end with the test."""
    with ExitStack() as processes:
        yield lambda options=SHORT, url=server.url: processes.enter_context(ClientProcess(url, options))


@pytest.fixture
def short(settings):
    settings.RLOCK = {"default": SHORT}


def queued(redis_client, number):
    eventually(lambda: redis_client.zcard(QUEUE) == number)


def test_holder_is_paused_past_its_lease(start, redis_client):
    """It learns of the loss when it goes on, and nothing of what it does then touches the next holder."""
    holder, waiter = start(), start()
    holder.do("signals.lock_lost.connect(lambda **_: state.update(told=state.get('told', 0) + 1), weak=False)")
    holder.do("lock('stock:42').__enter__()")
    holder.pause()
    assert waiter.do(ACQUIRE) is True
    owner = redis_client.hkeys(KEY)
    holder.resume()
    assert holder.do("lock('stock:42').lost") is True
    with pytest.raises(RemoteError, match="LockLostError"):
        holder.do("lock('stock:42').__exit__(None, None, None)")
    eventually(lambda: holder.do("state") == {"told": 1})
    assert redis_client.hkeys(KEY) == owner
    waiter.do(RELEASE)


def test_waiter_that_was_killed_is_skipped(start, redis_client, settings):
    """A process with many waiters costs one claim at most, not one for each."""
    options = {"WATCHDOG_TIMEOUT": 30, "WAITER_ALIVE_TIME": 3.0, "CLAIM_TIME": 2.0}
    settings.RLOCK = {"default": options}
    lock = FairLock("stock:42")
    lock.acquire()
    dead, alive = start(options), start(options)
    for number in range(20):
        dead.begin(ACQUIRE, f"waiter {number}")
    queued(redis_client, 20)
    answer = alive.begin(ACQUIRE)
    queued(redis_client, 21)
    dead.kill()
    lock.release()
    assert (
        answer.result(UNTIL_SERVED) is True
    )  # after a claim of 2 s and a heartbeat, where twenty claims would be 40 s
    alive.do(RELEASE)


def test_waiter_whose_alive_time_is_over_costs_nothing(start, redis_client):
    holder, dead, alive = start(PATIENT), start(), start(PATIENT)
    holder.do(ACQUIRE)
    dead.begin(ACQUIRE)
    queued(redis_client, 1)
    answer = alive.begin(ACQUIRE)
    queued(redis_client, 2)
    process = redis_client.zrange(QUEUE, 0, 0)[0][:36]
    dead.kill()
    # The heartbeat of the other waiter drops a mark whose time is over.
    eventually(lambda: (redis_client.zscore(f"rlock_alive:{{{KEY}}}", process) or 0) < time.time() * 1000)
    holder.do(RELEASE)
    assert answer.result(UNTIL_SERVED) is True  # long before a heartbeat or a claim
    alive.do(RELEASE)


def test_paused_waiter_loses_its_claim_and_queues_again(start, redis_client, short):
    lock = FairLock("stock:42")
    lock.acquire()
    paused, other = start(), start()
    first = paused.begin(ACQUIRE)
    queued(redis_client, 1)
    second = other.begin(ACQUIRE)
    queued(redis_client, 2)
    paused.pause()
    lock.release()
    assert second.result(UNTIL_SERVED) is True
    paused.resume()
    time.sleep(0.2)
    assert not first.done()
    other.do(RELEASE)
    assert first.result(UNTIL_SERVED) is True
    paused.do(RELEASE)


def test_listening_connection_is_killed(kind, redis_client, settings):
    """Everything is asked at once after the reconnect; no one waits for a heartbeat, a poll or a lease."""
    settings.RLOCK = {"default": PATIENT}
    holder = kind("stock:42")
    for _ in range(3):
        holder.acquire()
        with beside(visit, kind("stock:42")):
            eventually(lambda: _someone_waits(redis_client, kind))
            redis_client.client_kill_filter(_type="pubsub")
            holder.release()


def _someone_waits(redis_client, kind) -> bool:
    if kind is FairLock:
        return redis_client.zcard(QUEUE) == 1
    return redis_client.pubsub_numsub(f"redisson_lock__channel:{{{KEY}}}")[0][1] == 1


def test_queue_is_lost_with_all_its_waiters(redis_client, settings):
    """One heartbeat, for the longest waiter of the process, notices: all of them take a new ticket."""
    settings.RLOCK = {"default": {**PATIENT, "WAITER_ALIVE_TIME": 3.0, "CLAIM_TIME": 1.0}}
    redis_client.hset(KEY, "another", 1)

    def wait() -> None:
        with FairLock("stock:42", wait_time=UNTIL_SERVED):
            pass

    with ThreadPoolExecutor(3) as pool:
        waits = [pool.submit(wait) for _ in range(3)]
        queued(redis_client, 3)
        redis_client.delete(QUEUE, ALIVE)
        queued(redis_client, 3)
        redis_client.delete(KEY)
        assert [each.result() for each in waits] == [None] * 3


def test_queue_is_lost_before_a_waiter_knows_its_ticket(proxy, redis_client, settings):
    """The others of its process have been told by then, and have new tickets."""
    settings.RLOCK = {"default": {**settings.RLOCK["default"], **PATIENT}}
    redis_client.hset(KEY, "another", 1)

    def wait() -> None:
        with FairLock("stock:42", wait_time=UNTIL_SERVED):
            pass

    with ThreadPoolExecutor(2) as pool:
        waits = [pool.submit(wait)]
        eventually(lambda: worker("default").jobs[Heartbeats]._groups)
        held = proxy.hold_reply(scripts.FAIR_ACQUIRE)
        waits.append(pool.submit(wait))
        assert held.served.wait(UNTIL_SERVED)
        redis_client.delete(QUEUE, ALIVE)
        heartbeat_soon(FairLock("stock:42"))
        queued(redis_client, 1)
        held.let_go.set()
        queued(redis_client, 2)
        redis_client.delete(KEY)
        assert [each.result() for each in waits] == [None, None]


def test_server_restarts_empty(own_server, start):
    server = own_server()
    holder, first, second = (start(SHORT, server.url) for _ in range(3))
    holder.do("signals.lock_lost.connect(lambda **_: state.update(told=True), weak=False)")
    holder.do(ACQUIRE)
    answers = [first.begin(ACQUIRE), second.begin(ACQUIRE)]
    with server.client() as client:
        eventually(lambda: client.zcard(QUEUE) == 2)
    server.restart()
    eventually(lambda: any(answer.done() for answer in answers))  # a heartbeat found the lock free
    eventually(lambda: holder.do("state") == {"told": True})  # a renewal found it gone
    with pytest.raises(RemoteError, match="LockLostError"):
        holder.do(RELEASE)
    winner = answers[0].done()
    (first if winner else second).do(RELEASE)
    assert answers[1 if winner else 0].result(UNTIL_SERVED) is True
    (second if winner else first).do(RELEASE)


def test_server_restarts_with_its_data(own_server, start):
    """Locks, tickets and waits go on."""
    server = own_server()
    holder, waiter = start({}, server.url), start({}, server.url)
    holder.do(ACQUIRE)
    answer = waiter.begin(ACQUIRE)
    with server.client() as client:
        eventually(lambda: client.zcard(QUEUE) == 1)
    server.restart(keep_data=True)
    time.sleep(0.3)
    assert not answer.done()
    holder.do(RELEASE)
    assert answer.result(UNTIL_SERVED) is True
    waiter.do(RELEASE)


def test_order_of_service_over_processes_threads_and_tasks(start, redis_client):
    holder, other = start(PATIENT), start(PATIENT)
    other.do("state.update(order=[])")
    holder.do(ACQUIRE)
    task = "asyncio.run((lambda l: _task(l))(lock('stock:42')))"
    other.do(
        "exec('''async def _task(it):\\n    async with it: state['order'].append('task')\\n"
        "def _thread(name):\\n    with lock('stock:42'): state['order'].append(name)\\n''', globals())"
    )
    begun = []
    for number, expression in enumerate(["_thread('first')", task, "_thread('third')", task, "_thread('fifth')"]):
        begun.append(other.begin(expression, f"waiter {number}"))
        queued(redis_client, number + 1)
    between = holder.begin("(lock('stock:42').acquire(), lock('stock:42').release())[0]", "late")
    queued(redis_client, 6)
    holder.do(RELEASE)
    for answer in begun:
        answer.result(UNTIL_SERVED)
    assert between.result(UNTIL_SERVED) is True
    assert other.do("state['order']") == ["first", "task", "third", "task", "fifth"]


@pytest.mark.parametrize(
    "end", ["None", "module('sys').exit(3)", "module('signal').raise_signal(2)"], ids=["end", "exit", "ctrl-c"]
)
def test_script_that_ends_while_it_holds_frees_its_lock(start, redis_client, end):
    process = start()
    process.do(ACQUIRE, MAIN_THREAD)
    process.do("lock('chosen').acquire(lease_time=20)", MAIN_THREAD)
    process.begin(end, MAIN_THREAD)
    process.end()
    assert not redis_client.exists(KEY)
    assert redis_client.exists("rlock:chosen")  # a lease that someone chose runs on


@pytest.mark.parametrize("how", ["by_thread", "by_task"])
def test_process_that_ends_by_sigterm_while_it_waits_leaves_the_queue(start, redis_client, how):
    """By an exception, and the hooks at exit; not after a claim, as a process that was killed."""
    queue = "rlock_queue:{rlock:stock:fair}"
    process = start(PATIENT)
    process.do("module('signal').signal(15, lambda *_: module('sys').exit(0))", MAIN_THREAD)
    with FairLock("stock:fair"):
        process.begin(f"module('tests.faults.suspended').enter_{how}()", MAIN_THREAD)
        eventually(lambda: redis_client.zcard(queue))
        os.kill(process.pid, signal.SIGTERM)
        process.end()
        assert not redis_client.exists(queue)


def test_end_with_an_unreachable_server_is_quick(own_server):
    server = own_server()
    process = ClientProcess(server.url)
    with process:
        for number in range(5):
            process.do(f"lock('stock:{number}').acquire()")
        server.pause()
        started = time.monotonic()
        process.end()
        assert time.monotonic() - started < 15  # a connection is made, which takes socket_timeout (5 s) at the most
        server.resume()


@pytest.mark.parametrize("kind", ["rlock", "fair"])
def test_process_that_ends_leaves_javas_queue(start, redis_client, kind):
    """A release of Java's fair lock notifies only the first entry, which would be that of a process that has ended."""
    redis_client.hset(KEY, f"{UUID(int=5, version=4)}:7", 1)
    redis_client.pexpire(KEY, 600_000)
    _, waiters, deadlines = java_queue_keys(KEY)
    process = start(PATIENT)
    process.begin(f"lock('stock:42', {kind!r}).acquire()")
    eventually(lambda: redis_client.lrange(waiters, 0, -1) == [JAVA_QUEUE_ENTRY])
    process.end()
    assert not redis_client.exists(waiters, deadlines), "without a wait for the end of its alive time"
