"""docs/design/kinds.md, "How to add a kind": the lock of its example works, made from the page alone."""

import pytest

from django_rlock import FairLock, LockLostError, LockNotOwnedError, rlock
from django_rlock.locks import KINDS, BaseLock
from tests.bindings import elsewhere, visit, waiting
from tests.docs.pages import DOCS, blocks

HELD = "already held by this owner"


@pytest.fixture
def once_lock(monkeypatch: pytest.MonkeyPatch) -> type[BaseLock]:
    """The class that the page defines, under its name in ``KINDS``."""
    names: dict[str, type[BaseLock]] = {}
    (example,) = [block for block in blocks(DOCS / "design/kinds.md") if "class OnceLock" in block.code]
    exec(example.code, names)
    made = names["OnceLock"]
    monkeypatch.setitem(KINDS, made.kind, made)
    return made


async def test_the_lock_of_the_page_is_taken_once_and_given_back(binding, once_lock):
    lock = rlock("stock:42", kind="once")  # type: ignore[call-overload]
    assert isinstance(lock, once_lock)
    async with binding.inside(lock):
        assert await binding.call(lock, "hold_count") == 1
        with pytest.raises(RuntimeError, match=HELD):
            await binding.acquire(lock)
        assert await binding.call(lock, "hold_count") == 1
        assert await elsewhere(binding, lock, "acquire", blocking=False) is False
    assert not await binding.call(lock, "locked")


async def test_the_lock_of_the_page_excludes_other_kinds_and_wakes_their_waiters(binding, once_lock):
    lock = once_lock("stock:42")
    await binding.acquire(lock)
    waiter = binding.start(visit, binding, FairLock("stock:42"))
    await waiting(binding)
    await binding.release(lock)
    await binding.result(waiter)


async def test_the_lock_of_the_page_is_a_member_of_a_multi_lock(binding, once_lock):
    lock = rlock("stock:42", "stock:43", kind="once")  # type: ignore[call-overload]
    async with binding.inside(lock):
        with pytest.raises(RuntimeError, match=HELD):
            await binding.acquire(lock)
    assert not await binding.call(lock, "locked")


async def test_the_lock_of_the_page_is_freed_by_force(binding, once_lock):
    lock = once_lock("stock:42")
    await binding.acquire(lock)
    assert await elsewhere(binding, lock, "force_release")
    with pytest.raises(LockLostError):
        await binding.release(lock)
    with pytest.raises(LockNotOwnedError):
        await binding.release(lock)
