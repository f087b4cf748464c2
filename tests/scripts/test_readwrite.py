"""The scripts of the read-write lock."""

import pytest

from django_rlock._redis import scripts
from django_rlock._redis.keys import requests_key
from tests.scripts.conftest import ALIVE, CLAIMED, KEY, ME, OTHER, QUEUE, READS, RW_CHANNEL, THIRD, WRITERS, now_ms

LEASE, ALIVE_FOR = 30_000, 10_000
REQUESTS = requests_key(KEY)


def read(run, owner, count=1, lease=LEASE, yields=0, writer=""):
    return run(scripts.READ_ACQUIRE, owner, count, lease, yields, writer)


def end_read(run, owner, left=0, lease=LEASE):
    return run(scripts.READ_RELEASE, owner, left, lease)


def write(run, owner, count=1, lease=LEASE, alive=0):
    return run(scripts.WRITE_ACQUIRE, owner, count, lease, alive)


def end_write(run, owner, left=0, lease=LEASE):
    return run(scripts.WRITE_RELEASE, owner, left, lease)


def force(run, owner="", side=""):
    return run(scripts.LOCK_FORCE_RELEASE, owner, 5000, side, "r1")


def reading(**holds):
    return {"mode": "read", **holds}


def hold(owner, number=1):
    return f"{READS}:{owner}:rwlock_timeout:{number}"


@pytest.fixture
def lock(redis_client):
    """Returns the hash and the numbers of each reader's hold keys."""

    def look():
        keys = sorted(redis_client.keys(f"{READS}:*:rwlock_timeout:*"))
        return redis_client.hgetall(KEY), [key.removeprefix(f"{READS}:").replace(":rwlock_timeout", "") for key in keys]

    return look


def about(left, lease):
    return lease - 1000 < left <= lease


def kill(redis_client, owner, *numbers):
    """End the leases of a reader's holds, as time does."""
    redis_client.delete(*(hold(owner, number) for number in numbers or [1]))


# --- reading ---------------------------------------------------------------------------------------------------------


def test_read_takes_a_free_lock(run, redis_client, lock):
    assert read(run, ME) == "OK"
    assert lock() == (reading(**{ME: "1"}), [f"{ME}:1"])
    assert redis_client.get(hold(ME)) == "1"
    assert about(redis_client.pttl(KEY), LEASE)
    assert about(redis_client.pttl(hold(ME)), LEASE)


def test_readers_read_together(run, redis_client, lock):
    read(run, ME)
    assert read(run, OTHER, lease=5000) == "OK"
    assert lock() == (reading(**{ME: "1", OTHER: "1"}), [f"{ME}:1", f"{OTHER}:1"])
    assert about(redis_client.pttl(KEY), LEASE)
    assert about(redis_client.pttl(hold(OTHER)), 5000)


def test_read_sets_the_count_that_it_is_told(run, redis_client, lock):
    read(run, ME, lease=5000)
    for _ in range(3):  # the same command once more does nothing once more
        assert read(run, ME, 2) == "OK"
    assert lock() == (reading(**{ME: "2"}), [f"{ME}:1", f"{ME}:2"])
    assert about(redis_client.pttl(hold(ME, 1)), 5000)
    assert about(redis_client.pttl(KEY), LEASE)


def test_read_answers_the_lease_of_the_writer(run, lock):
    write(run, OTHER)
    assert about(read(run, ME), LEASE)
    assert lock() == ({"mode": "write", f"{OTHER}:write": "1"}, [])


@pytest.mark.parametrize("holder", [None, "reader", "writer"])
def test_read_does_not_enter_again_what_is_gone(run, lock, holder):
    if holder:
        (read if holder == "reader" else write)(run, OTHER)
    before = lock()
    assert read(run, ME, 2) == "LOST"
    assert lock() == before


def test_read_does_not_enter_again_after_its_lease(run, redis_client):
    read(run, OTHER)
    read(run, ME)
    kill(redis_client, ME)
    assert read(run, ME, 2) == "LOST"
    assert read(run, ME) == "OK"


def test_writer_reads_as_well(run, redis_client, lock):
    write(run, ME, lease=5000)
    assert read(run, ME) == "OK"
    assert lock() == ({"mode": "write", f"{ME}:write": "1", ME: "1"}, [f"{ME}:1"])
    assert about(redis_client.pttl(KEY), LEASE)
    assert read(run, OTHER) > 0


def test_writer_reads_under_a_newer_name(run, lock):
    write(run, ME)
    assert read(run, THIRD) > 0
    assert read(run, THIRD, writer=ME) == "OK"
    assert lock() == ({"mode": "write", f"{ME}:write": "1", THIRD: "1"}, [f"{THIRD}:1"])


@pytest.mark.parametrize("acquire", [read, write])
def test_another_kind_of_lock_keeps_out(run, redis_client, acquire):
    redis_client.hset(KEY, OTHER, 1)
    assert acquire(run, ME) == -1
    redis_client.pexpire(KEY, 5000)
    assert about(acquire(run, ME), 5000)
    assert redis_client.hgetall(KEY) == {OTHER: "1"}


@pytest.mark.parametrize(
    ("script", "args", "reply"),
    [
        (scripts.FAIR_LEAVE, [ME, 5000], 0),
        (scripts.FAIR_RELEASE, [ME, 0, LEASE, 5000], 0),
        (scripts.RLOCK_RELEASE, [ME, 0, LEASE], 0),
        (scripts.LOCK_RENEW, [LEASE, ME], 0),
        (scripts.MULTI_RELEASE, [ME, 5000], [1]),
        (scripts.RLOCK_ACQUIRE, [ME, 2, LEASE], "LOST"),
        (scripts.FENCED_ACQUIRE, [ME, 2, LEASE, 0, 0], "LOST"),
        (scripts.FAIR_ACQUIRE, [ME, 2, LEASE, 5000, 0], "LOST"),
    ],
    ids=lambda each: getattr(each, "name", ""),
)
def test_other_kinds_take_a_share_for_no_hold_of_their_own(run, lock, heard, script, args, reply):
    """The field is called alike; another kind's release or clean-up would free it for all readers."""
    read(run, ME)
    read(run, OTHER)
    before = lock()
    assert run(script, *args) == reply
    assert lock() == before
    assert heard() == []


@pytest.mark.parametrize("release", [end_read, end_write])
def test_a_hold_of_another_kind_is_no_share(run, redis_client, release):
    redis_client.hset(KEY, ME, 1)
    assert release(run, ME) == 0
    assert redis_client.hgetall(KEY) == {ME: "1"}


def test_last_reader_frees_and_wakes(run, redis_client, heard):
    read(run, ME)
    read(run, OTHER, lease=5000)
    assert end_read(run, ME) == 1
    assert about(redis_client.pttl(KEY), 5000)
    assert redis_client.hgetall(KEY) == reading(**{OTHER: "1"})
    assert heard() == []
    assert end_read(run, OTHER) == 1
    assert redis_client.keys() == []
    assert heard() == [(RW_CHANNEL, "0")]


def test_read_release_leaves_the_holds_that_it_is_told(run, redis_client, lock, heard):
    for count in (1, 2, 3):
        read(run, ME, count, lease=5000)
    for _ in range(2):
        assert end_read(run, ME, 1) == 1
        assert lock() == (reading(**{ME: "1"}), [f"{ME}:1"])
    assert about(redis_client.pttl(KEY), LEASE)
    assert about(redis_client.pttl(hold(ME)), LEASE)
    assert heard() == []


def test_read_release_makes_good_a_hold_whose_lease_was_shorter(run, redis_client, lock):
    read(run, ME, lease=5000)
    read(run, ME, 2)
    kill(redis_client, ME, 1)
    assert end_read(run, ME, 1) == 1
    assert lock() == (reading(**{ME: "1"}), [f"{ME}:1"])


@pytest.mark.parametrize("holder", [None, "reader", "writer", "the writer's own"])
def test_read_release_of_what_is_not_held(run, lock, heard, holder):
    if holder:
        (read if holder == "reader" else write)(run, ME if holder == "the writer's own" else OTHER)
    before = lock()
    assert end_read(run, ME) == 0
    assert lock() == before
    assert heard() == []


def test_read_release_after_its_lease(run, redis_client, heard):
    read(run, ME)
    kill(redis_client, ME)
    assert end_read(run, ME) == 0
    assert redis_client.keys() == []
    assert heard() == [(RW_CHANNEL, "0")]


def test_last_living_reader_frees_for_the_dead(run, redis_client, heard):
    for owner in (ME, OTHER, THIRD):
        read(run, owner)
    kill(redis_client, OTHER)
    kill(redis_client, THIRD)
    assert end_read(run, ME) == 1
    assert redis_client.keys() == []
    assert heard() == [(RW_CHANNEL, "0")]


def test_reader_in_a_write_lock_leaves_it_alone(run, redis_client, lock, heard):
    write(run, ME)
    read(run, ME, lease=1000)
    read(run, ME, 2, lease=1000)
    assert end_read(run, ME, 1, lease=1000) == 1
    assert about(redis_client.pttl(KEY), LEASE)
    assert end_read(run, ME) == 1
    assert lock() == ({"mode": "write", f"{ME}:write": "1"}, [])
    assert about(redis_client.pttl(KEY), LEASE)
    assert heard() == []


# --- renewing --------------------------------------------------------------------------------------------------------


def test_renewing_a_reader_renews_this_reader_only(run, redis_client, lock):
    read(run, ME, lease=5000)
    read(run, ME, 2, lease=5000)
    read(run, OTHER, lease=5000)
    assert run(scripts.SIDE_RENEW, LEASE, ME) == 1
    left = [redis_client.pttl(key) for key in (hold(ME), hold(ME, 2), hold(OTHER), KEY)]
    assert [about(each, LEASE) for each in left] == [True, True, False, True]


def test_renewing_a_reader_drops_the_dead(run, redis_client, lock):
    read(run, OTHER)
    read(run, ME)
    kill(redis_client, OTHER)
    assert run(scripts.SIDE_RENEW, LEASE, ME) == 1
    assert lock() == (reading(**{ME: "1"}), [f"{ME}:1"])


def test_renewing_a_reader_leaves_longer_leases(run, redis_client):
    read(run, OTHER, lease=20_000)
    read(run, ME)
    assert run(scripts.SIDE_RENEW, 5000, ME) == 1
    assert about(redis_client.pttl(hold(ME)), LEASE)
    assert run(scripts.SIDE_EXTEND, ME, 5000, 0) == 1
    assert about(redis_client.pttl(hold(ME)), 5000)
    assert about(redis_client.pttl(KEY), 20_000)


@pytest.mark.parametrize("state", ["free", "others", "ended"])
def test_renewing_a_reader_that_does_not_hold_it_creates_nothing(run, redis_client, lock, state):
    if state != "free":
        read(run, OTHER)
    if state == "ended":
        read(run, ME)
        kill(redis_client, ME)
    before = lock()
    assert run(scripts.SIDE_RENEW, LEASE, ME) == 0
    assert lock() == before


def test_renewing_a_writer(run, redis_client):
    assert run(scripts.SIDE_RENEW, LEASE, f"{ME}:write") == 0
    write(run, ME, lease=5000)
    assert run(scripts.SIDE_RENEW, LEASE, f"{OTHER}:write") == 0
    assert run(scripts.SIDE_RENEW, LEASE, f"{ME}:write") == 1
    assert about(redis_client.pttl(KEY), LEASE)
    assert run(scripts.SIDE_RENEW, 5000, f"{ME}:write") == 1
    assert about(redis_client.pttl(KEY), LEASE)
    assert run(scripts.SIDE_EXTEND, f"{ME}:write", 5000, 0) == 1
    assert about(redis_client.pttl(KEY), 5000)


def test_extending_a_writer_does_not_cut_its_read_holds_short(run, redis_client):
    write(run, ME)
    read(run, ME, lease=20_000)
    assert run(scripts.SIDE_EXTEND, f"{ME}:write", 5000, 0) == 1
    assert about(redis_client.pttl(KEY), 20_000)


# --- writing ---------------------------------------------------------------------------------------------------------


def test_write_takes_a_free_lock(run, redis_client, lock):
    assert write(run, ME) == "OK"
    assert lock() == ({"mode": "write", f"{ME}:write": "1"}, [])
    assert about(redis_client.pttl(KEY), LEASE)


def test_write_sets_the_count_and_does_not_add_leases_up(run, redis_client, lock):
    write(run, ME)
    for _ in range(3):
        assert write(run, ME, 2) == "OK"
    assert write(run, ME, 3, lease=5000) == "OK"
    assert lock() == ({"mode": "write", f"{ME}:write": "3"}, [])
    assert about(redis_client.pttl(KEY), LEASE)


@pytest.mark.parametrize("holder", [read, write])
def test_write_answers_the_lease_of_the_others(run, lock, holder):
    holder(run, OTHER)
    before = lock()
    assert about(write(run, ME), LEASE)
    assert lock() == before


@pytest.mark.parametrize("holder", [None, "reader", "writer", "own reader"])
def test_write_does_not_enter_again_what_is_gone(run, lock, holder):
    if holder:
        (write if holder == "writer" else read)(run, ME if holder == "own reader" else OTHER)
    before = lock()
    assert write(run, ME, 2) == "LOST"
    assert lock() == before


def test_reader_cannot_become_writer(run, lock):
    read(run, ME)
    read(run, OTHER)
    before = lock()
    assert write(run, ME) == "UPGRADE"
    assert lock() == before


def test_write_passes_dead_readers(run, redis_client, lock):
    for owner in (ME, OTHER):
        read(run, owner)
    kill(redis_client, OTHER)
    assert about(write(run, THIRD), LEASE)
    assert redis_client.hgetall(KEY) == reading(**{ME: "1"})
    kill(redis_client, ME)
    assert write(run, THIRD) == "OK"
    assert lock() == ({"mode": "write", f"{THIRD}:write": "1"}, [])


def test_write_learns_when_the_last_living_reader_ends(run, redis_client):
    read(run, OTHER)
    read(run, ME, lease=5000)
    kill(redis_client, OTHER)
    assert about(redis_client.pttl(KEY), LEASE)
    assert about(write(run, THIRD), 5000)
    assert about(redis_client.pttl(KEY), 5000)


def test_write_release_frees_and_wakes_all(run, redis_client, heard):
    write(run, ME)
    assert end_write(run, ME) == 1
    assert redis_client.keys() == []
    assert heard() == [(RW_CHANNEL, "1")]


def test_write_release_leaves_the_holds_that_it_is_told(run, redis_client, lock, heard):
    for count in (1, 2, 3):
        write(run, ME, count, lease=5000)
    for _ in range(2):
        assert end_write(run, ME, 1) == 1
        assert lock() == ({"mode": "write", f"{ME}:write": "1"}, [])
    assert about(redis_client.pttl(KEY), LEASE)
    assert heard() == []


def test_write_release_steps_down_to_its_read_holds(run, redis_client, lock, heard):
    write(run, ME)
    read(run, ME, lease=5000)
    assert end_write(run, ME) == 1
    assert lock() == (reading(**{ME: "1"}), [f"{ME}:1"])
    assert about(redis_client.pttl(KEY), 5000)
    assert heard() == [(RW_CHANNEL, "1")]
    assert read(run, OTHER) == "OK"


def test_write_release_after_its_read_holds_ended(run, redis_client):
    write(run, ME)
    read(run, ME, lease=5000)
    kill(redis_client, ME)
    assert end_write(run, ME) == 1
    assert redis_client.keys() == []


@pytest.mark.parametrize("holder", [None, "reader", "writer", "own reader"])
def test_write_release_of_what_is_not_held(run, lock, heard, holder):
    if holder:
        (write if holder == "writer" else read)(run, ME if holder == "own reader" else OTHER)
    before = lock()
    assert end_write(run, ME) == 0
    assert lock() == before
    assert heard() == []


# --- writers that go first -------------------------------------------------------------------------------------------


def test_waiting_writer_keeps_new_readers_out(run, redis_client, lock):
    read(run, OTHER)
    assert about(write(run, ME, alive=ALIVE_FOR), LEASE)
    assert about(redis_client.pttl(WRITERS), ALIVE_FOR)
    before = lock()
    assert about(read(run, THIRD, yields=ALIVE_FOR), ALIVE_FOR)
    assert lock() == before
    assert read(run, OTHER, 2, yields=ALIVE_FOR) == "OK"  # who reads already
    assert read(run, THIRD, yields=0) == "OK"  # and who knows no preference


def test_heartbeat_of_readers_finds_what_they_may_enter(run, redis_client):
    def heartbeat(*, yields: bool) -> int:
        return run(scripts.READ_HEARTBEAT, int(yields))[0]

    assert heartbeat(yields=True) == 0, "the lock is free"
    write(run, OTHER)
    assert heartbeat(yields=True) == 1
    read(run, OTHER)
    redis_client.hset(KEY, "mode", "read")
    redis_client.hdel(KEY, f"{OTHER}:write")
    assert heartbeat(yields=True) == 0, "its writer has become a reader"
    write(run, ME, alive=ALIVE_FOR)
    assert [heartbeat(yields=yields) for yields in (True, False)] == [1, 0], "a writer waits"
    redis_client.zadd(WRITERS, {ME: 1})
    assert heartbeat(yields=True) == 0, "that writer is dead"


def test_writer_that_withdraws_lets_readers_in_and_keeps_what_it_holds(run, heard, lock):
    read(run, OTHER)
    write(run, ME, alive=ALIVE_FOR)
    assert run(scripts.WRITE_WITHDRAW, ME) == 1
    assert heard() == [(RW_CHANNEL, "1")]
    assert read(run, THIRD, yields=ALIVE_FOR) == "OK"
    end_read(run, THIRD), end_read(run, OTHER), write(run, ME)
    assert run(scripts.WRITE_WITHDRAW, ME) == 1
    assert lock()[0] == {"mode": "write", f"{ME}:write": "1"}


def test_waiting_writer_keeps_readers_from_a_free_lock(run, redis_client):
    read(run, OTHER)
    write(run, ME, alive=ALIVE_FOR)
    end_read(run, OTHER)
    assert about(read(run, THIRD, yields=ALIVE_FOR), ALIVE_FOR)
    assert write(run, ME) == "OK"
    assert not redis_client.exists(WRITERS)


def test_writer_reads_while_another_waits(run):
    write(run, OTHER)
    write(run, ME, alive=ALIVE_FOR)
    assert read(run, OTHER, yields=ALIVE_FOR) == "OK"
    assert read(run, THIRD, yields=ALIVE_FOR, writer=OTHER) == "OK"


def test_dead_writer_keeps_nobody_out(run, redis_client):
    read(run, OTHER)
    write(run, ME, alive=ALIVE_FOR)
    redis_client.zadd(WRITERS, {ME: 1})
    assert read(run, THIRD, yields=ALIVE_FOR) == "OK"


def test_writers_mark_from_a_clock_that_was_fast_is_brought_back(run, redis_client):
    """The writer may be dead, and would keep readers out until that time comes."""
    read(run, OTHER)
    write(run, ME, alive=ALIVE_FOR)
    redis_client.zadd(WRITERS, {each: now_ms(redis_client) + 3_600_000 for each in (ME, THIRD)})
    redis_client.persist(WRITERS)
    for _ in range(2):
        assert about(read(run, THIRD, yields=ALIVE_FOR), ALIVE_FOR)
    assert redis_client.zrange(WRITERS, now_ms(redis_client) + ALIVE_FOR + 1, "+inf", byscore=True) == []


def test_last_writer_that_gives_up_lets_readers_in(run, redis_client, heard):
    read(run, OTHER)
    for writer in (ME, THIRD):
        write(run, writer, alive=ALIVE_FOR)
    write(run, ME)
    assert redis_client.zrange(WRITERS, 0, -1) == [THIRD]
    assert heard() == []
    write(run, THIRD)
    assert not redis_client.exists(WRITERS)
    assert heard() == [(RW_CHANNEL, "1")]
    write(run, THIRD)
    assert heard() == []


def test_release_of_a_waiting_writer_gives_up(run, redis_client, heard):
    """As after an interruption, when it may hold the lock or wait for it."""
    read(run, OTHER)
    write(run, ME, alive=ALIVE_FOR)
    assert end_write(run, ME) == 0
    assert not redis_client.exists(WRITERS)
    assert heard() == [(RW_CHANNEL, "1")]


def test_reader_that_cannot_become_writer_does_not_wait(run, redis_client, heard):
    read(run, OTHER)
    write(run, ME, alive=ALIVE_FOR)
    read(run, ME)
    assert write(run, ME, alive=ALIVE_FOR) == "UPGRADE"
    assert not redis_client.exists(WRITERS)
    assert heard() == [(RW_CHANNEL, "1")]


def test_beat_keeps_the_writers_of_its_process_alive(run, redis_client):
    read(run, OTHER)
    mates = [f"{ME[:36]}:{number}" for number in range(2)]
    for writer in (*mates, THIRD):
        write(run, writer, alive=ALIVE_FOR)
    redis_client.zadd(WRITERS, {mates[0]: 2, mates[1]: 2, THIRD: 2})
    known, left = run(scripts.WRITE_HEARTBEAT, mates[0], ALIVE_FOR, 1)
    assert (known, about(left, LEASE)) == (1, True)
    now = redis_client.time()[0] * 1000
    assert [redis_client.zscore(WRITERS, each) > now for each in (*mates, THIRD)] == [True, True, False]
    assert about(redis_client.pttl(WRITERS), ALIVE_FOR)


def test_beat_finds_a_mark_that_was_lost(run, redis_client):
    """The writer retries and so makes a new one; the heartbeat makes none, because that writer may just have left."""
    read(run, OTHER)
    known, left = run(scripts.WRITE_HEARTBEAT, ME, ALIVE_FOR, 1)
    assert (known, about(left, LEASE)) == (0, True)
    assert run(scripts.WRITE_HEARTBEAT, ME, ALIVE_FOR, 0)[0] == 1
    assert not redis_client.exists(WRITERS)


def test_beat_finds_a_lock_that_fell_free(run, redis_client):
    redis_client.hset(KEY, OTHER, 1)
    assert run(scripts.WRITE_HEARTBEAT, ME, ALIVE_FOR, 0) == [1, -1]
    redis_client.delete(KEY)
    assert run(scripts.WRITE_HEARTBEAT, ME, ALIVE_FOR, 0) == [0, -2]


# --- questions and force ---------------------------------------------------------------------------------------------


def test_read_state(run, redis_client):
    assert run(scripts.READ_STATE, ME) == [0, -2, -2]
    write(run, ME)
    assert run(scripts.READ_STATE, ME) == [0, -2, -2]
    read(run, ME, lease=5000)
    read(run, ME, 2, lease=5000)
    count, longest, own = run(scripts.READ_STATE, ME)
    assert (count, about(longest, 5000), about(own, 5000)) == (2, True, True)
    count, longest, own = run(scripts.READ_STATE, OTHER)
    assert (count, about(longest, 5000), own) == (0, True, -2)
    kill(redis_client, ME, 1, 2)
    assert run(scripts.READ_STATE, ME) == [0, -2, -2]


def test_read_state_tells_an_owners_lease_from_the_longest(run):
    read(run, ME, lease=5000)
    read(run, OTHER, lease=60_000)
    _, longest, own = run(scripts.READ_STATE, ME)
    assert (about(longest, 60_000), about(own, 5000)) == (True, True)


def test_write_state(run):
    assert run(scripts.WRITE_STATE, ME) == [0, -2]
    read(run, ME)
    assert run(scripts.WRITE_STATE, ME) == [0, -2]
    end_read(run, ME)
    write(run, ME)
    write(run, ME, 2)
    count, left = run(scripts.WRITE_STATE, ME)
    assert (count, about(left, LEASE)) == (2, True)
    assert run(scripts.WRITE_STATE, OTHER)[0] == 0


@pytest.mark.parametrize("side", ["", "read"])
def test_force_release_of_all_readers(run, redis_client, heard, side):
    read(run, ME)
    read(run, ME, 2)
    read(run, OTHER)
    assert force(run, side="write") == 0
    assert heard() == []
    assert force(run, side=side) == 1
    assert redis_client.keys() == [REQUESTS]
    assert (RW_CHANNEL, "0") in heard()


@pytest.mark.parametrize("side", ["", "read"])
def test_force_release_of_one_reader(run, redis_client, lock, heard, side):
    read(run, ME)
    read(run, OTHER, lease=5000)
    assert force(run, THIRD, side) == 0
    assert force(run, ME, side) == 1
    assert lock() == (reading(**{OTHER: "1"}), [f"{OTHER}:1"])
    assert about(redis_client.pttl(KEY), 5000)
    assert heard() == [(RW_CHANNEL, "0")]


@pytest.mark.parametrize(("owner", "side"), [("", ""), ("", "write"), (f"{ME}:write", ""), (f"{ME}:write", "write")])
def test_force_release_of_a_writer(run, redis_client, heard, owner, side):
    write(run, ME)
    assert force(run, side="read") == 0
    assert force(run, f"{OTHER}:write", side) == 0
    assert heard() == []
    assert force(run, owner, side) == 1
    assert redis_client.keys() == [REQUESTS]
    assert (RW_CHANNEL, "1") in heard()


def test_force_release_of_a_writer_leaves_its_read_holds(run, redis_client, lock, heard):
    write(run, ME)
    read(run, ME, lease=5000)
    assert force(run, side="write") == 1
    assert lock() == (reading(**{ME: "1"}), [f"{ME}:1"])
    assert about(redis_client.pttl(KEY), 5000)
    assert heard() == [(RW_CHANNEL, "1")]


def test_force_release_of_a_writers_read_holds_leaves_it(run, lock):
    write(run, ME)
    read(run, ME)
    assert force(run, side="read") == 1
    assert lock() == ({"mode": "write", f"{ME}:write": "1"}, [])


def test_force_release_of_both_sides(run, redis_client, heard):
    write(run, ME)
    read(run, ME)
    assert force(run) == 1
    assert redis_client.keys() == [REQUESTS]
    assert (RW_CHANNEL, "1") in heard()


@pytest.mark.parametrize("side", ["read", "write"])
def test_force_release_of_a_side_passes_another_kind_of_lock(run, redis_client, side):
    redis_client.hset(KEY, OTHER, 1)
    assert force(run, side=side) == 0
    assert redis_client.hgetall(KEY) == {OTHER: "1"}


def test_force_release_hands_on_to_the_fair_queue(run, redis_client, heard):
    read(run, OTHER)
    redis_client.zadd(QUEUE, {ME: 1})
    redis_client.zadd(ALIVE, {ME[:36]: 9e15})
    assert force(run) == 1
    assert redis_client.hgetall(KEY) == {ME: CLAIMED}
    assert heard() == [(f"rlock_wake:{ME[:36]}", f"1 {ME} {KEY}"), (RW_CHANNEL, "0")]
