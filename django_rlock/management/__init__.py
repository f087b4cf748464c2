"""Management commands, and ``LockedCommand`` for a project's own."""

from django_rlock.management.locked import LockedCommand

__all__ = ["LockedCommand"]
