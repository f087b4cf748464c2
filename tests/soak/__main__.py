"""python -m tests.soak [--seconds 600] [--seed SEED] [--workers 4]

Exits with 1 when something was wrong, and with 2 when the control without locks was not caught.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from example_project.embedded import find_binary
from tests.soak.rig import command, say
from tests.soak.run import control, soak


def main() -> int:
    options = command("soak", "All kinds of locks under a nemesis.", workers=4).parse_args()
    again = f'make soak SECONDS={options.seconds:g} ARGS="--seed {options.seed} --workers {options.workers}"'
    say(f"{again}  # Python {platform.python_version()}, {Path(find_binary()).name}")
    caught = control(options.seed)
    say(f"without locks: {len(caught.violations)} violations in {caught.holds.total()} holds")
    if not caught.violations:
        return 2
    report = soak(options.seed, options.seconds, options.workers)
    say(report)
    return int(not report.passed)


if __name__ == "__main__":
    sys.exit(main())
