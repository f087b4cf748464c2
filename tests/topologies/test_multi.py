"""Several locks as one, whose members are in several slots of a cluster."""

from django_rlock import FairLock, FencedLock, MultiLock, RLock


async def test_members_in_several_slots(face, topology):
    members = RLock("a"), FairLock("b"), FencedLock("c"), RLock("{a}:2")
    lock = MultiLock(*members)

    async def try_once(tried) -> bool:
        return await face.acquire(tried, blocking=False)

    async with face.inside(lock):
        for each in (lock, *members):
            assert await face.call(each, "owned")
            assert not await face.result(face.start(try_once, each))
    for each in members:
        assert not await face.call(each, "locked")
