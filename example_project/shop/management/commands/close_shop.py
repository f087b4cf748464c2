"""Removes a shop from PostgreSQL once its site has ended."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from django.db import connection


class Command(BaseCommand):
    help = "Drops the schema that open_shop created, with all tables."

    def handle(self, *_: Any, **__: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"DROP SCHEMA IF EXISTS {settings.SCHEMA} CASCADE")
