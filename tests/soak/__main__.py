"""python -m tests.soak [--seconds 600] [--seed SEED] [--workers 4]

Exits with 1 when something was wrong, and with 2 when the control without locks was not caught.
"""

from __future__ import annotations

import argparse
import platform
import random
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from example_project.embedded import find_binary
from tests.soak.run import control, soak


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that all is ended that was started
    again = f'make soak SECONDS={options.seconds:g} ARGS="--seed {options.seed} --workers {options.workers}"'
    _say(f"{again}  # Python {platform.python_version()}, {Path(find_binary()).name}")
    caught = control(options.seed)
    _say(f"without locks: {len(caught.violations)} violations in {caught.holds.total()} holds")
    if not caught.violations:
        return 2
    report = soak(options.seed, options.seconds, options.workers)
    _say(str(report))
    return int(not report.passed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="All kinds of locks under a nemesis.")
    parser.add_argument("--seconds", type=float, default=600, help="how long the nemesis rages (600)")
    parser.add_argument("--seed", default=str(random.randrange(10**6)), help="of all that is left to chance (any)")
    parser.add_argument("--workers", type=int, default=4, help="processes, at least two (4)")
    return parser


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
