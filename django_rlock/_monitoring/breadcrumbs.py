"""Breadcrumbs for Sentry: an error's event names the locks that were waited for, lost or force-released before.

The caller's thread adds them, so that an error that follows at once has them. ``add_breadcrumb()`` takes no
mutex that an interrupted caller could leave locked, and does nothing before ``sentry_sdk.init()``.
"""

from __future__ import annotations

import sys
from typing import Any

from django_rlock._core.text import printable
from django_rlock.signals import lock_acquired, lock_force_released, lock_lost, lock_timed_out, lock_unavailable

MIN_WAIT = 0.1
"""The shortest successful wait that leaves a breadcrumb, in seconds."""
_MESSAGES = {
    "acquired": ("info", "Waited {waited:.3f} s for lock {name!r}"),
    "timed_out": ("warning", "Lock {name!r} was still taken after {waited:.3f} s"),
    "unavailable": ("error", "Lock {name!r} was unavailable for {waited:.3f} s: {reason}"),
    "lost": ("error", "Lock {name!r} was lost: {reason}"),
    "force_released": ("warning", "Lock {name!r} was freed by force: {reason}"),
}
"""The level and the text for each outcome."""
_DATA = "template", "kind", "alias", "waited", "reason"


def leave_breadcrumbs() -> None:
    """Leave breadcrumbs from now on."""
    for signal in lock_acquired, lock_timed_out, lock_unavailable, lock_lost, lock_force_released:
        signal.connect(_leave, dispatch_uid=__name__)


def _leave(**given: Any) -> None:
    level_and_text = _MESSAGES.get(given["outcome"])
    sentry = sys.modules.get("sentry_sdk")
    if sentry is None or level_and_text is None or (given["outcome"] == "acquired" and given["waited"] < MIN_WAIT):
        return
    level, message = level_and_text
    shown = {"name": given["lock"].name, **{key: given[key] for key in _DATA if key in given}}
    data = {key: printable(value) if isinstance(value, str) else value for key, value in shown.items()}
    sentry.add_breadcrumb(category="lock", level=level, message=message.format(**data), data=data)
