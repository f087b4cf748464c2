"""Filters and tags that show names, routes and durations."""

from django_rlock.console.tags import register

__all__ = ["register"]
