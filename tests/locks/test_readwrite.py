"""Read-write locks: who may be in with whom, who is woken by whom, and whose lease ends what."""

import threading
from contextlib import ExitStack

import pytest

from django_rlock import (
    FairLock,
    LimitedLock,
    LockLostError,
    LockNotOwnedError,
    LockUnavailableError,
    LockUpgradeError,
    ReadLock,
    ReadWriteLock,
    RLock,
    WriteLock,
)
from django_rlock._redis.keys import readwrite_channel, writers_key
from django_rlock._transport.calls import run_sync
from django_rlock._transport.identity import NamedOwner, current_owner
from django_rlock._transport.registry import background_driver
from django_rlock.inspection import lock_info
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.records import Hold
from tests.background import until_renewed
from tests.beside import beside
from tests.beside import visit as enter_and_leave
from tests.bindings import waiting, waits
from tests.eventually import eventually
from tests.processes import ClientProcess

pytestmark = pytest.mark.lengthy

KEY = "rlock:prices"
WRITERS, CHANNEL = writers_key(KEY), readwrite_channel(KEY)
each_side = pytest.mark.parametrize("side", [ReadLock, WriteLock], ids=lambda each: each.kind)


def read_lock(**options) -> ReadLock:
    return ReadWriteLock("prices", **options).read_lock


def write_lock(**options) -> WriteLock:
    return ReadWriteLock("prices", **options).write_lock


def held(lock, owner=None) -> Hold:
    hold = HOLDS.get(lock, NamedOwner(owner) if owner else current_owner())
    assert hold is not None
    return hold


def left(redis_client) -> list[str]:
    """What is in Redis besides the reports and the history of processes, and the requests of forced releases."""
    others = "rlock_process", "rlock_histor", "rlock_requests"
    return [key for key in redis_client.scan_iter() if not key.startswith(others)]


@pytest.fixture
def no_beats(settings) -> None:
    """Each new holder was woken by a message: no heartbeat and no poll comes while the test runs."""
    settings.RLOCK = {"default": {"WAITER_ALIVE_TIME": 1000, "CLAIM_TIME": 1000, "WATCHDOG_TIMEOUT": 300}}


async def visit(binding, lock, before=None, after=None) -> bool:
    """Hold the lock between two events."""
    if not await binding.acquire(lock):
        return False
    if before is not None:
        before.append(lock)
    if after is not None:
        await binding.until(after)
    await binding.release(lock)
    return True


# --- who may be in with whom -----------------------------------------------------------------------------------------


async def test_readers_read_together(binding, redis_client):
    inside: list[object] = []
    visits = [binding.start(visit, binding, read_lock(), inside, lambda: len(inside) == 32) for _ in range(32)]
    await binding.results(visits)
    assert left(redis_client) == []


async def test_one_writer_alone(binding, redis_client):
    for holder in (write_lock(owner="a"), read_lock(owner="a")):
        await binding.acquire(holder)
        assert await binding.acquire(write_lock(), blocking=False) is False
        assert await binding.acquire(read_lock(), blocking=False) is (holder.kind == "read")
        if holder.kind == "read":
            await binding.release(read_lock())
        await binding.release(holder)
    assert left(redis_client) == []


async def test_never_a_writer_with_another(binding, redis_client):
    inside: dict[str, int] = {"read": 0, "write": 0}
    mutex = threading.Lock()

    async def work(lock) -> None:
        for _ in range(5):
            async with binding.inside(lock):
                with mutex:
                    inside[lock.kind] += 1
                await binding.sleep(0)
                with mutex:
                    assert inside["write"] + min(inside["read"], 1) == 1, inside
                    inside[lock.kind] -= 1

    visits = [binding.start(work, ReadLock("prices") if n % 3 else WriteLock("prices")) for n in range(15)]
    await binding.results(visits)
    assert left(redis_client) == []


async def test_each_side_answers_for_itself(binding, redis_client):
    """Redisson's testReadLockIsLocked and testHoldCount."""
    read, write = read_lock(), write_lock()
    await binding.acquire(write)
    assert [await binding.call(lock, "locked") for lock in (read, write)] == [False, True]
    assert await binding.acquire(read, blocking=False)
    assert [await binding.call(lock, "locked") for lock in (read, write)] == [True, True]
    assert [await binding.call(lock, "hold_count") for lock in (read, write)] == [1, 1]
    await binding.release(write)
    assert [await binding.call(lock, "locked") for lock in (read, write)] == [True, False]
    assert [await binding.call(lock, "owned") for lock in (read, write)] == [True, False]
    await binding.release(read)
    assert left(redis_client) == []


async def test_writer_reads_and_steps_down(binding, redis_client):
    """Redisson's testWR and testWriteReadReentrancy."""
    read, write = read_lock(), write_lock()
    await binding.acquire(write)
    await binding.acquire(read)
    others = [binding.start(binding.acquire, lock, False) for lock in (ReadLock("prices"), WriteLock("prices"))]
    assert [await binding.result(each) for each in others] == [False, False]
    await binding.release(write)
    others = [
        binding.start(visit, binding, ReadLock("prices")),
        binding.start(binding.acquire, WriteLock("prices"), False),
    ]
    assert [await binding.result(each) for each in others] == [True, False]
    await binding.release(read)
    assert left(redis_client) == []


# --- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait", [None, 0, 5])
async def test_reader_who_wants_to_write_is_told_at_once(binding, redis_client, wait):
    read, write = read_lock(), write_lock()
    await binding.acquire(read)
    with pytest.raises(LockUpgradeError, match="Release the read lock first") as caught:
        await binding.acquire(write, wait_time=wait)
    assert caught.value.lock_name == "prices"
    current_owner().new_id()  # as after an interruption
    with pytest.raises(LockUpgradeError):
        await binding.acquire(write, wait_time=wait)
    await binding.release(read)
    assert await binding.acquire(write, blocking=False)
    await binding.release(write)
    assert left(redis_client) == []


async def test_named_reader_of_another_process_who_wants_to_write(binding, server, redis_client):
    with ClientProcess(server.url) as other:
        assert other.do("lock('prices', 'read', owner='order-7').acquire()")
        with pytest.raises(LockUpgradeError) as caught:
            await binding.acquire(write_lock(owner="order-7"))
        assert caught.value.owner == "order-7"
        await binding.release(read_lock(owner="order-7"))
    assert left(redis_client) == []


@each_side
@pytest.mark.parametrize("method", ["release", "check", "extend"])
async def test_the_other_side_is_named(binding, side, method, redis_client):
    lock, other = side("prices"), (WriteLock if side is ReadLock else ReadLock)("prices")
    await binding.acquire(lock)
    with pytest.raises(LockNotOwnedError, match=f"Use the {lock.kind}_lock instead.") as caught:
        if method == "check":
            other.check()
        else:
            await binding.call(other, method, *([5] if method == "extend" else []))
    assert (caught.value.side, caught.value.held_side) == (other.kind, lock.kind)
    await binding.release(lock)
    assert left(redis_client) == []
    with pytest.raises(LockNotOwnedError, match="Release it in the thread or task that acquired it"):
        await binding.release(other)


@each_side
def test_bad_options(side):
    with pytest.raises(ValueError, match='prefer must be "writer" or None'):
        side("prices", prefer="reader")
    with pytest.raises(ValueError, match="must not end in ':write', as 'another:write' does"):
        side("prices", owner="another:write")
    with pytest.raises(ValueError, match="The owner of a limited lock must not end in ':write'"):
        LimitedLock("prices", owner="another:write")


def test_sides_that_are_due_together_are_renewed_by_one_script(redis_client):
    names = [f"prices:{number}" for number in range(4)]
    for make, name in zip([ReadLock, WriteLock, LimitedLock, ReadLock], names, strict=True):
        assert make(name).acquire()
    for lease in 100, 200:
        before = redis_client.info("commandstats")["cmdstat_evalsha"]["calls"]
        replies = run_sync(background_driver("default").run_all([hold.renew_call(lease) for hold in HOLDS.snapshot()]))
        assert [reply[1] for reply in replies] == [1, 1, 1, 1]
    assert redis_client.info("commandstats")["cmdstat_evalsha"]["calls"] == before + 1
    assert all(redis_client.ttl(f"rlock:{name}") > 100 for name in names)
    HOLDS.clear()


# --- who is woken by whom --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_beats")
async def test_last_reader_wakes_a_writer(binding):
    await binding.acquire(read_lock(owner="a"))
    await binding.acquire(read_lock(owner="b"))
    writer = binding.start(visit, binding, write_lock())
    await waiting(binding)
    for owner in "ab":
        await binding.release(read_lock(owner=owner))
    assert await binding.result(writer)


@pytest.mark.usefixtures("no_beats")
async def test_writer_wakes_all_readers(binding):
    """Redisson's testWriteRead."""
    write = write_lock()
    await binding.acquire(write)
    inside: list[object] = []
    readers = [binding.start(visit, binding, read_lock(), inside, lambda: len(inside) == 20) for _ in range(20)]
    await waiting(binding, 20)
    await binding.release(write)
    assert all([await binding.result(each) for each in readers])


@pytest.mark.usefixtures("no_beats")
@pytest.mark.parametrize("message", ["0", "1"])
async def test_reader_uses_up_no_writers_wake_up(binding, redis_client, message):
    """Java's last reader publishes ``0`` for one waiter of each process: a writer, while readers must wait for it."""
    await binding.acquire(read_lock(owner="a"))
    first = binding.start(visit, binding, write_lock(prefer="writer"))
    await waiting(binding)
    readers = [binding.start(visit, binding, read_lock(prefer="writer")) for _ in range(3)]
    await waiting(binding, 4)
    redis_client.delete(KEY)
    redis_client.publish(CHANNEL, message)
    assert await binding.result(first)
    assert all([await binding.result(each) for each in readers])
    HOLDS.clear()


def test_many_waiting_writers_cost_little(redis_client):
    """A release wakes one of them, though the message is Redisson's for all."""
    lock, waiters = write_lock(), 50
    lock.acquire()
    with ExitStack() as waiting_writers:
        for _ in range(waiters):
            waiting_writers.enter_context(beside(enter_and_leave, write_lock()))
        eventually(lambda: waits() == waiters)
        redis_client.config_resetstat()
        lock.release()
    assert redis_client.info("commandstats")["cmdstat_evalsha"]["calls"] < waiters * 6
    assert left(redis_client) == []


# --- whose lease ends what -------------------------------------------------------------------------------------------


@pytest.mark.lengthy
async def test_writer_enters_when_the_last_living_hold_ends(binding, settings):
    """Its first reply was the long lease of a reader that leaves early; the other's ends soon, and no message comes."""
    settings.RLOCK = {"default": {"WAITER_ALIVE_TIME": 1, "CLAIM_TIME": 1}}
    dead, living = read_lock(owner="dead"), read_lock(owner="living")
    await binding.acquire(living, lease_time=1000)
    await binding.acquire(dead, lease_time=1.5)
    writer = binding.start(visit, binding, write_lock())
    await waiting(binding)
    await binding.release(living)
    assert await binding.result(writer)
    HOLDS.clear()


@pytest.mark.lengthy
async def test_dead_reader_keeps_nobody_out(binding, own_server):
    """Redisson's testMultiInstanceReadLockZombieCleanup, and more: the others' renewals keep no dead share alive."""
    server = own_server()
    options = {"WATCHDOG_TIMEOUT": 3.0}
    read = read_lock(lease_time=100)
    with (
        ClientProcess(server.url, options) as dead,
        ClientProcess(server.url, options) as living,
        server.client() as client,
    ):
        for process in (dead, living):
            assert process.do("lock('prices', 'read').acquire()")
        await binding.acquire(read)
        dead.kill()
        await binding.until(lambda: client.hlen(KEY) == 3)  # mode, the living one and this one: a renewal swept
        assert living.do("lock('prices', 'read').owned()")
        living.do("lock('prices', 'read').release()")
        await binding.release(read)
        assert await binding.acquire(write_lock(), blocking=False)
        await binding.release(write_lock())


@pytest.mark.lengthy
async def test_both_holds_of_a_writer_are_renewed(binding):
    """Redisson's testReadWriteTTL."""
    read, write = read_lock(), write_lock()
    await binding.acquire(write)
    await binding.acquire(read)
    for lock in (write, read):
        until_renewed(held(lock))
    await binding.release(write)
    until_renewed(held(read))
    assert await binding.call(read, "owned")
    await binding.release(read)


@each_side
async def test_lease_ends(binding, side, redis_client):
    """Redisson's testExpireRead and testExpireWrite."""
    lock = side("prices")
    await binding.acquire(lock, lease_time=0.2)
    entered = binding.start(visit, binding, write_lock())
    assert await binding.result(entered)
    with pytest.raises(LockLostError, match=r"its lease of 0\.2 s ended"):
        await binding.release(lock)
    assert left(redis_client) == []


async def test_reader_whose_lease_ended_does_not_harm_the_others(binding, redis_client):
    short, long = read_lock(owner="short"), read_lock(owner="long")
    await binding.acquire(long)
    await binding.acquire(short, lease_time=0.1)
    await binding.until(lambda: held(short, "short").lost)
    with pytest.raises(LockLostError):
        await binding.release(short)
    assert await binding.call(long, "owned")
    while await binding.call(short, "owned"):  # the server counts its lease from later on
        await binding.sleep(0.005)
    await binding.release(long)
    assert left(redis_client) == []


# --- writers that go first -------------------------------------------------------------------------------------------


@pytest.mark.lengthy
async def test_writer_that_died_keeps_readers_out_for_its_alive_time_only(binding, own_server, settings):
    server = own_server()
    options = {"WAITER_ALIVE_TIME": 3, "CLAIM_TIME": 1}  # so long that no busy machine ends it
    settings.RLOCK = {"default": options}
    holder = read_lock(owner="holder")
    await binding.acquire(holder)
    with ClientProcess(server.url, options) as writer, server.client() as client:
        writer.begin("lock('prices', 'write', prefer='writer').acquire()")
        await binding.until(lambda: client.exists(WRITERS))
        mark = client.zrange(WRITERS, 0, -1, withscores=True)[0][1]
        await binding.until(
            lambda: client.zrange(WRITERS, 0, -1, withscores=True)[0][1] > mark + 900
        )  # by its heartbeats
        assert await binding.acquire(read_lock(prefer="writer"), blocking=False) is False
        writer.kill()
        assert await binding.acquire(read_lock(prefer="writer"))
    await binding.release(read_lock())
    await binding.release(holder)


async def test_writer_keeps_readers_out_again_after_the_server_lost_its_mark(binding, settings, redis_client):
    settings.RLOCK = {"default": {"WAITER_ALIVE_TIME": 1, "CLAIM_TIME": 1}}
    holder = read_lock(owner="holder")
    await binding.acquire(holder)
    writer = binding.start(visit, binding, write_lock(prefer="writer"))
    await binding.until(lambda: redis_client.exists(WRITERS))
    redis_client.delete(WRITERS)
    await binding.until(lambda: redis_client.exists(WRITERS))
    await binding.release(holder)
    assert await binding.result(writer)


# --- by force, and seen from outside ---------------------------------------------------------------------------------


async def test_force_release_of_one_side_leaves_the_other(binding, redis_client):
    """Redisson's testForceUnlock."""
    for side, other in ((ReadLock, WriteLock), (WriteLock, ReadLock)):
        await binding.acquire(other("prices", owner="a"))
        assert await binding.call(side("prices"), "force_release") is False
        assert await binding.call(other("prices"), "force_release") is True
        assert left(redis_client) == []
        HOLDS.clear()


@pytest.mark.usefixtures("no_beats")
@each_side
@pytest.mark.parametrize("kind", [FairLock, RLock], ids=lambda each: each.kind)
async def test_force_release_by_name_alone(binding, side, kind, redis_client):
    """As the admin and the commands do it, which know no kind."""
    await binding.acquire(side("prices", owner="a"))
    writer = binding.start(visit, binding, write_lock())
    await waiting(binding)
    info = lock_info("prices")
    assert info is not None
    assert await binding.call(kind("prices"), "force_release", info.holder.owner)
    assert await binding.result(writer)
    assert left(redis_client) == []
    HOLDS.clear()


async def test_info_names_readers_and_writers(binding):
    """Each with what this process knows of it, which it finds by the field of the hash."""
    mine = read_lock()
    await binding.acquire(mine)
    await binding.acquire(read_lock(owner="other"))
    await binding.acquire(read_lock(owner="other"))
    writer = binding.start(visit, binding, write_lock())
    await waiting(binding)
    info = await binding.call(mine, "info")
    assert info.kind == "read"
    assert {holder.owner: holder.count for holder in info.holders} == {current_owner().owner_id: 1, "other": 2}
    assert all(holder.held_for is not None for holder in info.holders)
    assert [waiter.owner.endswith(":write") for waiter in info.waiters] == [True]
    for lock in (mine, read_lock(owner="other"), read_lock(owner="other")):
        await binding.release(lock)
    await binding.result(writer)
    async with binding.inside(write_lock()):
        info = await binding.call(mine, "info")
        assert (info.kind, info.holder.owner) == ("write", f"{current_owner().owner_id}:write")
        assert info.holder.held_for is not None


async def test_given_back_without_memory(binding, own_server):
    """A full server takes no new lock, but inner and outer holds can be released, and a writer can step down."""
    server = own_server(args=["--maxmemory-policy", "noeviction"])
    read, write = read_lock(), write_lock()
    for lock in (write, write, read, read):
        await binding.acquire(lock)
    with server.client() as client:
        client.config_set("maxmemory", 1)
        for lock in (write, read, write):
            await binding.release(lock)
        assert await binding.call(read, "hold_count") == 1
        assert not await binding.call(write, "locked")
        await binding.release(read)
        with pytest.raises(LockUnavailableError, match="maxmemory"):
            await binding.acquire(write)
        assert left(client) == []


# --- interruptions, names, processes ---------------------------------------------------------------------------------


async def test_writer_reads_also_under_a_new_wire_name(binding, redis_client):
    """Its name changes after an interruption; it is still the one who writes."""
    async with binding.inside(write_lock()):
        current_owner().new_id()
        async with binding.inside(read_lock(wait_time=0)), binding.inside(read_lock(wait_time=0)):
            current_owner().new_id()
            async with binding.inside(write_lock(wait_time=0)):
                pass
    assert left(redis_client) == []


@pytest.mark.parametrize("name", ["{test}:abc:key", "preise für 1 €", "a b\n", "{"])
async def test_names(binding, redis_client, name):
    """Redisson's testName."""
    lock = ReadWriteLock(name)
    for side in (lock.read_lock, lock.write_lock):
        async with binding.inside(side):
            assert await binding.call(side, "owned")
    assert left(redis_client) == []


def test_writer_that_is_killed(own_server):
    """Redisson's testAutoExpire."""
    server = own_server()
    with ClientProcess(server.url, {"WATCHDOG_TIMEOUT": 1.0}) as writer:
        assert writer.do("lock('prices', 'write').acquire()")
        writer.kill()
        with read_lock(wait_time=20), read_lock():
            pass
