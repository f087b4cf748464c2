"""Redis Cluster for django-redis, which does not support it: a connection factory, and the map of slots.

    CACHES = {
        "locks": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": "redis://10.0.0.1:6379",
            "OPTIONS": {"CONNECTION_FACTORY": "django_rlock.cluster.ConnectionFactory"},
        },
    }

``LOCATION`` is any node. Further ``OPTIONS``, whose addresses are ``"host:port"`` or ``(host, port)``:

``STARTUP_NODES``
    A list of other nodes to use when that one is down.
``NODE_ADDRESSES``
    For nodes behind a NAT: a dict from the addresses that the nodes announce to reachable addresses.
"""

from django_redis import pool

from django_rlock._transport.cluster import ClusterFactory

__all__ = ["ConnectionFactory"]


class ConnectionFactory(ClusterFactory, pool.ConnectionFactory):  # type: ignore[misc]  # django-redis is not typed
    """Makes clients of a Redis Cluster for django-redis."""
