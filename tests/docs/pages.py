"""The pages of the documentation, and the code in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("README*.md")), *sorted(DOCS.rglob("*.md"))]
TRANSLATED = [page for page in PAGES if page.name.count(".") > 1]
"""As README.zh-Hans.md; each stands beside the page that it translates."""

_BLOCK = re.compile(
    r"(?P<before>.*)\n+^(?P<indent> *)```(?P<language>.*)\n(?P<code>(?:.*\n)*?)(?P=indent)```$", re.MULTILINE
)


@dataclass(frozen=True)
class Block:
    """A block of code. ``before`` is the last line above it that is not empty, ``line`` where it begins."""

    page: Path
    line: int
    language: str
    code: str
    before: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in their order."""
    text = "\n" + page.read_text(encoding="utf-8")
    return [
        Block(
            page,
            text.count("\n", 0, found.start("code")) - 1,
            found["language"],
            dedent(found["code"]),
            found["before"],
        )
        for found in _BLOCK.finditer(text)
    ]
