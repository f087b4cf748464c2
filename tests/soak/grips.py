"""Each kind of lock as a worker takes it, whatever the binding, and what it promises while it is held."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any, NamedTuple
from uuid import uuid4

from django_rlock import MultiLock, PermitExpirableSemaphore, ReadWriteLock, Semaphore, rlock
from django_rlock._core.clock import monotonic
from django_rlock._transport.calls import run_sync
from django_rlock._transport.identity import current_owner
from django_rlock.locks.holds import HOLDS
from tests.soak.records import ALONE, PERMIT, READ, now

ONE, PAIR, QUORUM = "one", "pair", "quorum"
"""Aliases of RLOCK, and the places where locks live."""
SETS = 4
"""How many names there are of each kind: with one, most turns would end as others hold the lock for a second."""
WATCHDOG_TIMEOUT, CLAIM_TIME, WAITER_ALIVE_TIME = 3.0, 1.0, 3.0
OPTIONS = {"WATCHDOG_TIMEOUT": WATCHDOG_TIMEOUT, "CLAIM_TIME": CLAIM_TIME, "WAITER_ALIVE_TIME": WAITER_ALIVE_TIME}
"""Of all aliases, in seconds: short, so that leases end and are renewed all the time."""
LEASES = None, None, None, 1.2, 2.5
"""Lease times to choose from, in seconds. None is renewed. None is shorter than CLAIM_TIME, see docs/guarantees.md."""
EXTENSIONS = 1.2, 2.0, 3.0
"""Seconds; a RedLock's lease may be no longer than QUARANTINE, which is WATCHDOG_TIMEOUT."""
PERMITS = 3
"""Permits of each semaphore."""
NEW_NAME_EVERY = 20.0
"""Seconds after which a plain semaphore's turn is another one's: its permits may have gone with who held them."""


class Threads:
    """The blocking methods."""

    async def call(self, of: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(of, method)(*args, **kwargs)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - nothing else runs in this thread

    async def elsewhere(self, *bodies: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Run bodies as other owners, and wait for their ends."""
        threads = [threading.Thread(target=run_sync, args=(body(),), daemon=True) for body in bodies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


class Tasks:
    """The methods with Django's ``a``."""

    async def call(self, of: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        return await getattr(of, "await_" if method == "wait" else f"a{method}")(*args, **kwargs)

    async def sleep(self, seconds: float) -> None:
        import asyncio

        await asyncio.sleep(seconds)

    async def elsewhere(self, *bodies: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        import asyncio

        await asyncio.gather(*(body() for body in bodies))


Binding = Threads | Tasks


class Promise(NamedTuple):
    """What is known of a hold without asking: whether it is lost, until when its lease runs, and how long that was. The
    time is that of records: the process's own clock may be behind. It is read first, since that may be stopped, too."""

    lost: bool
    deadline: float
    lease: float


class Grip:
    """A lock that is taken once: for ``Hold``, its ``kind``, ``place``, ``names``, ``mode``, ``amount``, ``limit``."""

    mode = ALONE
    amount = limit = 1
    extends = again = True
    """Whether its lease can be extended, and whether its owner may take it again."""
    tells = True
    """Whether giving it back after a loss raises."""

    def __init__(self, kind: str, place: str, names: Sequence[str], lock: Any) -> None:
        self.kind = kind
        self.place = place
        self.names = list(names)
        self.lock = lock

    async def acquire(self, binding: Binding, wait: float | None, lease: float | None) -> bool:
        return await binding.call(self.lock, "acquire", wait_time=wait, lease_time=lease)

    async def release(self, binding: Binding) -> None:
        await binding.call(self.lock, "release")

    async def extend(self, binding: Binding, seconds: float) -> None:
        await binding.call(self.lock, "extend", seconds)

    def promise(self) -> Promise:
        ahead = now() - monotonic()
        owner = self.lock._named_owner or current_owner()
        holds = HOLDS.of_lock(self.lock, owner)
        deadline = min((hold.deadline for hold in holds), default=0.0)
        lease = max((hold.lease for hold in holds), default=0.0)
        return Promise(self.lock.lost or len(holds) < len(self.lock.parts), deadline + ahead, lease)

    def is_lost(self) -> bool:
        """Whether it is lost for good, and not only doubted until the server replies."""
        holds = HOLDS.of_lock(self.lock, self.lock._named_owner or current_owner())
        return len(holds) < len(self.lock.parts) or any(hold.is_lost(monotonic()) for hold in holds)

    def token(self) -> int | None:
        return self.lock.token if self.kind in {"fenced", "redlock"} else None


class ReadGrip(Grip):
    mode = READ


class NamedGrip(Grip):
    """Taken under a name, and released by another thread or task."""

    again = False

    async def release(self, binding: Binding) -> None:
        failures: list[BaseException] = []
        begun: list[bool] = []

        async def give_back() -> None:
            begun.append(True)
            try:
                await binding.call(self.lock, "release")
            except Exception as error:  # noqa: BLE001 - raised by who waits for it
                failures.append(error)

        try:
            await binding.elsewhere(give_back)
        finally:
            if not begun:  # cancelled before; a name has no end, so its lock would be renewed for ever
                await binding.call(self.lock, "release")
        if failures:
            raise failures[0]


class SemaphoreGrip(Grip):
    """Permits without owner or lease. A process that dies keeps its permits, so the name changes now and then."""

    mode, limit = PERMIT, PERMITS
    extends = again = tells = False

    def __init__(self, name: str, amount: int, longest_wait: float | None = None) -> None:
        super().__init__("semaphore", ONE, [name], Semaphore(name, using=ONE))
        self.amount = amount
        self._longest_wait = longest_wait

    async def acquire(self, binding: Binding, wait: float | None, lease: float | None) -> bool:
        await binding.call(self.lock, "try_set_permits", PERMITS)
        wait = self._longest_wait if wait is None else wait
        return await binding.call(self.lock, "acquire", self.amount, wait_time=wait)

    async def release(self, binding: Binding) -> None:
        await binding.call(self.lock, "release", self.amount)

    def promise(self) -> Promise:
        return Promise(False, math.inf, math.inf)


class PermitGrip(Grip):
    """Permits with ids and leases."""

    mode, limit = PERMIT, PERMITS
    again = tells = False

    def __init__(self, name: str, amount: int) -> None:
        super().__init__("permits", ONE, [name], PermitExpirableSemaphore(name, using=ONE))
        self.amount = amount
        self.extends = amount == 1

    async def acquire(self, binding: Binding, wait: float | None, lease: float | None) -> bool:
        await binding.call(self.lock, "try_set_permits", PERMITS)
        options: dict[str, Any] = {"renewed": True} if lease is None else {"lease_time": lease}
        self.permit = await binding.call(self.lock, "acquire", self.amount, wait_time=wait, **options)
        self.lease = lease or WATCHDOG_TIMEOUT
        return self.permit is not None

    async def release(self, binding: Binding) -> None:
        await binding.call(self.permit, "release")

    async def extend(self, binding: Binding, seconds: float) -> None:
        self.lease = max(self.lease, seconds)
        await binding.call(self.lock, "update_lease_time", self.permit, seconds)

    def promise(self) -> Promise:
        ahead = now() - monotonic()
        lost = self.permit.lost
        holds = self.permit._holds
        deadline = min(hold.deadline for hold in holds) if holds else self.permit.deadline
        return Promise(lost, deadline + ahead, self.lease)


def _lock(kind: Any, name: str, place: str, **options: Any) -> Grip:
    side = ReadGrip if kind == "read" else Grip
    return side(kind, place, [name], rlock(name, kind=kind, using=place, **options))


def _set(chance: Random) -> str:
    return str(chance.randrange(SETS))


def _one_of(kind: Any, name: str, place: str) -> Callable[[Random], Grip]:
    return lambda chance: _lock(kind, name + _set(chance), place)


def _mixed(chance: Random) -> Grip:
    return _lock(chance.choice(("fair", "rlock", "spin")), "mixed:" + _set(chance), ONE)


def _named(chance: Random) -> Grip:
    choices: Any = ("fair", "fair:"), ("rlock", "plain:"), ("fair", "mixed:")
    kind, name = chance.choice(choices)
    name += _set(chance)
    return NamedGrip("named", ONE, [name], rlock(name, kind=kind, using=ONE, owner=str(uuid4())))


def _side(kept: str, **options: Any) -> Callable[[Random], Grip]:
    def make(chance: Random) -> Grip:
        name = kept + _set(chance)
        lock = ReadWriteLock(name, using=ONE, **options)
        if chance.random() < 0.7:
            return ReadGrip("read", ONE, [name], lock.read_lock)
        return Grip("write", ONE, [name], lock.write_lock)

    return make


def _multi(chance: Random) -> Grip:
    members: Any = [
        *(("fair", "fair:"), ("fair", "queue:"), ("rlock", "plain:")),
        *(("fair", "mixed:"), ("rlock", "mixed:"), ("fenced", "fenced:"), ("write", "prices:"), ("write", "stocks:")),
    ]
    chosen = {name + _set(chance): kind for kind, name in chance.sample(members, chance.randint(2, 4))}
    return Grip("multi", ONE, list(chosen), MultiLock(*(rlock(name, kind=chosen[name], using=ONE) for name in chosen)))


def _multi_fair(chance: Random) -> Grip:
    names = "fair:" + _set(chance), "queue:" + _set(chance)
    return Grip("multi", ONE, names, rlock(*names, using=ONE))


def _semaphore(chance: Random) -> Grip:
    return SemaphoreGrip(f"semaphore:{now() // NEW_NAME_EVERY:.0f}", chance.randint(1, 2), longest_wait=2.0)


def last_semaphore(chance: Random) -> Grip:
    """The one that no killed process has taken permits of."""
    return SemaphoreGrip("semaphore:last", chance.randint(1, 2))


KINDS: dict[str, Callable[[Random], Grip]] = {
    "fair": _one_of("fair", "fair:", ONE),
    "fair beside a multi": _one_of("fair", "queue:", ONE),
    "fair of the pair": _one_of("fair", "fair:", PAIR),
    "rlock": _one_of("rlock", "plain:", ONE),
    "rlock of the pair": _one_of("rlock", "plain:", PAIR),
    "spin": _one_of("spin", "spin:", ONE),
    "fenced": _one_of("fenced", "fenced:", ONE),
    "fenced of the pair": _one_of("fenced", "fenced:", PAIR),
    "mixed": _mixed,
    "named": _named,
    "read or write": _side("prices:"),
    "read or write, writers first": _side("stocks:", prefer="writer"),
    "multi": _multi,
    "multi of fair locks": _multi_fair,
    "redlock": _one_of("redlock", "red:", QUORUM),
    "redlock, the other": _one_of("redlock", "black:", QUORUM),
    "semaphore": _semaphore,
    "permits": lambda chance: PermitGrip("permits", chance.randint(1, 2)),
}
"""Makes a grip for one turn."""
