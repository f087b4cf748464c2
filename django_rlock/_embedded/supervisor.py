"""Starts the server of a folder, unless it runs, and ends it when no process has used it for a while.

    python -I -S supervisor.py <server program> <idle time in seconds>      (in the folder)

It prints one line: ``ready`` when the server replies, or what went wrong. It is a separate program, with one thread and
only the standard library, because the process that starts it may be forked or killed at any time. A forked process
would also keep a file lock that its parent has open.

The server holds the lock on the file ``server.lock`` from before its start until the kernel has closed its files. So
the process that gets that lock knows that no server runs in the folder, whichever process was killed, and two servers
never use the same data.
"""

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time

SOCKET, LOCK, LOG, DATA = "server.sock", "server.lock", "server.log", "appendonlydir"
READY = "ready"
START_WITHIN = 20.0
"""How long the server may take to read its data and reply, or another one to end, in seconds."""
CHECK_EVERY = 1.0
"""The interval at which the server's connections are counted and its socket is checked, in seconds."""
STOP_WITHIN = 10.0
"""How long the server may take to shut down, in seconds."""
_LONGEST_LOG = 1 << 20

SERVER_OPTIONS = {
    "port": "0",
    "unixsocket": SOCKET,  # relative to the folder, since a socket's path must be short
    "unixsocketperm": "700",
    "dir": ".",
    "logfile": LOG,
    "loglevel": "warning",
    "save": "",
    # Every command is written before its reply is sent, so a killed server loses nothing. A sync would only help when
    # the machine crashes, which ends the holders as well.
    "appendonly": "yes",
    "appenddirname": DATA,
    "appendfsync": "no",
    "aof-use-rdb-preamble": "no",  # an older server can read it too
    "auto-aof-rewrite-min-size": "4mb",
    "maxmemory-policy": "noeviction",
    "databases": "1",
}


def main(program: str, idle: float) -> None:
    """Start the server, report that, and watch the server to its end."""
    os.umask(0o077)
    if os.fork():  # the starter waits for this process only; the server and its watch continue in the child
        os._exit(0)
    output = _take_output()
    lock = os.open(LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    text = READY
    server = connection = None
    try:
        if _is_first(lock):
            server = _start(program, lock)
            os.close(lock)  # from now on it is the server's
            connection = _wait_until_ready(server)
    except OSError as error:
        text = f"{error}"
    finally:
        os.write(output, f"{text}\n".encode(errors="replace"))
        os.close(output)
    if server is not None and connection is not None:
        _watch(server, connection, idle)
    if server is not None:
        _stop(server)


def _take_output() -> int:
    """Return a descriptor of standard output, which the log file replaces."""
    output = os.dup(1)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    if os.path.exists(LOG) and os.path.getsize(LOG) > _LONGEST_LOG:
        os.replace(LOG, f"{LOG}.old")
    log = os.open(LOG, flags, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in (nothing, 0), (log, 1), (log, 2):
        os.dup2(source, target)
    for opened in log, nothing:
        if opened > 2:
            os.close(opened)
    return output


# --- starting --------------------------------------------------------------------------------------------------------


def _is_first(lock: int) -> bool:
    """Take the lock (True), or wait until the server of another process replies (False)."""
    until = time.monotonic() + START_WITHIN
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        with contextlib.suppress(OSError), _connect() as other:
            if _ask(other, "PING").startswith(b"+PONG"):
                return False
        if time.monotonic() > until:
            raise TimeoutError(f"the server that lives in the folder did not reply within {START_WITHIN:g} s")
        time.sleep(0.005)


def _start(program: str, lock: int) -> "subprocess.Popen[bytes]":
    options = [word for name, value in SERVER_OPTIONS.items() for word in (f"--{name}", value)]
    # There is one thread, so a function may run in the child.
    return subprocess.Popen([program, *options], pass_fds=[lock], preexec_fn=_end_with_supervisor)  # noqa: PLW1509, S603


def _end_with_supervisor() -> None:
    """Make Linux shut down the server when this process is killed: no other process would. The data stays."""
    with contextlib.suppress(Exception):
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def _wait_until_ready(server: "subprocess.Popen[bytes]") -> socket.socket:
    until = time.monotonic() + START_WITHIN
    while server.poll() is None:
        with contextlib.suppress(OSError):
            connection = _connect()
            if _ask(connection, "PING").startswith(b"+PONG"):  # and no LOADING
                return connection
            connection.close()
        if time.monotonic() > until:
            raise TimeoutError(f"it did not reply within {START_WITHIN:g} s")
        time.sleep(0.002)
    raise ChildProcessError(f"it ended at once, with status {server.returncode}")


# --- watching --------------------------------------------------------------------------------------------------------


def _watch(server: "subprocess.Popen[bytes]", connection: socket.socket, idle: float) -> None:
    """Return when the server has ended, or should end: nobody used it for ``idle`` seconds, or its socket is gone."""
    socket_file = _socket_file()
    known, used_at = -1, time.monotonic()
    while server.poll() is None:
        # Its end makes the connection readable, so nothing polls.
        connection.settimeout(min(CHECK_EVERY, max(idle / 4, 0.05)))
        with contextlib.suppress(TimeoutError):
            if not connection.recv(1):
                return
        if socket_file != _socket_file():  # the folder was cleaned: the next process starts a second server
            return
        try:
            now_known, clients = _use(connection)
        except TimeoutError:
            continue  # it is suspended, or busy
        except OSError:
            return
        # A process that came and went between two looks has raised the number of connections.
        if clients > 1 or now_known != known:
            known, used_at = now_known, time.monotonic()
        elif time.monotonic() - used_at >= idle:
            return


def _use(connection: socket.socket) -> tuple[int, int]:
    """How many connections the server has had, and how many it has, ours included."""
    connection.settimeout(CHECK_EVERY)
    lines = _ask(connection, "INFO").decode(errors="replace").splitlines()
    info = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(info["total_connections_received"]), int(info["connected_clients"])


def _socket_file() -> "tuple[int, int] | None":
    try:
        found = os.stat(SOCKET)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _stop(server: "subprocess.Popen[bytes]") -> None:
    server.terminate()  # does nothing if it has ended
    try:
        server.wait(STOP_WITHIN)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


# --- commands --------------------------------------------------------------------------------------------------------


def _connect() -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(1.0)
        connection.connect(SOCKET)
    except OSError:
        connection.close()
        raise
    return connection


def _ask(connection: socket.socket, command: str) -> bytes:
    """The reply to a command without arguments, as its bytes."""
    connection.sendall(f"{command}\r\n".encode())
    reply = connection.recv(65536)
    while reply.startswith(b"$") and len(reply) < int(reply[1 : reply.index(b"\r")]):
        reply += connection.recv(65536)
    if not reply:
        raise ConnectionResetError("the server closed the connection")
    return reply


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
