"""The Celery app and a locked task."""

from celery import Celery

from django_rlock.celery import LockedTask

app = Celery("smokeproject")
app.config_from_object("django.conf:settings", namespace="CELERY")


@app.task(base=LockedTask, lock_key="report:<account_id>", name="smokeproject.build_report")
def build_report(account_id: int) -> str:
    return f"report of {account_id}"
