"""One of each thing per process, also where threads ask for the first one at the same time."""

import sys
import threading

import pytest

from django_rlock import connections
from django_rlock import settings as settings_module
from django_rlock.drivers import aio, quorum_aio, quorum_sync, sync
from django_rlock.once import once

TOGETHER = 4


def ask_together(function):
    """What each of some threads gets that call a function at the same time."""
    start, got = threading.Barrier(TOGETHER), []

    def ask() -> None:
        start.wait(20)
        got.append(function())

    threads = [threading.Thread(target=ask) for _ in range(TOGETHER)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(got) == TOGETHER
    return got


def test_threads_that_are_first_get_the_same_one():
    making = threading.Barrier(TOGETHER)

    @once
    def make(name: str, more: object = None) -> object:
        making.wait(20)  # until all of them are here
        return object()

    assert len(set(ask_together(lambda: make("x")))) == 1
    assert make("x") is make("x", None) is make("x", more=None)


def test_it_makes_another_when_it_has_been_cleared():
    @once
    def make() -> object:
        return object()

    before = make()
    make.cache_clear()
    assert make() is not before


def test_what_is_being_made_while_it_is_cleared_is_not_kept():
    @once
    def make() -> object:
        made.append(object())
        if len(made) == 1:
            make.cache_clear()
        return made[-1]

    made: list[object] = []
    assert make() is made[0]
    assert make() is made[1] is make()


def test_what_cannot_be_made_is_tried_again():
    @once
    def make() -> object:
        tries.append(1)
        if len(tries) == 1:
            raise LookupError
        return object()

    tries: list[int] = []
    with pytest.raises(LookupError):
        make()
    assert make() is make()


QUORUM = {"quorum": {"NODES": ["redis://127.0.0.1:1", "redis://127.0.0.1:2", "redis://127.0.0.1:3"]}}


@pytest.mark.parametrize(
    ("using", "get"),
    [
        ("default", settings_module.get_settings),
        ("default", sync.sync_driver),
        ("default", sync.background_driver),
        ("default", aio.async_driver),
        ("default", connections.command_pool),
        ("default", connections.background_pool),
        ("default", connections.background_client),
        ("quorum#1", connections.node_pool),
        ("quorum", sync.sync_driver),
        ("quorum", aio.async_driver),
        ("quorum", quorum_sync.quorum_driver),
        ("quorum", quorum_aio.quorum_driver),
    ],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_drivers_and_pools(settings, using, get):
    for _ in range(20):
        settings.RLOCK = dict(QUORUM)  # forgets those that are there
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            got = ask_together(lambda: get(using))
        finally:
            sys.setswitchinterval(interval)
        assert len({id(each) for each in got}) == 1


def test_one_pool_beside_the_caches():
    """Of the background thread's driver, the listener and the reports."""
    assert connections.background_pool("default") is connections.background_pool("default", None)
