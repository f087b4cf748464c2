"""The gate's tests: run them, give those that failed a second chance alone, and sum up.

    python3 .ci/gate.py test <title> <limit in seconds> make <target> <variables> -- <arguments of pytest>
    python3 .ci/gate.py summary

A busy machine is no fault of the code. So what failed runs once more, alone and one test at a time, with the same seed.
What passes then is unstable. That is a fault too, of the code or of the test, and the next thing to mend, but it does
not stop the gate. What fails again does, and so does a third unstable test. Each call of ``test`` leaves its part of
the summary in ``.ci/.results``.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

MOST_UNSTABLE = 2
"""In all steps together."""
SLOWEST = 10
LONGEST_TRACEBACK = 40
STACKS_WITHIN = 10.0
"""How long the processes of a step that hangs may take to write their stacks, in seconds."""
RESULTS = Path(".ci/.results")
CACHE = Path(".pytest_cache")


def test(title: str, limit: float, make: Sequence[str], arguments: Sequence[str]) -> bool:
    """Run the tests, and once more those that failed; whether the gate may stay green."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    part = RESULTS / f"{len(list(RESULTS.glob('*.json'))):02}"
    shutil.rmtree(CACHE, ignore_errors=True)
    began = time.monotonic()
    first = Run(make, arguments, part.with_suffix(".first"), limit)
    has_chance = not first.problem and 0 < len(first.failed) <= MOST_UNSTABLE - unstable_so_far()
    unstable = second_chance(first, make, arguments, part.with_suffix(".second"), limit) if has_chance else {}
    failed = [name for name in first.failed if name not in unstable]
    result = {
        "title": title,
        "seconds": round(time.monotonic() - began),
        "problem": first.problem,
        "failed": failed,
        "too_many": bool(failed) and not first.problem and not has_chance,
        "unstable": unstable,
        "slowest": sorted(first.seconds.items(), key=lambda item: -item[1])[:SLOWEST],
    }
    part.with_suffix(".json").write_text(json.dumps(result))
    return not failed and not first.problem


def second_chance(first: Run, make: Sequence[str], arguments: Sequence[str], log: Path, limit: float) -> dict[str, str]:
    """Those that pass now, with their first tracebacks."""
    print(f"\n======== A second chance for {len(first.failed)} ========", flush=True)
    again = [*arguments, "--last-failed", "--last-failed-no-failures=none", "--randomly-seed=last"]
    second = Run([*make, "JOBS=0"], again, log, limit)
    return {} if second.problem else {name: text for name, text in first.failed.items() if name in second.passed}


def unstable_so_far() -> int:
    return sum(len(result["unstable"]) for result in results())


class Run:
    """One run of pytest: ``failed`` (node id → traceback), ``passed``, ``seconds``, and what kept it from its end."""

    def __init__(self, make: Sequence[str], arguments: Sequence[str], log: Path, limit: float) -> None:
        self.failed: dict[str, str] = {}
        self.passed: set[str] = set()
        self.seconds: dict[str, float] = {}
        self.ended = False
        log.unlink(missing_ok=True)
        status = call([*make, f"ARGS={shlex.join([*arguments, f'--report-log={log}'])}"], limit)
        for report in reports(log):
            self._note(report)
        self.passed -= self.failed.keys()
        self.problem = self._problem(status, limit)

    def _note(self, report: dict[str, Any]) -> None:
        if report["$report_type"] == "SessionFinish":
            self.ended = report["exitstatus"] in {0, 1}  # pytest's: all passed, or some failed
            return
        name = report["nodeid"]
        self.seconds[name] = self.seconds.get(name, 0.0) + report.get("duration", 0.0)
        if report["outcome"] == "failed":
            self.failed.setdefault(name, text_of(report["longrepr"]))
        elif report["outcome"] == "passed" and report.get("when") == "call":
            self.passed.add(name)

    def _problem(self, status: int | None, limit: float) -> str:
        if status is None:
            return f"not ended after {limit:.0f} s"
        if not self.ended:
            return f"pytest did not come to its end, the exit status is {status}"
        if status and not self.failed:
            return f"no test failed, but the exit status is {status}"
        return ""


def call(command: Sequence[str], limit: float) -> int | None:
    """The command's exit status; None when it was ended after the limit, its processes having written their stacks."""
    running = subprocess.Popen(command, start_new_session=True)
    try:
        return running.wait(limit)
    except subprocess.TimeoutExpired:
        print(f"\nNot ended after {limit:.0f} s. Where its threads are:", flush=True)
        write_stacks(running)
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)


def write_stacks(running: subprocess.Popen[bytes]) -> None:
    """End a command and all that it has started; pytest has faulthandler write where the threads are."""
    with suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGABRT)
        give_up_at = time.monotonic() + STACKS_WITHIN
        while time.monotonic() < give_up_at:
            running.poll()  # make itself, which ends before the others
            os.killpg(running.pid, 0)
            time.sleep(0.1)


def reports(log: Path) -> Iterator[dict[str, Any]]:
    """What pytest-reportlog has written of tests, and of files that could not be collected."""
    for line in log.read_text().splitlines() if log.exists() else ():
        with suppress(ValueError):  # the last line of a run that was ended
            report = json.loads(line)
            if report["$report_type"] in {"TestReport", "SessionFinish"} or report.get("outcome") == "failed":
                yield report


def text_of(longrepr: Any) -> str:
    """The last lines of a traceback; all of it was printed where the test failed."""
    if isinstance(longrepr, dict):
        entries = [entry["data"] for entry in longrepr["reprtraceback"]["reprentries"]]
        lines = [line for entry in entries for line in [*entry["lines"], place_of(entry)]]
    else:
        lines = str(longrepr).splitlines()
    return "\n".join(f"    {line}" for line in lines[-LONGEST_TRACEBACK:])


def place_of(entry: dict[str, Any]) -> str:
    place = entry.get("reprfileloc")
    return f"{place['path']}:{place['lineno']}: {place['message']}" if place else ""


def results() -> list[dict[str, Any]]:
    return [json.loads(each.read_text()) for each in sorted(RESULTS.glob("*.json"))]


def summary() -> None:
    """Print the slowest tests of the first step, and what was unstable or failed in any."""
    for each in results()[:1]:
        print(f"The slowest tests of: {each['title']}")
        for name, seconds in each["slowest"]:
            print(f"  {seconds:5.1f} s  {name}")
    for each in results():
        for name, traceback in each["unstable"].items():
            print(f"\nunstable  {name}  (of: {each['title']})\n{traceback}")
    print()
    for each in results():
        for name in each["failed"]:
            print(f"FAILED    {name}  (of: {each['title']})")
        if each["too_many"]:
            print(f"FAILED    {each['title']}: too many failed for a second chance")
        if each["problem"]:
            print(f"FAILED    {each['title']}: {each['problem']}")
    print(f"unstable  {unstable_so_far()} tests, of {MOST_UNSTABLE} at most")


def main(arguments: list[str]) -> int:
    if arguments == ["summary"]:
        summary()
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what runs ends with it
    _, title, limit, *rest = arguments
    split = rest.index("--")
    return 0 if test(title, float(limit), rest[:split], rest[split + 1 :]) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
