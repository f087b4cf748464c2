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

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_rlock.cluster.addresses import Address
from django_rlock.cluster.client import ClusterClient
from django_rlock.cluster.slots import ASK_WITHIN, SLOTS, Ask, SlotMap, slot_of

if TYPE_CHECKING:
    from django_rlock.cluster.factory import ConnectionFactory

__all__ = ["ASK_WITHIN", "SLOTS", "Address", "Ask", "ClusterClient", "ConnectionFactory", "SlotMap", "slot_of"]


def __getattr__(name: str) -> Any:
    """Import the connection factory on first access: locks over Django's own cache work without django-redis."""
    if name != "ConnectionFactory":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from django_rlock.cluster.factory import ConnectionFactory

    return ConnectionFactory
