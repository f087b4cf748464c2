"""``make demo``: the shop with a Redis, a database and a worker of its own.

It serves until Ctrl-C, or holds one sale and ends (``--once``), and removes everything that it made. Several demos on
one machine do not affect each other.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from typing import NoReturn

from example_project.embedded import ServerError
from example_project.processes import STOP_SIGNALS, ProcessError
from example_project.stack import Stack

STOPPED = 130
"""Exit status when stopped before the shop was open or the sale of ``--once`` was over, as in shells for Ctrl-C."""

SHORTENED_EXPIRY = 0.5
"""The long expiry of the naive lock with ``--once``, in seconds, so that this takes seconds."""


def main() -> int:
    options = _parse()
    if options.once:
        os.environ.setdefault("SHOP_LONG_EXPIRY", str(SHORTENED_EXPIRY))
    for number in STOP_SIGNALS:
        signal.signal(number, _stop)
    try:
        with Stack() as stack:
            return _run(stack, options)
    except (ProcessError, ServerError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped before it was done.", file=sys.stderr)
        return STOPPED


def _run(stack: Stack, options: argparse.Namespace) -> int:
    started = time.monotonic()
    print("Starting Redis, the database, the site and a worker, all private …", flush=True)
    url = stack.start_site(options.port)
    worker = stack.start_worker()
    worker.wait_until_ready()
    print(f"Ready after {time.monotonic() - started:.1f} s.", flush=True)
    return _hold_sale(stack, url, options) if options.once else _serve(stack, url)


def _hold_sale(stack: Stack, url: str, options: argparse.Namespace) -> int:
    print(f"The long expiry is {os.environ['SHOP_LONG_EXPIRY']} s here, not 30 s as in the shop.\n", flush=True)
    return stack.manage("flashsale", f"--buyers={options.buyers}", f"--stock={options.stock}", f"--url={url}")


def _serve(stack: Stack, url: str) -> int:
    print(f"\nShop   {url}/\nLocks  {url}/admin/django_rlock/lock/   user admin, password {stack.password}")
    print("\nReached from this machine only. Ctrl-C stops it all and removes what it made.", flush=True)
    try:
        stack.wait()
    except KeyboardInterrupt:
        print("\nStopping …", flush=True)
    return 0


def _stop(_number: int, _frame: object) -> NoReturn:
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # once is enough: the clean-up must not be interrupted
    raise KeyboardInterrupt


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m example_project.demo", description=__doc__)
    parser.add_argument("--once", action="store_true", help="hold one sale and end, with status 0 if it went right")
    parser.add_argument("--port", type=int, default=0, help="the site's port (default: one that is free)")
    parser.add_argument("--buyers", type=int, default=100, help="who come at once, with --once (default: %(default)s)")
    parser.add_argument("--stock", type=int, default=90, help="their moon cakes (default: %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
