"""How script calls are packed, and how much of them is kept for the next."""

from collections.abc import Callable

import pytest

from django_rlock import FairLock, FencedLock, LimitedLock, ReadLock, RLock, WriteLock
from django_rlock._redis import keys, scripts
from django_rlock._transport import calls
from django_rlock._transport.calls import ManyKeys, ScriptCall, Template, join, may_join, next_nonce, pack
from django_rlock._transport.connection import INCOMPLETE, make_reader

NONCE = next_nonce()
NAMES = ["stock:42", "stöck:€", "a{b}c", "{", "a{}b", "%s%b", "q\0z", "{\0}", "n" * 1000]
KEYS_OF: list[Callable[[str], tuple[str, ...]]] = [
    keys.state_key,
    keys.release_keys,
    keys.fair_keys,
    keys.fair_release_keys,
    keys.java_queue_keys,
    keys.fenced_keys,
    keys.fenced_wait_keys,
    keys.side_keys,
    keys.read_acquire_keys,
    keys.read_release_keys,
    keys.readwrite_keys,
]


def words_of(packed: bytes) -> list[bytes]:
    reader = make_reader()
    reader.feed(packed)
    words: list[bytes] = reader.gets()
    assert reader.gets() is INCOMPLETE
    return words


def words_in(call: ScriptCall, nonce: bytes, with_source: bool = False) -> list[bytes]:
    verb = ("EVAL", call.script.source) if with_source else ("EVALSHA", call.script.sha)
    words = *verb, len(call.keys), *call.keys, nonce.decode(), *call.args
    return [str(word).encode() for word in words]


def renewal(number: int, lease: int = 30_000) -> ScriptCall:
    key = f"rlock:stock:{number}"
    return ScriptCall("stock", Template(scripts.LOCK_RENEW, (f"owner:{number}",), (key,)), key, lease)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("of", KEYS_OF, ids=lambda of: of.__name__)
def test_calls_for_any_name_are_packed_by_one_template(of: Callable[[str], tuple[str, ...]], name: str) -> None:
    template = Template(scripts.FAIR_ACQUIRE, (1, 30_000), of)
    for key in (f"rlock:{name}", f"rlock:{name[::-1]}", f"{name}!", name):
        for first in ("owner", "öwner", 7, b"\0"):
            for nonce in (next_nonce(), next_nonce()):
                call = ScriptCall(name, template, key, first)
                expected = [*words_in(call, nonce)[: -len(call.args)], *map(calls._encoded, call.args)]
                assert words_of(pack(call, nonce)) == expected


@pytest.mark.parametrize("lock", [FairLock, RLock, FencedLock, ReadLock, WriteLock])
def test_a_new_name_leaves_nothing_behind(lock: Callable[[str], FairLock]) -> None:
    """Tasks and views have a new name nearly each time."""

    def take(number: int) -> None:
        made = lock(f"stock:{number:04}")
        for call in (
            made._kind.acquire(made, "owner", 1, 30.0),
            made._kind.acquire(made, "owner", 1, 30.0, waiting=True),
            made._kind.release(made, "owner", 0, 30.0),
        ):
            pack(call, NONCE)

    take(0)
    before = calls.kept.cache_info().misses, keys.wake_channel.cache_info().currsize
    for number in range(1, 9):
        take(number)
    assert (calls.kept.cache_info().misses, keys.wake_channel.cache_info().currsize) == before


def test_names_of_all_sizes_leave_a_bounded_number_of_pieces() -> None:
    """Strangers may choose names."""
    template = Template(scripts.LOCK_STATE)
    for size in range(1, 2 * keys.MOST_KEPT):
        pack(ScriptCall("stock", template, "x" * size, "owner"), NONCE)
        assert len(template.around) <= keys.MOST_KEPT


def test_different_arguments_have_different_templates() -> None:
    for permits in (1, 2, 3):
        lock = LimitedLock("stock:42", permits=permits)
        packed = pack(lock._kind.acquire(lock, "owner", 1, 30.0), NONCE)
        assert words_of(packed)[-1] == b"%d" % permits


@pytest.mark.parametrize("number", [1, 9, 1000])
def test_calls_of_multi_locks_are_packed_from_their_keys(number: int) -> None:
    """A process that takes ever new sets of a thousand names would keep a megabyte for each dozen of them."""
    names = tuple(f"rlock:stock:{each}" for each in range(number))
    before = calls.kept.cache_info().currsize
    for several in (names, ManyKeys(names), ManyKeys(names[:1]).followed_by(names[1:])):
        call = ScriptCall("stock", Template(scripts.MULTI_ACQUIRE, (30_000,), several), names[0], "owner")
        assert words_of(pack(call, NONCE)) == words_in(call, NONCE)
    assert calls.kept.cache_info().currsize == before


def test_joined_calls_have_the_keys_and_arguments_of_all() -> None:
    """A process with many holds renews a hundred with one command."""
    joined = join([renewal(number) for number in range(3)])
    assert joined.keys == tuple(f"rlock:stock:{number}" for number in range(3))
    assert joined.args == (30_000, "owner:0", "owner:1", "owner:2")
    assert words_of(pack(joined, NONCE)) == words_in(joined, NONCE)


def test_only_renewals_with_the_same_lease_are_joined() -> None:
    assert may_join(renewal(1)) == may_join(renewal(2))
    assert may_join(renewal(1)) != may_join(renewal(1, lease=5))
    state = Template(scripts.LOCK_STATE)
    assert may_join(ScriptCall("stock", state, "a", "owner")) != may_join(ScriptCall("stock", state, "a", "owner"))


@pytest.mark.parametrize("call", [renewal(1), ScriptCall("stock", Template(scripts.LOCK_STATE), "a", "owner")])
@pytest.mark.parametrize("with_source", [False, True])
def test_packed_call_has_all_words(call: ScriptCall, with_source: bool) -> None:
    for nonce in (next_nonce(), next_nonce()):  # most of it is kept from the first
        assert words_of(pack(call, nonce, with_source)) == words_in(call, nonce, with_source)


@pytest.mark.parametrize("to_all", [False, True])
@pytest.mark.parametrize("script", [each for each in vars(scripts).values() if isinstance(each, scripts.Script)])
def test_a_clusters_script_is_its_own(script: scripts.Script, to_all: bool) -> None:
    """A call that is sent again, as by the clean-up, was made for the cluster when it was sent for the first time."""
    assert script.sharded(to_all).sharded(to_all) is script.sharded(to_all)


@pytest.mark.parametrize("to_all", [False, True])
def test_a_cluster_has_its_own_templates(to_all: bool) -> None:
    template = Template(scripts.FAIR_RELEASE, (0, 30_000, 1_000))
    call = ScriptCall("stock", template.sharded(to_all), "rlock:stock", "owner")
    assert call.script is scripts.FAIR_RELEASE.sharded(to_all)
    assert words_of(pack(call, NONCE)) == words_in(call, NONCE)
    assert template.sharded(to_all) is call.template  # kept
    state = Template(scripts.LOCK_STATE)
    assert state.sharded(to_all) is state


def test_nonces_are_as_long_as_packed_calls_say() -> None:
    """From the first that a process may make to those after years of a million a second."""
    assert len(next_nonce()) == calls._NONCE_SIZE
    for number in (calls._first, 10**14, 10**14 + 2**40 - 1 + 10**6 * 86400 * 365 * 20):
        assert len(str(number)) == calls._NONCE_SIZE
