"""What docs/topologies.md tells people to write, read from there."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "topologies.md"


def acl_line(which: str) -> str:
    """The rights that a Redis user needs at least, as ACL SETUSER takes them."""
    return _block("acl", which)


def settings_block(which: str) -> str:
    """The Python of a topology's CACHES and RLOCK."""
    return _block("python", which)


def _block(language: str, which: str) -> str:
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(rf"<!-- {which} -->\n+```{language}\n(.*?)```", text, re.DOTALL)
    assert found, f"{PAGE.name} has no {language} block for {which}"
    return found.group(1)
