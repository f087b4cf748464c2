"""docs/architecture.md, "How to add a kind": the lock of its example works, made from the page alone."""

import pytest

from django_rlock import FairLock, LockLostError, LockNotOwnedError, rlock
from django_rlock.locks import KINDS, BaseLock
from tests.docs.pages import DOCS, blocks
from tests.faces import elsewhere, waiting

HELD = "already held by this owner"


@pytest.fixture
def once_lock(monkeypatch: pytest.MonkeyPatch) -> type[BaseLock]:
    """The class that the page defines, under its name in ``KINDS``."""
    names: dict[str, type[BaseLock]] = {}
    (example,) = [block for block in blocks(DOCS / "architecture.md") if "class OnceLock" in block.code]
    exec(example.code, names)
    made = names["OnceLock"]
    monkeypatch.setitem(KINDS, made.kind, made)
    return made


async def test_the_lock_of_the_page_is_taken_once_and_given_back(face, once_lock):
    lock = rlock("stock:42", kind="once")  # type: ignore[call-overload]
    assert isinstance(lock, once_lock)
    async with face.inside(lock):
        assert await face.call(lock, "hold_count") == 1
        with pytest.raises(RuntimeError, match=HELD):
            await face.acquire(lock)
        assert await face.call(lock, "hold_count") == 1
        assert await elsewhere(face, lock, "acquire", blocking=False) is False
    assert not await face.call(lock, "locked")


async def test_the_lock_of_the_page_excludes_other_kinds_and_wakes_their_waiters(face, once_lock):
    lock = once_lock("stock:42")
    await face.acquire(lock)
    waiter = face.start(pass_through, face, FairLock("stock:42"))
    await waiting(face)
    await face.release(lock)
    await face.result(waiter)


async def pass_through(face, lock):
    async with face.inside(lock):
        pass


async def test_the_lock_of_the_page_is_a_member_of_a_multi_lock(face, once_lock):
    lock = rlock("stock:42", "stock:43", kind="once")  # type: ignore[call-overload]
    async with face.inside(lock):
        with pytest.raises(RuntimeError, match=HELD):
            await face.acquire(lock)
    assert not await face.call(lock, "locked")


async def test_the_lock_of_the_page_is_freed_by_force(face, once_lock):
    lock = once_lock("stock:42")
    await face.acquire(lock)
    assert await elsewhere(face, lock, "force_release")
    with pytest.raises(LockLostError):
        await face.release(lock)
    with pytest.raises(LockNotOwnedError):
        await face.release(lock)
