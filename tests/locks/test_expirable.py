"""The expirable semaphore: permits with ids and leases, which come back by themselves."""

import re

import pytest

from django_rlock import (
    LockLostError,
    LockTimeoutError,
    LockUnavailableError,
    Permit,
    PermitExpirableSemaphore,
    PermitNotHeldError,
)
from django_rlock._redis import scripts
from django_rlock._transport.worker import worker
from django_rlock.locks.holds import HOLDS, WAITS
from django_rlock.locks.watchdog import Renewals
from tests.background import nudge, renew_now
from tests.eventually import eventually
from tests.processes import ClientProcess

pytestmark = pytest.mark.lengthy

KEY, PERMITS, CHANNEL = "rlock:licences", "{rlock:licences}:timeout", "redisson_sc:{rlock:licences}"
NEVER = 922337203685477
UNKNOWN = "0" * 32
TAKE = "state.update(permit=__import__('django_rlock').PermitExpirableSemaphore('licences').acquire(2, renewed=True))"


@pytest.fixture
def licences(redis_client):
    """A semaphore of three permits."""
    redis_client.set(KEY, 3)
    return PermitExpirableSemaphore("licences")


@pytest.fixture
def ends(server):
    """Returns the permits that are taken, by their ids, and when they end."""
    with server.client(decode_responses=False) as client:
        yield lambda: {each.hex(): ms for each, ms in client.zrange(PERMITS, 0, -1, withscores=True)}


async def test_permits_have_ids_and_leases(binding, licences, ends, redis_client):
    permit = await binding.call(licences, "acquire", lease_time=20)
    assert re.fullmatch("[0-9a-f]{32}", permit.id)
    assert set(ends()) == {permit.id}
    assert 15 < await binding.call(licences, "lease_time", permit) <= 20
    for_ever = await binding.call(licences, "acquire", 2)
    assert {ends()[each] for each in for_ever.ids} == {NEVER}
    assert await binding.call(licences, "lease_time", for_ever.ids[0]) is None
    assert await binding.call(licences, "acquire", blocking=False) is None
    numbers = [await binding.call(licences, f"{which}_permits") for which in ("available", "acquired", "total")]
    assert numbers == [0, 3, 3]
    assert (permit.lost, for_ever.lost) == (False, False)
    permit.check()
    assert str(permit) == f"<Permit {permit.id} of PermitExpirableSemaphore('licences', using='default')>"
    with pytest.raises(ValueError, match="Expected one permit, not 2"):
        for_ever.id  # noqa: B018


async def test_permits_are_given_back_by_their_ids(binding, licences, redis_client):
    permit = await binding.call(licences, "acquire", 3)
    first, *rest = permit.ids
    await binding.call(licences, "release", first)
    assert redis_client.get(KEY) == "1"
    assert await binding.call(licences, "try_release", [*rest, rest[0]]) == 2
    assert redis_client.get(KEY) == "3"
    assert await binding.call(licences, "try_release", permit) == 0
    with pytest.raises(PermitNotHeldError, match=rf"{first}.* of semaphore 'licences' are taken") as caught:
        await binding.call(permit, "release")
    assert caught.value.ids == permit.ids
    assert await binding.call(licences, "try_release", []) == 0
    await binding.call(licences, "release", [])


async def test_any_unknown_id_leaves_all_as_they_are(binding, licences, redis_client):
    permit = await binding.call(licences, "acquire", renewed=True)
    assert await binding.call(licences, "try_release", [permit.id, UNKNOWN]) == 0
    assert redis_client.get(KEY) == "2"
    assert [hold.owner_id for hold in HOLDS.snapshot()] == [permit.id]  # it is renewed as before
    await binding.call(permit, "release")
    assert HOLDS.snapshot() == []
    assert redis_client.get(KEY) == "3"


async def test_waiter_is_woken_by_a_release(binding, licences):
    permit = await binding.call(licences, "acquire", 3)
    waiter = binding.start(binding.call, licences, "acquire")
    await binding.until(WAITS.snapshot)
    await binding.call(permit, "release")
    assert isinstance(await binding.result(waiter), Permit)


async def test_waiter_gets_what_a_lease_leaves(binding, licences):
    """It gets no message: it knows when the first lease ends."""
    ended = await binding.call(licences, "acquire", 3, lease_time=0.2)
    permit = await binding.call(licences, "acquire", 2, wait_time=15)
    assert permit
    assert ended.lost
    with pytest.raises(LockLostError, match=r"Permit of semaphore .*: its lease ended"):
        ended.check()
    assert await binding.call(licences, "try_release", ended) == 0
    assert await binding.call(licences, "available_permits") == 1


async def test_block_gives_back(binding, licences, redis_client):
    async with binding.inside(licences.permit(2, lease_time=20)) as permit:
        assert len(permit.ids) == 2
        assert redis_client.get(KEY) == "1"
        with pytest.raises(LockTimeoutError, match="held by others, who have all its permits"):
            async with binding.inside(licences.permit(2, wait_time=0)):
                raise AssertionError
    assert redis_client.get(KEY) == "3"


async def test_block_whose_lease_ended(binding, licences, redis_client):
    with pytest.raises(LockLostError):
        async with binding.inside(licences.permit(lease_time=20)):
            redis_client.delete(PERMITS)
    with pytest.raises(KeyError):
        async with binding.inside(licences.permit(lease_time=20)):
            redis_client.delete(PERMITS)
            raise KeyError


# --- renewal ---------------------------------------------------------------------------------------------------------


async def test_renewed_permits_are_renewed_until_given_back(binding, licences, ends, redis_client):
    permit = await binding.call(licences, "acquire", 2, renewed=True)
    assert 25 < await binding.call(licences, "lease_time", permit.ids[0]) <= 30
    holds = HOLDS.snapshot()
    first = ends()
    for hold in holds:
        renew_now(hold)
    await binding.until(lambda: all(ends()[each] > first[each] for each in permit.ids))
    assert not permit.lost
    await binding.call(permit, "release")
    assert (HOLDS.snapshot(), ends(), redis_client.get(KEY)) == ([], {}, "3")
    for hold in holds:
        renew_now(hold)
    nudge()
    assert ends() == {}


async def test_renewed_permit_that_an_operator_took_is_lost(binding, redis_client):
    reported: list[object] = []
    redis_client.set(KEY, 3)
    licences = PermitExpirableSemaphore("licences", on_lost=reported.append)
    permit = await binding.call(licences, "acquire", renewed=True)
    redis_client.delete(PERMITS)
    renew_now(HOLDS.snapshot()[0])
    await binding.until(lambda: permit.lost)
    await binding.until(lambda: reported == [licences])
    with pytest.raises(LockLostError, match="another owner or an operator"):
        permit.check()
    with pytest.raises(PermitNotHeldError):
        await binding.call(permit, "release")


@pytest.mark.lengthy
async def test_permit_that_was_not_given_back_is_looked_at_again(
    binding, licences, redis_client, settings, monkeypatch
):
    """The watchdog came by while its release was under way; it is forgotten one day all the same."""
    settings.RLOCK = {"default": {"WATCHDOG_TIMEOUT": 3}}
    permit = await binding.call(licences, "acquire", renewed=True)
    (hold,) = permit._holds
    renewals = worker("default").jobs[Renewals]
    await binding.until(lambda: _is_planned(renewals, hold))
    redis_client.delete(KEY, PERMITS)

    async def release_slowly(self, *args):
        released = await release(self, *args)
        await binding.until(lambda: not _is_planned(renewals, hold))
        return released

    release = PermitExpirableSemaphore._surely
    monkeypatch.setattr(PermitExpirableSemaphore, "_surely", release_slowly)
    with pytest.raises(PermitNotHeldError):
        await binding.call(permit, "release")
    await binding.until(lambda: hold.reported)


def _is_planned(renewals, hold):
    return any(planned is hold for _, planned in renewals._due)


async def test_new_lease_ends_the_renewal(binding, licences, ends):
    permit = await binding.call(licences, "acquire", renewed=True)
    assert await binding.call(licences, "update_lease_time", permit, 100) is True
    assert [hold.renewed for hold in HOLDS.snapshot()] == [False]
    assert 90 < await binding.call(licences, "lease_time", permit) <= 100
    assert await binding.call(licences, "update_lease_time", permit.id, None) is True
    assert ends() == {permit.id: NEVER}
    assert (permit.lost, HOLDS.snapshot()) == (False, [])
    await binding.call(permit, "release")
    assert await binding.call(licences, "update_lease_time", permit, 100) is False
    with pytest.raises(PermitNotHeldError):
        await binding.call(licences, "lease_time", permit)


async def test_block_that_gives_back_by_itself_has_lost_nothing(binding, licences, redis_client):
    with pytest.raises(PermitNotHeldError):
        async with binding.inside(licences.permit(lease_time=20)) as permit:
            await binding.call(permit, "release")
    assert redis_client.get(KEY) == "3"


async def test_several_permits_have_no_lease_in_common(binding, licences):
    permit = await binding.call(licences, "acquire", 2, lease_time=20)
    with pytest.raises(ValueError, match="Expected one permit, not 2"):
        permit.id  # noqa: B018
    with pytest.raises(ValueError, match="Expected one permit, not 2"):
        await binding.call(licences, "update_lease_time", permit, 30)
    with pytest.raises(ValueError, match="Expected one permit, not 2"):
        await binding.call(licences, "lease_time", permit)
    await binding.call(permit, "release")


async def test_nothing_is_renewed_while_a_new_lease_is_under_way(binding, licences, proxy):
    """A renewal that overtakes it would make a shorter lease longer again."""
    permit = await binding.call(licences, "acquire", renewed=True)
    reply = proxy.hold_reply(scripts.PERMIT_RENEW)
    changing = binding.start(binding.call, licences, "update_lease_time", permit, 5)
    await binding.until(reply.served.is_set)
    assert [hold.renewed for hold in HOLDS.snapshot()] == [False]
    reply.let_go.set()
    assert await binding.result(changing) is True
    await binding.call(permit, "release")


@pytest.mark.lengthy
async def test_renewal_goes_on_when_a_new_lease_could_not_be_set(binding, licences, proxy):
    permit = await binding.call(licences, "acquire", renewed=True)
    proxy.swallow_reply(scripts.PERMIT_RENEW)
    with pytest.raises(LockUnavailableError):
        await binding.call(licences, "update_lease_time", permit, 100)
    assert [hold.renewed for hold in HOLDS.snapshot()] == [True]
    await binding.call(permit, "release")


def test_permit_that_nobody_keeps_is_no_longer_renewed(licences, caplog):
    permit = licences.acquire(renewed=True)
    [hold] = HOLDS.snapshot()
    renew_now(hold)
    eventually(lambda: hold.deadline > hold.since + hold.lease)
    del permit
    renew_now(hold)
    eventually(lambda: not hold.renewed)
    assert "'licences' is still held by a Permit" in caplog.text
    licences.release(hold.owner_id)


def test_permits_of_a_killed_process_come_back(server, licences):
    with ClientProcess(server.url, {"WATCHDOG_TIMEOUT": 2.0}) as process:
        process.do(TAKE)
        assert licences.acquire(3, wait_time=2.2) is None  # they are renewed while it lives
        process.kill()
        assert licences.acquire(3, wait_time=15)


def test_permits_of_a_process_that_ends_come_back_at_once(server, licences, redis_client):
    with ClientProcess(server.url) as process:
        process.do(TAKE)
        assert redis_client.get(KEY) == "1"
        process.end()
        assert redis_client.get(KEY) == "3"


# --- numbers ---------------------------------------------------------------------------------------------------------


async def test_permits_in_all(binding, redis_client):
    licences = PermitExpirableSemaphore("licences")

    async def numbers():
        return [await binding.call(licences, f"{which}_permits") for which in ("available", "acquired", "total")]

    assert await numbers() == [0, 0, 0]
    assert await binding.call(licences, "try_set_permits", 10) is True
    assert await binding.call(licences, "try_set_permits", 15) is False
    permit = await binding.call(licences, "acquire", 3, lease_time=60)
    await binding.call(licences, "set_permits", 5)
    assert await numbers() == [2, 3, 5]
    await binding.call(licences, "set_permits", 2)
    assert await numbers() == [-1, 3, 2]
    await binding.call(licences, "add_permits", 4)
    assert await numbers() == [3, 3, 6]
    await binding.call(permit, "release")
    assert await numbers() == [6, 0, 6]
    assert await binding.call(licences, "delete") is True
    assert redis_client.exists(KEY, PERMITS) == 0


@pytest.mark.parametrize("permits", [-1, 0, 10_001, 2**31, True, 1.0, "1"])
async def test_numbers_that_are_none(binding, licences, redis_client, permits):
    with pytest.raises((TypeError, ValueError), match="permits must be"):
        await binding.call(licences, "acquire", permits)
    assert redis_client.get(KEY) == "3"


async def test_many_permits_at_once(binding, licences, redis_client):
    redis_client.set(KEY, 10_000)
    permit = await binding.call(licences, "acquire", 10_000, lease_time=60)
    assert len(set(permit.ids)) == redis_client.zcard(PERMITS) == 10_000
    await binding.call(permit, "release")
    assert redis_client.get(KEY) == "10000"


@pytest.mark.parametrize("each", ["", "abc", UNKNOWN[1:] + "G", UNKNOWN + "0", b"0" * 32, 7, UNKNOWN.upper() + "\n"])
async def test_ids_that_are_none(binding, licences, each):
    for method in ("release", "try_release"):
        with pytest.raises(ValueError, match="32 lower-case hexadecimal digits"):
            await binding.call(licences, method, [each])


async def test_lease_of_what_is_renewed(binding, licences, redis_client):
    with pytest.raises(ValueError, match="it takes no lease_time"):
        await binding.call(licences, "acquire", renewed=True, lease_time=10)
    with pytest.raises(ValueError, match="lease_time"):
        await binding.call(licences, "acquire", lease_time=0)
    assert redis_client.get(KEY) == "3"


# --- commands whose replies are lost ---------------------------------------------------------------------------------
