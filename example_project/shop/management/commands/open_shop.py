"""Prepares a new shop before its site is started."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand
from django.db import connection


class Command(BaseCommand):
    help = "Creates the tables and the user admin, whose password is in DJANGO_SUPERUSER_PASSWORD."

    def handle(self, *_: Any, **__: Any) -> None:
        if settings.POSTGRES:
            with connection.cursor() as cursor:
                cursor.execute(f"CREATE SCHEMA IF NOT EXISTS {settings.SCHEMA}")
        call_command("migrate", verbosity=0)
        call_command("createsuperuser", interactive=False, verbosity=0, username="admin", email="admin@example.org")
