"""Names of map locks. ``tests/interop`` compares more of them with Redisson's own."""

import pytest

from django_rlock import RLock
from django_rlock.redisson import map_lock_name

NAMES = {
    "42": "RE0IojEvPTY8Dofe3IkBNA",
    "x": "Bt/D4wylKYCgzX0jVwjowg",
    "x" * 3: "K4EJ50iaBGMMqBlZYbJIjA",
    "x" * 4: "d9AXrvqSsgJ+67Y0gRecEQ",
    "x" * 15: "bj2X+x5phZPXNvcXzm/9cA",
    "x" * 16: "ANH3dCO5PY8pgQ0tYGLCUw",
    "x" * 31: "1omFCAk+GBQpap37/rKLeQ",
    "x" * 32: "oog9enxT89k7nsZ/uTkmfw",
    "x" * 33: "cJuuy+d4tHkkrsjaNAk7Bw",
    "x" * 64: "Yf7BT79iRm/v41FnUYzF2Q",
    "x" * 100: "xLlhhuMBl4Bc0rU9DXx5Mw",
}
"""As Redisson's Hash.hash128toBase64 makes them."""


@pytest.mark.parametrize(("key", "digest"), NAMES.items(), ids=len)
def test_digest_is_redissons(key, digest):
    assert map_lock_name("stock", key) == map_lock_name("stock", key.encode()) == f"{{stock}}:{digest}:lock"


def test_collection_with_a_hash_tag_keeps_it():
    assert map_lock_name("{shop}:stock", "42", "rw_lock") == "{shop}:stock:RE0IojEvPTY8Dofe3IkBNA:rw_lock"


def test_what_redisson_does_not_have_is_refused():
    with pytest.raises(ValueError, match="kind must be one of lock, fairlock"):
        map_lock_name("stock", "42", "spinlock")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="empty"):
        map_lock_name("stock", b"")


def test_name_is_a_name_of_a_lock():
    with RLock(map_lock_name("stock", b"42")) as lock:
        assert lock.owned()
