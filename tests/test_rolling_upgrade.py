"""During a rolling upgrade, processes of the last release and of this tree exclude and wake each other.

``RLOCK_LAST_RELEASE`` names a wheel to take in place of the one on the package index.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import redis

from django_rlock import __version__
from example_project.embedded import EmbeddedServer

ROOT = Path(__file__).parents[1]
TURNS = 200
PROGRAM = """
import sys
import django, redis
from django.conf import settings
folder, url, kind, turns = sys.argv[1:]
cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}
settings.configure(CACHES={"default": cache}, INSTALLED_APPS=["django_rlock"])
django.setup()
import django_rlock
assert django_rlock.__file__.startswith(folder), django_rlock.__file__
client = redis.Redis.from_url(url)
client.rpush("ready", folder)
client.blpop("start", 30)
for _ in range(int(turns)):
    with django_rlock.rlock("turn", kind=kind, wait_time=2):  # a waiter that nobody wakes looks later than that
        assert client.incr("inside") == 1
        client.decr("inside")
"""

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package of the last release."""
    folder = tmp_path_factory.mktemp("release")
    wheel = os.environ.get("RLOCK_LAST_RELEASE")
    if not wheel:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*pip, "--dest", folder, f"django-rlock<{__version__}"], capture_output=True)
        found = [str(file) for file in folder.glob("*.whl")]
        if not found:
            pytest.skip("the package index has no earlier release")
        [wheel] = found
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.mark.parametrize("kind", ["fair", "rlock", "fenced", "write"])
def test_the_last_release_and_this_tree_take_turns(
    kind: str, released: Path, server: EmbeddedServer, redis_client: redis.Redis
) -> None:
    with ExitStack() as stack:
        processes = [stack.enter_context(started(folder, server.url, kind)) for folder in (released, ROOT)]
        for process in processes:
            assert redis_client.blpop(["ready"], 30), process.poll()
        redis_client.rpush("start", "old", "new")
        errors = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors


@contextmanager
def started(folder: Path, url: str, kind: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", PROGRAM, str(folder), url, kind, str(TURNS)]
    environ = {**os.environ, "PYTHONPATH": str(folder)}
    with subprocess.Popen(command, cwd=folder, env=environ, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()
