"""Runs one server, and ends it on request, or when the process that started it has ended, even by SIGKILL.

    python watcher.py <pid of that process> <folder of the server> <command> ...

Linux's PR_SET_PDEATHSIG is no alternative: it takes effect when the *thread* that started the server ends. The exit
status is not collected until the end, so the printed pid remains the server's own. The server inherits the pipe to
which the pid is printed, and the watcher closes its copy: end of file in that pipe means that the server has ended.
"""

import os
import select
import shutil
import subprocess
import sys

CHECK_INTERVAL = 1.0
"""Seconds between two checks of the parent, whose forks may hold its end of our standard input open."""


def main(parent: str, folder: str, *command: str) -> None:
    """Print the server's pid, wait for one byte on standard input, and end the server."""
    # The server's own process prints the line before it becomes the server, so the server's output comes after it.
    # There is only one thread here, so that is safe.
    server = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, preexec_fn=_print_pid)  # noqa: PLW1509
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    told = _wait_for_word(int(parent))
    server.kill()
    server.wait()
    if not told:
        shutil.rmtree(folder, ignore_errors=True)


def _print_pid() -> None:
    os.write(1, b"%d\n" % os.getpid())


def _wait_for_word(parent: int) -> bool:
    """Whether the parent asked us to end; False when it has ended itself."""
    while os.getppid() == parent:
        if select.select([0], [], [], CHECK_INTERVAL)[0]:
            return bool(os.read(0, 1))
    return False


if __name__ == "__main__":
    main(*sys.argv[1:])
