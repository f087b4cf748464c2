"""Becomes a server that has its listening socket already, so that no request comes too early and no port is taken.

    python listen.py <port, or 0> <command with {fd}> ...

The address goes into the file that SHOP_READY_FILE names.
"""

import os
import socket
import sys
from pathlib import Path


def main(port: str, *command: str) -> None:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # for another process of the same site
    listener.bind(("127.0.0.1", int(port)))
    listener.listen()
    ready = Path(os.environ["SHOP_READY_FILE"])
    unfinished = ready.with_suffix(".unfinished")
    unfinished.write_text(str(listener.getsockname()[1]))
    unfinished.rename(ready)
    listener.set_inheritable(True)
    os.execv(command[0], [each.format(fd=listener.fileno()) for each in command])


if __name__ == "__main__":
    main(*sys.argv[1:])
