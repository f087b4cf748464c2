"""What the decorator adds to a bare lock, what views cost in round trips, and what importing the package costs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from tempfile import TemporaryDirectory

from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.test.utils import override_settings
from django.urls import path

from benchmarks.results import Row, Table, median_row
from benchmarks.stage import monitored, one_core
from benchmarks.timing import Pair, ratios, time_sync
from django_rlock import distributed_lock, rlock

ROUNDS, CALLS, INTERPRETERS = 200, 40, 15
QUICK_ROUNDS, QUICK_CALLS, QUICK_INTERPRETERS = 2, 5, 2
VIEW_LIMIT, FUNCTION_LIMIT = 1.08, 1.15
IMPORT_LIMIT_MS = 30
COUNTED_VIEWS, TRIPS = 20, 3


def run(quick: bool) -> list[Table]:
    rounds, calls, interpreters = (
        (QUICK_ROUNDS, QUICK_CALLS, QUICK_INTERPRETERS) if quick else (ROUNDS, CALLS, INTERPRETERS)
    )
    with override_settings(ROOT_URLCONF=__name__):
        with one_core():
            rows = [
                *ratio_rows("a view, through Django's test client", views(), rounds, calls, VIEW_LIMIT),
                *ratio_rows("a function", functions(), rounds, calls, FUNCTION_LIMIT),
            ]
        trips = [round_trips(name, url) for name, url in ATOMIC_VIEWS.items()]
    return [
        Table("@distributed_lock beside a with statement around the body", rows),
        Table("Round trips of a view under a lock and a transaction", trips),
        Table("import django_rlock, in a fresh interpreter after Django and redis", import_rows(interpreters)),
    ]


# ---- decorated and bare -------------------------------------------------------------------------------------------


def respond(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse(f"{request.method} {pk}")


@distributed_lock("bench:view:<pk>")
def decorated_view(request: HttpRequest, pk: int) -> HttpResponse:
    return respond(request, pk)


def bare_view(request: HttpRequest, pk: int) -> HttpResponse:
    with rlock(f"bench:view:{pk}"):
        return respond(request, pk)


@distributed_lock("bench:function:<pk>")
def decorated_function(pk: int) -> int:
    return pk


def bare_function(pk: int) -> int:
    with rlock(f"bench:function:{pk}"):
        return pk


def views() -> dict[str, Pair]:
    client = Client()
    return {"bare": partial(client.get, "/bare/7/"), "decorated": partial(client.get, "/decorated/7/")}


def functions() -> dict[str, Pair]:
    return {"bare": partial(bare_function, 7), "decorated": partial(decorated_function, 7)}


def ratio_rows(what: str, contenders: Mapping[str, Pair], rounds: int, calls: int, limit: float) -> list[Row]:
    costs = time_sync(contenders, rounds, calls)
    return [
        median_row(f"{what}, {kind} time", ratios(costs, "decorated", "bare", kind), "× bare", at_most=limit)
        for kind in ("cpu", "wall")
    ]


# ---- round trips --------------------------------------------------------------------------------------------------


def atomic_view(request: HttpRequest, pk: int) -> HttpResponse:
    with rlock(f"bench:view:{pk}").atomic():
        return respond(request, pk)


@distributed_lock("bench:view:<pk>", atomic=True)
def decorated_atomic_view(request: HttpRequest, pk: int) -> HttpResponse:
    return respond(request, pk)


urlpatterns = [
    path("decorated/<int:pk>/", decorated_view),
    path("bare/<int:pk>/", bare_view),
    path("atomic/<int:pk>/", atomic_view),
    path("decorated-atomic/<int:pk>/", decorated_atomic_view),
]
ATOMIC_VIEWS = {"with rlock().atomic()": "/atomic/7/", "@distributed_lock(atomic=True)": "/decorated-atomic/7/"}


def round_trips(name: str, url: str) -> Row:
    """Scripts that the server ran for a view: acquire, whether it is still owned, release."""
    client = Client()
    client.get(url)  # the server knows the scripts from now on
    with monitored() as counts:
        for _ in range(COUNTED_VIEWS):
            client.get(url)
    sent = counts.by_clients.total()
    return Row(
        f"{name}, round trips",
        sent / COUNTED_VIEWS,
        at_most=TRIPS,
        at_least=TRIPS,
        details={"other than EVALSHA": sent - counts.by_clients["EVALSHA"]},
    )


# ---- importing ----------------------------------------------------------------------------------------------------

_IMPORT = """
import time
began = time.process_time()
import django, django.conf, redis
django.conf.settings.configure(CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://"}})
django.setup()
import django_redis.cache, django_redis.client
from django.core.cache import caches
caches["default"]
others = time.process_time()
import django_rlock
print(others - began, time.process_time() - others)
"""


def import_rows(interpreters: int) -> list[Row]:
    """Each round is one interpreter, which imports first the others and then the package."""
    with TemporaryDirectory() as bytecode:
        time_imports(bytecode)  # compiles
        rounds = [time_imports(bytecode) for _ in range(interpreters)]
    more = [ours * 1000 for _, ours in rounds]
    ratios_of_all = [1 + ours / others for others, ours in rounds]
    return [
        median_row("more than Django and redis, cpu time", more, "ms", at_most=IMPORT_LIMIT_MS),
        median_row("all of it, cpu time", ratios_of_all, "× Django and redis"),
    ]


def time_imports(bytecode: str) -> tuple[float, float]:
    """Seconds of CPU time for the others and for the package, with bytecode kept in a folder."""
    environ = os.environ | {"PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""}
    printed = subprocess.run([sys.executable, "-c", _IMPORT], env=environ, check=True, stdout=subprocess.PIPE).stdout
    others, ours = map(float, printed.split())
    return others, ours
