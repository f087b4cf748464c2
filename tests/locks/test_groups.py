"""Locks that one script took are freed by one script, unless one of them was used on its own."""

import threading

import pytest

from django_rlock import FairLock, FencedLock, LimitedLock, LockNotOwnedError, MultiLock, ReadLock, RLock, rlock
from django_rlock._core.clock import monotonic
from django_rlock._transport.identity import current_owner
from django_rlock._transport.registry import sync_driver
from django_rlock.locks import forced
from django_rlock.locks.groups import Grouping, LockGroup, _as_taken
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.records import Work, context
from django_rlock.signals import lock_acquired, lock_released
from tests.background import settle
from tests.beside import in_another_thread
from tests.eventually import PATIENCE
from tests.heard import heard

A, B, C = KEYS = [f"rlock:account:{letter}" for letter in "abc"]
NAMES = [key.removeprefix("rlock:") for key in KEYS]


@pytest.fixture(params=[FairLock, RLock], ids=lambda each: each.kind)
def kind(request):
    return request.param


@pytest.fixture
def three(kind):
    return MultiLock(*map(kind, NAMES))


@pytest.fixture
def unwatched(monkeypatch):
    """The watchdog, which makes a hold of each member, has yet to look."""
    monkeypatch.setattr("django_rlock.locks.multi.watch_group", lambda *_: None)


def taken(lock, owner=None):
    """The group that one script frees as it took it; None if something has happened to a member."""
    (group,) = Grouping(sync_driver(lock.using), lock.parts).pieces
    return _as_taken(group, owner or current_owner(), monotonic())


def sent_scripts(redis_client):
    calls = {name: stat["calls"] for name, stat in redis_client.info("commandstats").items()}
    return calls["cmdstat_evalsha"] + calls.get("cmdstat_eval", 0)


async def enter_again(binding, member) -> None:
    async with binding.inside(member):
        assert await binding.call(member, "hold_count") == 2


async def extend(binding, member) -> None:
    await binding.call(member, "extend", 100)
    assert 99 < await binding.call(member, "remaining_lease") <= 100


async def check(binding, member) -> None:
    member.check()
    assert not member.lost


async def be_reported(binding, member) -> None:
    assert [hold.lock.name for hold in HOLDS.snapshot()] == NAMES


@pytest.mark.parametrize("ask", [enter_again, extend, check, be_reported])
@pytest.mark.usefixtures("unwatched")
async def test_members_that_were_used_alone_are_freed_with_the_others(binding, redis_client, three, kind, ask):
    await binding.acquire(three)
    assert taken(three)
    await ask(binding, kind("account:b"))
    assert [redis_client.hvals(key) for key in KEYS] == [["1"]] * 3
    await binding.release(three)
    assert not redis_client.keys("rlock:*")
    assert not HOLDS


@pytest.mark.usefixtures("unwatched")
async def test_another_handle_of_the_same_names_gives_back_the_whole(binding, redis_client, three):
    await binding.acquire(three)
    redis_client.config_resetstat()
    await binding.release(rlock(*NAMES))
    assert sent_scripts(redis_client) <= 2  # the script may be new to the server
    assert not redis_client.keys("rlock:*")


async def test_some_of_the_members_are_given_back(binding, redis_client, three, kind):
    await binding.acquire(three)
    await binding.release(MultiLock(kind("account:a"), kind("account:c")))
    assert redis_client.keys("rlock:*") == [B]
    with pytest.raises(LockNotOwnedError, match="account:a"):
        await binding.release(three)
    assert not redis_client.keys("rlock:*")
    assert not HOLDS


async def test_groups_and_single_holds_are_freed_by_one_script_each(binding, redis_client, kind, monkeypatch):
    """All locks of one attempt have one owner id."""
    monkeypatch.setattr(forced, "LISTEN_AFTER", PATIENCE)  # the background asks nothing, however long they are held
    parts = [kind(f"account:{number}") for number in range(5)]
    for some in (MultiLock(*parts[:2]), MultiLock(*parts[2:4]), parts[4]):
        await binding.acquire(some)
    redis_client.config_resetstat()
    await binding.release(MultiLock(*parts))
    assert sent_scripts(redis_client) <= 5  # the scripts may be new to the server
    assert not redis_client.keys("rlock:*")


async def test_a_forced_release_of_one_leaves_the_others(binding, redis_client, three, kind):
    await binding.acquire(three)
    assert await binding.call(kind("account:b"), "force_release")
    assert {*redis_client.keys("rlock:*")} == {A, C}
    kind("account:a").check()
    with pytest.raises(LockNotOwnedError, match="account:b"):
        await binding.release(three)
    assert not redis_client.keys("rlock:*")


@pytest.mark.usefixtures("unwatched")
async def test_others_are_asked_about_themselves_only(binding, redis_client, three):
    """A request or a task that ends looks for what it left, and leaves the holds of other owners as they are."""
    owners: list[object] = []
    gate = threading.Event()

    async def hold() -> None:
        async with binding.inside(three):
            owners.append(current_owner())
            await binding.until(gate.is_set)

    holding = binding.start(hold)
    await binding.until(lambda: owners)
    assert HOLDS.of(current_owner()) == HOLDS.under(Work({})) == []
    assert await binding.call(RLock("account:d"), "locked") is False
    with pytest.raises(LockNotOwnedError):
        await binding.release(RLock("account:d"))
    assert taken(three, owners[0])
    gate.set()
    await binding.result(holding)


async def test_members_keep_the_context_in_which_they_were_taken(binding, three):
    """Though another thread looks first."""
    about = Work({"route": "transfer"})
    token = context.set(about)
    await binding.acquire(three)
    context.reset(token)
    assert in_another_thread(lambda: [hold.context for hold in HOLDS.snapshot()]) == [about] * 3
    assert len(HOLDS.under(about)) == 3
    await binding.release(three)


async def test_all_are_renewed_though_the_first_was_given_back(binding, settings, three, kind):
    settings.RLOCK = {"default": {"WATCHDOG_TIMEOUT": 3.0}}
    await binding.acquire(three)
    await binding.release(kind("account:a"))
    settle()
    before = {hold.lock.name: hold.deadline for hold in HOLDS.snapshot()}
    assert [*before] == NAMES[1:]
    await binding.until(lambda: all(hold.deadline > before[hold.lock.name] for hold in HOLDS.snapshot()))
    await binding.release(MultiLock(*map(kind, NAMES[1:])))


async def test_signals_come_for_each_member(binding, three):
    with heard(lock_acquired, lock_released) as told:
        async with binding.inside(three):
            pass
    sent = [(each["signal"], each["lock"].name) for each in told]
    assert sent == [(signal, name) for signal in (lock_acquired, lock_released) for name in NAMES]


async def test_changed_settings_reach_a_lock_that_was_used_before(binding, redis_client, settings, three):
    async with binding.inside(three):
        assert {*redis_client.keys()} >= {*KEYS}
    settings.RLOCK = {"default": {"KEY_PREFIX": "other:"}}
    async with binding.inside(three):
        assert not redis_client.keys("rlock:account:*")
        assert len(redis_client.keys("other:account:*")) == 3


async def test_a_queue_that_nobody_waits_in_any_more_keeps_nobody_out(binding, redis_client, three, kind):
    """Its processes have died, and the next client finds that."""
    dead = f"{'a' * 14}8{'a' * 21}:1"
    redis_client.zadd(f"rlock_queue:{{{B}}}", {dead: 1})
    # To the plain kind it means that others wait, until the lease of a grant or the queue's own life ends.
    lock = MultiLock(FairLock("account:a"), FairLock("account:b"), FencedLock("account:c"))
    async with binding.inside(lock):
        assert all(redis_client.exists(key) for key in KEYS)
    assert not redis_client.keys("rlock*account*")


@pytest.mark.parametrize(
    ("kinds", "sizes"),
    [
        ([RLock] * 1000, [1000]),
        ([FairLock] * 2100, [1000, 1000, 100]),
        ([FencedLock] * 501, [500, 1]),
        ([ReadLock] * 450, [200, 200, 50]),
        ([LimitedLock] * 201, [200, 1]),
        ([ReadLock] * 100 + [RLock] * 501, [600, 1]),
    ],
    ids=lambda each: None,
)
def test_a_script_takes_fewer_locks_of_a_sort_that_keeps_the_server_busy_for_longer(kinds, sizes):
    lock = MultiLock(*[kind(f"stock:{number:04}") for number, kind in enumerate(kinds)])
    pieces = Grouping(sync_driver("default"), lock.parts).pieces
    assert [len(each.locks) if isinstance(each, LockGroup) else 1 for each in pieces] == sizes


async def test_readers_that_several_scripts_take_are_freed_by_as_many(binding, redis_client):
    lock = MultiLock(*[ReadLock(f"stock:{number}") for number in range(250)])
    await binding.acquire(lock)
    await binding.release(lock)
    redis_client.config_resetstat()
    await binding.acquire(lock)
    assert len(HOLDS.snapshot()) == 250
    await binding.release(lock)
    assert sent_scripts(redis_client) == 4
    assert not HOLDS
    assert not redis_client.keys("*")
