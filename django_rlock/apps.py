"""The app: its ``ready()`` registers the system checks, begins the reports, and connects the signals by which requests
and tasks tell when they end."""

import sys

from django.apps import AppConfig
from django.core import checks
from django.db.models.signals import pre_save
from django.utils.translation import gettext_lazy as _

from django_rlock._core.process import finish


class RLockConfig(AppConfig):
    name = "django_rlock"
    verbose_name = _("Distributed locks")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django_rlock._tasks.checks import check_tasks
        from django_rlock._web.reads import warn_of_old_values
        from django_rlock.checks import (
            check_aliases,
            check_deployment,
            check_hooks,
            check_routes,
            check_settings,
            warn_inside_uwsgi,
        )
        from django_rlock.console.inspection import follow_locks
        from django_rlock.middleware import hear_of_ends

        follow_locks()
        checks.register(check_settings, checks.Tags.caches)
        checks.register(check_deployment, checks.Tags.caches, deploy=True)
        checks.register(check_routes, checks.Tags.urls)
        checks.register(check_aliases)
        checks.register(check_hooks)
        checks.register(check_tasks)
        pre_save.connect(warn_of_old_values, dispatch_uid="django_rlock._web.reads")
        warn_inside_uwsgi()
        hear_of_ends()
        if "sentry_sdk" in sys.modules:
            from django_rlock.metrics import leave_breadcrumbs

            leave_breadcrumbs()
        if "celery" in sys.modules:
            from celery.signals import worker_process_shutdown

            # A child of such a pool ends by os._exit.
            worker_process_shutdown.connect(finish, weak=False, dispatch_uid="django_rlock._core.process")
