"""Pools as projects write them for passwords that change."""

from typing import Any, ClassVar
from weakref import WeakSet

import redis

TOKEN = {"now": "first"}
"""The password that the server wants at present."""


class AsItMakes(redis.ConnectionPool):
    def make_connection(self) -> Any:
        self.connection_kwargs["password"] = TOKEN["now"]
        return super().make_connection()


class AsItGives(redis.ConnectionPool):
    def get_connection(self, *args: Any, **options: Any) -> Any:
        self.connection_kwargs["password"] = TOKEN["now"]
        return super().get_connection(*args, **options)


class AsItBlocks(redis.BlockingConnectionPool):
    def make_connection(self) -> Any:
        self.connection_kwargs["password"] = TOKEN["now"]
        return super().make_connection()


class AsItIsTold(redis.ConnectionPool):
    """Something else renews the options of all that live."""

    all: ClassVar[WeakSet[Any]] = WeakSet()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "password": TOKEN["now"]})
        self.all.add(self)


def renew(password: str) -> None:
    TOKEN["now"] = password
    for pool in list(AsItIsTold.all):
        pool.connection_kwargs["password"] = password
