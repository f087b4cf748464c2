"""Makes the project of docs/quickstart.md and uses it as the page does."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.docs.pages import DOCS, blocks

FILE = re.compile(r"# (?P<end>add to the end of )?(?P<path>mysite/\w+\.py)\n")
FILES = {"settings.py", "views.py", "urls.py", "celery.py", "__init__.py", "tasks.py"}
PROGRAM = Path(__file__).with_name("follow_quickstart.py")


def follow(python: str, folder: Path, *options: str) -> str:
    """Do all that the page says, with the packages of an interpreter; returns the output.

    With ``--in-process`` the locks are kept by ``override_locks()``. CalledProcessError where something fails.
    """
    folder.mkdir(exist_ok=True)
    run_in_project([python, "-m", "django", "startproject", "mysite", "."], folder)
    assert _write_files(folder) == FILES
    try:
        return run_in_project([python, str(PROGRAM), *options], folder, DJANGO_SETTINGS_MODULE="mysite.settings")
    finally:
        shutil.rmtree(folder / ".rlock")  # which ends the server now, not in a minute


def _write_files(folder: Path) -> set[str]:
    """Do what the blocks of Python say; returns the names of the files. Nobody watches, so nothing sleeps."""
    written = set()
    for block in blocks(DOCS / "quickstart.md"):
        if block.language == "python":
            found = FILE.match(block.code)
            assert found, block
            path = folder / found["path"]
            code = re.sub(r"time\.sleep\(\d+\)", "time.sleep(0)", block.code)
            path.write_text((path.read_text() if found["end"] else "") + code)
            written.add(path.name)
    return written


def run_in_project(command: list[str], folder: Path, **environ: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DJANGO_", "PYTHON", "RLOCK_"))}
    result = subprocess.run(
        command,
        cwd=folder,
        env={**kept, "PYTHONPATH": str(folder), **environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if result.returncode:
        print(result.stdout)  # noqa: T201 - what it says is all that tells why
        result.check_returncode()
    return result.stdout
