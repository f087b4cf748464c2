"""Checks of an embedded server's folder: may this process keep a server there? They change no file."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

from django_rlock._stores import keeper

LONGEST_PATH = 100
"""The maximum length of a socket's path, in bytes; the limit is 107 on Linux and 103 on macOS."""
DESCRIPTORS = Path("/proc/self/fd")
"""The folder in which Linux gives open folders short paths."""
MOUNTS = Path("/proc/self/mountinfo")

_NETWORK = re.compile(
    r"nfs\d?|cifs|smb\w*|afs|afpfs|webdav|9p|ceph|lustre|gpfs|gfs2?|ocfs2|beegfs|orangefs|pvfs2"
    r"|fuse\.(sshfs|davfs2?|glusterfs|ceph\S*|juicefs|seaweedfs|moosefs|rclone|s3fs|gcsfuse)"
)
_MOUNT = re.compile(r"on (?P<place>/.*) \((?P<type>[^,)]+)")  # a line of macOS's mount


def check_folder(alias: str, folder: Path) -> None:
    """Raise ImproperlyConfigured unless this user may keep a server in a folder."""
    place = f"RLOCK[{alias!r}] keeps its server in {str(folder)!r}"
    advice = f"Set RLOCK[{alias!r}]['FOLDER'] to a folder of this machine that all processes of the project share"
    try:
        owner = folder.lstat().st_uid
    except FileNotFoundError:
        if not os.access(folder.parent, os.W_OK | os.X_OK):
            raise ImproperlyConfigured(f"{place}, which does not exist and cannot be made. {advice}.") from None
        owner = os.geteuid()
    except OSError as error:
        raise ImproperlyConfigured(f"{place}, which cannot be used: {error.strerror}. {advice}.") from None
    if owner != os.geteuid():
        raise ImproperlyConfigured(
            f"{place}, which belongs to {_user(owner)}, and this process runs as {_user(os.geteuid())}. A second "
            f"server would grant the same locks again: run this process as {_user(owner)}. If its locks are separate, "
            f"name another folder in RLOCK[{alias!r}]['FOLDER']."
        )
    if folder.exists() and not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        raise ImproperlyConfigured(f"{place}, where nothing can be written. {advice}.")
    kind = file_system(folder)
    if _NETWORK.fullmatch(kind):
        raise ImproperlyConfigured(
            f"{place}, which is on a network file system ({kind}): each machine would start a server of its own there, "
            f"and two would grant the same lock. {advice}."
        )
    if is_long(folder) and not DESCRIPTORS.is_dir():
        raise ImproperlyConfigured(f"{place}, whose path is too long for a socket. {advice}, with a shorter path.")


def is_long(folder: Path) -> bool:
    """Whether the path of the server's socket exceeds the maximum length."""
    return len(os.fsencode(folder / keeper.SOCKET)) > LONGEST_PATH


def file_system(folder: Path) -> str:
    """The type of the file system in which a folder is or would be; empty if the system does not say."""
    places = dict(_mounts())  # of two mounts at one place, the later one hides the other
    resolved = folder.resolve()
    return next((places[str(each)] for each in (resolved, *resolved.parents) if str(each) in places), "")


def _mounts() -> Iterator[tuple[str, str]]:
    """The places of all mounts, with the types of their file systems."""
    if MOUNTS.exists():
        for line in MOUNTS.read_text(errors="surrogateescape").splitlines():
            before, _, after = line.partition(" - ")
            yield re.sub(r"\\(\d{3})", _character, before.split()[4]), after.split()[0]
        return
    try:  # macOS
        listed = subprocess.run(["/sbin/mount"], capture_output=True, text=True, timeout=5, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return
    for found in _MOUNT.finditer(listed):
        yield found["place"], found["type"]


def _character(escape: re.Match[str]) -> str:
    return chr(int(escape[1], 8))


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"
