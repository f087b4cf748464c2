"""Everything that the shop needs to run, private to one user: Redis, a database, the site and a worker."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from example_project.embedded import EmbeddedServer
from example_project.processes import Process, ProcessError, undisturbed

PROJECT = Path(__file__).resolve().parent


class Stack:
    """The shop, in a temporary folder that only its user can enter; it leaves nothing behind.

    ``password`` is that of the site's user ``admin``.

    with Stack() as stack:
        url = stack.start_site()
        stack.manage("flashsale", "--url", url)
    """

    def __init__(self) -> None:
        self.password = secrets.token_urlsafe(12)
        self.processes: list[Process] = []
        self._exits = ExitStack()

    def __enter__(self) -> Self:
        try:
            server = self._exits.enter_context(EmbeddedServer())
            self.folder = server.folder
            self.env = self._environment(server.url)
            self._open_shop()
        except BaseException:
            self._exits.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._exits.close()

    def start_site(self, port: int = 0) -> str:
        """Start gunicorn on a port of this machine (0: a free one); returns the site's URL once it is served."""
        self.env["SHOP_PORT"] = str(port)
        command = ["gunicorn", "--config", str(PROJECT / "gunicorn_config.py"), "example_project.wsgi"]
        self.env["SHOP_URL"] = f"http://{self._start('site', command).wait_until_ready()}"
        return self.env["SHOP_URL"]

    def start_worker(self) -> Process:
        """Start a Celery worker with processes for a sale, an accident, a report, and to skip further reports."""
        options = ["--concurrency", "4", "--without-gossip", "--without-mingle", "--loglevel", "INFO"]
        command = ["celery", "--quiet", "--app", "example_project", "worker", *options]
        return self._start("worker", command, end_with=signal.SIGQUIT)

    def manage(self, *args: str, **variables: str) -> int:
        """Run a command of manage.py, with environment ``variables`` for it only; returns its exit status."""
        command = [sys.executable, str(PROJECT / "manage.py"), *args]
        with undisturbed():
            # In a session of its own, because Ctrl-C is for us: leaving this call ends the command.
            running = subprocess.Popen(command, env={**self.env, **variables}, start_new_session=True)
            self._exits.callback(_kill, running)
        return running.wait()

    def wait(self) -> None:
        """Wait until a process ends too early, then raise its ProcessError."""
        while True:
            for process in self.processes:
                if process.ends_within(0.5):
                    raise process.error("has ended")

    def _open_shop(self) -> None:
        if self.env.get("SHOP_POSTGRES"):
            self._exits.callback(self.manage, "close_shop")
        if self.manage("open_shop", DJANGO_SUPERUSER_PASSWORD=self.password):
            raise ProcessError("The database could not be set up; the reason stands above.")

    def _start(self, name: str, command: list[str], end_with: int = signal.SIGTERM) -> Process:
        with undisturbed():
            process = Process(name, [sys.executable, "-m", *command], self.folder, self.env)
            self._exits.callback(process.stop, end_with)
        self.processes.append(process)
        return process

    def _environment(self, redis_url: str) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(PROJECT.parent), os.environ.get("PYTHONPATH")])),
            "TMPDIR": str(self.folder),
            "DJANGO_SETTINGS_MODULE": "example_project.settings",
            "SHOP_REDIS_URL": redis_url,
            "SHOP_LOCKS": str(self.folder / "locks"),
            "SHOP_DATABASE": str(self.folder / "shop.sqlite3"),
            "SHOP_SCHEMA": f"shop_{secrets.token_hex(4)}",
            "SHOP_SECRET_KEY": secrets.token_urlsafe(50),
        }


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # does nothing if it has ended
    process.wait()
