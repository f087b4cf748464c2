"""Several locks as one, through both bindings."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest

from django_rlock import (
    FairLock,
    FencedLock,
    LimitedLock,
    LockLostError,
    LockNotOwnedError,
    LockTimeoutError,
    LockUnavailableError,
    LockUpgradeError,
    MultiLock,
    ReadLock,
    ReadWriteLock,
    RLock,
    SpinLock,
    WriteLock,
    rlock,
)
from django_rlock._redis.keys import token_key
from django_rlock.locks import BaseLock
from django_rlock.locks.groups import LockGroup
from django_rlock.locks.holds import HOLDS, WAITS
from django_rlock.signals import lock_timed_out
from tests.apart import ApartLock
from tests.bindings import elsewhere, held_elsewhere
from tests.bindings import visit_alone as visit
from tests.heard import heard, lock_name

A, B, C = (f"rlock:account:{letter}" for letter in "abc")


def three(kind, **times) -> MultiLock:
    return MultiLock(*(kind(f"account:{letter}") for letter in "cab"), **times)


def mixed(**times) -> MultiLock:
    """Some are taken by one script, and one by its own."""
    kinds = {"a": FairLock, "b": RLock, "c": SpinLock, "d": ApartLock}
    return MultiLock(*(kind(f"account:{letter}") for letter, kind in kinds.items()), **times)


@pytest.mark.parametrize("make", [lambda: three(FairLock), lambda: three(RLock), mixed], ids=["fair", "rlock", "mixed"])
async def test_all_are_taken_and_given_back(binding, redis_client, make):
    lock = make()
    assert await binding.acquire(lock)
    assert {A, B, C} <= {*redis_client.keys()}
    assert await binding.call(lock, "owned")
    assert await binding.call(lock, "hold_count") == 1
    assert 20 < await binding.call(lock, "remaining_lease") <= 30
    lock.check()
    await binding.release(lock)
    assert not {*redis_client.keys("rlock:*")}
    assert not await binding.call(lock, "locked")


KINDS: dict[str, Callable[..., BaseLock]] = {
    "fair": FairLock,
    "rlock": RLock,
    "spin": SpinLock,
    "fenced": FencedLock,
    "read": ReadLock,
    "write": partial(WriteLock, prefer="writer"),
    "limited": partial(LimitedLock, permits=2),
}


@pytest.mark.parametrize("kinds", [*([each] for each in KINDS), [*KINDS]], ids="-".join)
async def test_one_round_trip_each_way(binding, redis_client, kinds):
    lock = MultiLock(*(KINDS[each](f"{each}:{number}") for each in kinds for number in range(3)))
    async with binding.inside(lock):  # the scripts are known from here on
        pass
    sent = []  # what counts is the smallest round: holds that are long because of a stall are asked about
    for _ in range(5):
        redis_client.config_resetstat()
        async with binding.inside(lock):
            pass
        sent.append(redis_client.info("commandstats")["cmdstat_evalsha"]["calls"])
    assert min(sent) == 2


def sides(written="account:b", **options) -> MultiLock:
    """Members that several owners may hold, and others."""
    limited = LimitedLock("account:c", permits=2)
    return MultiLock(ReadLock("account:a"), WriteLock(written), limited, FencedLock(f"{written}:fenced"), **options)


async def test_members_of_any_kind_are_re_entered_and_released_one_by_one(binding, redis_client):
    async with binding.inside(ReadLock("account:a")), binding.inside(sides()):
        fenced = FencedLock("account:b:fenced")
        token = fenced.token
        assert token == int(redis_client.get(token_key(fenced.key)))
        async with binding.inside(sides()):
            counts = [[value for value in redis_client.hvals(key) if value.isdigit()] for key in (A, B, C, fenced.key)]
            assert counts == [["3"], ["2"], ["2"], ["2"]]
            assert fenced.token == token
    assert not redis_client.keys("rlock:*")
    assert not HOLDS


async def test_a_writer_may_read_as_one_of_several(binding, redis_client):
    """It has the write lock from before, or takes it with the others."""
    prices = ReadWriteLock("account:a")
    one, both = (prices.read_lock, RLock("account:b")), (prices.read_lock, prices.write_lock, FairLock("account:c"))
    async with binding.inside(prices.write_lock), binding.inside(MultiLock(*one)), binding.inside(MultiLock(*both)):
        assert sorted(redis_client.hvals(A)) == ["2", "2", "write"]
    assert not redis_client.keys("rlock:*")


async def test_a_reader_may_not_write_as_one_of_several(binding, redis_client):
    async with binding.inside(ReadLock("account:a")):
        with pytest.raises(LockUpgradeError, match="account:a"):
            await binding.acquire(MultiLock(WriteLock("account:a"), ReadLock("account:b"), FencedLock("account:c")))
        assert redis_client.keys("rlock:*") == [A]
    assert not redis_client.keys("rlock:*")


async def test_permits_are_counted_as_those_of_one_of_several(binding, redis_client):
    async with held_elsewhere(binding, sides("account:b")), held_elsewhere(binding, sides("account:e")):
        with pytest.raises(LockTimeoutError, match="account:c"):
            async with binding.inside(sides("account:f", wait_time=0.05)):
                pass
        assert not redis_client.exists("rlock:account:f")
    assert not redis_client.keys("rlock:*")


@pytest.mark.parametrize("kind", ["read", "write", "limited", "fenced"])
async def test_waiter_of_any_kind_is_woken_by_the_release_of_several(binding, redis_client, kind):
    """By a message: no lease ends here in time, and no poll comes."""
    holder = {"read": WriteLock, "limited": WriteLock}.get(kind, KINDS[kind])
    async with held_elsewhere(binding, MultiLock(holder("account:a"), RLock("account:b"), lease_time=600)):
        waiting = binding.start(visit, binding, KINDS[kind]("account:a"), [])
        await binding.until(WAITS.snapshot)
    await binding.result(waiting)


@pytest.mark.parametrize(
    ("make", "taken"), [*((partial(three, RLock), each) for each in "abc"), (mixed, "b"), (mixed, "d")]
)
async def test_none_is_taken_when_one_is_taken(binding, redis_client, make, taken):
    name = f"account:{taken}"
    async with held_elsewhere(binding, RLock(name)):
        before = {*redis_client.keys("rlock:*")}
        assert not await binding.acquire(make(), blocking=False)
        assert [await binding.call(make(), question) for question in ("locked", "owned")] == [True, False]
        with pytest.raises(LockNotOwnedError):
            await binding.release(make())
        assert {*redis_client.keys("rlock:*")} == before
        with pytest.raises(LockTimeoutError, match=name) as caught:
            async with binding.inside(make(wait_time=0.05)):
                pass
        assert caught.value.lock_name == name
        assert {*redis_client.keys("rlock:*")} == before


@pytest.fixture
def given_up():
    """The names of the locks that someone waited for in vain."""
    with heard(lock_timed_out, note=lock_name) as names:
        yield names


@pytest.mark.parametrize("kind", [RLock, ReadLock, ApartLock], ids=["together", "read", "alone"])
@pytest.mark.parametrize("wait_time", [0, 0.02])
async def test_giving_up_is_told_once(binding, redis_client, given_up, kind, wait_time):
    redis_client.hset(B, "another", 1)
    assert not await binding.acquire(three(kind), wait_time=wait_time)
    assert given_up == ["account:b"]


async def test_trying_a_member_again_is_not_giving_up(binding, redis_client, given_up):
    redis_client.hset(B, "another", 1)
    redis_client.pexpire(B, 20)
    async with binding.inside(three(ApartLock)):
        assert given_up == []


@pytest.mark.parametrize("kind", [FairLock, RLock])
async def test_waiter_is_woken(binding, kind):
    """By a release: no lease ends here in time, and no poll comes."""
    async with held_elsewhere(binding, kind("account:b", lease_time=600)):
        waiting = binding.start(visit, binding, three(kind), [])
        await binding.until(WAITS.snapshot)
    await binding.result(waiting)


async def test_members_are_re_entered(binding, redis_client):
    async with binding.inside(RLock("account:b")), binding.inside(three(RLock)):
        assert redis_client.hvals(B) == ["2"]
        async with binding.inside(three(RLock)):
            assert redis_client.hvals(B) == ["3"]
            assert redis_client.hvals(A) == ["2"]
            assert await binding.call(three(RLock), "hold_count") == 2
        assert redis_client.hvals(A) == ["1"]
    assert not redis_client.keys("rlock:*")


async def test_failed_attempt_leaves_what_was_held_before(binding, redis_client):
    async with held_elsewhere(binding, RLock("account:c")), binding.inside(RLock("account:b")):
        assert not await binding.acquire(three(RLock), blocking=False)
        assert redis_client.hvals(B) == ["1"]
        RLock("account:b").check()


async def test_rest_is_given_back_when_one_was_lost(binding, redis_client):
    for lock in (three(RLock), mixed()):
        await binding.acquire(lock)
        redis_client.delete(B)
        with pytest.raises(LockLostError, match="account:b"):
            await binding.release(lock)
        assert not redis_client.keys("rlock:*")


async def test_it_is_lost_when_one_is(binding, redis_client):
    lock = three(RLock, lease_time=30)
    await binding.acquire(lock)
    assert not lock.lost
    with suppress(LockLostError):  # where the machine is too slow for the lease
        await binding.call(lock, "extend", 0.05)
    await binding.until(lambda: lock.lost)
    with pytest.raises(LockLostError):
        lock.check()
    with pytest.raises(LockLostError):
        await binding.release(lock)
    with pytest.raises(LockNotOwnedError):
        await binding.release(lock)


async def test_leases_are_exact(binding, redis_client):
    async with binding.inside(mixed(lease_time=100)):
        left = [redis_client.pttl(key) for key in redis_client.keys("rlock:*")]
        deadlines = {hold.lock.name: hold.deadline for hold in HOLDS.snapshot()}
    assert all(99_000 < each <= 100_000 for each in left)
    # The last one was taken alone, and last; none ends before it.
    assert min(deadlines.values()) == deadlines["account:d"]


async def test_extend_and_force(binding, redis_client):
    lock = three(FairLock)
    await binding.acquire(lock)
    await binding.call(lock, "extend", 100)
    assert all(50_000 < redis_client.pttl(key) <= 100_000 for key in (A, B, C))
    assert await elsewhere(binding, lock, "force_release", reason="a test")
    assert not redis_client.keys("rlock:*")
    with pytest.raises(LockLostError):
        await binding.release(lock)


async def test_members_of_several_servers(binding, redis_client, own_server):
    own_server("elsewhere")
    lock = MultiLock(RLock("account:a"), RLock("account:b"), RLock("account:a", using="elsewhere"))
    async with binding.inside(lock):
        assert {A, B} == {*redis_client.keys("rlock:*")}
        assert RLock("account:a", using="elsewhere").remaining_lease() if binding.name == "sync" else True
    assert not redis_client.keys("rlock:*")


async def test_server_that_is_down_leaves_nothing_locked(binding, redis_client, own_server):
    server = own_server("elsewhere")
    lock = MultiLock(RLock("account:a"), RLock("account:b"), RLock("account:a", using="elsewhere"), wait_time=0.1)
    server.kill()
    with pytest.raises(LockUnavailableError):
        await binding.acquire(lock)
    await binding.until(lambda: not redis_client.keys("rlock:*"))


async def test_named_owner_leaves_nothing_locked_when_a_server_is_down(binding, redis_client, own_server):
    """The background thread must not release later what a name chosen by the caller may hold again."""
    server = own_server("elsewhere")
    lock = MultiLock(RLock("account:a"), RLock("account:a", using="elsewhere"), wait_time=0.1, owner="order 7")
    server.kill()
    with pytest.raises(LockUnavailableError):
        await binding.acquire(lock)
    assert not redis_client.keys("rlock:*")


async def test_loss_is_told_also_when_another_server_is_down(binding, redis_client, own_server):
    server = own_server("away")
    lock = MultiLock(RLock("account:a", using="away"), RLock("account:b"))
    await binding.acquire(lock)
    redis_client.delete(B)
    server.kill()
    with pytest.raises(LockLostError, match="account:b"):
        await binding.release(lock)


async def test_named_owner_moves_all(binding, redis_client):
    await binding.acquire(three(RLock, owner="order 7"))
    assert redis_client.hkeys(A) == redis_client.hkeys(C) == ["order 7"]
    HOLDS.clear()  # as in another process
    await binding.release(three(RLock, owner="order 7"))
    assert not redis_client.keys("rlock:*")


async def test_info_tells_of_the_first_that_is_held(binding):
    lock = three(RLock)
    assert await binding.call(lock, "info") is None
    async with binding.inside(RLock("account:b")):
        info = await binding.call(lock, "info")
    assert info.name == "account:b"


def test_name_given_twice_counts_once():
    lock = rlock("b", "a", "b")
    assert (lock.name, len(lock.parts)) == ("a, b", 2)
    assert MultiLock(lock, rlock("c")).name == "a, b, c"


@pytest.mark.parametrize(
    ("locks", "error", "words"),
    [
        ([], ValueError, "at least one"),
        (["a"], TypeError, "consists of locks, not of 'a'"),
        ([None], TypeError, "consists of locks"),
    ],
)
def test_what_is_no_lock_is_refused(locks, error, words):
    with pytest.raises(error, match=words):
        MultiLock(*locks)


def test_one_script_never_mixes_aliases(settings):
    settings.RLOCK = {"default": {}, "other": {"KEY_PREFIX": "other:"}}
    with pytest.raises(ValueError, match=r"several aliases \(default, other\)"):
        LockGroup([RLock("a"), RLock("a", using="other")])


TURNS = 300
"""Of others, within which it must have had its own."""


async def test_it_gets_its_turn_where_all_members_are_always_taken(binding):
    """Each of them is held by one and waited for by others all the time."""
    inside: dict[str, object] = {}
    turns: list[str] = []

    async def take_again_and_again(name: str) -> None:
        while len(turns) < TURNS:
            async with binding.inside(FairLock(name)) as lock:
                assert inside.setdefault(name, lock) is lock, "two inside at once"
                turns.append(name)
                await binding.sleep(0.002)
                del inside[name]

    names = [f"account:{letter}" for letter in "abc"]
    others = [binding.start(take_again_and_again, name) for name in names for _ in range(4)]
    await binding.until(lambda: len(turns) >= 30)
    lock = three(FairLock)
    async with binding.inside(lock):
        waited = len(turns)
        assert not inside
        lock.check()
        inside.update(dict.fromkeys(names, lock))
        await binding.sleep(0.002)
        inside.clear()
    await binding.results(others)
    assert waited < TURNS


def test_a_lock_needs_a_name():
    with pytest.raises(ValueError, match=r"^No lock was named: give one name or several, as in rlock\('stock:42'\)\.$"):
        rlock()
    with pytest.raises(TypeError, match=r"^rlock\(\) takes names without a keyword: write rlock\('stock:42'\)\.$"):
        rlock(name="stock:42")  # type: ignore[call-overload]
