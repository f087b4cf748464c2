"""The worker's tasks: one sale and one accident at a time, and one report per account at a time."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import shared_task
from django.conf import settings
from django.dispatch import receiver

from django_rlock.celery import LockedTask
from django_rlock.signals import task_skipped
from example_project.shop.accident import kill_a_holder
from example_project.shop.models import Order, Report
from example_project.shop.sales import hold_sale, open_sales

REPORT_TIME = float(os.environ.get("SHOP_REPORT_TIME", "5"))
"""How long the report takes, in seconds: enough to press the button again, and to look at the lock in the admin."""


@shared_task(base=LockedTask, lock_key="flash-sale")
def hold_flash_sale(buyers: int, stock: int) -> None:
    """One lane after the other, so that they do not slow each other down."""
    for sale in open_sales(buyers, stock):
        hold_sale(sale, settings.SHOP_URL)


@shared_task(base=LockedTask, lock_key="accident")
def kill_the_holder() -> None:
    kill_a_holder()


@shared_task(base=LockedTask, lock_key="report:<account_id>", bind=True)
def build_report(self: LockedTask[..., Any], account_id: int) -> None:
    report = Report.objects.filter(task_id=str(self.request.id), account_id=account_id)
    report.update(state=Report.State.RUNNING)
    time.sleep(REPORT_TIME)  # add up the year
    report.update(state=Report.State.DONE, orders=Order.objects.count())


@receiver(task_skipped)
def note_skipped(task_id: str, **_: Any) -> None:
    """Show which press of the button was skipped; LockedTask has logged it already."""
    Report.objects.filter(task_id=task_id).update(state=Report.State.SKIPPED)
