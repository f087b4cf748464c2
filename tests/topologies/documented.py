"""The settings that the pages show: docs/topologies.md, and the least rights of docs/connection-options.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"
TOPOLOGIES, OPTIONS = DOCS / "topologies.md", DOCS / "connection-options.md"


def least_rights(*topologies: str) -> list[str]:
    """The rights that a Redis user needs at least, as ACL SETUSER takes them."""
    return [right for topology in topologies for right in _block(OPTIONS, "acl", topology).split()]


def entry(which: str) -> dict[str, Any]:
    """CACHES["default"] of a topology; with it RLOCK["default"], where there is one, as "RLOCK"."""
    found: dict[str, Any] = {}
    exec(_block(TOPOLOGIES, "python", which), found)
    return {**found.get("CACHES", {}).get("default", {}), "RLOCK": found.get("RLOCK", {}).get("default", {})}


def _block(page: Path, language: str, which: str) -> str:
    text = page.read_text(encoding="utf-8")
    found = re.search(rf"<!-- {which} -->\n+```{language}\n(.*?)```", text, re.DOTALL)
    assert found, f"{page.name} has no {language} block for {which}"
    return found.group(1)
