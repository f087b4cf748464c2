"""Builds the wheel, installs it beside the oldest and the newest versions that it allows, and runs projects there: one
of ours, one of the blocks of README.md, and that of docs/quickstart.md, on the embedded server and with the locks of
``override_locks()``.

``python -m tests.smoke [--python PYTHON] [lowest newest views]``; a project with views only has neither Celery nor
django-ninja. Exits with 1 where one of them fails. It needs the package index.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from example_project.embedded import EmbeddedServer
from tests.docs.quickstart import follow
from tests.docs.readme import follow_readme

ROOT = Path(__file__).parents[2]
PROJECT = Path(__file__).with_name("smokeproject")
EXTRAS = {"lowest": "celery,embedded,hiredis,ninja", "newest": "celery,embedded,hiredis,ninja", "views": ""}
"""What is installed in each environment, and ``testing`` where there are wheels for it."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.smoke", description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="for the projects; this one by default")
    parser.add_argument("environments", nargs="*", metavar="|".join(EXTRAS))
    options = parser.parse_args()
    names = options.environments or list(EXTRAS)
    if unknown := set(names) - EXTRAS.keys():
        parser.error(f"there is no environment {', '.join(unknown)}")
    with tempfile.TemporaryDirectory(prefix="rlock-smoke-") as made, ExitStack() as stack:
        folder = Path(made)
        wheel = build(folder)
        servers = [stack.enter_context(EmbeddedServer(port=0)) for _ in range(3)]
        pool = stack.enter_context(ThreadPoolExecutor())
        installed = {name: pool.submit(install, name, wheel, options.python, folder / name) for name in names}
        return sum(not passes(name, result, folder / name, servers) for name, result in installed.items())


def passes(name: str, installed: Future[Path], folder: Path, servers: Sequence[EmbeddedServer]) -> bool:
    """Whether a project runs where the package is installed."""
    for server in servers:
        server.client().flushall()
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("DJANGO_", "PYTHON", "RLOCK_"))
    }
    environ["SMOKE_SERVERS"] = " ".join(server.url for server in servers)
    environ["DJANGO_SETTINGS_MODULE"] = f"{PROJECT.name}.settings"
    started = time.monotonic()
    failure: subprocess.CalledProcessError | None = None
    try:
        python = installed.result()
        shutil.copytree(PROJECT, folder / PROJECT.name)
        run([str(python), "-m", f"{PROJECT.name}.smoke"], folder, environ)
        if "celery" in EXTRAS[name]:
            follow_readme(str(python), folder / "readme", servers[1].port or 0)  # both sell cake
            for options in ([], ["--in-process"]) if has_wheels_for_testing(str(python)) else ([],):
                follow(str(python), folder / f"quickstart{len(options)}", *options)
    except subprocess.CalledProcessError as error:
        failure = error
    print(f"{name}: {failure or 'passed'} ({time.monotonic() - started:.0f} s)", flush=True)  # noqa: T201
    return failure is None


def build(folder: Path) -> Path:
    """The wheel of this tree."""
    run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], ROOT)
    return next(folder.glob("*.whl"))


def install(name: str, wheel: Path, python: str, folder: Path) -> Path:
    """A virtual environment with the package; returns its Python. By uv, where that is there."""
    folder.mkdir()
    package, uv = f"{wheel}{extras(name, python)}", shutil.which("uv")
    inside = folder / "venv" / "bin" / "python"
    if uv:
        resolution = "lowest-direct" if name == "lowest" else "highest"
        run([uv, "venv", "--quiet", "--python", python, "venv"], folder)
        run([uv, "pip", "install", "--quiet", "--python", str(inside), "--resolution", resolution, package], folder)
    else:
        (folder / "constraints.txt").write_text("".join(lower_bounds()) if name == "lowest" else "")
        pip = [sys.executable, "-m", "pip", "--quiet", "--python", str(inside)]
        run([python, "-m", "venv", "--without-pip", "venv"], folder)
        run([*pip, "install", "--constraint", "constraints.txt", package], folder)
    return inside


def extras(name: str, python: str) -> str:
    """The extras of an environment, as pip takes them."""
    if not EXTRAS[name]:
        return ""
    return f"[{EXTRAS[name]},testing]" if has_wheels_for_testing(python) else f"[{EXTRAS[name]}]"


def has_wheels_for_testing(python: str) -> bool:
    """Whether the extra ``testing`` can be installed without a compiler: lupa has no wheels for Python 3.15 as yet."""
    code = "import sys; sys.exit(sys.version_info >= (3, 15))"
    return subprocess.run([python, "-c", code], check=False).returncode == 0


def lower_bounds() -> list[str]:
    """The oldest versions that pyproject.toml allows, as lines of a constraints file."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    needs = [*project["dependencies"], *(need for group in extras.values() for need in group)]
    return [re.sub(r"^([\w-]+)(?:\[.*\])?>=([\d.]+)$", r"\1==\2", need) + "\n" for need in needs]


def run(command: Sequence[str], folder: Path, environ: dict[str, str] | None = None) -> None:
    """CalledProcessError where it fails; it prints what it has to say."""
    subprocess.run(command, cwd=folder, env=environ, check=True, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
