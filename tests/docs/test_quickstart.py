"""Whoever follows docs/quickstart.md gets a project that works. test_examples.py tests the options of its commands."""

import sys
from pathlib import Path

import pytest

from tests.docs.quickstart import follow
from tests.forms import long


@pytest.mark.parametrize("options", [[], *long(["--in-process"])], ids=["embedded", "in the process"])
def test_the_project_of_the_quickstart_works(options: list[str], tmp_path: Path) -> None:
    if options:
        pytest.importorskip("lupa", reason="lupa, which fakeredis needs, has no wheels for this Python")
    assert "stock:cake" in follow(sys.executable, tmp_path, *options)
