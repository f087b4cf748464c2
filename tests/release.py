"""Whether the tree can be released: ``make release-check``.

It builds the distributions twice, and the wheel a third time from the source distribution alone; all must be the same
files. Their metadata must be valid, and the changelog must have a dated entry for the version, with all changes. The
target then installs the wheel into fresh projects, as ``make smoke`` does.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from packaging.metadata import Metadata

from django_rlock.version import __version__

ROOT = Path(__file__).parents[1]


def built(tree: Path, folder: Path) -> dict[str, str]:
    """The digests of the distributions of a tree, by file name."""
    for target in ("sdist", "wheel"):
        command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
        subprocess.run(command, cwd=tree, check=True, capture_output=True)
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


def problems(work: Path) -> Iterator[str]:
    """What keeps the tree from being released."""
    first, second = built(ROOT, work / "first"), built(ROOT, work / "second")
    if first != second:
        yield "Two builds of the same tree differ."
    wheel, sdist = next((work / "first").glob("*.whl")), next((work / "first").glob("*.tar.gz"))
    with tarfile.open(sdist) as archive:
        archive.extractall(work / "unpacked", filter="data")
    [tree] = (work / "unpacked").iterdir()
    if built(tree, work / "third")[wheel.name] != first[wheel.name]:
        yield "The wheel that is built from the source distribution differs."
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(name)
    try:
        found = Metadata.from_email(text, validate=True)
    except ExceptionGroup as errors:
        yield from (f"The metadata are invalid: {error}" for error in errors.exceptions)
    else:
        if str(found.version) != __version__:
            yield f"The wheel is version {found.version}, the package {__version__}."
    changelog = (ROOT / "CHANGELOG.md").read_text()
    if not re.search(rf"^## \[{re.escape(__version__)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE):
        yield f"CHANGELOG.md has no entry for {__version__} with a date."
    if fragments := [file.name for file in (ROOT / "changes").iterdir() if file.name != "README.md"]:
        yield f"CHANGELOG.md lacks the changes {', '.join(sorted(fragments))}: run towncrier build."


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        found = list(problems(Path(folder)))
    for problem in found:
        sys.stderr.write(f"{problem}\n")
    sys.stdout.write("" if found else f"{__version__} can be released.\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
