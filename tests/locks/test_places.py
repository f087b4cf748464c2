"""Aliases with the same server, database and prefix share their locks, in this process, too."""

import random
from functools import partial

import pytest
from django.conf import settings as django_settings

from django_rlock import FairLock, LockLostError, LockNotOwnedError, MultiLock, ReadLock, WriteLock, rlock
from django_rlock._transport.identity import Owner
from django_rlock.locks.holds import HOLDS, Holds
from django_rlock.locks.places import PLACES, first_alias
from django_rlock.locks.records import Hold, Work, context, key_of, spot_of
from tests.beside import held_beside
from tests.bindings import elsewhere


@pytest.fixture
def aliases(settings):
    """Of one cache, of another entry for the same database; and others that share no locks with these."""
    entry = django_settings.CACHES["default"]
    options = {"OPTIONS": {"CONNECTION_POOL_KWARGS": {"db": 1}}}
    url = entry["LOCATION"].partition("?")[0]
    settings.CACHES = {"default": entry, "twin": {**entry, "OPTIONS": {}}, "db": {**entry, "LOCATION": url, **options}}
    settings.RLOCK = {
        "default": {},
        "long": {"WATCHDOG_TIMEOUT": 300},
        "twin": {"CACHE": "twin"},
        "prefix": {"KEY_PREFIX": "other:"},
        "db": {"CACHE": "db"},
    }


def test_the_place_is_the_database_and_the_prefix(aliases, settings):
    places = {alias: PLACES.value[alias] for alias in settings.RLOCK}
    assert len({places[alias] for alias in ("default", "long", "twin")}) == 1
    assert len(set(places.values())) == 3
    assert [first_alias(alias) for alias in places] == ["default", "default", "default", "prefix", "db"]
    assert PLACES.value["unknown"] == first_alias("unknown") == "unknown"
    settings.RLOCK = {"default": {}, "a": {}, "long": {"KEY_PREFIX": "other:"}}
    assert PLACES.value["default"] == PLACES.value["a"] == places["default"]
    assert PLACES.value["long"] == places["prefix"]


@pytest.mark.parametrize("using", ["long", "twin"])
async def test_an_inner_block_under_another_alias_does_not_end_the_outer_one(binding, aliases, kind, using):
    outer, inner = kind("stock:1"), kind("stock:1", using=using)
    await binding.acquire(outer)
    await binding.acquire(inner)
    assert await binding.call(outer, "hold_count") == await binding.call(inner, "hold_count") == 2
    await binding.release(inner)
    assert not await elsewhere(binding, kind("stock:1"), "acquire", wait_time=0)
    assert outer.held
    assert inner.held
    await binding.release(inner)
    with pytest.raises(LockNotOwnedError):
        await binding.release(outer)
    assert not await binding.call(inner, "locked")


@pytest.fixture
def other_address(settings, tmp_path):
    """An alias for the same server, which only the server could tell."""
    entry = django_settings.CACHES["default"]
    path, _, rest = entry["LOCATION"].removeprefix("unix://").partition("?")
    (tmp_path / "redis").symlink_to(path)
    settings.CACHES = {"default": entry, "other": {**entry, "LOCATION": f"unix://{tmp_path / 'redis'}?{rest}"}}
    settings.RLOCK = {"default": {}, "other": {"CACHE": "other"}}


async def test_under_a_name_two_addresses_of_a_server_are_as_two_processes(binding, other_address):
    """They share the lock, and each has a hold: docs/owners.md."""
    outer, inner = [FairLock("stock:1", owner="order 7", using=alias) for alias in ("default", "other")]
    await binding.acquire(outer)
    await binding.acquire(inner)
    assert [hold.count for hold in HOLDS.snapshot()] == [1, 1]
    await binding.release(inner)
    assert not await binding.call(outer, "locked")
    with pytest.raises(LockLostError):
        await binding.release(outer)


async def test_under_another_address_of_the_server_its_holder_waits_too(binding, other_address, kind):
    outer, inner = kind("stock:1"), kind("stock:1", using="other")
    async with binding.inside(kind("stock:2", using="other")):
        """Connects, however busy this machine is."""
    await binding.acquire(outer)
    assert not await binding.acquire(inner, wait_time=0.01)
    with pytest.raises(LockNotOwnedError):
        await binding.release(inner)
    assert not await binding.acquire(MultiLock(kind("stock:0"), inner), wait_time=0)
    assert not await elsewhere(binding, kind("stock:1"), "acquire", wait_time=0)
    await binding.call(outer, "extend", 60)
    await binding.release(outer)
    assert await binding.acquire(inner)
    await binding.release(inner)


async def test_a_lock_twice_in_a_multilock_by_two_addresses_is_refused(binding, other_address, kind):
    assert not await binding.acquire(MultiLock(kind("stock:1"), kind("stock:1", using="other")), wait_time=0)
    assert not HOLDS
    assert not await binding.call(kind("stock:1"), "locked")


async def test_the_options_of_the_alias_that_took_it_apply(binding, aliases, kind):
    first, second = kind("stock:1"), kind("stock:1", using="long")
    await binding.acquire(first)
    await binding.acquire(second)
    assert [hold.lease for hold in HOLDS.snapshot()] == [30]
    await binding.release(second)
    await binding.release(second)
    await binding.acquire(second)
    await binding.acquire(first)
    assert [hold.lease for hold in HOLDS.snapshot()] == [300]
    await binding.release(first)
    await binding.release(first)


async def test_a_multilock_takes_a_lock_of_two_aliases_once(binding, aliases, kind):
    lock = MultiLock(kind("b", using="long"), kind("a", using="twin"), kind("b"), kind("a", using="prefix"))
    assert [(part.using, part.name) for part in lock.parts] == [("twin", "a"), ("default", "b"), ("prefix", "a")]
    await binding.acquire(lock)
    await binding.acquire(kind("a"))
    assert sorted(hold.count for hold in HOLDS.snapshot()) == [1, 1, 2]
    await binding.release(kind("a", using="long"))
    await binding.release(lock)
    assert HOLDS.snapshot() == []


async def test_other_databases_and_prefixes_are_other_locks(binding, aliases, kind):
    await binding.acquire(kind("stock:1"))
    for using in "prefix", "db":
        assert not kind("stock:1", using=using).held
        await binding.acquire(kind("stock:1", using=using))
        await binding.release(kind("stock:1", using=using))
    await binding.release(kind("stock:1"))


async def test_both_sides_of_a_lock_are_found_by_its_name(binding, aliases):
    reader = ReadLock("stock:1", using="long")
    with held_beside(reader), held_beside(reader), held_beside(reader):
        assert len(HOLDS.held_against(WriteLock("stock:1"))) == 3
        assert HOLDS.held_against(ReadLock("stock:1")) == HOLDS.held_against(WriteLock("stock:2")) == []
    assert not any(HOLDS._near)


def test_what_is_noted_beside_the_table_agrees_with_it():
    """Whatever the order in which owners take, replace, restore and remove holds."""
    table, owners = Holds(), [Owner(str(number)) for number in range(3)]
    works, chance = [Work({"route": str(number)}) for number in range(2)], random.Random(7)
    for _ in range(2000):
        owner, work = chance.choice(owners), chance.choice([*works, None])
        lock = chance.choice([FairLock, ReadLock, WriteLock])(chance.choice("ab"))
        token = context.set(work)
        new = Hold(key_of(lock, owner), lock, owner, "x", 0.0)
        context.reset(token)
        outer = table.at(new.key)
        deed = chance.choice(["put", "put", "remove", "remove_beside_owner", "all", "restore"])
        if deed in {"put", "restore"}:
            table.put(new)
            if outer is not None:
                table.remove(outer)
        if deed == "restore":
            table.restore(new.key, outer)
        elif deed == "all":
            table.remove_all(table.of(owner))
        elif deed != "put" and outer is not None:
            getattr(table, deed)(outer)
        agree(table, owners, works)
    table.remove_all(table.snapshot())
    assert not table.table
    assert not any(table._near)


def agree(table, owners, works):
    held = table.snapshot()
    for owner in owners:
        assert set(table.of(owner)) == set(owner.holds) == {hold for hold in held if hold.owner is owner}
    for work in works:
        assert set(table.under(work)) == set(work.holds) == {hold for hold in held if hold.context is work}
    for name in "ab":
        named = {hold for hold in held if hold.lock.name == name}
        assert set(table.named(spot_of(FairLock(name)))) == named


NESTED = {
    "default kind": rlock,
    "write": partial(rlock, kind="write"),
    "read": partial(rlock, kind="read"),
    "limited": partial(rlock, permits=1),
    "several": lambda name, **options: rlock(name, "other", **options),
    "named": partial(rlock, owner="me"),
}


@pytest.mark.parametrize("make", NESTED.values(), ids=NESTED)
def test_a_nested_block_of_each_kind(aliases, make):
    with make("stock:1") as outer:
        with make("stock:1", using="long"), make("stock:1", using="twin"):
            outer.check()
        outer.check()
        assert outer.locked()
    assert not outer.locked()


def test_nodes_in_another_order_are_the_same_place(settings):
    nodes = ["redis://127.0.0.1:1/0", "redis://127.0.0.1:2/0", "redis://127.0.0.1:3/0"]
    settings.RLOCK = {"default": {}, "quorum": {"NODES": nodes}, "turned": {"NODES": nodes[::-1]}}
    assert PLACES.value["quorum"] == PLACES.value["turned"] != PLACES.value["default"]


def test_a_lock_that_is_held_while_aliases_change_is_released(settings):
    settings.RLOCK = {"default": {}}
    lock = rlock("stock:1")
    with lock:
        settings.RLOCK = {"another": {}, "default": {"WATCHDOG_TIMEOUT": 60}}
        lock.check()
    assert not lock.locked()
