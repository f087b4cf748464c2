"""Makes a project of the blocks of README.md, and uses it as the page says."""

from __future__ import annotations

from pathlib import Path

from tests.docs.pages import ROOT, blocks
from tests.docs.quickstart import run_in_project

ADDRESS = "127.0.0.1:6379"
FILES = {
    "INSTALLED_APPS +=": "settings.py",
    "def reserve": "reserve.py",
    "def buy": "shop.py",
    "def build_report": "tasks.py",
}
"""Where each block goes that has this in it."""
README = ROOT / "README.md"
PROGRAM = Path(__file__).with_name("follow_readme.py")


def follow_readme(python: str, folder: Path, port: int) -> str:
    """Use all blocks of Python, with the packages of an interpreter and the server on a port; returns the output.

    CalledProcessError where something fails.
    """
    folder.mkdir(exist_ok=True)
    run_in_project([python, "-m", "django", "startproject", "mysite", "."], folder)
    sources = [block.code for block in blocks(README) if block.language == "python"]
    written = [_write(code, folder / "mysite", f"127.0.0.1:{port}") for code in sources]
    assert sorted(written) == sorted(FILES.values())
    return run_in_project([python, str(PROGRAM)], folder, DJANGO_SETTINGS_MODULE="mysite.settings")


def _write(code: str, folder: Path, address: str) -> str:
    """Add a block to its file; returns the file's name."""
    (name,) = (name for part, name in FILES.items() if part in code)
    with (folder / name).open("a") as file:
        file.write(code.replace(ADDRESS, address))
    return name
