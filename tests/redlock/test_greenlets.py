"""RedLock under eventlet and gevent."""

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.eventually import PATIENCE
from tests.redlock.under_greenlets import GREENLETS, VISITS


@pytest.mark.parametrize("library", ["eventlet", "gevent"])
def test_greenlets_exclude_each_other(nodes, library):
    if find_spec(library) is None:
        pytest.skip(f"{library} is in the dependency group test")
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "tests.redlock.under_greenlets",
        library,
        *(node.url for node in nodes),
    ]
    ended = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=PATIENCE)
    assert ended.returncode == 0, ended.stderr
    assert ast.literal_eval(ended.stdout) == [1] * GREENLETS * VISITS
