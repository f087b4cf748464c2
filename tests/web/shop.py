"""A shop that sells one row of stock, served by a threaded WSGI server in a process of its own.

    python -m tests.web.shop '{"database": {...}, "redis": "unix://..."}'

Prints its port, and ends when its standard input does. COMMIT takes 20 ms, as it may on a busy disk.
"""

import json
import sys
import threading
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.urls import path

from django_rlock import distributed_lock

SCHEMA = """
CREATE TABLE stock (id integer PRIMARY KEY, items integer);
INSERT INTO stock VALUES (1, 10), (2, 10), (3, 10), (4, 10);
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.02); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER slow_commit AFTER UPDATE ON stock
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION slow();
"""


def sell(request: HttpRequest, pk: int) -> HttpResponse:
    """Read, decide and write, as code without SELECT FOR UPDATE does."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT items FROM stock WHERE id = %s", [pk])
        (items,) = cursor.fetchone()
        if not items:
            return HttpResponse("sold out", status=409)
        cursor.execute("UPDATE stock SET items = %s WHERE id = %s", [items - 1, pk])
    return HttpResponse("sold")


def urls() -> list[Any]:
    """The views, once there are settings."""
    from ninja import NinjaAPI
    from rest_framework.decorators import action
    from rest_framework.viewsets import ViewSet

    from django_rlock.ninja import register

    lock = distributed_lock("stock:<pk>", wait_time=40)

    class Stocks(ViewSet):  # type: ignore[misc]
        authentication_classes: list[Any] = []

        @action(detail=True)
        @lock
        def sell(self, request: Any, pk: int) -> HttpResponse:
            return sell(request, pk)

    api = NinjaAPI()
    register(api)

    @api.get("/{pk}/")
    @lock
    def sell_one(request: Any, pk: int) -> HttpResponse:
        return sell(request, pk)

    return [
        path("safe/<int:pk>/", lock(sell)),
        path("late/<int:pk>/", distributed_lock("stock:<pk>", wait_time=40, atomic=False)(sell)),
        path("action/<int:pk>/", Stocks.as_view({"get": "sell"})),
        path("operation/", api.urls),
    ]


urlpatterns: list[Any] = []


class ThreadedServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 100


class QuietHandler(WSGIRequestHandler):
    def log_message(self, *args: Any) -> None:
        pass


def main(given: dict[str, Any]) -> None:
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": given["redis"]}
    settings.configure(
        ROOT_URLCONF=__name__,
        ALLOWED_HOSTS=["127.0.0.1"],
        SECRET_KEY="not a secret",
        DATABASES={"default": {**given["database"], "ATOMIC_REQUESTS": True}},
        CACHES={"default": cache},
        MIDDLEWARE=["django_rlock.middleware.LockMiddleware"],
        INSTALLED_APPS=["django_rlock"],
        REST_FRAMEWORK={"UNAUTHENTICATED_USER": None},
    )
    import django
    from django.core.handlers.wsgi import WSGIHandler
    from django.db import connection

    django.setup()
    urlpatterns.extend(urls())
    with connection.cursor() as cursor:
        cursor.execute(SCHEMA)
    connection.close()
    with ThreadedServer(("127.0.0.1", 0), QuietHandler) as server:
        server.set_app(WSGIHandler())
        threading.Thread(target=server.serve_forever, daemon=True).start()
        sys.stdout.write(f"{server.server_port}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
