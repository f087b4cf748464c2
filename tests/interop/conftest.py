"""The real Redisson beside ours: a JVM for the tests of a process, and servers that both talk to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from itertools import count
from pathlib import Path

import pytest
from pytest_django import Settings

from benchmarks.redisson import UnavailableError, build
from tests.bindings import BlockingBinding, TaskBinding, nothing_left, pytest_pyfunc_call
from tests.forms import long
from tests.interop.redisson import JavaThread, Redisson
from tests.interop.sites import FIELD, OLD, OLDEST, SCENES, Scene, Site
from tests.topologies.servers import TOPOLOGIES

__all__ = ["nothing_left", "pytest_pyfunc_call"]

_numbers = count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("interop")
            _excuse(item)
            # Maven's first run downloads, which may take longer than a test may.
            item.add_marker(pytest.mark.timeout(func_only=True))


_LACKED = [
    "fenced",
    "permits.py::test_numbers",
    "test_ids_go",
    "test_leases_are_changed",
    "semaphores.py::test_numbers",
]
LACKS = {
    OLDEST: [*_LACKED, "spin", "short_of_permits"],
    OLD: _LACKED,
    "3.52.0": ["semaphores.py::test_numbers"],
}
"""Tests of what a version of Redisson does not have: getFencedLock, getSpinLock, some methods of semaphores, ids of
permits in bytes, and messages of addPermits().
"""
TELLS_NO_LOSS = ["python_forces_javas_lock[sync-{place}-bare-{version}-AUTO-write", "_forces_the_readers"]
"""Tests of what Redisson up to 3.17 does not tell: it unlocks a lost read-write lock without an error."""


def _excuse(item: pytest.Item) -> None:
    scene = item.callspec.params.get("scene") if hasattr(item, "callspec") else None
    if scene is None:
        return
    if any(part in item.nodeid for part in LACKS.get(scene.version, ())):
        item.add_marker(pytest.mark.skip(reason=f"Redisson {scene.version} does not have it"))
    tells_none = [part.format(**scene._asdict()) for part in TELLS_NO_LOSS if scene.version in {OLDEST, OLD}]
    if any(part in item.nodeid for part in tells_none):
        item.add_marker(pytest.mark.xfail(reason=f"Redisson {scene.version} does not tell of this loss", strict=True))


@pytest.fixture(scope="session")
def _redissons() -> Iterator[Callable[[str], Redisson]]:
    with ExitStack() as running:

        @cache
        def start(version: str) -> Redisson:
            try:
                program = build(version)
            except UnavailableError as error:
                pytest.skip(str(error))
            process = Redisson(program)
            running.callback(process.end)
            return process

        yield start


@pytest.fixture
def redisson(scene: Scene, _redissons: Callable[[str], Redisson]) -> Redisson:
    return _redissons(scene.version)


@pytest.fixture(scope="session")
def _started() -> Iterator[Callable[[str], Site]]:
    with ExitStack() as running:
        yield cache(lambda name: Site(running.enter_context(TOPOLOGIES[name]())))


@pytest.fixture(params=[*SCENES, *long(*FIELD)], ids=str)
def scene(request: pytest.FixtureRequest) -> Scene:
    """Where a test plays."""
    return request.param


@pytest.fixture
def binding(scene: Scene) -> BlockingBinding:
    return TaskBinding() if scene.binding == "async" else BlockingBinding()


@pytest.fixture
def site(scene: Scene, redisson: Redisson, _started: Callable[[str], Site], settings: Settings) -> Iterator[Site]:
    """Where both sides meet: empty, and the alias "default" of our side."""
    chosen = _started(scene.place)
    settings.CACHES = {**settings.CACHES, **chosen.caches}
    settings.RLOCK = chosen.locks
    chosen.set(scene)
    yield chosen
    assert redisson.complaints() == "", "Redisson met something that it did not expect"


@pytest.fixture
def name(scene: Scene) -> str:
    """A name that no test has used, with a hash tag or without one."""
    return f"{'{shop}:' if scene.naming == 'tagged' else ''}stock:{next(_numbers)}"


@pytest.fixture
def java(redisson: Redisson, site: Site) -> Callable[..., JavaThread]:
    """``java("alice")`` is a thread on the other side; ``hasty=True`` gives it a client with a short watchdog."""
    number = next(_numbers)

    def thread(name: str, *, hasty: bool = False) -> JavaThread:
        return redisson.thread(f"{name}-{number}", site.hasty if hasty else site.address)

    return thread


@pytest.fixture
def alice(java: Callable[..., JavaThread]) -> JavaThread:
    """An owner on the other side."""
    return java("alice")


@pytest.fixture
def bob(java: Callable[..., JavaThread]) -> JavaThread:
    """Another owner on the other side."""
    return java("bob")
