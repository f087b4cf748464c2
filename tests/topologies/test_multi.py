"""Several locks as one, whose members are in several slots of a cluster."""

from django_rlock import FairLock, FencedLock, MultiLock, RLock


async def test_members_in_several_slots(binding, topology):
    members = RLock("a"), FairLock("b"), FencedLock("c"), RLock("{a}:2")
    lock = MultiLock(*members)

    async def try_once(tried) -> bool:
        return await binding.acquire(tried, blocking=False)

    async with binding.inside(lock):
        for each in (lock, *members):
            assert await binding.call(each, "owned")
            assert not await binding.result(binding.start(try_once, each))
    for each in members:
        assert not await binding.call(each, "locked")
