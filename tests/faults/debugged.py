"""A process with a breakpoint inside a lock's block; it tells the debugger's port, and whether the lock was lost.

python -m tests.faults.debugged <url> <lease>
"""

# ruff: noqa: T100 - what is debugged is this process

import sys

import debugpy  # type: ignore[import-not-found, unused-ignore]

from tests.faults.storm import set_up, tell


def main() -> None:
    url, lease = sys.argv[1:]
    set_up([url], WATCHDOG_TIMEOUT=float(lease))
    from django_rlock import RLock

    with RLock("before"):
        pass  # its threads are there before the debugger
    _, port = debugpy.listen(("127.0.0.1", 0))
    tell(port=port)
    debugpy.wait_for_client()
    with RLock("stock:42") as lock:
        debugpy.breakpoint()
        tell(lost=lock.lost)


if __name__ == "__main__":
    main()
