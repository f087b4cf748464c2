"""How script calls are packed, and how much of them is kept for the next."""

import pytest

from django_rlock._redis import scripts
from django_rlock._transport import calls
from django_rlock._transport.calls import ManyKeys, ScriptCall, join, may_join, next_nonce, pack, prepare
from django_rlock._transport.connection import INCOMPLETE, make_reader

NONCE = next_nonce()


@pytest.fixture(autouse=True)
def _nothing_kept() -> None:
    calls._kept.cache_clear()


def keys(number: int) -> tuple[str, ...]:
    return tuple(f"rlock:stock:{each}" for each in range(number))


def packed(keys: tuple[str, ...]) -> bytes:
    return pack(ScriptCall("stock", prepare(scripts.MULTI_ACQUIRE, keys, (30_000,)), "owner"), NONCE)


def renewal(number: int, lease: int = 30_000) -> ScriptCall:
    return ScriptCall("stock", prepare(scripts.LOCK_RENEW, (f"rlock:stock:{number}",), (f"owner:{number}",)), lease)


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


def test_what_is_joined_is_never_packed_alone() -> None:
    """A process with many holds renews a hundred with one command."""
    renewals = [renewal(number) for number in range(3)]
    joined = pack(join(renewals), NONCE)
    assert all(f"rlock:stock:{number}".encode() in joined for number in range(3))
    assert not any(renewal.prepared.head for renewal in renewals)
    assert calls._kept.cache_info().currsize == 0


def test_only_renewals_with_the_same_lease_are_joined() -> None:
    assert may_join(renewal(1)) == may_join(renewal(2))
    assert may_join(renewal(1)) != may_join(renewal(1, lease=5))
    state = prepare(scripts.LOCK_STATE, ("rlock:stock:1",), ())
    assert may_join(ScriptCall("stock", state, "owner")) != may_join(ScriptCall("stock", state, "owner"))


@pytest.mark.parametrize("call", [renewal(1), ScriptCall("stock", prepare(scripts.LOCK_STATE, ("a",), ()), "owner")])
@pytest.mark.parametrize("with_source", [False, True])
def test_packed_call_has_all_words(call: ScriptCall, with_source: bool) -> None:
    script, keys = call.script, call.keys
    verb = ("EVAL", script.source) if with_source else ("EVALSHA", script.sha)
    for nonce in (next_nonce(), next_nonce()):  # most of it is kept from the first
        reader = make_reader()
        reader.feed(pack(call, nonce, with_source))
        words = *verb, len(keys), *keys, nonce.decode(), *call.args
        assert reader.gets() == [str(word).encode() for word in words]
        assert reader.gets() is INCOMPLETE


def test_nonces_are_as_long_as_packed_calls_say() -> None:
    """From the first that a process may make to those after years of a million a second."""
    assert len(next_nonce()) == calls._NONCE_SIZE
    for number in (calls._first, 10**14, 10**14 + 2**40 - 1 + 10**6 * 86400 * 365 * 20):
        assert len(str(number)) == calls._NONCE_SIZE


def test_what_is_kept_is_bounded() -> None:
    bound = calls._kept.cache_info().maxsize
    assert bound is not None
    for number in range(bound + 1):
        packed((f"rlock:stock:{number}",))
    assert calls._kept.cache_info().currsize == bound
