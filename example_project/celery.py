"""The Celery app: ``celery -A example_project worker``."""

import os
from pathlib import Path

from celery import Celery
from celery.signals import worker_ready

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")

app = Celery("example_project")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@worker_ready.connect
def tell_ready(**_: object) -> None:
    """Report to the process that started this worker, through the file that it named, that tasks can come."""
    if name := os.environ.get("SHOP_READY_FILE"):
        Path(name).touch()
