"""docs/redisson.md names methods, which must exist, in both bindings where they ask Redis."""

import re
from pathlib import Path

import pytest

import django_rlock

PAGE = (Path(__file__).parents[2] / "docs/redisson.md").read_text(encoding="utf-8")
SECTIONS = {
    "RLock": "RLock",
    "FencedLock": "FencedLock",
    "Semaphore": "Semaphore",
    "PermitExpirableSemaphore": "PermitExpirableSemaphore",
    "CountDownLatch": "CountDownLatch",
}
LOCAL = {"check", "permit"}


def methods(section: str) -> list[tuple[str, str]]:
    """The class, and a method that the right column of its table names."""
    table = PAGE.partition(f"\n### {section}")[2].partition("\n### ")[0]
    cells = [row.split("|")[2] for row in table.splitlines() if row.startswith("| ") and "---" not in row]
    return [(SECTIONS[section], name) for cell in cells for name in re.findall(r"`([a-z]\w*)\(", cell)]


NAMED = sorted({pair for section in SECTIONS for pair in methods(section)})


def test_the_tables_are_found():
    assert {cls for cls, _ in NAMED} == set(SECTIONS.values())
    assert len(NAMED) > 25


@pytest.mark.parametrize(("cls", "method"), NAMED)
def test_method_exists(cls, method):
    if method == "fenced":
        assert callable(django_rlock.fenced)
        return
    found = getattr(django_rlock, cls)
    assert callable(getattr(found, method))
    if method not in LOCAL and method != "await_":
        assert callable(getattr(found, f"a{method}", None) or getattr(found, f"a{method}_"))
