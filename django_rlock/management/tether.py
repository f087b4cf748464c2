"""Run a program that ends when its parent process ends: ``tether.py PID PROGRAM ARGUMENT …``.

This file runs without the modules that Python imports at its start. Linux only.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run the program, unless the parent has already ended. Exit statuses are the same as a shell's."""
    starter, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(starter):
        sys.exit(128 + signal.SIGTERM)
    # Python ignores these signals, and a program would inherit that.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606 - the caller's own command
    except OSError as error:
        sys.stderr.write(f"{command[0]!r} cannot be run: {error.strerror}.\n")
        sys.exit(126)


if __name__ == "__main__":
    main()
