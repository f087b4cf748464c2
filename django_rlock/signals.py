"""Signals about locks. Receivers are called with ``send_robust``: they can neither break nor leak a lock.

Every signal has the lock's class as ``sender`` and the keyword ``lock``. They fire in the thread or task that caused
them; ``lock_lost`` fires in the background thread, which noticed.
"""

from __future__ import annotations

from django.dispatch import Signal

lock_acquired = Signal()  # owner, count, waited (seconds)
lock_released = Signal()  # owner, held (seconds); after the last hold only
lock_timed_out = Signal()  # owner, waited (seconds)
lock_lost = Signal()  # owner, reason
lock_force_released = Signal()  # owner (None: whoever held it), reason
task_skipped = Signal()  # task, task_id; the lock of a LockedTask was taken, and it ended without running
