"""Locks as pages show them, and what a browser may know about them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from django_rlock.inspection.infos import CLIENT_LENGTH, LockInfo, Party
from django_rlock.settings import get_settings


@dataclass(frozen=True, slots=True)
class Row:
    """A lock as a page shows it."""

    lock: LockInfo

    @property
    def object_id(self) -> str:
        """Its name in the admin's URLs and log."""
        return f"{self.lock.using}/{self.lock.name}"

    @property
    def keeps_waiting(self) -> bool:
        """Whether others wait behind a hold that is older than the alias's SLOW_HOLD."""
        return bool(self.lock.waiting) and (self.lock.held_for or 0.0) > get_settings(self.lock.using).slow_hold

    @property
    def full_lease(self) -> float:
        """The end of the meter for the time left, in seconds."""
        lease = self.lock.lease or get_settings(self.lock.using).watchdog_timeout
        return max(lease, self.lock.remaining_lease or 0.0)

    @property
    def low_lease(self) -> float:
        """Below this, in seconds, a holder has missed a renewal: they come at every third of the lease."""
        return self.full_lease / 3

    @property
    def nodes(self) -> list[tuple[str, str | None, bool]]:
        """Each node of a RedLock, who has the lock there (see ``short_node_owner``), and whether that is the holder."""
        owner = self.lock.holder.owner
        return [(node, short_node_owner(other), other == owner) for node, other in self.lock.nodes.items()]

    @property
    def command(self) -> str:
        """What frees it in a shell, while that owner has it."""
        words = ["rlock_release", "--using", self.lock.using, "--owner", self.lock.holder.owner, "--", self.lock.name]
        return " ".join(map(_shell_word, words))


def public_dict(lock: LockInfo) -> dict[str, Any]:
    """Plain values without whole owner ids, which a browser has no need to know."""
    document = lock.as_dict()
    for kind in ("holders", "waiters", "recent", "crowds"):
        parties: tuple[Party, ...] = getattr(lock, kind)
        for entry, party in zip(document[kind], parties, strict=True):
            entry |= {"owner": party.short_owner, "client": party.client[:8], "doing": party.doing}
            del entry["actor"]  # it has the whole client id
    document["nodes"] = {node: short_node_owner(owner) for node, owner in lock.nodes.items()}
    return document


def _shell_word(word: str) -> str:
    """A word as a shell takes it; control characters are written as escapes, which a terminal does not execute."""
    if word.isprintable():
        return shlex.quote(word)
    plain = word.replace("\\", r"\\").replace("'", r"\'")
    return "$'" + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in plain) + "'"


def short_node_owner(owner: str | None) -> str | None:
    """The owner on a node for people; "" where it is free there, None where it is unreachable."""
    return Party(owner=owner, actor=owner, client=owner[:CLIENT_LENGTH]).short_owner if owner else owner
