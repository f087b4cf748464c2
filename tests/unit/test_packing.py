"""How script calls are packed, and how much of them is kept for the next."""

import pytest

from django_rlock import scripts
from django_rlock.drivers import calls
from django_rlock.drivers.calls import ManyKeys, ScriptCall, next_nonce, pack, prepare

NONCE = next_nonce()


@pytest.fixture(autouse=True)
def _nothing_kept() -> None:
    calls._kept.cache_clear()


def keys(number: int) -> tuple[str, ...]:
    return tuple(f"rlock:stock:{each}" for each in range(number))


def packed(keys: tuple[str, ...]) -> bytes:
    return pack(ScriptCall("stock", prepare(scripts.MULTI_ACQUIRE, keys, (30_000,)), "owner"), NONCE)


@pytest.mark.parametrize("number", [1, calls._MOST_KEYS_KEPT])
def test_calls_with_few_keys_are_kept(number: int) -> None:
    assert packed(keys(number)) == packed(keys(number))
    assert calls._kept.cache_info()[:2] == (1, 1)


@pytest.mark.parametrize("number", [calls._MOST_KEYS_KEPT + 1, 1000])
def test_those_of_multi_locks_are_not(number: int) -> None:
    """A process that takes ever new sets of a thousand names would keep a megabyte for each dozen of them."""
    for several in (keys(number), ManyKeys(keys(number))):
        assert f"${len('rlock:stock:0')}\r\nrlock:stock:0\r\n".encode() in packed(several)
    assert calls._kept.cache_info().currsize == 0


def test_what_is_kept_is_bounded() -> None:
    bound = calls._kept.cache_info().maxsize
    assert bound is not None
    for number in range(bound + 1):
        packed((f"rlock:stock:{number}",))
    assert calls._kept.cache_info().currsize == bound
