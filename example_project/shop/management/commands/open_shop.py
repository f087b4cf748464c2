"""What a new shop needs before its site is started."""

from __future__ import annotations

from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand


class Command(BaseCommand):
    help = "Creates the tables and the user admin, whose password is in DJANGO_SUPERUSER_PASSWORD."

    def handle(self, *_: Any, **__: Any) -> None:
        call_command("migrate", verbosity=0)
        call_command("createsuperuser", interactive=False, verbosity=0, username="admin", email="admin@example.org")
