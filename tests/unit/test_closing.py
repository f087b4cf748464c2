"""Connections that fail as they are taken over, or are replaced, are closed: none is left to garbage collection."""

import selectors
import socket
from unittest import mock

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from django_rlock._transport import pool, servers
from django_rlock._transport.connection import Connection
from django_rlock._transport.listener import Channel, Listener
from django_rlock._transport.subscriber import Subscriber


def test_one_that_fails_as_it_is_taken_over_from_redis_py(redis_client, monkeypatch):
    taken: list[socket.socket] = []

    def refuse(sock, _place):
        taken.append(sock)
        raise OSError("Invalid argument")

    monkeypatch.setattr(pool, "Connection", refuse)
    with pytest.raises(RedisConnectionError, match="Invalid argument"):
        servers.server("default").open()
    assert [sock.fileno() for sock in taken] == [-1]


def test_one_that_a_listener_cannot_wait_for(monkeypatch):
    ours, theirs = socket.socketpair()
    subscriber = Subscriber(mock.Mock(), lambda: Connection(ours), 1.0)
    monkeypatch.setattr(selectors.DefaultSelector, "register", mock.Mock(side_effect=OSError("Too many open files")))
    with theirs, selectors.DefaultSelector() as subscriber._selector:
        with pytest.raises(OSError, match="Too many"):
            subscriber._connect()
        subscriber._hang_up()
    subscriber.stop()
    assert ours.fileno() == -1


def test_a_listener_that_is_stopped_before_its_next_try_does_not_connect_again(monkeypatch):
    tries: list[int] = []
    monkeypatch.setattr("django_rlock._core.threads.start", mock.Mock())

    def refuse() -> Connection:
        tries.append(1)
        raise RedisConnectionError("Connection refused")

    subscriber = Subscriber(mock.Mock(wanted=lambda _: ["rlock:stock:42"]), refuse, 1.0)
    monkeypatch.setattr("django_rlock._transport.subscriber.time.sleep", lambda _: subscriber.stop())
    subscriber._run()
    assert len(tries) == 1


def test_a_listener_that_is_stopped_while_it_connects_does_not_subscribe(monkeypatch):
    monkeypatch.setattr("django_rlock._core.threads.start", mock.Mock())
    ours, theirs = socket.socketpair()

    def connect() -> Connection:
        subscriber.stop()
        return Connection(ours)

    subscriber = Subscriber(mock.Mock(wanted=lambda _: ["rlock:stock:42"]), connect, 1.0)
    subscriber._run()
    with theirs:
        assert theirs.recv(1024) == b""


def test_those_of_a_listener_that_a_caller_still_has_after_the_settings_have_changed():
    made: list[Subscriber] = []

    def make(listener, _place):
        made.append(Subscriber(listener, mock.Mock(), 1.0))
        return made[0]

    listener = Listener(make)
    listener.stop()
    listener.subscribe(Channel("channel"))
    assert made[0]._inner.fileno() == made[0]._outer.fileno() == -1


def test_those_of_clients_of_nodes_when_the_settings_change(server, settings):
    base = server.url.partition("?")[0]
    settings.RLOCK = {"quorum": {"NODES": [f"{base}?db={number}" for number in range(3)]}}
    client = servers.node_client("quorum#0")
    assert client.ping()
    (connection,) = client.connection_pool._available_connections
    settings.RLOCK = {}
    assert connection._sock is None
