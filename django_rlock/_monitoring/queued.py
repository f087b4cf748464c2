"""Messages of Celery tasks that have a reservation: finding them, and freeing their reservations."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from fnmatch import translate

from django_rlock._monitoring.documents import document_in, number_of, short_text
from django_rlock._monitoring.reading import asking
from django_rlock._redis import keys
from django_rlock._transport.calls import RUNS, reservation_call, run_flow
from django_rlock._transport.registry import sync_driver
from django_rlock.locks.infos import LockInfo, LockState, QueuedMessage
from django_rlock.settings import get_settings

_MOST = 5000
"""The maximum length of a reservation's description."""
_PATIENCE = 2.0
"""How long freeing a reservation is retried while Redis is unreachable, in seconds."""

HEADINGS = ["task", "message", "queue", "queued for", "sender", "kept for"]


def queued_messages(
    using: str, names: Collection[str] | None = None, pattern: str | None = None
) -> list[QueuedMessage]:
    """The messages in the queues of some locks; with None, of all locks of the alias whose names match a shell pattern,
    which reads every key of the server. Raises LockUnavailableError if Redis cannot be read.
    """
    prefix = get_settings(using).key_prefix
    with asking(", ".join(names or [pattern or "*"]), using) as server:
        now, reservations = server.read_reservations(None if names is None else [prefix + name for name in names])
    found = (_message(using, now, *reservation) for reservation in reservations)
    matches = re.compile(translate(pattern or "*")).match
    ours = [
        each
        for each in found
        if each.key.startswith(keys.reservation_key(prefix + each.name, ""))
        and matches(each.name)
        and (names is None or each.name in names)
    ]
    return sorted(ours, key=lambda each: -each.waited)


def _message(using: str, now: float, key: str, value: str, pttl: int) -> QueuedMessage:
    first, _, about = value.partition("\n")
    since, _, rest = about.partition(" ")
    text = rest.partition(" ")[2]
    known = document_in(text, _MOST)
    task_id = first.partition(":")[2]
    sent_at = number_of(since) or now
    return QueuedMessage(
        name=short_text(known.get("lock")),
        using=using,
        task=short_text(known.get("task")),
        task_id=short_text(task_id),
        queue=short_text(known.get("queue")),
        sender=short_text(known.get("sender")),
        since=sent_at,
        waited=max(now - sent_at, 0.0),
        left=max(pttl, 0) / 1000,
        is_sent=not first.startswith("?"),
        key=key,
        value=first.removeprefix("?"),
    )


def with_queued(locks: Iterable[LockInfo], messages: Iterable[QueuedMessage]) -> list[LockInfo]:
    """The locks with their queued messages, followed by the free locks for which messages are queued."""
    queued: dict[str, list[QueuedMessage]] = {}
    for message in messages:
        queued.setdefault(message.name, []).append(message)
    held = [replace(info, queued=tuple(queued.pop(info.name))) if info.name in queued else info for info in locks]
    return held + [_only_queued(messages) for messages in queued.values()]


def _only_queued(messages: Sequence[QueuedMessage]) -> LockInfo:
    """A free lock for which messages are queued."""
    first = messages[0]
    return LockInfo(
        name=first.name,
        key=get_settings(first.using).key_prefix + first.name,
        using=first.using,
        kind="",
        holders=(),
        state=LockState.QUEUED,
        remaining_lease=None,
        until=None,
        lease=None,
        waiters=(),
        waiting=0,
        queued=tuple(messages),
    )


def free_reservations(messages: Sequence[QueuedMessage]) -> int:
    """Free the reservations of messages, each only if that message still has it; returns how many were freed.

    The messages themselves stay in the queue. Raises LockUnavailableError if Redis is unreachable.
    """
    return sum(_free(message) for message in messages)


def _free(message: QueuedMessage) -> bool:
    driver = sync_driver(message.using)
    lock_key = get_settings(message.using).key_prefix + message.name
    call = reservation_call(message.name, lock_key, message.key, message.value, 0, RUNS)
    _, freed, *_ = run_flow(driver.run, (call, driver.now() + _PATIENCE))
    return bool(freed)
