"""Names of the locks that Redisson gives to the keys of a map, for services that share them with Java.

    with RLock(map_lock_name("stock", b"42")):
        ...

is ``redisson.getMap("stock").getLock("42")`` in Java, with an empty KEY_PREFIX here and ``StringCodec`` there.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from typing import Literal, get_args

from django_rlock._redis.keys import hash_tag

__all__ = ["map_lock_name"]

MapLockKind = Literal["lock", "fairlock", "rw_lock", "semaphore", "permitexpirablesemaphore", "countdownlatch"]


def map_lock_name(collection: str, key: str | bytes, kind: MapLockKind = "lock") -> str:
    """The name of a lock that Redisson derives from a collection and one of its keys or values.

    ``collection`` is the name of an RMap, RMultimap, RSet or RSetCache. ``key`` is a key of the map, or a value of the
    set, as the collection's codec writes it: a str stands for its UTF-8 bytes, as of ``StringCodec``; for another codec
    pass the bytes. An empty key raises ValueError, as Redisson has no lock for it.

    ``kind`` is that of the Java method: "lock" for ``getLock(key)``, and "fairlock", "rw_lock", "semaphore",
    "permitexpirablesemaphore" and "countdownlatch" for ``getFairLock`` and so on.
    """
    if kind not in get_args(MapLockKind):
        raise ValueError(f"kind must be one of {', '.join(get_args(MapLockKind))}, not {kind!r}.")
    encoded = key.encode() if isinstance(key, str) else bytes(key)
    if not encoded:
        raise ValueError("The key is empty: Redisson has no lock for it.")
    digest = b64encode(struct.pack(">2Q", *_highway_hash(encoded))).decode().rstrip("=")
    return f"{hash_tag(collection)}:{digest}:{kind}"


# --- HighwayHash-128 --------------------------------------------------------------------------------------------------

# Each of the four vectors of the state has four lanes of 64 bits; see https://github.com/google/highwayhash.

_REDISSONS_KEY = 0x9E3779B97F4A7C15, 0xF39CC0605CEDC834, 0x1082276BF3A27251, 0xF86C6A11D0C18E95
_MUL0 = 0xDBE6D5D5FE4CCE2F, 0xA4093822299F31D0, 0x13198A2E03707344, 0x243F6A8885A308D3
_MUL1 = 0x3BD39E10CB0EF593, 0xC0ACF169B5F18A8C, 0xBE5466CF34E90C6C, 0x452821E638D01377
_ZIPPER = 3, 12, 2, 5, 14, 1, 15, 0, 11, 4, 10, 13, 9, 6, 8, 7
"""Which byte of two lanes comes to each place."""
_64, _32 = (1 << 64) - 1, (1 << 32) - 1
_PACKET = 32

Lanes = list[int]


def _highway_hash(data: bytes) -> tuple[int, int]:
    state = _HighwayHash()
    whole = len(data) - len(data) % _PACKET
    for at in range(0, whole, _PACKET):
        state.update(struct.unpack_from("<4Q", data, at))
    if rest := data[whole:]:
        state.update_rest(rest)
    return state.digest()


class _HighwayHash:
    def __init__(self) -> None:
        self.mul0, self.mul1 = list(_MUL0), list(_MUL1)
        self.v0 = [mul ^ key for mul, key in zip(_MUL0, _REDISSONS_KEY, strict=True)]
        self.v1 = [mul ^ _rotated(key) for mul, key in zip(_MUL1, _REDISSONS_KEY, strict=True)]

    def update(self, packet: tuple[int, ...]) -> None:
        for lane, word in enumerate(packet):
            self.v1[lane] = self.v1[lane] + word + self.mul0[lane] & _64
            self.mul0[lane] ^= (self.v1[lane] & _32) * (self.v0[lane] >> 32)
            self.v0[lane] = self.v0[lane] + self.mul1[lane] & _64
            self.mul1[lane] ^= (self.v0[lane] & _32) * (self.v1[lane] >> 32)
        _add_zipped(self.v0, self.v1)
        _add_zipped(self.v1, self.v0)

    def update_rest(self, rest: bytes) -> None:
        """The last 1 to 31 bytes."""
        size, whole = len(rest), len(rest) & ~3
        packet = bytearray(rest[:whole].ljust(_PACKET, b"\0"))
        if size >= _PACKET // 2:
            packet[28:] = rest[-4:]
        elif last := rest[whole:]:
            packet[16:19] = last[0], last[len(last) // 2], last[-1]
        self.v0 = [lane + (size << 32) + size & _64 for lane in self.v0]
        self.v1 = [_rotated(lane >> 32, size, 32) << 32 | _rotated(lane & _32, size, 32) for lane in self.v1]
        self.update(struct.unpack("<4Q", packet))

    def digest(self) -> tuple[int, int]:
        for _ in range(6):
            self.update(tuple(_rotated(self.v0[lane]) for lane in (2, 3, 0, 1)))
        first, second = (
            self.v0[lane] + self.mul0[lane] + self.v1[lane + 2] + self.mul1[lane + 2] & _64 for lane in (0, 1)
        )
        return first, second


def _rotated(word: int, by: int = 32, bits: int = 64) -> int:
    """A word whose bits are rotated to the left."""
    return (word << by | word >> bits - by) & (1 << bits) - 1


def _add_zipped(lanes: Lanes, others: Lanes) -> None:
    """Add the bytes of each two lanes of another vector in another order."""
    for pair in 0, 2:
        mixed = struct.pack("<2Q", *others[pair : pair + 2])
        for lane, zipped in enumerate(struct.unpack("<2Q", bytes(map(mixed.__getitem__, _ZIPPER))), pair):
            lanes[lane] = lanes[lane] + zipped & _64
