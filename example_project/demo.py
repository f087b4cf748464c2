"""``make demo``: the shop with a Redis, a database and a worker of its own, and one sale held in it.

Serves until Ctrl-C and removes all it made. Several demos on one machine do not meet.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from typing import NoReturn

from example_project.embedded import ServerError
from example_project.processes import STOP_SIGNALS, ProcessError
from example_project.stack import Stack

STOPPED = 130
"""Exit status when stopped before the sale was over, as shells have it for Ctrl-C."""


def main() -> int:
    options = _parse()
    for number in STOP_SIGNALS:
        signal.signal(number, _stop)
    try:
        with Stack() as stack:
            return _run(stack, options)
    except (ProcessError, ServerError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped before the sale was over.", file=sys.stderr)
        return STOPPED


def _run(stack: Stack, options: argparse.Namespace) -> int:
    started = time.monotonic()
    print("Starting Redis, the database, the site and a worker, all private …", flush=True)
    url = stack.start_site(options.port)
    worker = stack.start_worker()
    worker.wait_until_ready()
    print(f"Ready after {time.monotonic() - started:.1f} s; {options.buyers} buyers are coming.\n", flush=True)
    status = stack.manage("flashsale", f"--buyers={options.buyers}", f"--stock={options.stock}", f"--url={url}")
    if not options.once:
        _serve(stack, url)
    return status


def _serve(stack: Stack, url: str) -> None:
    print(f"\nShop   {url}/\nLocks  {url}/admin/django_rlock/lock/   user admin, password {stack.password}")
    print("\nReached from this machine only. Ctrl-C stops it all and removes what it made.", flush=True)
    try:
        stack.wait()
    except KeyboardInterrupt:
        print("\nStopping …", flush=True)


def _stop(_number: int, _frame: object) -> NoReturn:
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # once is enough: what follows must not be cut short
    raise KeyboardInterrupt


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m example_project.demo", description=__doc__)
    parser.add_argument("--once", action="store_true", help="end after the sale, with status 0 if it went right")
    parser.add_argument("--port", type=int, default=0, help="the site's port (default: one that is free)")
    parser.add_argument("--buyers", type=int, default=100, help="buyers who come at once (default: %(default)s)")
    parser.add_argument("--stock", type=int, default=90, help="moon cakes on the shelf (default: %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
