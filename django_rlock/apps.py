"""Wires what registers itself: the checks, the process reports and what tells about locks."""

from django.apps import AppConfig
from django.core import checks
from django.utils.translation import gettext_lazy as _


class RLockConfig(AppConfig):
    name = "django_rlock"
    verbose_name = _("Distributed locks")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django_rlock import inspection, reports  # noqa: F401 - they register themselves
        from django_rlock.checks import check_settings
        from django_rlock.route_checks import check_routes

        checks.register(check_settings, checks.Tags.caches)
        checks.register(check_routes, checks.Tags.urls)
