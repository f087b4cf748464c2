"""python -m tests.campaign [--seconds 600] [--seed SEED] [--workers 3] [--whose locked]

Exits with 1 when something was wrong.
"""

from __future__ import annotations

import sys

from tests import namespaces
from tests.campaign.app import WHOSE
from tests.campaign.run import run
from tests.soak.rig import command, say


def main() -> int:
    parser = command("campaign", "Celery workers, of two children each, under a nemesis.", workers=3)
    parser.add_argument("--whose", choices=WHOSE, default="locked", help="whose tasks (locked)")
    parser.add_argument("--calm", action="store_true", help="without the nemesis")
    options = parser.parse_args()
    say(f"seed {options.seed}")
    if reason := namespaces.why_not():
        say(f"without workers of other users and full disks: {reason}")
    report = run(options.seed, options.seconds, options.workers, options.whose, not options.calm)
    say(report)
    return int(not report.passed)


if __name__ == "__main__":
    sys.exit(main())
