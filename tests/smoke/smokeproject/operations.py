"""A locked operation of django-ninja."""

from django.http import HttpRequest
from ninja import NinjaAPI

from django_rlock import distributed_lock
from django_rlock.ninja import register

api = NinjaAPI()
register(api)


@api.get("/buy/{sku}/")
@distributed_lock("stock:<sku>")
def buy(request: HttpRequest, sku: str) -> str:
    return f"yours: {sku}"
