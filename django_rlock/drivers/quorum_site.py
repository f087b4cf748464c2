"""What this process knows of the nodes of a RedLock, whether threads or tasks ask them."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Collection
from typing import Any

import redis
from django.core.signals import setting_changed

from django_rlock.connections import node_pool
from django_rlock.drivers import background
from django_rlock.drivers.base import run_sync
from django_rlock.drivers.census import Census
from django_rlock.drivers.quorum import NodeDownError, QuorumCall, QuorumDriver
from django_rlock.exceptions import LockUnavailableError
from django_rlock.settings import get_settings, is_url, server_aliases


class Site:
    """What this process knows of an alias's nodes, whatever its drivers: who restarted, who is down, who is to be told.

    The background thread tells nodes later what they could not be told in time, and looks whether they are up again.
    """

    def __init__(self, using: str) -> None:
        options = get_settings(using)
        nodes = options.nodes or ()
        self.using = using
        self.timeout = options.node_timeout
        self.names = tuple(_without_password(node) if is_url(node) else node for node in nodes)
        self.aliases = server_aliases(using)
        self.pools: list[Any] = [node_pool(alias) for alias in self.aliases]
        self.census = Census(self.names, options.longest_lease or 0.0, options.clock_drift)
        self._down: dict[int, str] = {}
        self._untold: dict[tuple[int, QuorumCall], float] = {}
        self._closed = False

    def is_up(self, node: int) -> bool:
        """Whether it could be reached when it was last tried."""
        return node not in self._down

    def require_up(self, node: int) -> None:
        """NodeDownError for a node that could not be reached when it was last tried; nobody waits for it again."""
        reason = self._down.get(node)
        if reason is not None:
            raise NodeDownError(reason)

    def note_down(self, node: int, error: Exception) -> None:
        """Leave a node alone until the background thread has reached it."""
        if node not in self._down:
            self._down[node] = str(error)
            background.defer(lambda: self._probe(node), math.inf)

    def _probe(self, node: int) -> None:
        if not self._closed:
            redis.Redis(connection_pool=self.pools[node]).ping()
            self._down.pop(node, None)

    def tell_later(self, undo: QuorumCall, nodes: Collection[int], until: float) -> None:
        """Have nodes obey a call as soon as they can be asked, if that is before a monotonic time."""
        was_empty = not self._untold
        self._untold |= {(node, undo): until for node in nodes}
        if was_empty:
            background.defer(self._tell, math.inf, after=self.timeout)

    def _tell(self) -> None:
        now = time.monotonic()
        for key, until in list(self._untold.items()):
            if self._closed or until <= now:
                self._untold.pop(key, None)
        if self._untold:
            run_sync(self._tell_all(self._background_driver()))
        if self._untold:
            raise LockUnavailableError(self.using, reason=f"nodes are still to be told {len(self._untold)} releases")

    def _background_driver(self) -> QuorumDriver:
        from django_rlock.drivers.quorum_sync import quorum_driver

        return quorum_driver(self.using)

    async def _tell_all(self, driver: QuorumDriver) -> None:
        async with driver.conversation() as talk:
            for node, undo in list(self._untold):
                talk.send(undo, [node])
            until = driver.now() + self.timeout
            while (answer := await talk.receive(until)) is not None:
                if not isinstance(answer.reply, Exception):
                    self._untold.pop((answer.node, answer.call), None)

    def close(self) -> None:
        """Forget the nodes, which the settings no longer name."""
        self._closed = True

    def disconnect(self) -> None:
        """Close the connections to the nodes, those that drivers keep as well."""
        for pool in self.pools:
            pool.disconnect()


_sites: dict[str, Site] = {}


def site(using: str) -> Site:
    """The nodes of an alias."""
    found = _sites.get(using)
    if found is None:
        found = _sites.setdefault(using, Site(using))
    return found


def _without_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    credentials, at, address = rest.rpartition("@")
    return f"{scheme}://{'***' if credentials else ''}{at}{address}"


class SiteDriver(QuorumDriver):
    """A driver that asks the nodes of an alias; how it talks to them is the business of who inherits."""

    now = staticmethod(time.monotonic)

    def __init__(self, using: str) -> None:
        self.using = using
        self.site = site(using)
        self.node_names = self.site.names
        self.timeout = self.site.timeout
        self.census = self.site.census

    def reap(self, undo: QuorumCall, nodes: Collection[int]) -> None:
        self.site.tell_later(undo, nodes, self.now() + undo.lease)


def _forget() -> None:
    while _sites:
        _sites.popitem()[1].close()


def _reset_on_setting(*, setting: str, **_: object) -> None:
    if setting in {"RLOCK", "CACHES"}:
        for each in list(_sites.values()):
            each.disconnect()
        _forget()


setting_changed.connect(_reset_on_setting, dispatch_uid="django_rlock.drivers.quorum_site")
# The sockets are the parent's.
os.register_at_fork(after_in_child=_forget)
