"""Measures which version of Redisson meets which kind of lock where: ``python -m tests.interop.table``.

It writes the table in docs/design/redisson-versions.md. It takes a quarter of an hour.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree as ET

PAGE = Path(__file__).parents[2] / "docs" / "design" / "redisson-versions.md"
BEGIN, END = "<!-- measured -->\n", "<!-- end of what was measured -->"
KINDS = {
    "`getLock`": r"test_(locks|contention)\b.*-(plain|spin)\b|redissons_fair|fair_waiters|neither_side",
    "`getFairLock`": r"fair_lock_of_java|javas_queue|redissons_fair|fair_waiters",
    "`getSpinLock`": r"-spin\b|spin_lock_of_java",
    "`getFencedLock`": r"fenced",
    "`getReadWriteLock`": r"test_read_write|-(write|read-write|write-read)\b",
    "`getSemaphore`": r"test_semaphores",
    "`getPermitExpirableSemaphore`": r"test_permits",
    "`getCountDownLatch`": r"test_latches",
    "both wake each other, all kinds": r"test_release_by|wakes|wake_when",
}
_SCENE = re.compile(r"(?:sync|async)-(single|sentinel|cluster)-(?:bare|tagged)-([\d.]+)-(AUTO|OFF)")


def main() -> None:
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        command = [sys.executable, "-m", "pytest", "-q", "-n", "3", f"--junitxml={report.name}", "tests/interop"]
        subprocess.run(command, env={**os.environ, "RLOCK_TEST_THOROUGH": "1"}, check=False)
        table = _table(ET.parse(report.name).iter("testcase"))
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + table + END + rest.partition(END)[2], encoding="utf-8")


def _table(cases: object) -> str:
    outcomes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for case in cases:  # type: ignore[attr-defined]
        name = f"{case.get('classname')}::{case.get('name')}"
        if scene := _SCENE.search(name):
            place, version, sharded = scene.groups()
            where = f"{version}, {place}" + (", `shardedSubscriptionMode=OFF`" if sharded == "OFF" else "")
            outcome = next((child.tag for child in case if child.tag in {"failure", "error", "skipped"}), "passed")
            for kind, pattern in KINDS.items():
                if re.search(pattern, name):
                    outcomes[where, kind].append(outcome)
    rows = sorted({where for where, _ in outcomes}, key=_order)
    lines = [f"| Redisson | {' | '.join(KINDS)} |", f"|---|{'---|' * len(KINDS)}"]
    lines += [f"| {where} | {' | '.join(_cell(outcomes[where, kind]) for kind in KINDS)} |" for where in rows]
    return "\n" + "\n".join(lines) + "\n\n"


def _order(where: str) -> tuple[list[int], str]:
    version, _, place = where.partition(", ")
    return [int(part) for part in version.split(".")], place


def _cell(outcomes: list[str]) -> str:
    counts = {tag: outcomes.count(tag) for tag in ("failure", "error", "skipped")}
    failed, skipped = counts["failure"] + counts["error"], counts["skipped"]
    if failed:
        return f"**{failed} of {len(outcomes)} fail**"
    if skipped == len(outcomes):
        return "–"
    return f"{len(outcomes) - skipped} of {len(outcomes)}" if skipped else f"{len(outcomes)}"


if __name__ == "__main__":
    main()
