"""What docs/topologies.md tells people to write, read from there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "topologies.md"


def least_rights(*topologies: str) -> list[str]:
    """The rights that a Redis user needs at least, as ACL SETUSER takes them."""
    return [right for topology in topologies for right in _block("acl", topology).split()]


def entry(which: str) -> dict[str, Any]:
    """CACHES["default"] of a topology; with it RLOCK["default"], where there is one, as "RLOCK"."""
    found: dict[str, Any] = {}
    exec(_block("python", which), found)
    return {**found.get("CACHES", {}).get("default", {}), "RLOCK": found.get("RLOCK", {}).get("default", {})}


def _block(language: str, which: str) -> str:
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(rf"<!-- {which} -->\n+```{language}\n(.*?)```", text, re.DOTALL)
    assert found, f"{PAGE.name} has no {language} block for {which}"
    return found.group(1)
