"""Lint English: proselint's checks, and the project's own in prose.toml beside this file.

    python .ci/prose.py [file or folder ...]

Reads Markdown without its code, and the comments and texts of Python files. Exits with 1 if it finds something.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

try:
    from proselint.checks import __register__ as general
    from proselint.config import DEFAULT, Config
    from proselint.registry import CheckRegistry
    from proselint.registry.checks import Check, CheckFlags, engine, types
    from proselint.tools import LintFile
except ImportError:
    if sys.version_info < (3, 15):
        raise
    sys.exit(0)  # proselint needs google-re2, which has no wheels for this Python

SETTINGS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
PATHS = "docs", "CONTRIBUTING.md", "README.md", "SECURITY.md", "SUPPORT.md", "django_rlock"

FENCED = re.compile(r"^( *)(```+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
NOT_PROSE = re.compile(r"``.+?``|`[^`]+`|\]\([^)]*\)|^#[^\n]*|<!--.*?-->", re.MULTILINE | re.DOTALL)
TEXTS = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


def main(arguments: list[str]) -> int:
    registry = CheckRegistry()
    registry.register_many(general)
    registry.register_many((*checks("everywhere"), *checks("rewritten")))
    found = 0
    for path in files(arguments or PATHS):
        for result in LintFile(str(path), prose(path) or "\n").lint(config(path)):
            line, column = result.pos
            print(f"{path}:{line}:{column}: {result.check_result.message}")
            found += 1
    return 1 if found else 0


def checks(table: str) -> Iterator[Check]:
    for pattern, advice in SETTINGS[table].items():
        yield Check(
            check_type=types.ExistenceSimple(f"(?i){pattern}".replace(" ", r"\s+")),
            path=table,
            message=f"'{{}}': {advice}.",
            engine=engine.Fancy(),
            flags=CheckFlags(allow_quotes=True),
        )


def config(path: Path) -> Config:
    is_page = path.suffix == ".md"  # proselint takes seconds for the sources
    is_rewritten = any(path.is_relative_to(each) for each in SETTINGS["paths"]["rewritten"])
    chosen = {name: is_page and enabled for name, enabled in DEFAULT["checks"].items()}
    return Config(
        max_errors=1000,
        checks={
            **SETTINGS["proselint"],
            **chosen,
            **SETTINGS["proselint"],
            "everywhere": True,
            "rewritten": is_rewritten,
        },
    )


def files(paths: Iterable[str]) -> Iterator[Path]:
    for path in map(Path, paths):
        yield from sorted(path.rglob("*.[mp][dy]")) if path.is_dir() else [path]


def prose(path: Path) -> str:
    """The file's text, with dots for everything else."""
    text = path.read_text(encoding="utf-8")
    text = texts_of(text) if path.suffix == ".py" else FENCED.sub(dots, text)
    return NOT_PROSE.sub(dots, text)


def dots(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", "·", match[0])


def texts_of(source: str) -> str:
    """The comments and strings of a Python source, in their places."""
    lines = [" " * len(line) for line in source.split("\n")]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in TEXTS:
            row, start = token.start
            for number, text in enumerate(token.string.split("\n"), row - 1):
                lines[number] = lines[number][:start] + text + lines[number][start + len(text) :]
                start = 0
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
