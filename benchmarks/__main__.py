"""``python -m benchmarks [NAME ...] [--json FILE] [--markdown FILE] [--quick]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from benchmarks import stage
from benchmarks.results import Table, to_json, to_markdown

NAMES = ("uncontended", "contended", "waiting", "holding", "listing", "multi", "quorum", "readers")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    tables: list[Table] = []
    with stage.server():
        for name in options.names or NAMES:
            stage.observer().flushall()
            benchmark: Callable[[bool], list[Table]] = import_module(f"benchmarks.{name}").run
            done = benchmark(options.quick)
            print(to_markdown(done), flush=True)
            tables += done
    if options.markdown:
        options.markdown.write_text(to_markdown(tables), encoding="utf-8")
    if options.json:
        options.json.write_text(to_json(tables), encoding="utf-8")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Our locks beside their peers.")
    parser.add_argument("names", nargs="*", choices=[[], *NAMES], metavar="NAME", help=f"of {', '.join(NAMES)} (all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything to FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables to FILE")
    parser.add_argument("--quick", action="store_true", help="a few pairs of each: shows that it runs, not how fast")
    return parser


if __name__ == "__main__":
    sys.exit(main())
