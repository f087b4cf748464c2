"""How gunicorn serves the shop: with two processes, so that a lock that works in one process only would show.

SHOP_PORT is the port, on this machine only; 0 lets the system choose one. SHOP_READY_FILE names a file to which the
address is written once the site is served there.
"""

import os
from pathlib import Path
from typing import Any

bind = f"127.0.0.1:{os.environ.get('SHOP_PORT', '8000')}"
workers = 2
worker_class = "gthread"
preload_app = True  # the locks know that their process is a fork of another
threads = 112  # a buyer who waits for a lock occupies one; the page is served even if one process gets all buyers
worker_connections = 120
timeout = 60
graceful_timeout = 5
proc_name = "django-rlock demo"
control_socket_disable = True  # it would be in the user's home, where another demo puts its own


def post_worker_init(worker: Any) -> None:
    """Report our address to the process that started us, now that the site has been loaded."""
    if name := os.environ.get("SHOP_READY_FILE"):
        host, port = worker.sockets[0].getsockname()[:2]
        unfinished = Path(f"{name}.{worker.pid}")
        unfinished.write_text(f"{host}:{port}")
        unfinished.rename(name)
