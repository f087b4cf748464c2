"""The Java program beside this file: Maven builds it, once for all processes, in build/interop/<version>."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = Path(__file__).parent
TARGET = ROOT / "build" / "interop"
PATIENCE = 600.0
"""How long Maven may take, in seconds; where its cache is cold it downloads some 30 MB."""

_UNREACHABLE = re.compile(r"could not (be resolved|transfer|resolve)|unknown host|offline mode", re.IGNORECASE)


class UnavailableError(Exception):
    """The program cannot be built here; the text says why. No fault of the program's."""


def build(version: str) -> Path:
    """The folder of ``classes`` and ``lib`` for a version of Redisson.

    UnavailableError; RuntimeError when the program does not compile.
    """
    for tool in "java", "javac", "mvn":
        if shutil.which(tool) is None:
            raise UnavailableError(f"There is no {tool} on the PATH: Redisson needs a JDK from 17 on, and Maven.")
    target = TARGET / version
    target.mkdir(parents=True, exist_ok=True)
    with (TARGET / "lock").open("w") as mutex:
        fcntl.flock(mutex, fcntl.LOCK_EX)
        built, digest = target / "digest", _digest()
        if not built.exists() or built.read_text() != digest:
            built.unlink(missing_ok=True)
            _run_maven(version)
            built.write_text(digest)
    return target


def _digest() -> str:
    digest = hashlib.sha256()
    for path in sorted([PROJECT / "pom.xml", *PROJECT.rglob("*.java")]):
        digest.update(f"{path.relative_to(PROJECT)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def _run_maven(version: str) -> None:
    for folder in "classes", "lib":  # of an earlier version
        shutil.rmtree(TARGET / version / folder, ignore_errors=True)
    command = ["mvn", "--quiet", "--batch-mode", f"-Dredisson.version={version}", "process-classes"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, check=False, text=True, timeout=PATIENCE)
    if done.returncode != 0:
        told = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
        # Where all tests must run, as on the CI machine, an unreachable registry is a failure as well.
        if _UNREACHABLE.search(told) and not os.environ.get("CI"):
            raise UnavailableError(f"Maven cannot fetch Redisson: {told}")
        raise RuntimeError(f"Maven could not build {PROJECT}:\n{told}")
