"""Many storms. It prints the stacks of each storm that stopped, and the complaints of each one that failed.

python -m tests.faults.storms [--number N] [--kind KIND ...] [--company pair|crowd] [--interruptions N] [--python PATH]

Exits with 1 unless all passed.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice, product

from tests.faults.storm import COMPANIES, KINDS
from tests.faults.storm_process import run_storm


def main() -> int:
    options = _parser().parse_args()
    pool = ThreadPoolExecutor(options.at_once)
    plan = islice(cycle(product(options.company or COMPANIES, options.kind or KINDS)), options.number)
    more = {"interruptions": options.interruptions, "python": options.python, "hiredis": not options.without_hiredis}
    failed = 0
    try:
        running = [(kind, company, pool.submit(run_storm, kind, company=company, **more)) for company, kind in plan]
        for number, (kind, company, run) in enumerate(running, 1):
            outcome = run.result()
            failed += not outcome.passed
            text = "" if outcome.passed else f"\n{outcome.text}"
            _say(f"{number:4} {kind} in a {company}: {outcome.how}, interrupted {outcome.raised} times{text}")
    finally:
        pool.shutdown(cancel_futures=True)
        _say(f"{failed} did not pass")
    return int(failed > 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.storms", description="Many storms of interruptions.")
    parser.add_argument("--number", type=int, default=200, help="processes (200)")
    parser.add_argument("--interruptions", type=int, default=600, help="of each process (600)")
    parser.add_argument("--at-once", type=int, default=2, help="processes at a time (2)")
    parser.add_argument("--kind", action="append", choices=KINDS, help="may be given several times (all in turn)")
    parser.add_argument("--company", action="append", choices=COMPANIES, help="the others (all in turn)")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the storms (this one)")
    parser.add_argument("--without-hiredis", action="store_true")
    return parser


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
