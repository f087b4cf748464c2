"""What reports tell of this process, and of the work for which it takes a lock."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from django.conf import settings as django_settings

from django_rlock.clock import monotonic
from django_rlock.process import on_fork
from django_rlock.settings import get_settings
from django_rlock.version import __version__

MAX_TEXT = 256
"""The maximum length of one value of a hold's context; the rest is cut off."""
_CONTEXT_KEYS = ("route", "user", "task", "task_id")
_ROLES = {
    "celery": "celery",
    **dict.fromkeys(("shell", "shell_plus"), "shell"),
    **dict.fromkeys(("runserver", "runserver_plus", "gunicorn", "uvicorn", "daphne", "hypercorn"), "web"),
    **dict.fromkeys(("granian", "uwsgi", "waitress-serve", "mod_wsgi"), "web"),
}


def described_context(using: str, context: Mapping[str, str] | None) -> dict[str, str] | None:
    """What a report of an alias says of the work for which a lock is taken; None where it says nothing."""
    if not context or not get_settings(using).record_context:
        return None
    return {key: str(context[key])[:MAX_TEXT] for key in _CONTEXT_KEYS if key in context}


def describe_process(clock: float) -> dict[str, str]:
    return {
        "host": socket.gethostname(),
        "pid": str(os.getpid()),
        "role": guess_role(sys.argv),
        "service": (getattr(django_settings, "SETTINGS_MODULE", None) or "").partition(".")[0],
        "version": __version__,
        "start": str(round(_started_at + clock, 3)),
    }


def guess_role(argv: Sequence[str]) -> str:
    """The kind of this process: ``web``, ``celery``, ``shell``, ``command <name>``, or ``python``."""
    program = Path(argv[0] if argv else "")
    name = program.parent.name if program.name == "__main__.py" else program.name.removesuffix(".py")
    if name in {"manage", "django-admin", "django"} and len(argv) > 1:
        return _ROLES.get(argv[1], f"command {argv[1]}")
    return _ROLES.get(name, "python")


def _note_start() -> None:
    global _started_at  # noqa: PLW0603 - a child has a report of its own
    _started_at = monotonic()


_started_at = monotonic()


on_fork("reports", _note_start)
