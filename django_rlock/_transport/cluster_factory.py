"""The connection factory for django-redis. Nothing else in this package needs django-redis."""

from __future__ import annotations

from django_redis import pool

from django_rlock._transport.cluster import ClusterClient


class ConnectionFactory(pool.ConnectionFactory):  # type: ignore[misc]  # django-redis is not typed
    """Gives django-redis one client of the cluster for each process, and gives locks a pool for each node."""

    _clients: dict[str, ClusterClient] = {}

    def connect(self, url: str) -> ClusterClient:
        params = self.make_connection_params(url)
        # Unlike the base class, distinguish caches with the same URL and different options.
        key = repr((params, self.options))
        # Threads that are the first to ask, at the same time, get the same one.
        return self._clients.get(key) or self._clients.setdefault(key, ClusterClient(self, params))

    def disconnect(self, connection: ClusterClient) -> None:
        connection.disconnect()
