"""Beginnings of commands that run in namespaces of their own: with another ``/proc``, a full disk, as another user.

Nothing else on the machine sees what is mounted there.
"""

import os
import platform
import shutil
import subprocess
from functools import cache
from pathlib import Path

NOBODY = "65534"


def with_proc(options: str) -> list[str]:
    """A command's beginning: it sees a ``/proc`` that is mounted with these options."""
    return ["unshare", "--mount", *_after(_mount(options))]


def in_container(options: str) -> list[str]:
    """The same, for a command that sees only its own processes, on a host named "localhost"."""
    spaces = ["--mount", "--uts", "--pid", "--fork", "--kill-child"]
    return ["unshare", *spaces, *_after(f"hostname localhost && {_mount(options)}")]


def with_full_disk(folder: Path) -> list[str]:
    """A command's beginning: for it, the disk of this folder is full."""
    fill = f"mount -t tmpfs -o size=4k tmpfs {folder} && ! cat /dev/zero 2>/dev/null >{folder}/zeros"
    return ["unshare", "--mount", *_after(fill)]


def _mount(options: str) -> str:
    return f"mount -t proc -o {options} proc /proc"


def _after(setup: str) -> list[str]:
    return ["sh", "-c", f'{setup} && exec "$@"', "sh"]


def as_nobody() -> list[str]:
    """A command's beginning: another user, who may use each file, as the interpreter and this project, and no more."""
    may = "-all,+dac_override"
    return [
        "setpriv",
        f"--reuid={NOBODY}",
        f"--regid={NOBODY}",
        "--clear-groups",
        f"--inh-caps={may}",
        f"--ambient-caps={may}",
    ]


@cache
def why_not() -> str | None:
    """Why such commands cannot run here; None if they can."""
    if not all(map(shutil.which, ("unshare", "setpriv", "mount", "hostname"))):
        return "needs unshare, setpriv, mount and hostname, of Linux"
    if os.getuid() != 0:
        return "needs root, for mounts in a namespace of their own"
    if tuple(map(int, platform.release().split(".")[:2])) < (5, 8):
        return "before Linux 5.8 the options of one mount of /proc are those of all"
    tried = subprocess.run([*with_proc("hidepid=2"), *as_nobody(), "true"], capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else f"no private mounts: {tried.stderr.strip()}"
