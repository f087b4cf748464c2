"""Read-write locks: who may be in with whom, who is woken by whom, and whose lease ends what."""

import asyncio
import threading

import pytest

from django_rlock import (
    FairLock,
    LockLostError,
    LockNotOwnedError,
    LockUnavailableError,
    LockUpgradeError,
    ReadLock,
    ReadWriteLock,
    RLock,
    WriteLock,
    rlock,
)
from django_rlock._redis.keys import readwrite_channel, writers_key
from django_rlock._transport.identity import NamedOwner, current_owner
from django_rlock.inspection import lock_info
from django_rlock.locks.holds import HOLDS, WAITS
from django_rlock.locks.records import Hold
from tests.background import renew_now, until_renewed
from tests.eventually import UNTIL_SERVED, eventually
from tests.faces import TaskFace, elsewhere, waiting, waits
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
    """What is in Redis besides the reports of processes, and the requests of forced releases."""
    return [key for key in redis_client.scan_iter() if not key.startswith(("rlock_process", "rlock_requests"))]


@pytest.fixture
def no_beats(settings) -> None:
    """Each new holder was woken by a message: no heartbeat and no poll comes while the test runs."""
    settings.RLOCK = {"default": {"WAITER_ALIVE_TIME": 1000, "CLAIM_TIME": 1000, "WATCHDOG_TIMEOUT": 300}}


async def visit(face, lock, before=None, after=None) -> bool:
    """Hold the lock between two events."""
    if not await face.acquire(lock):
        return False
    if before is not None:
        before.append(lock)
    if after is not None:
        await face.until(after)
    await face.release(lock)
    return True


# --- who may be in with whom -----------------------------------------------------------------------------------------


async def test_readers_read_together(face, redis_client):
    inside: list[object] = []
    visits = [face.start(visit, face, read_lock(), inside, lambda: len(inside) == 32) for _ in range(32)]
    for each in visits:
        await face.result(each)
    assert left(redis_client) == []


async def test_one_writer_alone(face, redis_client):
    for holder in (write_lock(owner="a"), read_lock(owner="a")):
        await face.acquire(holder)
        assert await face.acquire(write_lock(), blocking=False) is False
        assert await face.acquire(read_lock(), blocking=False) is (holder.kind == "read")
        if holder.kind == "read":
            await face.release(read_lock())
        await face.release(holder)
    assert left(redis_client) == []


async def test_never_a_writer_with_another(face, redis_client):
    inside: dict[str, int] = {"read": 0, "write": 0}
    mutex = threading.Lock()

    async def work(lock) -> None:
        for _ in range(5):
            async with face.inside(lock):
                with mutex:
                    inside[lock.kind] += 1
                await face.sleep(0)
                with mutex:
                    assert inside["write"] + min(inside["read"], 1) == 1, inside
                    inside[lock.kind] -= 1

    visits = [face.start(work, ReadLock("prices") if n % 3 else WriteLock("prices")) for n in range(15)]
    for each in visits:
        await face.result(each)
    assert left(redis_client) == []


@each_side
async def test_re_entry(face, side, redis_client):
    lock = side("prices")
    for count in (1, 2, 3):
        assert await face.acquire(side("prices"), blocking=False)
        assert await face.call(lock, "hold_count") == count
    assert await face.call(lock, "remaining_lease") <= 30, "leases do not add up"
    for count in (2, 1, 0):
        await face.release(lock)
        assert await face.call(lock, "hold_count") == count
    with pytest.raises(LockNotOwnedError):
        await face.release(lock)
    assert left(redis_client) == []


@each_side
async def test_inner_hold_does_not_shorten_the_lease(face, side):
    lock = side("prices")
    await face.acquire(lock, lease_time=50)
    await face.acquire(lock, lease_time=5)
    assert await face.call(lock, "remaining_lease") > 40
    await face.release(lock)
    assert await face.call(lock, "remaining_lease") > 40
    await face.release(lock)


@each_side
async def test_questions(face, side, redis_client):
    lock = side("prices", lease_time=20)
    questions = "locked", "owned", "hold_count", "remaining_lease"
    assert [await face.call(lock, name) for name in questions] == [False, False, 0, 0.0]
    async with face.inside(lock):
        assert [await face.call(lock, name) for name in questions[:3]] == [True, True, 1]
        assert 10 < await face.call(lock, "remaining_lease") <= 20
        lock.check()
        other = side("prices", owner="somebody")
        assert [await face.call(other, name) for name in questions[:3]] == [True, False, 0]
        await face.call(lock, "extend", 5)
        assert 0 < await face.call(lock, "remaining_lease") <= 5


async def test_each_side_answers_for_itself(face, redis_client):
    """Redisson's testReadLockIsLocked and testHoldCount."""
    read, write = read_lock(), write_lock()
    await face.acquire(write)
    assert [await face.call(lock, "locked") for lock in (read, write)] == [False, True]
    assert await face.acquire(read, blocking=False)
    assert [await face.call(lock, "locked") for lock in (read, write)] == [True, True]
    assert [await face.call(lock, "hold_count") for lock in (read, write)] == [1, 1]
    await face.release(write)
    assert [await face.call(lock, "locked") for lock in (read, write)] == [True, False]
    assert [await face.call(lock, "owned") for lock in (read, write)] == [True, False]
    await face.release(read)
    assert left(redis_client) == []


async def test_writer_reads_and_steps_down(face, redis_client):
    """Redisson's testWR and testWriteReadReentrancy."""
    read, write = read_lock(), write_lock()
    await face.acquire(write)
    await face.acquire(read)
    others = [face.start(face.acquire, lock, False) for lock in (ReadLock("prices"), WriteLock("prices"))]
    assert [await face.result(each) for each in others] == [False, False]
    await face.release(write)
    others = [face.start(visit, face, ReadLock("prices")), face.start(face.acquire, WriteLock("prices"), False)]
    assert [await face.result(each) for each in others] == [True, False]
    await face.release(read)
    assert left(redis_client) == []


async def test_write_outlasts_a_read_hold_inside(face, redis_client):
    write = write_lock(lease_time=20)
    async with face.inside(write):
        async with face.inside(read_lock(lease_time=1)), face.inside(read_lock(lease_time=1)):
            assert await face.call(write, "remaining_lease") > 19
        assert await face.call(write, "remaining_lease") > 19
        await face.call(write, "extend", 10)
    assert left(redis_client) == []


async def test_extending_the_write_lock_keeps_a_read_hold_inside(face, redis_client):
    read, write = read_lock(lease_time=20), write_lock(lease_time=20)
    async with face.inside(write), face.inside(read):
        await face.call(write, "extend", 5)
        assert redis_client.pttl(KEY) > 10_000


# --- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait", [None, 0, 5])
async def test_reader_who_wants_to_write_is_told_at_once(face, redis_client, wait):
    read, write = read_lock(), write_lock()
    await face.acquire(read)
    with pytest.raises(LockUpgradeError, match="Release the read lock first") as caught:
        await face.acquire(write, wait_time=wait)
    assert caught.value.lock_name == "prices"
    current_owner().renew_name()  # as after an interruption
    with pytest.raises(LockUpgradeError):
        await face.acquire(write, wait_time=wait)
    await face.release(read)
    assert await face.acquire(write, blocking=False)
    await face.release(write)
    assert left(redis_client) == []


async def test_who_stepped_down_cannot_step_up(face):
    read, write = read_lock(), write_lock()
    async with face.inside(write):
        await face.acquire(read)
        await face.acquire(write)
        await face.release(write)
    with pytest.raises(LockUpgradeError):
        await face.acquire(write)
    await face.release(read)


async def test_named_reader_of_another_process_who_wants_to_write(face, server, redis_client):
    with ClientProcess(server.url) as other:
        assert other.do("lock('prices', 'read', owner='order-7').acquire()")
        with pytest.raises(LockUpgradeError) as caught:
            await face.acquire(write_lock(owner="order-7"))
        assert caught.value.owner == "order-7"
        await face.release(read_lock(owner="order-7"))
    assert left(redis_client) == []


@each_side
@pytest.mark.parametrize("method", ["release", "check", "extend"])
async def test_the_other_side_is_named(face, side, method, redis_client):
    lock, other = side("prices"), (WriteLock if side is ReadLock else ReadLock)("prices")
    await face.acquire(lock)
    with pytest.raises(LockNotOwnedError, match=f"Use the {lock.kind}_lock instead.") as caught:
        if method == "check":
            other.check()
        else:
            await face.call(other, method, *([5] if method == "extend" else []))
    assert (caught.value.side, caught.value.held_side) == (other.kind, lock.kind)
    await face.release(lock)
    assert left(redis_client) == []
    with pytest.raises(LockNotOwnedError, match="Release it in the thread or task that acquired it"):
        await face.release(other)


@each_side
def test_bad_options(side):
    with pytest.raises(ValueError, match='prefer must be "writer" or None'):
        side("prices", prefer="reader")
    with pytest.raises(ValueError, match="must not end in ':write', as 'somebody:write' does"):
        side("prices", owner="somebody:write")


def test_front_door():
    assert type(rlock("prices", kind="read", prefer="writer")) is ReadLock
    assert type(rlock("prices", kind="write")) is WriteLock
    assert repr(ReadWriteLock("prices")) == "ReadWriteLock('prices', using='default')"
    with pytest.raises(TypeError, match="unexpected keyword argument 'leese_time'"):
        ReadWriteLock("prices", leese_time=5)  # type: ignore[call-arg]


# --- who is woken by whom --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_beats")
async def test_last_reader_wakes_a_writer(face):
    await face.acquire(read_lock(owner="a"))
    await face.acquire(read_lock(owner="b"))
    writer = face.start(visit, face, write_lock())
    await waiting(face)
    for owner in "ab":
        await face.release(read_lock(owner=owner))
    assert await face.result(writer)


@pytest.mark.usefixtures("no_beats")
async def test_writer_wakes_all_readers(face):
    """Redisson's testWriteRead."""
    write = write_lock()
    await face.acquire(write)
    inside: list[object] = []
    readers = [face.start(visit, face, read_lock(), inside, lambda: len(inside) == 20) for _ in range(20)]
    await waiting(face, 20)
    await face.release(write)
    assert all([await face.result(each) for each in readers])


@pytest.mark.usefixtures("no_beats")
async def test_writer_who_steps_down_wakes_readers(face):
    read, write = read_lock(), write_lock()
    await face.acquire(write)
    await face.acquire(read)
    readers = [face.start(visit, face, ReadLock("prices")) for _ in range(3)]
    await waiting(face, 3)
    await face.release(write)
    assert all([await face.result(each) for each in readers])
    await face.release(read)


@pytest.mark.usefixtures("no_beats")
async def test_writers_hand_over(face):
    visits = [face.start(visit, face, write_lock()) for _ in range(20)]
    assert all([await face.result(each) for each in visits])


@pytest.mark.usefixtures("no_beats")
@pytest.mark.parametrize("message", ["0", "1"])
async def test_reader_uses_up_no_writers_wake_up(face, redis_client, message):
    """Java's last reader publishes ``0`` for one waiter of each process: a writer, while readers must wait for it."""
    await face.acquire(read_lock(owner="a"))
    first = face.start(visit, face, write_lock(prefer="writer"))
    await waiting(face)
    readers = [face.start(visit, face, read_lock(prefer="writer")) for _ in range(3)]
    await waiting(face, 4)
    redis_client.delete(KEY)
    redis_client.publish(CHANNEL, message)
    assert await face.result(first)
    assert all([await face.result(each) for each in readers])
    HOLDS.clear()


def test_many_waiting_writers_cost_little(redis_client):
    """A release wakes one of them, though the message is Redisson's for all."""
    lock, waiters = write_lock(), 50
    lock.acquire()

    def work() -> None:
        with write_lock():
            pass

    threads = [threading.Thread(target=work) for _ in range(waiters)]
    for thread in threads:
        thread.start()
    eventually(lambda: waits() == waiters)
    redis_client.config_resetstat()
    lock.release()
    for thread in threads:
        thread.join(UNTIL_SERVED)
    assert redis_client.info("commandstats")["cmdstat_evalsha"]["calls"] < waiters * 6
    assert left(redis_client) == []


# --- whose lease ends what -------------------------------------------------------------------------------------------


@pytest.mark.lengthy
async def test_writer_enters_when_the_last_living_hold_ends(face, settings):
    """Its first reply was the long lease of a reader that leaves early; the other's ends soon, and no message comes."""
    settings.RLOCK = {"default": {"WAITER_ALIVE_TIME": 1, "CLAIM_TIME": 1}}
    dead, living = read_lock(owner="dead"), read_lock(owner="living")
    await face.acquire(living, lease_time=1000)
    await face.acquire(dead, lease_time=1.5)
    writer = face.start(visit, face, write_lock())
    await waiting(face)
    await face.release(living)
    assert await face.result(writer)
    HOLDS.clear()


@pytest.mark.lengthy
async def test_dead_reader_keeps_nobody_out(face, own_server):
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
        await face.acquire(read)
        dead.kill()
        await face.until(lambda: client.hlen(KEY) == 3)  # mode, the living one and this one: a renewal swept
        assert living.do("lock('prices', 'read').owned()")
        living.do("lock('prices', 'read').release()")
        await face.release(read)
        assert await face.acquire(write_lock(), blocking=False)
        await face.release(write_lock())


@pytest.mark.lengthy
async def test_writer_passes_readers_that_died(face, own_server):
    server = own_server()
    with ClientProcess(server.url, {"WATCHDOG_TIMEOUT": 3.0}) as dead:
        assert dead.do("lock('prices', 'read').acquire()")
        writer = face.start(visit, face, write_lock())
        await waiting(face)
        dead.kill()
        assert await face.result(writer)


@each_side
async def test_watchdog_renews(face, side, redis_client):
    lock = side("prices")
    await face.acquire(lock)
    await face.acquire(lock)
    until_renewed(held(lock))
    assert await face.call(lock, "hold_count") == 2
    assert 10 < await face.call(lock, "remaining_lease") <= 30
    await face.release(lock)
    await face.release(lock)
    assert left(redis_client) == []


@pytest.mark.lengthy
async def test_both_holds_of_a_writer_are_renewed(face):
    """Redisson's testReadWriteTTL."""
    read, write = read_lock(), write_lock()
    await face.acquire(write)
    await face.acquire(read)
    for lock in (write, read):
        until_renewed(held(lock))
    await face.release(write)
    until_renewed(held(read))
    assert await face.call(read, "owned")
    await face.release(read)


@each_side
async def test_lost_hold_is_told(face, side, redis_client):
    told: list[object] = []
    lock = side("prices", on_lost=told.append)
    await face.acquire(lock)
    assert await elsewhere(face, side("prices"), "force_release", reason="it hangs")
    renew_now()
    await face.until(lambda: told)
    assert lock.lost
    with pytest.raises(LockLostError):
        await face.release(lock)
    assert left(redis_client) == []


@each_side
async def test_lease_ends(face, side, redis_client):
    """Redisson's testExpireRead and testExpireWrite."""
    lock = side("prices")
    await face.acquire(lock, lease_time=0.2)
    entered = face.start(visit, face, write_lock())
    assert await face.result(entered)
    with pytest.raises(LockLostError, match=r"its lease of 0\.2 s ended"):
        await face.release(lock)
    assert left(redis_client) == []


async def test_reader_whose_lease_ended_does_not_harm_the_others(face, redis_client):
    short, long = read_lock(owner="short"), read_lock(owner="long")
    await face.acquire(long)
    await face.acquire(short, lease_time=0.1)
    await face.until(lambda: held(short, "short").lost)
    with pytest.raises(LockLostError):
        await face.release(short)
    assert await face.call(long, "owned")
    while await face.call(short, "owned"):  # the server counts its lease from later on
        await face.sleep(0.005)
    await face.release(long)
    assert left(redis_client) == []


# --- writers that go first -------------------------------------------------------------------------------------------


async def test_readers_that_overlap_starve_a_writer(face):
    """Without a preference, as in Redisson: what the next tests are about."""
    chain = [read_lock(owner=owner) for owner in "ab"]
    await face.acquire(chain[0])
    writer = face.start(visit, face, write_lock())
    await waiting(face)
    for number in range(30):
        assert await face.acquire(chain[(number + 1) % 2], blocking=False)
        await face.release(chain[number % 2])
    assert len(WAITS.snapshot()) == 1
    await face.release(chain[0])
    assert await face.result(writer)


async def test_writer_gets_in_while_readers_keep_coming(face):
    done: list[object] = []

    async def keep_reading() -> None:
        while not done:
            async with face.inside(read_lock(prefer="writer")):
                await face.sleep(0.01)

    readers = [face.start(keep_reading) for _ in range(6)]
    for _ in range(5):
        assert await face.result(face.start(visit, face, write_lock(prefer="writer")))
    done.append(True)
    for each in readers:
        await face.result(each)


@pytest.mark.usefixtures("no_beats")
async def test_waiting_writer_keeps_new_readers_out(face, redis_client):
    holder = read_lock(owner="holder", prefer="writer")
    await face.acquire(holder)
    writer = face.start(visit, face, write_lock(prefer="writer"))
    await face.until(lambda: redis_client.exists(WRITERS))
    assert await face.acquire(read_lock(prefer="writer"), blocking=False) is False
    assert await face.acquire(holder, blocking=False), "who reads already"
    assert await face.acquire(read_lock(), blocking=False), "who knows no preference"
    await face.release(read_lock())
    reader = face.start(visit, face, read_lock(prefer="writer"))
    await waiting(face, 2)
    for _ in range(2):
        await face.release(holder)
    assert await face.result(writer)
    assert await face.result(reader)
    assert left(redis_client) == []


@pytest.mark.usefixtures("no_beats")
async def test_readers_wake_when_the_last_writer_gives_up(face, redis_client):
    holder = read_lock(owner="holder")
    await face.acquire(holder)
    writer = face.start(face.acquire, write_lock(prefer="writer", wait_time=0.5))
    await face.until(lambda: redis_client.exists(WRITERS))
    reader = face.start(visit, face, read_lock(prefer="writer"))
    await waiting(face, 2)
    assert await face.result(writer) is False
    assert await face.result(reader)
    await face.release(holder)


@pytest.mark.usefixtures("no_beats")
def test_readers_wake_when_the_last_writer_is_cancelled(redis_client):
    async def body() -> None:
        holder = read_lock(owner="holder")
        await holder.aacquire()
        writer = TaskFace().start(TaskFace().acquire, write_lock(prefer="writer"))
        await TaskFace().until(lambda: redis_client.exists(WRITERS))
        reader = TaskFace().start(TaskFace().acquire, read_lock(prefer="writer"))
        await waiting(TaskFace(), 2)
        writer.cancel()
        assert await reader
        await holder.arelease()

    asyncio.run(asyncio.wait_for(body(), 20))
    HOLDS.clear()


@pytest.mark.lengthy
async def test_writer_that_died_keeps_readers_out_for_its_alive_time_only(face, own_server, settings):
    server = own_server()
    settings.RLOCK = {"default": {"WAITER_ALIVE_TIME": 1, "CLAIM_TIME": 1}}
    holder = read_lock(owner="holder")
    await face.acquire(holder)
    with ClientProcess(server.url, {"WAITER_ALIVE_TIME": 1, "CLAIM_TIME": 1}) as writer, server.client() as client:
        writer.begin("lock('prices', 'write', prefer='writer').acquire()")
        await face.until(lambda: client.exists(WRITERS))
        mark = client.zrange(WRITERS, 0, -1, withscores=True)[0][1]
        await face.until(lambda: client.zrange(WRITERS, 0, -1, withscores=True)[0][1] > mark + 900)  # by its heartbeats
        assert await face.acquire(read_lock(prefer="writer"), blocking=False) is False
        writer.kill()
        assert await face.acquire(read_lock(prefer="writer"))
    await face.release(read_lock())
    await face.release(holder)


async def test_writer_keeps_readers_out_again_after_the_server_lost_its_mark(face, settings, redis_client):
    settings.RLOCK = {"default": {"WAITER_ALIVE_TIME": 1, "CLAIM_TIME": 1}}
    holder = read_lock(owner="holder")
    await face.acquire(holder)
    writer = face.start(visit, face, write_lock(prefer="writer"))
    await face.until(lambda: redis_client.exists(WRITERS))
    redis_client.delete(WRITERS)
    await face.until(lambda: redis_client.exists(WRITERS))
    await face.release(holder)
    assert await face.result(writer)


# --- by force, and seen from outside ---------------------------------------------------------------------------------


async def test_force_release_of_one_side_leaves_the_other(face, redis_client):
    """Redisson's testForceUnlock."""
    for side, other in ((ReadLock, WriteLock), (WriteLock, ReadLock)):
        await face.acquire(other("prices", owner="a"))
        assert await face.call(side("prices"), "force_release") is False
        assert await face.call(other("prices"), "force_release") is True
        assert left(redis_client) == []
        HOLDS.clear()


@pytest.mark.parametrize("force", [ReadLock, RLock, FairLock], ids=lambda each: each.kind)
async def test_force_release_of_one_reader(face, force, redis_client):
    for owner in "ab":
        await face.acquire(read_lock(owner=owner))
    assert await face.call(force("prices"), "force_release", "c") is False
    assert await face.call(force("prices"), "force_release", "a") is True
    assert not await face.call(read_lock(owner="a"), "owned")
    await face.release(read_lock(owner="b"))
    assert left(redis_client) == []
    HOLDS.clear()


@pytest.mark.usefixtures("no_beats")
@pytest.mark.parametrize("owner", [None, "a", "a:write"])
async def test_force_release_lets_the_next_ones_in(face, owner):
    await face.acquire(write_lock(owner="a"))
    inside: list[object] = []
    readers = [face.start(visit, face, read_lock(), inside, lambda: len(inside) == 3) for _ in range(3)]
    await waiting(face, 3)
    assert await face.call(write_lock(), "force_release", owner)
    assert all([await face.result(each) for each in readers])
    HOLDS.clear()


@pytest.mark.usefixtures("no_beats")
@each_side
@pytest.mark.parametrize("kind", [FairLock, RLock], ids=lambda each: each.kind)
async def test_force_release_by_name_alone(face, side, kind, redis_client):
    """As the admin and the commands do it, which know no kind."""
    await face.acquire(side("prices", owner="a"))
    writer = face.start(visit, face, write_lock())
    await waiting(face)
    info = lock_info("prices")
    assert info is not None
    assert await face.call(kind("prices"), "force_release", info.holder.owner)
    assert await face.result(writer)
    assert left(redis_client) == []
    HOLDS.clear()


async def test_info_names_readers_and_writers(face):
    """Each with what this process knows of it, which it finds by the field of the hash."""
    mine = read_lock()
    await face.acquire(mine)
    await face.acquire(read_lock(owner="other"))
    await face.acquire(read_lock(owner="other"))
    writer = face.start(visit, face, write_lock())
    await waiting(face)
    info = await face.call(mine, "info")
    assert info.kind == "read"
    assert {holder.owner: holder.count for holder in info.holders} == {current_owner().owner_id: 1, "other": 2}
    assert all(holder.held_for is not None for holder in info.holders)
    assert [waiter.owner.endswith(":write") for waiter in info.waiters] == [True]
    for lock in (mine, read_lock(owner="other"), read_lock(owner="other")):
        await face.release(lock)
    await face.result(writer)
    async with face.inside(write_lock()):
        info = await face.call(mine, "info")
        assert (info.kind, info.holder.owner) == ("write", f"{current_owner().owner_id}:write")
        assert info.holder.held_for is not None


async def test_given_back_without_memory(face, own_server):
    """A full server takes no new lock, but inner and outer holds can be released, and a writer can step down."""
    server = own_server(args=["--maxmemory-policy", "noeviction"])
    read, write = read_lock(), write_lock()
    for lock in (write, write, read, read):
        await face.acquire(lock)
    with server.client() as client:
        client.config_set("maxmemory", 1)
        for lock in (write, read, write):
            await face.release(lock)
        assert await face.call(read, "hold_count") == 1
        assert not await face.call(write, "locked")
        await face.release(read)
        with pytest.raises(LockUnavailableError, match="maxmemory"):
            await face.acquire(write)
        assert left(client) == []


# --- interruptions, names, processes ---------------------------------------------------------------------------------


@each_side
def test_cancelled_wait_leaves_nothing(side, redis_client):
    async def body() -> None:
        holder = WriteLock("prices", owner="a")
        await holder.aacquire()
        task = TaskFace().start(TaskFace().acquire, side("prices", prefer="writer"))
        await waiting(TaskFace())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await holder.arelease()
        async with WriteLock("prices", wait_time=10):
            pass
        await TaskFace().until(lambda: not left(redis_client))

    asyncio.run(asyncio.wait_for(body(), 20))


async def test_writer_reads_also_under_a_new_wire_name(face, redis_client):
    """Its name changes after an interruption; it is still the one who writes."""
    async with face.inside(write_lock()):
        current_owner().renew_name()
        async with face.inside(read_lock(wait_time=0)), face.inside(read_lock(wait_time=0)):
            current_owner().renew_name()
            async with face.inside(write_lock(wait_time=0)):
                pass
    assert left(redis_client) == []


@pytest.mark.parametrize("name", ["{test}:abc:key", "preise für 1 €", "a b\n", "{"])
async def test_names(face, redis_client, name):
    """Redisson's testName."""
    lock = ReadWriteLock(name)
    for side in (lock.read_lock, lock.write_lock):
        async with face.inside(side):
            assert await face.call(side, "owned")
    assert left(redis_client) == []


def test_processes_exclude_and_wake_each_other(server, redis_client):
    with ClientProcess(server.url) as first, ClientProcess(server.url) as second:
        assert first.do("lock('prices', 'read').acquire()")
        assert second.do("lock('prices', 'read').acquire()")
        writer = second.begin("lock('prices', 'write').acquire()", "writer")
        first.do("lock('prices', 'read').release()")
        assert not writer.done()
        second.do("lock('prices', 'read').release()")
        assert writer.result(UNTIL_SERVED)
        reader = first.begin("lock('prices', 'read').acquire()")
        second.do("lock('prices', 'write').release()", "writer")
        assert reader.result(UNTIL_SERVED)
        first.do("lock('prices', 'read').release()")
    assert left(redis_client) == []


def test_writer_that_is_killed(own_server):
    """Redisson's testAutoExpire."""
    server = own_server()
    with ClientProcess(server.url, {"WATCHDOG_TIMEOUT": 1.0}) as writer:
        assert writer.do("lock('prices', 'write').acquire()")
        writer.kill()
        with read_lock(wait_time=20), read_lock():
            pass
