"""Signals about locks, sent by ``send_robust``: an error in a receiver cannot break or leak a lock.

Every signal has the lock's class as ``sender``, and the keywords ``lock``, ``template``, ``kind``, ``alias`` and
``outcome``. ``template`` is the key template that made the lock's name, such as "stock:<id>"; "" if there is none.
``template``, ``kind``, ``alias`` and ``outcome`` have few values, however many locks there are, so they may be labels
of metrics; names and owners may not. A group of locks that are taken together sends signals for each lock.

Signals are sent in the thread or task that caused them. ``lock_lost`` is sent in the thread for callbacks, where a slow
receiver does not delay renewals.
"""

from __future__ import annotations

from typing import Any

from django.dispatch import Signal

from django_rlock._core import threads


class LockSignal(Signal):
    """A signal about a lock; ``outcome`` is a word for the event."""

    def __init__(self, outcome: str) -> None:
        super().__init__(use_caching=True)
        self.outcome = outcome

    def notify(self, lock: Any, **values: object) -> None:
        """Send the signal to its receivers, with the keywords of all signals."""
        if self.receivers:
            self._find_receivers(type(lock))
            common = {"template": lock.template, "kind": lock.kind, "alias": lock.using, "outcome": self.outcome}
            self.send_robust(sender=type(lock), lock=lock, **{**common, **values})

    def _find_receivers(self, sender: type) -> None:
        """Make Django cache a sender's receivers. It takes a mutex to find them, which an interrupted caller could
        leave locked, so this runs in a separate thread."""
        if self._dead_receivers or sender not in self.sender_receivers_cache:  # type: ignore[attr-defined]
            threads.run_in_thread(self.has_listeners, sender)


lock_acquired = LockSignal("acquired")  # owner, count, waited (seconds); outcome "reentered" where count is above 1
lock_released = LockSignal("released")  # owner, held (seconds); after the last hold only
lock_timed_out = LockSignal("timed_out")  # owner, waited (seconds)
lock_unavailable = LockSignal("unavailable")  # waited (seconds), reason; Redis was unreachable, or refused
lock_lost = LockSignal("lost")  # owner, reason
lock_force_released = LockSignal("force_released")  # owner (None: any owner), reason

# For a LockedTask; each has task, task_id and reason, a text.
task_skipped = LockSignal("skipped")  # the lock was taken, and the task ended without running
task_deferred = LockSignal("deferred")  # the task could not run yet, and its message was sent again
# A message was dropped, because another copy of it ran or will run; or a message was not sent, because another message
# with its key waits or runs, and task_id is the id of that other message.
task_deduplicated = LockSignal("deduplicated")
