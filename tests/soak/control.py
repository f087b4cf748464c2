"""Locks that do not lock: every acquire succeeds. The checker must catch them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from random import Random
from typing import Any

from tests.soak.grips import PERMITS, WATCHDOG_TIMEOUT, Binding, Grip, Promise
from tests.soak.records import ALONE, PERMIT, READ, now

PLACE = "nowhere"


class NoLock(Grip):
    """Promises to be held, without any permission."""

    extends = again = tells = False

    def __init__(self, kind: str, mode: str, amount: int = 1, limit: int = 1) -> None:
        super().__init__(kind, PLACE, [kind.partition(" ")[0]], None)
        self.mode, self.amount, self.limit = mode, amount, limit
        self._numbers = itertools.count()

    async def acquire(self, binding: Binding, wait: float | None, lease: float | None) -> bool:
        self._deadline = now() + WATCHDOG_TIMEOUT
        return True

    async def release(self, binding: Binding) -> None:
        pass

    def promise(self) -> Promise:
        return Promise(False, self._deadline, WATCHDOG_TIMEOUT)

    def token(self) -> int | None:
        return next(self._numbers) if self.kind == "fenced" else None


def _kind(kind: str, mode: str, **amounts: Any) -> Callable[[Random], Grip]:
    return lambda _chance: NoLock(kind, mode, **amounts)


NO_LOCKS: dict[str, Callable[[Random], Grip]] = {
    "alone": _kind("fenced", ALONE),
    "read": _kind("prices (read)", READ),
    "write": _kind("prices (write)", ALONE),
    "permits": _kind("permits", PERMIT, amount=PERMITS, limit=PERMITS),
}
"""As ``grips.KINDS``."""
