"""The page: the lanes, the accident, the reports, and the state of all for the script that refreshes them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.admin.utils import quote
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from example_project.shop import lanes, tasks
from example_project.shop.accident import LOCK, state_of_accident
from example_project.shop.forms import SaleForm
from example_project.shop.management.commands.cashier import hold_the_till
from example_project.shop.models import Lane, Report, Sale
from example_project.shop.sales import Result, result_of, tiles_of

ACCOUNT = 42
"""The account whose report the page requests; a real site would use the user's."""

SHOWN_REPORTS = 8

HELPERS = {Lane.NAIVE: [lanes.naive_lock]}
"""What a lane's view uses, to be shown with it."""


@require_GET
@never_cache
def index(request: HttpRequest) -> HttpResponse:
    sale = Sale.objects.first()
    initial = {"buyers": sale.buyers, "stock": sale.stock} if sale else None
    state = _state()
    for lane in state["lanes"]:
        lane["code"] = _source(*HELPERS.get(lane["lane"], ()), lanes.VIEWS[lane["lane"]])
        lane["explanation"] = f"shop/why_{lane['lane']}.html"
    context = state | {
        "form": SaleForm(initial=initial),
        "account": ACCOUNT,
        "sell_code": _source(lanes.sell),
        "report_code": _source(tasks.build_report.run),
        "report_seconds": round(tasks.REPORT_TIME),
        "till_code": _source(hold_the_till),
        "till_url": _admin_url(LOCK),
        "lease": settings.LEASE,
        "short_expiry_ms": round(lanes.SHORT_EXPIRY * 1000),
        "long_expiry": round(lanes.LONG_EXPIRY),
        "rows_are_locked": lanes.buy_by_database is lanes.buy_by_row_lock,
        "quick_ms": round(lanes.QUICK_PAYMENT * 1000),
        "slow_ms": round(lanes.SLOW_PAYMENT * 1000),
    }
    return render(request, "shop/index.html", context)


@require_GET
@never_cache
def status(_request: HttpRequest) -> HttpResponse:
    """The content of the page, for its script."""
    return JsonResponse(_state())


@require_POST
def start_sale(request: HttpRequest) -> HttpResponse:
    form = SaleForm(request.POST)
    if form.is_valid():
        tasks.hold_flash_sale.delay(**form.cleaned_data)
    else:
        messages.error(request, "A sale needs 1 to 300 buyers, and 1 to 300 moon cakes.")
    return redirect("index")


@require_POST
def kill_the_holder(_request: HttpRequest) -> HttpResponse:
    tasks.kill_the_holder.delay()
    return redirect("index")


@require_POST
def ask_for_report(_request: HttpRequest) -> HttpResponse:
    report = Report.objects.create(account_id=ACCOUNT)
    tasks.build_report.apply_async((ACCOUNT,), task_id=str(report.task_id))
    return redirect("index")


def _state() -> dict[str, Any]:
    return {
        "lanes": [_lane_state(Lane(lane)) for lane in Lane.values],
        "accident": state_of_accident(),
        "reports": [_report_state(report) for report in Report.objects.all()[:SHOWN_REPORTS]],
    }


def _lane_state(lane: Lane) -> dict[str, Any]:
    sale = Sale.objects.filter(lane=lane).first()
    tiles = tiles_of(sale) if sale else []
    result = result_of(sale, tiles) if sale else None
    tone, verdict = _verdict(result)
    return {
        "lane": lane.value,
        "title": lane.label,
        "tiles": tiles,
        "totals": {name: getattr(result, name, 0) for name in ["sold", "sold_out", "refused", "errors", "oversold"]},
        "tone": tone,
        "verdict": verdict,
        "lock_url": _admin_url(f"stock:{sale.sku}") if sale and lane == Lane.LOCKED else None,
    }


def _admin_url(lock: str) -> str:
    """The admin's page of a lock."""
    return reverse("admin:django_rlock_lock_change", args=[quote(f"default/{lock}")])


def _verdict(result: Result | None) -> tuple[str, str]:
    """The tone (idle, busy, right or wrong) and the text for the outcome of a lane's sale."""
    if result is None:
        return "idle", "No sale yet"
    if result.seconds is None:
        decided = result.sold + result.sold_out + result.refused + result.errors
        return "busy", f"{decided} of {result.buyers} buyers decided"
    took = f"in {result.seconds:.1f} s"
    if result.oversold:
        return "wrong", f"{result.oversold} oversold {took}"
    if not result.right:
        return "wrong", f"{result.refused + result.errors} buyers got no decision {took}"
    return "right", f"{result.sold} sold, none oversold, {took}"


def _source(*functions: Callable[..., Any]) -> str:
    """The code of functions, without annotations, to fit a third of the page."""
    code = "\n\n".join(inspect.getsource(function) for function in functions)
    code = re.sub(r": \w+ = ", "=", code)
    return re.sub(r": \w+(?=[,)])| -> [\w\[\]]+(?=:)", "", code)


def _report_state(report: Report) -> dict[str, Any]:
    outcome = {
        Report.State.QUEUED: "waits for a worker",
        Report.State.RUNNING: "runs, and holds the lock",
        Report.State.DONE: f"done: {report.orders} orders",
        Report.State.SKIPPED: "skipped: another one was running",
    }
    return {
        "id": report.pk,
        "state": report.state,
        "outcome": outcome[Report.State(report.state)],
    }
