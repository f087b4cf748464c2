"""The locks in the admin: their holders and waiters, and a forced release, which is confirmed and logged."""

from django.contrib import admin

from django_rlock.console.pages import LockAdmin
from django_rlock.models import Lock

__all__ = ["LockAdmin"]

admin.site.register(Lock, LockAdmin)
