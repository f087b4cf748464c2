"""Many storms, and where those that stopped stood.

python -m tests.faults.storms [--number N] [--kind KIND ...] [--company pair|crowd] [--interruptions N] [--python PATH]

Exits with 1 unless all passed.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle as endless
from itertools import islice, product
from typing import NamedTuple

from tests.faults.storm import COMPANIES, KINDS
from tests.faults.storm_process import Outcome, run_storm

FRAMES = 4
"""The innermost calls of a thread that are shown."""
_THREAD = re.compile(r"(?P<head>Current thread|Thread) (?P<number>0x\w+)")
_CALL = re.compile(r'^  File "(?P<path>.*)", line \d+,? in (?P<name>.*)$', re.MULTILINE)
_CLIENT = re.compile(r"[0-9a-f-]{36}")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    outcomes = []
    pool = ThreadPoolExecutor(options.at_once)
    try:
        running = [(kind, company, pool.submit(_run, kind, company, options)) for kind, company in _plan(options)]
        for number, (kind, company, run) in enumerate(running, 1):
            outcome = run.result()
            outcomes.append(outcome)
            _say(f"{number:4} {kind} in a {company}: {outcome.how}, interrupted {outcome.raised} times")
            if options.show and not outcome.passed:
                _say(outcome.text)
    finally:
        pool.shutdown(cancel_futures=True)
        _say(summary(outcomes))
    return int(not all(outcome.passed for outcome in outcomes))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.storms", description="Many storms of interruptions.")
    parser.add_argument("--number", type=int, default=200, help="processes (200)")
    parser.add_argument("--interruptions", type=int, default=600, help="of each process (600)")
    parser.add_argument("--at-once", type=int, default=2, help="processes at a time (2)")
    parser.add_argument("--kind", action="append", choices=KINDS, help="may be given several times (all in turn)")
    parser.add_argument("--company", action="append", choices=COMPANIES, help="the others (all in turn)")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the storms (this one)")
    parser.add_argument("--without-hiredis", action="store_true")
    parser.add_argument("--show", action="store_true", help="show all that a process said which did not pass")
    return parser


def _plan(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Kind and company of each process."""
    pairs = product(options.company or COMPANIES, options.kind or KINDS)
    return islice(((kind, company) for company, kind in endless(pairs)), options.number)


def _run(kind: str, company: str, options: argparse.Namespace) -> Outcome:
    return run_storm(
        kind,
        company=company,
        interruptions=options.interruptions,
        python=options.python,
        hiredis=not options.without_hiredis,
    )


def summary(outcomes: Sequence[Outcome]) -> str:
    """How many ended how, and in how many of those that did not pass a thread stood where."""
    counts = Counter(outcome.how for outcome in outcomes)
    totals = ", ".join(f"{number} {how}" for how, number in counts.items())
    lines = [f"{len(outcomes)} processes, {sum(outcome.raised for outcome in outcomes)} interruptions: {totals}"]
    for how in counts.keys() - {"passed"}:
        places = Counter(place for outcome in outcomes if outcome.how == how for place in places_of(outcome))
        lines += ["", f"{counts[how]} {how}:"]
        lines += [f"{number:4}  {place}" for place, number in places.most_common()]
    return "\n".join(lines)


def places_of(outcome: Outcome) -> set[str]:
    """Where its threads stood, or what ended the process; what was wrong where it came to its end."""
    if outcome.how == "went wrong":
        return {_CLIENT.sub("…", outcome.text)}
    stacks = list(_stacks(outcome.text))
    if outcome.how == "stopped":
        found = [stack for stack, dumps in Counter(stacks).items() if dumps > 1]
    else:
        found = [stack for stack in stacks if stack.head == "Current thread"]  # it crashed
    return {_innermost(stack.calls) for stack in found} or {_raised(outcome.text)}


class Stack(NamedTuple):
    """A thread in a dump, and its calls, the innermost first."""

    head: str
    number: str
    calls: tuple[str, ...]


def _stacks(text: str) -> Iterator[Stack]:
    """The threads of faulthandler's dumps."""
    for part in re.split(r"^(?=Current thread |Thread )", text, flags=re.MULTILINE):
        if thread := _THREAD.match(part):
            yield Stack(thread["head"], thread["number"], tuple(_calls(part)))


def _raised(traceback: str) -> str:
    error = traceback.strip().rpartition("\n")[2]
    return f"{error}: {_innermost(_calls(traceback)[::-1])}"


def _calls(text: str) -> list[str]:
    return [f"{'/'.join(call['path'].split('/')[-2:])}:{call['name']}" for call in _CALL.finditer(text)]


def _innermost(calls: Sequence[str]) -> str:
    return " < ".join(calls[:FRAMES])


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
