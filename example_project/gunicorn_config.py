"""How gunicorn serves the shop: two processes, so that a lock which works in one process only would be found out.

SHOP_PORT is the port, of this machine only; 0 lets the system choose one. SHOP_READY_FILE names a file that gets the
address once the site answers there.
"""

import os
from pathlib import Path
from typing import Any

bind = f"127.0.0.1:{os.environ.get('SHOP_PORT', '8000')}"
workers = 2
worker_class = "gthread"
preload_app = True  # the locks know that their process is a fork of another
threads = 64  # a buyer who waits for a lock occupies one
worker_connections = 72
timeout = 60
graceful_timeout = 5
proc_name = "django-rlock demo"
control_socket_disable = True  # it would lie in the user's home, where the next demo puts its own


def post_worker_init(worker: Any) -> None:
    """Tell whoever started us where we listen, now that the site has been loaded."""
    if name := os.environ.get("SHOP_READY_FILE"):
        host, port = worker.sockets[0].getsockname()[:2]
        unfinished = Path(f"{name}.{worker.pid}")
        unfinished.write_text(f"{host}:{port}")
        unfinished.rename(name)
