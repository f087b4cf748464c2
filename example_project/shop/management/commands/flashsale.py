"""The flash sale on the command line."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, ArgumentTypeError
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from example_project.embedded import ServerError
from example_project.processes import ProcessError
from example_project.shop.models import SAFE_LANES, Lane
from example_project.shop.sales import Result, hold_sale, open_sales
from example_project.stack import Stack

COLUMNS = "{:<24}{:>7}{:>10}{:>9}{:>8}{:>10}{:>9}"


class Command(BaseCommand):
    help = (
        "Sends buyers to a site over HTTP, all at once, lane after lane. Ends with status 1 when a lane that should be "
        "safe (with --strict: any lane) oversold, refused or failed."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--buyers", type=_number, default=100, help="buyers who come at once (default: 100)")
        parser.add_argument("--stock", type=_number, default=90, help="moon cakes on the shelf (default: 90)")
        parser.add_argument("--lane", action="append", choices=Lane.values, help="only this lane; may be repeated")
        parser.add_argument("--strict", action="store_true", help="all lanes must be right, not only the safe ones")
        parser.add_argument("--json", action="store_true", help="print one JSON object for each lane, in a list")
        parser.add_argument("--url", help="a site that runs with the same settings; without it one is started")

    def handle(self, *_: Any, **options: Any) -> None:
        if not options["url"]:
            sys.exit(_with_own_site(options))
        results = self._hold(options)
        if options["json"]:
            self.stdout.write(json.dumps([asdict(result) for result in results], indent=2))
        wrong = [result for result in results if not result.right and (options["strict"] or result.lane in SAFE_LANES)]
        if wrong:
            raise CommandError("\n".join(map(_complaint, wrong)))
        if not options["json"]:
            self._comment(results)

    def _hold(self, options: dict[str, Any]) -> list[Result]:
        results = []
        if not options["json"]:
            self.stdout.write(COLUMNS.format("", "sold", "sold out", "refused", "errors", "oversold", "seconds"))
        for sale in open_sales(options["buyers"], options["stock"], options["lane"] or Lane.values):
            result = hold_sale(sale, options["url"])
            results.append(result)
            if not options["json"]:
                self.stdout.write(_row(result))
                self.stdout.flush()
        return results

    def _comment(self, results: list[Result]) -> None:
        self.stdout.write("")
        for result in results:
            if result.lane in SAFE_LANES:
                self.stdout.write(
                    f"{_label(result)}: right, {result.sold} of {result.stock} were sold, and "
                    f"{result.sold_out} buyers were told that it is sold out."
                )
            elif not result.oversold:
                self.stdout.write(f"{_label(result)}: nothing was oversold this time, by luck alone.")


def _with_own_site(options: dict[str, Any]) -> int:
    """Run this command once more, with a site."""
    arguments = [f"--buyers={options['buyers']}", f"--stock={options['stock']}"]
    arguments += [f"--lane={lane}" for lane in options["lane"] or []]
    arguments += [f"--{flag}" for flag in ("strict", "json") if options[flag]]
    try:
        with Stack() as stack:
            return stack.manage("flashsale", *arguments, f"--url={stack.start_site()}")
    except (ProcessError, ServerError) as error:
        raise CommandError(str(error)) from error
    except KeyboardInterrupt:
        return 130


def _row(result: Result) -> str:
    numbers = (result.sold, result.sold_out, result.refused, result.errors, result.oversold)
    return COLUMNS.format(_label(result), *numbers, f"{result.seconds:.1f}")


def _complaint(result: Result) -> str:
    return (
        f"{_label(result)}: wrong. {result.buyers} buyers, stock {result.stock}: {result.sold} sold, "
        f"{result.oversold} oversold, {result.refused} refused, {result.errors} errors."
    )


def _label(result: Result) -> str:
    return Lane(result.lane).label


def _number(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise ArgumentTypeError("must be from 1 to 1000")
    return int(text)
