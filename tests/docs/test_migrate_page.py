"""docs/migrate.md: code before and after does the same, and the release between excludes the old and the new."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from django_rlock import rlock
from example_project.embedded import EmbeddedServer
from tests.docs.pages import DOCS

PAGE = DOCS / "migrate.md"
SECTIONS = ["redis-py's Lock", "django-redis' cache.lock", "SET NX", "python-redis-lock"]


def sources(heading: str) -> list[str]:
    """The Python of a section."""
    text = PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@contextmanager
def defined(source: str, server: EmbeddedServer) -> Iterator[dict[str, Any]]:
    """What a block of code defines; its clients are closed, not left to the garbage collector."""
    names: dict[str, Any] = {"redis": redis, "rlock": rlock}
    exec(source.replace("redis://127.0.0.1:6379/0", server.url), names)
    yield names
    for each in names.values():
        if isinstance(each, redis.Redis):
            each.close()


@pytest.mark.parametrize("heading", SECTIONS)
def test_both_do_the_same(heading: str, server: EmbeddedServer) -> None:
    parts = [source for source in sources(heading) if "def reserve" in source]
    with defined(parts[0], server) as before, defined(parts[1], server) as after:
        assert before["reserve"]("42") == after["reserve"]("42") == "42 is reserved"


def test_the_first_release_excludes_the_old_code_and_the_new(server: EmbeddedServer) -> None:
    (source,) = sources("Deploy without a gap")
    with defined(source, server) as names:
        old, new = names["client"].lock("stock:42", timeout=60), rlock("stock:42", owner="another")
        with names["stock_lock"]("42"):
            assert not old.acquire(blocking=False)
            assert not new.acquire(blocking=False)
        assert old.acquire(blocking=False)
        assert new.acquire(blocking=False)  # they do not exclude each other
        old.release()
        new.release()
