"""The admin, a decorated view, and an operation where django-ninja is installed."""

from importlib.util import find_spec

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import path

from django_rlock import distributed_lock


@distributed_lock("stock:<sku>")
def buy(request: HttpRequest, sku: str) -> HttpResponse:
    return HttpResponse(f"yours: {sku}")


urlpatterns = [path("admin/", admin.site.urls), path("buy/<str:sku>/", buy)]
if find_spec("ninja"):
    from .operations import api

    urlpatterns.append(path("api/", api.urls))
