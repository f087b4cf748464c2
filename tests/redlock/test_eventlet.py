"""RedLock under eventlet, which removes ``select.poll``."""

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.eventually import PATIENCE
from tests.redlock.under_eventlet import GREENLETS, VISITS


@pytest.mark.skipif(find_spec("eventlet") is None, reason="eventlet is in the dependency group test")
def test_greenlets_exclude_each_other(nodes):
    command = [sys.executable, "-W", "ignore", "-m", "tests.redlock.under_eventlet", *[node.url for node in nodes]]
    ended = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=PATIENCE)
    assert ended.returncode == 0, ended.stderr
    assert ast.literal_eval(ended.stdout) == [1] * GREENLETS * VISITS
