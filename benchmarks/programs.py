"""Server programs of our own, in folders that no one else finds, and gone when we are."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

# The end of file on standard input shows that the process which started us has ended, by SIGKILL too.
_UNTIL_TOLD = """
exec 2>/dev/null  # the shell's word on how the server ended
end=$1; shift
"$@" </dev/null >log 2>&1 & echo $!
read _
kill -$end $!
wait $!
rm -rf "$0"
"""


class ProgramUnavailableError(RuntimeError):
    """A server could not be started because its program is missing; the text says what was looked for."""


class Program:
    """A server that is started from its program. It runs as an ordinary user where we are root: many refuse root.

    A subclass gives the command and says when it is ready. ``start()`` raises RuntimeError if it does not start.
    """

    end_by = "KILL"
    """The signal that ends it."""
    until_told = _UNTIL_TOLD
    """A shell script, given the folder, the signal and the command: it prints the server's process id."""
    start_timeout = 60.0
    """Seconds that the server gets to accept its first connection."""

    def __init__(self) -> None:
        self._user = _ordinary_user()
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self.folder = Path(tempfile.mkdtemp(prefix="rlock-"))

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def prepare(self) -> None:
        """Make what the server needs in its folder."""

    def command(self) -> list[str]:
        raise NotImplementedError

    def environ(self) -> dict[str, str]:
        """Variables for the server beside the test's own."""
        return {}

    def is_ready(self) -> bool:
        """Whether it accepts connections."""
        raise NotImplementedError

    @property
    def user_name(self) -> str:
        """Who runs the server."""
        return (self._user or pwd.getpwuid(os.getuid())).pw_name

    def start(self) -> None:
        if self._user is not None:
            os.chown(self.folder, self._user.pw_uid, self._user.pw_gid)
        self.prepare()
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", self.until_told, str(self.folder), self.end_by, *self.command()],
            cwd=self.folder,
            env={**os.environ, **self.environ()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for us
            **self._as_user(),
        )
        assert self._process.stdout is not None
        self._pid = int(self._process.stdout.readline())
        self._wait_until_ready()

    def kill(self) -> None:
        """End the server with SIGKILL, as a crash would."""
        os.kill(self._pid, signal.SIGKILL)  # the shell has not collected it, so the number is still its own

    def stop(self) -> None:
        """End the server and remove everything that it wrote."""
        if self._process is not None:
            self._process.communicate(b"stop\n")
            self._process = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, *command: str) -> None:
        """Run another program as the server's user, to its end."""
        done = subprocess.run(command, capture_output=True, check=False, text=True, cwd=self.folder, **self._as_user())
        if done.returncode != 0:
            raise RuntimeError(f"{command[0]} failed: {done.stderr.strip() or done.stdout.strip()}")

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self.start_timeout
        while not self.is_ready():
            if time.monotonic() > deadline:
                log = (self.folder / "log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{type(self).__name__} did not start: {log}")
            time.sleep(0.02)

    def _as_user(self) -> dict[str, Any]:
        if self._user is None:
            return {}
        return {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}


def _ordinary_user() -> pwd.struct_passwd | None:
    """Who is to run the server; None for ourselves."""
    if os.getuid() != 0:
        return None
    for name in "postgres", "nobody":
        with suppress(KeyError):
            return pwd.getpwnam(name)
    raise ProgramUnavailableError("Such a server does not run as root. Create a user 'postgres' or 'nobody' for it.")
