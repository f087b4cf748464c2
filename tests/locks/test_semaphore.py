"""The semaphore: permits shared by processes, taken once and released once, whatever happens to the commands."""

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_rlock import CountDownLatch, LockTimeoutError, LockUnavailableError, PermitExpirableSemaphore, Semaphore
from django_rlock._redis import scripts
from django_rlock._transport import calls
from django_rlock.locks import counters
from tests.background import forget_clean_up
from tests.bindings import waiting

KEY = "rlock:printers"
CHANNEL = "redisson_sc:{rlock:printers}"
MOST = 2**31 - 1


@pytest.fixture
def printers(redis_client):
    forget_clean_up()  # of tests elsewhere, whose requests would be remembered
    redis_client.flushall()
    return Semaphore("printers")


async def test_permits_are_taken_and_given_back(binding, printers):
    assert await binding.call(printers, "available_permits") == 0
    assert await binding.call(printers, "drain_permits") == 0
    assert await binding.call(printers, "acquire", blocking=False) is False
    assert await binding.call(printers, "try_set_permits", 3) is True
    assert await binding.call(printers, "try_set_permits", 9) is False
    assert await binding.call(printers, "acquire") is True
    assert await binding.call(printers, "acquire", 2) is True
    assert await binding.call(printers, "acquire", wait_time=0) is False
    await binding.call(printers, "release", 2)
    assert await binding.call(printers, "available_permits") == 2
    assert await binding.call(printers, "drain_permits") == 2
    await binding.call(printers, "add_permits", -5)
    assert await binding.call(printers, "available_permits") == -5
    assert await binding.call(printers, "acquire", blocking=False) is False
    assert await binding.call(printers, "release_if_exists", 6) is True
    assert await binding.call(printers, "available_permits") == 1
    assert await binding.call(printers, "delete") is True
    assert await binding.call(printers, "delete") is False
    assert await binding.call(printers, "release_if_exists") is False
    assert await binding.call(printers, "available_permits") == 0


async def test_permits_for_a_time(binding, printers, redis_client):
    await binding.call(printers, "try_set_permits", 3, ttl=60)
    assert 0 < redis_client.ttl(KEY) <= 60


async def test_waiter_is_woken_by_a_release(binding, printers):
    waiter = binding.start(binding.call, printers, "acquire")
    await waiting(binding)
    await binding.call(printers, "release")
    assert await binding.result(waiter) is True
    assert await binding.call(printers, "available_permits") == 0


@pytest.mark.parametrize("method", ["add_permits", "try_set_permits", "release_if_exists"])
async def test_waiter_is_woken_by_whatever_brings_permits(binding, printers, redis_client, method):
    waiter = binding.start(binding.call, printers, "acquire")
    await waiting(binding)
    if method == "release_if_exists":
        redis_client.set(KEY, 0)
    await binding.call(printers, method, 1)
    assert await binding.result(waiter) is True


async def test_what_is_too_little_for_one_goes_to_another(binding, printers):
    greedy = binding.start(binding.call, printers, "acquire", 5)
    await waiting(binding)
    modest = binding.start(binding.call, printers, "acquire", 1)
    await waiting(binding, 2)
    await binding.call(printers, "release")
    assert await binding.result(modest) is True
    await binding.call(printers, "release", 4)
    await waiting(binding)
    await binding.call(printers, "release")
    assert await binding.result(greedy) is True


async def test_block_takes_one_permit(binding, printers):
    await binding.call(printers, "release", 2)
    async with binding.inside(printers):
        assert await binding.call(printers, "available_permits") == 1
        async with binding.inside(printers):
            assert await binding.call(printers, "available_permits") == 0
    assert await binding.call(printers, "available_permits") == 2


async def test_block_that_gets_no_permit(binding):
    with pytest.raises(LockTimeoutError, match=r"'printers' was not free .* held by others, who have all") as caught:
        async with binding.inside(Semaphore("printers", wait_time=0.01)):
            raise AssertionError
    assert caught.value.waited >= 0.01


async def test_failed_release_does_not_hide_the_error_of_the_block(binding, printers, redis_client):
    for raised, seen in ((KeyError, KeyError), (None, LockUnavailableError)):
        redis_client.set(KEY, 1)
        with pytest.raises(seen):
            async with binding.inside(printers):
                redis_client.delete(KEY)
                redis_client.hset(KEY, "another", 1)
                if raised:
                    raise raised
        redis_client.delete(KEY)


async def test_zero_permits_are_always_granted(binding, printers, redis_client):
    assert await binding.call(printers, "acquire", 0) is True
    await binding.call(printers, "release", 0)
    assert not redis_client.exists(KEY)


@pytest.mark.parametrize("method", ["acquire", "release", "release_if_exists", "try_set_permits"])
@pytest.mark.parametrize("permits", [-1, MOST + 1, 1.0, True, "1", None])
async def test_numbers_that_are_none(binding, printers, redis_client, method, permits):
    with pytest.raises((TypeError, ValueError), match=f"whole number.*not {permits!r}"):
        await binding.call(printers, method, permits)
    assert not redis_client.exists(KEY)


@pytest.mark.parametrize("permits", [-MOST - 1, MOST + 1, 0.5])
async def test_additions_that_are_none(binding, printers, redis_client, permits):
    with pytest.raises((TypeError, ValueError), match="whole number"):
        await binding.call(printers, "add_permits", permits)
    assert not redis_client.exists(KEY)


async def test_most_permits(binding, printers, redis_client):
    await binding.call(printers, "try_set_permits", MOST)
    for method in ("release", "release_if_exists", "add_permits"):
        with pytest.raises(ValueError, match="'printers' cannot have more than 2147483647"):
            await binding.call(printers, method, 1)
    assert await binding.call(printers, "acquire", MOST) is True
    assert redis_client.get(KEY) == "0"


async def test_try_that_is_to_wait(binding, printers):
    with pytest.raises(ValueError, match="tries once"):
        await binding.call(printers, "acquire", blocking=False, wait_time=1)


@pytest.mark.parametrize(
    ("kind", "calls"),
    [
        (Semaphore, [("acquire",), ("acquire", 0), ("release", 0), ("release_if_exists", 0), ("available_permits",)]),
        (
            PermitExpirableSemaphore,
            [("acquire",), ("try_release", []), ("release", []), ("available_permits",)],
        ),
        (CountDownLatch, [("count_down",), ("count",), ("wait",)]),
    ],
)
async def test_alias_of_a_quorum_is_refused(binding, kind, calls, settings):
    settings.RLOCK = {"quorum": {"NODES": [f"redis://127.0.0.1:{port}" for port in (1, 2, 3)]}}
    counter = kind("printers", using="quorum")
    for call in calls:
        with pytest.raises(ImproperlyConfigured, match=rf"{kind.__name__} 'printers' needs one server.*RedLock works"):
            await binding.call(counter, *call)


# --- commands whose replies are lost ---------------------------------------------------------------------------------


async def test_acquire_is_sent_again_only_while_the_server_knows_it(
    binding, proxy, printers, redis_client, monkeypatch
):
    """Else it would take permits once more, after an outage that is shorter than the wait."""
    monkeypatch.setattr(counters.Requests, "patience", 0.1)
    redis_client.set(KEY, 5)
    lost = proxy.lose_reply(scripts.SEMAPHORE_ACQUIRE)
    stuck = proxy.hold(scripts.SEMAPHORE_ACQUIRE)
    with pytest.raises(LockUnavailableError):
        await binding.call(printers, "acquire", wait_time=300)
    assert lost.served.is_set()
    assert stuck.served.is_set()
    await binding.until(lambda: redis_client.get(KEY) == "5")


def test_request_is_known_until_nobody_sends_it_again():
    """An acquire, until its wait ends with an error, and then what undoes it."""
    assert counters.Requests.patience + counters.RESENT_FOR < calls.REMEMBERED


REQUESTS = "rlock_requests:{rlock:printers}"


async def test_answered_requests_are_forgotten_with_the_next(binding, printers, redis_client):
    await binding.call(printers, "try_set_permits", 1)
    for _ in range(50):
        assert await binding.call(printers, "acquire") is True
        assert await binding.call(printers, "acquire", wait_time=0) is False
        await binding.call(printers, "release")
    await binding.call(printers, "add_permits", 1)
    assert redis_client.zcard(REQUESTS) == 1


async def test_request_that_waited_is_forgotten_as_well(binding, printers, redis_client):
    waiter = binding.start(binding.call, printers, "acquire")
    await waiting(binding)
    redis_client.set(KEY, 1)
    redis_client.publish(CHANNEL, "1")
    assert await binding.result(waiter) is True
    [taken] = redis_client.zrange(REQUESTS, 0, -1)
    await binding.call(printers, "release")
    assert redis_client.zscore(REQUESTS, taken) is None
    assert redis_client.zcard(REQUESTS) == 1


async def test_interrupted_acquire_is_undone_though_others_are_forgotten(binding, proxy, printers, redis_client):
    redis_client.set(KEY, 5)
    swallowed = proxy.swallow_reply(scripts.SEMAPHORE_ACQUIRE)
    with pytest.raises(LockUnavailableError):
        await binding.call(printers, "acquire", 2, blocking=False)
    assert swallowed.served.is_set()
    await binding.call(printers, "release")
    await binding.call(printers, "release")
    await binding.until(lambda: redis_client.get(KEY) == "7")


def test_a_process_notes_the_requests_of_few_semaphores(redis_client, monkeypatch):
    monkeypatch.setattr(counters, "_answered", {})
    monkeypatch.setattr(counters, "MOST_COUNTERS", 3)
    for number in range(10):
        for _ in range(20):
            Semaphore(f"printers:{number}").add_permits(1)
        assert len(counters._answered) <= 3
        assert max(map(len, counters._answered.values())) <= counters.MOST_ANSWERED
