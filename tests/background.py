"""What tests ask of the background thread: to renew now, to end a round, to leave nothing to the next test."""

from __future__ import annotations

import math
import threading
import time

from django_rlock.drivers import background, pubsub
from django_rlock.locks.holds import HOLDS, WAITS, Hold
from tests.eventually import eventually

ROUND_WITHIN = 30.0
"""For how long a round may hang, in seconds."""


def until_round_ends() -> bool:
    """Wait for a round that begins from now on; False if it hangs. True at once where there is no thread."""
    if background._loop._thread is None:
        return True
    ended = threading.Event()
    ends = []

    def end(now: float) -> float:
        ends.append(now)
        if len(ends) < 2:  # the first round may have been under way
            return now
        ended.set()
        return math.inf

    background.add_job(end)
    background._loop.nudge()
    try:
        return ended.wait(ROUND_WITHIN)
    finally:
        background._jobs.remove(end)


def renew_now(*holds: Hold) -> None:
    """Have holds be due for renewal, all of this process when none is named: so a lease may be long, and none waits."""
    for hold in holds or HOLDS.snapshot():
        hold.deadline -= hold.renew_at - min(hold.renew_at, time.monotonic())
    background._loop.nudge()


def until_renewed(hold: Hold) -> None:
    """Renew a hold now, and wait until that is done."""
    began = time.monotonic()
    renew_now(hold)
    eventually(lambda: hold.deadline > began + 0.9 * hold.lease)


def clear() -> list[str]:
    """Take everything off the books, have the background thread see that, and return what should not have been there.

    Clean-up is for servers that may be gone by now. A hold whose lease has ended is lost, though the background thread
    may not have come round to say so.
    """
    now = time.monotonic()
    left = [
        *(f"{hold.lock!r} is held by {hold.owner}" for hold in HOLDS.snapshot() if not hold.is_lost(now)),
        *(f"{wait.owner} waits for {wait.lock!r}" for wait in WAITS.snapshot()),
    ]
    background._loop.deferred.clear()
    HOLDS.clear()
    WAITS.clear()
    if not until_round_ends():
        left.append(f"the background thread hangs for {ROUND_WITHIN:.0f} s")
    background._loop.deferred.clear()  # what the round had in its hands
    return left + [f"a waiter in the line of {channel}" for channel in _channels_with_waiters()]


def _channels_with_waiters() -> list[str]:
    return [
        channel
        for listener in list(pubsub._listeners.values())
        for (channel, _), line in list(listener._lines.items())
        for place in list(line)
        if place() is not None
    ]
