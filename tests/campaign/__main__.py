"""python -m tests.campaign [--seconds 600] [--seed SEED] [--workers 3] [--whose locked]

Exits with 1 when something was wrong.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
from collections.abc import Sequence

from tests import namespaces
from tests.campaign.app import WHOSE
from tests.campaign.run import run


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that all is ended that was started
    print(f"seed {options.seed}", flush=True)  # noqa: T201
    if reason := namespaces.why_not():
        print(f"without workers of other users and full disks: {reason}", flush=True)  # noqa: T201
    report = run(options.seed, options.seconds, options.workers, options.whose, not options.calm)
    print(report, flush=True)  # noqa: T201
    return int(not report.passed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description="Celery workers under a nemesis.")
    parser.add_argument("--seconds", type=float, default=600, help="how long the nemesis rages (600)")
    parser.add_argument("--seed", default=str(random.randrange(10**6)), help="of all that is left to chance (any)")
    parser.add_argument("--workers", type=int, default=3, help="worker processes, of two children each (3)")
    parser.add_argument("--whose", choices=WHOSE, default="locked", help="whose tasks (locked)")
    parser.add_argument("--calm", action="store_true", help="without the nemesis")
    return parser


if __name__ == "__main__":
    sys.exit(main())
