"""Operations of django-ninja under a lock. Imported only by projects that use it::

api = NinjaAPI()
register(api)

@api.post("/stock/{sku}/buy")
@distributed_lock("stock:<sku>")
def buy(request, sku: str): ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import NinjaAPI

from django_rlock._core import foreign
from django_rlock._web.calls import roll_back_open
from django_rlock._web.decorator import OPERATIONS, with_transactions
from django_rlock._web.http import LOCK_ERRORS, MissingValueError, answer


def register(api: NinjaAPI) -> None:
    """Make an API handle locks as decorated views do. Call it once for each API, before its ``urls`` are used:
    https://github.com/django-rlock/django-rlock/blob/main/docs/ninja.md says what changes.

    Raises RuntimeError if the URLs already exist.
    """
    if foreign.has_bound_routers(api):
        raise RuntimeError("Call register(api) before the first use of api.urls.")
    for error in LOCK_ERRORS:
        api.add_exception_handler(error, _locked)
    api.add_exception_handler(MissingValueError, partial(_missing, api))
    # ninja has no public hook between its operations and Django's views.
    foreign.replace_urls(api, partial(_urls, api))


def _locked(request: HttpRequest, error: Any) -> HttpResponse:
    response = answer(request, error)
    roll_back_open()
    return response


def _missing(api: NinjaAPI, request: HttpRequest, error: Any) -> HttpResponse:
    response: HttpResponse = api.create_response(request, {"detail": str(error)}, status=400)
    response["Cache-Control"] = "no-store"
    roll_back_open()
    return response


def _urls(api: NinjaAPI, made: Callable[[], Any]) -> Any:
    for router in foreign.bound_routers(api):
        for path_view in router.path_operations.values():
            vars(path_view)["get_view"] = partial(_view, path_view.operations, path_view.get_view)
    return made()


def _view(operations: Sequence[Any], made: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    view = with_transactions(made(), partial(_operation_for, operations))
    setattr(view, OPERATIONS, [operation.view_func for operation in operations])
    return view


def _operation_for(operations: Sequence[Any], request: HttpRequest) -> object:
    return next((each.view_func for each in operations if request.method in each.methods), None)
