"""Whether locks are still held is asked of the servers, and who holds one for long hears at once that it was freed."""

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import redis

from django_rlock import FairLock, FencedLock, LockLostError, LockNotOwnedError, LockUnavailableError, RLock
from django_rlock._transport.worker import worker
from django_rlock.inspection import force_release
from django_rlock.locks import BaseLock, ReadLock, WriteLock, forced, rlock
from django_rlock.locks.forced import ForcedReleaseWatcher
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.kinds import forced_channel
from django_rlock.locks.records import Hold
from django_rlock.locks.transactions import ensure_owned
from tests.background import look_at, nudge, settle, until_heard
from tests.beside import beside
from tests.bindings import elsewhere
from tests.conftest import OwnServer
from tests.eventually import PATIENCE, eventually, in_threads
from tests.locks.conftest import several
from tests.operators import free_by_force
from tests.redlock.conftest import _five_servers, nodes  # noqa: F401

pytestmark = pytest.mark.lengthy


KINDS = [FairLock, RLock, FencedLock, ReadLock, WriteLock, several]


@pytest.fixture(params=KINDS, ids=lambda each: each.__name__)
def listening(request: pytest.FixtureRequest) -> Callable[..., BaseLock]:
    """Each kind whose holders hear of forced releases."""
    return request.param


# ---- asking ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"lease_time": 60}, {"owner": "order-7"}], ids=str)
def test_what_is_held_is_confirmed(any_kind, losses, options):
    with any_kind("stock:42", **options) as lock:
        before = lock.remaining_lease()
        ensure_owned([lock])
        lock.check()
        assert "lease_time" not in options or lock.remaining_lease() <= before
    settle()
    assert losses == []


@pytest.mark.parametrize("options", [{}, {"lease_time": 60}, {"owner": "order-7"}], ids=str)
def test_what_was_freed_is_lost(any_kind, losses, options):
    lock = any_kind("stock:42", **options)
    with pytest.raises(LockLostError), lock:
        free_by_force(lock.parts[-1].name)
        with pytest.raises(LockLostError, match="freed it"):
            ensure_owned([lock])
        assert lock.lost
    settle()
    assert losses == [lock.parts[-1].name]


def test_what_is_not_held_is_refused(any_kind):
    with pytest.raises(LockNotOwnedError):
        ensure_owned([any_kind("stock:42")])


def test_many_are_one_round_trip(redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(forced, "LISTEN_AFTER", PATIENCE)  # the background asks nothing, however long they are held
    with rlock("a", "b", "c") as several, FairLock("d") as one:
        settle()
        before = redis_client.info("commandstats")["cmdstat_evalsha"]["calls"]
        ensure_owned([several, one])
        assert redis_client.info("commandstats")["cmdstat_evalsha"]["calls"] == before + 1


def test_what_cannot_be_asked_is_not_confirmed(own_server: OwnServer):
    server = own_server()
    for lock in rlock("a"), rlock("a", "b"):
        with pytest.raises(LockUnavailableError), lock:
            server.kill()
            ensure_owned([lock])
        server = own_server()


def test_a_redlock_needs_its_majority(nodes, losses):  # noqa: F811
    with rlock("x", using="quorum") as lock:
        for server in nodes[:2]:
            with server.client() as client:
                client.delete("rlock:x")
        ensure_owned([lock])
    lock = rlock("x", using="quorum")
    with pytest.raises(LockLostError), lock:
        for server in nodes[:3]:
            with server.client() as client:
                client.delete("rlock:x")
        ensure_owned([lock])
    settle()
    assert losses == ["x"]


# ---- hearing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"lease_time": 600}, {"owner": "order-7"}], ids=str)
async def test_a_forced_release_is_heard(binding, listening, losses, options):
    lost = threading.Event()
    lock = listening("stock:42", on_lost=lambda _: lost.set(), **options) if listening is not several else several("s")
    await binding.acquire(lock)
    until_heard()
    for part in lock.parts:
        assert await elsewhere(binding, RLock(part.name), "force_release")
    await binding.until(lambda: lock.lost)
    with pytest.raises(LockLostError):
        await binding.release(lock)
    settle()
    assert set(losses) == {part.name for part in lock.parts}
    assert len(losses) == len(lock.parts)
    assert lost.is_set() or listening is several


async def test_one_before_it_listened_is_made_up_for(binding, listening, losses):
    lock = listening("stock:42")
    await binding.acquire(lock)
    for part in lock.parts:
        assert await elsewhere(binding, part, "force_release")
    await binding.until(lambda: len(losses) == len(lock.parts))
    with pytest.raises(LockLostError):
        await binding.release(lock)


async def test_a_holder_is_told_who_freed_its_lock_and_why(binding, listening, losses, caplog):
    lock = listening("stock:42")
    await binding.acquire(lock)
    until_heard()
    for part in lock.parts:
        with beside(force_release, part.name, reason="stuck", by="alice") as freed:
            await binding.until(freed.done)
    await binding.until(lambda: len(losses) == len(lock.parts))
    with pytest.raises(LockLostError, match="alice freed it by force: stuck"):
        await binding.release(lock)
    assert "alice freed it by force: stuck" in caplog.text


async def test_a_message_about_another_owner_explains_no_loss(binding, listening, losses, redis_client: redis.Redis):
    lock = listening("stock:42")
    await binding.acquire(lock)
    until_heard()
    for part in lock.parts:
        text = json.dumps([part.key, "another owner", "alice freed it by force"])
        redis_client.publish(forced_channel(part), text)
        redis_client.publish(forced_channel(part), "[[")
        redis_client.delete(part.key)
        redis_client.publish(forced_channel(part), part.key)
    await binding.until(lambda: len(losses) == len(lock.parts))
    with pytest.raises(LockLostError, match="another owner or an operator freed it"):
        await binding.release(lock)


async def test_a_message_proves_nothing(binding, listening, losses, redis_client: redis.Redis):
    lock = listening("stock:42")
    await binding.acquire(lock)
    until_heard()
    for part in lock.parts:
        assert redis_client.publish(forced_channel(part), part.key) == 1
    settle()
    lock.check()
    await binding.release(lock)
    assert losses == []


async def test_a_holder_who_frees_its_own_is_told_of_no_loss(binding, listening, losses):
    lock = listening("stock:42")
    await binding.acquire(lock)
    until_heard()
    assert await binding.call(lock, "force_release")
    settle()
    assert losses == []


async def test_the_other_side_of_a_read_write_lock_is_no_loss(binding, losses):
    read, write = ReadLock("stock:42"), WriteLock("stock:42")
    await binding.acquire(write)
    await binding.acquire(read)
    until_heard()
    assert await elsewhere(binding, write, "force_release")
    await binding.until(lambda: write.lost)
    read.check()
    await binding.release(read)
    with pytest.raises(LockLostError):
        await binding.release(write)


def test_a_server_that_starts_anew_without_its_data_is_noticed(own_server: OwnServer, losses):
    server = own_server()
    lock = FairLock("stock:42")
    lock.acquire()
    until_heard()
    server.kill()
    server.start()
    eventually(lambda: lock.lost)
    with pytest.raises(LockLostError):
        lock.release()
    eventually(lambda: losses == ["stock:42"])


def test_short_holds_do_not_listen(redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(forced, "LISTEN_AFTER", PATIENCE)  # and no stall makes a hold long
    listened: list[object] = []
    monkeypatch.setattr(ForcedReleaseWatcher, "_listen", lambda _, hold: listened.append(hold))
    for _ in range(20):
        with FairLock("stock:42"):
            settle()
    assert listened == []


def test_all_holds_of_a_process_listen_on_one_channel(server, redis_client: redis.Redis):
    with RLock("first"), FairLock("second"), ReadLock("third"):
        until_heard()
        assert redis_client.pubsub_channels("rlock_wake:*").count("rlock_wake:forced") == 1
        assert len({hold.subscription for hold in HOLDS.snapshot()}) == 1


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The locks that the background thread asks the server about."""
    names: list[str] = []
    ask = forced._ask_about

    async def note(holds: Sequence[Hold]) -> list[Hold]:
        names.extend(hold.lock.name for hold in holds)
        return await ask(holds)

    monkeypatch.setattr(forced, "_ask_about", note)
    return names


def test_only_what_was_freed_is_asked_about(losses, asked):
    freed = FairLock("second")
    freed.acquire()
    with RLock("first"):
        until_heard()
        asked.clear()
        in_threads(RLock("second").force_release)
        eventually(lambda: freed.lost)
        assert asked == ["second"]
        with pytest.raises(LockLostError):
            freed.release()


def test_what_was_taken_after_the_subscription_is_not_asked_about(redis_client, asked):
    """Its forced release would have been heard."""
    with RLock("first"):
        until_heard()
        with RLock("second"):
            until_heard()
    assert "second" not in asked


def test_what_was_taken_before_the_last_subscription_is_asked_about(redis_client, asked, monkeypatch):
    """Its forced release may have been missed."""
    with RLock("first"):
        until_heard()
        subscription: Any = HOLDS.snapshot()[0].subscription
        monkeypatch.setattr(forced, "LISTEN_AFTER", PATIENCE)
        with RLock("second"):
            subscribed_at = subscription.heard_at
            redis_client.client_kill_filter(_type="pubsub")
            eventually(lambda: subscription.heard_at > subscribed_at)
            monkeypatch.setattr(forced, "LISTEN_AFTER", 0.0)
            nudge()
            until_heard()
    assert "second" in asked


def test_what_was_freed_before_it_was_recorded_is_asked_about(redis_client, losses, monkeypatch):
    """The message comes while the acquire's reply is on its way to the caller."""
    with RLock("first"):
        until_heard()
        subscription: Any = HOLDS.snapshot()[0].subscription
        monkeypatch.setattr(forced, "LISTEN_AFTER", PATIENCE)
        freed, heard_at = RLock("second"), subscription.heard_at
        freed.acquire()
        hold = next(hold for hold in HOLDS.snapshot() if hold.lock is freed)
        HOLDS.remove(hold)
        redis_client.delete(freed.key)
        redis_client.publish(forced_channel(freed), freed.key)
        eventually(lambda: subscription.heard_at > heard_at)
        HOLDS.put(hold)
        monkeypatch.setattr(forced, "LISTEN_AFTER", 0.0)
        look_at(hold)
        eventually(lambda: losses == ["second"])
        with pytest.raises(LockLostError):
            freed.release()


def test_a_believed_grant_is_asked_about(redis_client, asked, monkeypatch):
    """The server granted it at an unknown time before."""
    with RLock("first"):
        until_heard()
        monkeypatch.setattr(forced, "LISTEN_AFTER", PATIENCE)
        with RLock("second"):
            hold = next(hold for hold in HOLDS.snapshot() if hold.lock.name == "second")
            hold.granted_until(hold.deadline - 1)
            monkeypatch.setattr(forced, "LISTEN_AFTER", 0.0)
            nudge()
            until_heard()
    assert "second" in asked


def test_holds_listen_on_so_many_channels_at_most(monkeypatch: pytest.MonkeyPatch):
    """A cluster has one for each lock."""
    settle()
    worker("default").jobs[ForcedReleaseWatcher]._subscriptions.clear()
    monkeypatch.setattr(forced, "forced_channel", lambda lock: f"rlock_wake:{lock.name}:forced")
    monkeypatch.setattr(forced, "MOST_CHANNELS", 2)
    with RLock("first"), RLock("second"):
        until_heard()
        monkeypatch.setattr(forced, "LISTEN_AFTER", 0.0)
        with RLock("third"):
            settle()
            assert sorted(hold.lock.name for hold in HOLDS.snapshot() if hold.subscription) == ["first", "second"]


def test_a_hold_that_begins_to_listen_looks_for_no_other(redis_client, monkeypatch):
    """A process with very many holds would do nothing else."""
    monkeypatch.setattr(forced, "LISTEN_AFTER", 0.0)
    searched: list[str] = []
    meant = ForcedReleaseWatcher._meant

    def search(self: ForcedReleaseWatcher, heard: set[tuple[str, str]]) -> list[Hold]:
        searched.extend(key for _, key in heard)
        return meant(self, heard)

    monkeypatch.setattr(ForcedReleaseWatcher, "_meant", search)
    locks = [RLock(f"stock:{number}") for number in range(5)]
    for lock in locks:
        lock.acquire()
        until_heard()
    assert {*searched} <= {""}  # all of a channel, when its subscription is confirmed
    for lock in locks:
        lock.release()
