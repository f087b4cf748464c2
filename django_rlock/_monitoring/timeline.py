"""A lock's timeline: who held it when, how long others waited, what was lost or freed by force.

The past is what each process remembers (``recent``), the present what the lock is now. As with reports, nothing that is
found in Redis is believed to be well-formed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from django_rlock._monitoring.history import Happening, LockEvent, PastHold, events_in, party_in, plain
from django_rlock._monitoring.parsing import document_in, list_of, number_of, short_text
from django_rlock._monitoring.reading import RecentText, asking
from django_rlock._monitoring.recent import MAX_HOLDS, MAX_WAITS
from django_rlock._monitoring.recorded import KEEP
from django_rlock.locks.infos import LockInfo, Party
from django_rlock.locks.statistics import LONG_WAIT
from django_rlock.settings import get_settings

MAX_JSON = 100_000
MAX_SHOWN = 10
"""How many of the last holds, waits and forced releases each are listed."""
MAX_SPANS = 500
"""How many holds, and how many waits, are drawn."""
_AHEAD = 1.0
"""How far a process's idea of the server's clock may be ahead of it, in seconds."""

T = TypeVar("T", bound=Happening)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span(PastHold):
    """A hold or a wait (``what``): ``seconds`` of it until ``at``.

    ``failed``: it ended by a loss, for a ``reason``, or without the lock. ``is_now``: it has not ended.
    ``is_named``: its process tells whose it was.
    """

    what: str
    failed: bool = False
    reason: str = ""
    is_now: bool = False
    is_named: bool = True

    @property
    def start(self) -> float:
        return self.at - self.seconds

    @property
    def verb(self) -> str:
        """The event, in one word or two."""
        return ("lost" if self.failed else "held") if self.what == "hold" else "gave up" if self.failed else "waited"


@dataclass(frozen=True)
class Timeline:
    """The last holds and waits of a lock, and its forced releases, the earliest first, at the time ``now`` of the
    server's clock."""

    now: float
    holds: Sequence[Span]
    waits: Sequence[Span]
    freed: Sequence[LockEvent]

    def __bool__(self) -> bool:
        return bool(self.holds or self.waits or self.freed)

    @property
    def listed(self) -> list[Span | LockEvent]:
        """The entries that have ended, the latest first."""
        holds = [hold for hold in self.holds if not hold.is_now][-MAX_SHOWN:]
        waits = [wait for wait in self.waits if not wait.is_now and wait.is_named][-MAX_SHOWN:]
        return sorted([*holds, *waits, *self.freed[-MAX_SHOWN:]], key=lambda happening: -happening.at)

    @property
    def longest_hold(self) -> float | None:
        return max((hold.seconds for hold in self.holds), default=None)

    @property
    def longest_wait(self) -> float | None:
        return max((wait.seconds for wait in self.waits), default=None)

    @property
    def gave_up(self) -> int:
        return sum(wait.failed for wait in self.waits)

    @property
    def lost(self) -> list[Span]:
        return [hold for hold in self.holds if hold.failed]

    @cached_property
    def queue(self) -> list[tuple[float, float, int]]:
        """From when until when how many waited, where anybody did."""
        long = [wait for wait in self.waits if wait.is_now or wait.seconds >= LONG_WAIT]
        changes = sorted(change for wait in long for change in ((wait.start, 1), (wait.at, -1)))
        steps, waiting = [], 0
        for (at, change), (until, _) in pairwise(changes):
            waiting += change
            if waiting and until > at:
                steps.append((at, until, waiting))
        return steps

    @property
    def longest_queue(self) -> int:
        return max((waiting for _, _, waiting in self.queue), default=0)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; without whole owner ids."""
        return {
            "longest_hold": self.longest_hold,
            "longest_wait": self.longest_wait,
            "longest_queue": self.longest_queue,
            "gave_up": self.gave_up,
            "lost": len(self.lost),
            "freed": len(self.freed),
            "last": [plain(happening) for happening in self.listed],
        }


class _Lock(NamedTuple):
    """A lock, and when it was read by the server's clock."""

    using: str
    name: str
    now: float


def read_timeline(using: str, name: str, info: LockInfo | None) -> Timeline:
    """What is remembered of a lock, and what it is now. LockUnavailableError when Redis cannot be asked."""
    with asking(name, using) as server:
        now, texts = server.read_recent(get_settings(using).key_prefix + name)
    lock = _Lock(using, name, now)
    past = _by_client(texts).items()
    holds = [hold for client, document in past for hold in _spans(lock, client, document, "hold", MAX_HOLDS)]
    waits = [wait for client, document in past for wait in _spans(lock, client, document, "wait", MAX_WAITS)]
    freed = [event for client, document in past for event in events_in(client, document, now, "freed")]
    if info:
        holds += [_present(lock, holder, "hold", holder.held_for) for holder in info.holders if holder.since]
        waits += [_present(lock, waiter, "wait", waiter.waited) for waiter in info.waiters if waiter.since]
    return Timeline(now, _latest(holds), _latest(waits), _latest(freed))


def _latest(found: Iterable[T]) -> list[T]:
    return sorted(found, key=lambda happening: happening.at)[-MAX_SPANS:]


def _by_client(texts: Iterable[RecentText]) -> dict[str, dict[str, Any]]:
    """The memory of each process; if several nodes have it, the latest version."""
    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        document = document_in(text.text, MAX_JSON) | {"host": text.host, "pid": text.pid, "role": text.role}
        found[text.client] = max(found.get(text.client, document), document, key=_last_change)
    return found


def _last_change(document: Mapping[str, Any]) -> float:
    entries = (entry for field in ("holds", "waits", "freed") for entry in list_of(document.get(field), MAX_SPANS))
    return max((number_of(entry.get("at")) or 0.0 for entry in entries), default=0.0)


def _spans(lock: _Lock, client: str, document: Mapping[str, Any], what: str, at_most: int) -> Iterator[Span]:
    for entry in list_of(document.get(f"{what}s"), at_most):
        seconds, at = number_of(entry.get("seconds")), number_of(entry.get("at"))
        if seconds is None or at is None or not lock.now - KEEP < at < lock.now + _AHEAD or not 0 <= seconds < at:
            continue
        yield Span(
            **party_in(client, document, entry),
            using=lock.using,
            name=lock.name,
            what=what,
            at=min(at, lock.now),
            seconds=seconds,
            failed=entry.get("failure") is not None,
            reason=short_text(entry.get("failure")),
            is_named="place" in entry,
        )


def _present(lock: _Lock, party: Party, what: str, seconds: float | None) -> Span:
    known = {field.name: getattr(party, field.name) for field in fields(Party)}
    return Span(**known, using=lock.using, name=lock.name, what=what, at=lock.now, seconds=seconds or 0.0, is_now=True)
