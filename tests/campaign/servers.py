"""The servers of a campaign: one for messages and results, one for locks, each with a proxy before it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.soak.servers import Single


class Servers:
    """``folder`` is for their proxies."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.broker = Single(stack, folder, "broker", None, proxied=True)
        self.locks = Single(stack, folder, "locks", None, proxied=True)

    def addresses(self, past_proxies: bool) -> dict[str, Any]:
        """For those who go past the proxies, or through them. Results are kept past them."""
        broker, results, locks = self.broker.url(past_proxies), self.broker.url(True), self.locks.url(past_proxies)
        return {"broker": _for_celery(broker, 1), "results": _for_celery(results, 2), "locks": locks}


def _for_celery(url: str, database: int) -> str:
    """Kombu names unix sockets in its own way."""
    return url.replace("unix://", "redis+socket://").replace("?db=0", f"?virtual_host={database}")
