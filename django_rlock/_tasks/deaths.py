"""Poison messages: a message whose processes die again and again is rejected for good, so that the broker dead-letters
it.

RabbitMQ's quorum queues and SQS count how often they have taken a message back. But a message that is sent again is a
new message for the broker, whose count begins at 0. So each copy carries the count of its predecessors in a header.
Where the broker does not count, a message that it has taken back is sent again before it runs, with a count that is one
higher.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

DEATHS = "rlock_deaths"
"""A header of copies: how often a broker has taken their predecessors back, mostly because their process had died."""
RETURNED = "rlock_returned"
"""Set in the request of a run: how often the broker has taken the message back, if it says so."""
BROKERS_COUNT, _BROKERS_LIMIT = "x-delivery-count", "x-delivery-limit"
"""RabbitMQ's names for the count of a message in a quorum queue, which is a header, and for the queue's limit."""
_OF_QUORUM_QUEUES = 20
"""RabbitMQ's limit, from version 4 on, for a quorum queue that does not set one."""


def returned_before(message: Any) -> int | None:
    """How often the broker has taken a message back; None if it does not say."""
    count = (message.headers or {}).get(BROKERS_COUNT)
    if isinstance(count, int):
        return count
    attributes = ((message.delivery_info or {}).get("sqs_message") or {}).get("Attributes") or {}
    received = attributes.get("ApproximateReceiveCount")
    return None if received is None else int(received) - 1


def limit_of(app: Any, routing_key: str, option: int | None) -> float:
    """After how many deaths a message is rejected for good: the lower limit of its queue and of the task's option;
    infinite without a limit."""
    queue = _arguments(app, routing_key)
    limit = queue.get(_BROKERS_LIMIT)
    if limit is None and option is None and queue.get("x-queue-type") == "quorum":
        limit = _OF_QUORUM_QUEUES
    # RabbitMQ takes a negative limit for none.
    return min(math.inf if each is None or each < 0 else each for each in (limit, option))


def _arguments(app: Any, routing_key: str) -> Mapping[str, Any]:
    """The arguments with which the app declares the queue of a routing key."""
    found = (queue for queue in app.amqp.queues.values() if routing_key in {queue.routing_key, queue.name})
    return getattr(next(found, None), "queue_arguments", None) or {}
