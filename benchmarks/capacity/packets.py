"""What a process sends to the server for each thing that it does, packed by the package itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from django_rlock import FairLock, RLock
from django_rlock._redis.keys import PROCESSES, report_key
from django_rlock._transport.calls import ScriptCall, next_nonce, pack, pack_command
from django_rlock.locks.base import BaseLock
from django_rlock.locks.kinds import RENEW

LEASE = 3600.0
_ENTRY = "x" * 250
"""About as long as the entry of a hold in a report."""


class Packet(NamedTuple):
    """What is sent at once, and how many replies it gets."""

    data: bytes
    replies: int = 1


class Sequel(NamedTuple):
    """What a connection sends once ``before``, and then again and again."""

    packets: list[Packet]
    before: list[Packet] = []


def plain_set(number: int) -> Sequel:
    """The yardstick: SET of one key, and of another."""
    return Sequel([Packet(pack_command("SET", f"bench:set:{number}:{key}", "value")) for key in range(2)])


def pair_of(kind: type[BaseLock]) -> Callable[[int], Sequel]:
    """Acquire and release of a lock that nobody else wants."""

    def pair(number: int) -> Sequel:
        lock, owner = kind(f"bench:pair:{number}"), _owner(number)
        return Sequel(
            [
                _script(lock._kind.acquire(lock, owner, 1, LEASE, False)),
                _script(lock._kind.release(lock, owner, 0, LEASE)),
            ]
        )

    return pair


fair_pair, plain_pair = pair_of(FairLock), pair_of(RLock)


def renewal(number: int) -> Sequel:
    """The renewal of one hold."""
    lock, owner = FairLock(f"bench:held:{number}"), _owner(number)
    return Sequel(
        [_script(lock._kind.lease(lock, owner, LEASE, RENEW))],
        [_script(lock._kind.acquire(lock, owner, 1, LEASE, False))],
    )


def report(number: int) -> Sequel:
    """A report in which one hold has changed, and the sign of life that goes with it."""
    client = _owner(number).partition(":")[0]
    changed = pack_command("HSET", report_key(client), f"h:{number}", _ENTRY)
    return Sequel([Packet(changed + pack_command("ZADD", PROCESSES, "1.5", client), 2)])


def heartbeat(number: int) -> Sequel:
    """The sign of life of one waiter, and its place in the queue of a lock that another owner holds."""
    lock, holder, waiter = FairLock(f"bench:wanted:{number}"), _owner(number), _owner(number + 10**9)
    before = [lock._kind.acquire(lock, holder, 1, LEASE, False), lock._kind.acquire(lock, waiter, 1, LEASE, True)]
    return Sequel([_script(lock._kind.heartbeat([(lock, waiter)], 0))], [*map(_script, before)])


def _script(call: ScriptCall) -> Packet:
    return Packet(pack(call, next_nonce()))


def _owner(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012d}:1"
