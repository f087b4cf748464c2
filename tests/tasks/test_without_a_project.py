"""Celery without a Django project, as docs/celery.md shows it."""

import os
import re
import subprocess
import sys

import pytest

from tests.celery_app.records import WAIT
from tests.celery_app.workers import ROOT
from tests.docs.pages import DOCS

SECTION = "\n## Celery without a Django project\n"
SEND = """
from reports import build_report
print(build_report.apply_async([7], queue="reports").get(timeout=60), build_report.lock_info(7))
"""


@pytest.fixture
def module(tmp_path, celery_servers):
    """The page's module, with the servers of the tests."""
    source = (DOCS / "celery.md").read_text(encoding="utf-8").partition(SECTION)[2]
    found = re.search(r"```python\n(.*?)```", source, re.DOTALL)
    assert found is not None
    base = celery_servers[0].url.removesuffix("/0")
    (tmp_path / "reports.py").write_text(found[1].replace("redis://127.0.0.1:6379", base))
    return tmp_path


def test_a_task_runs(module):
    environ = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    environ["PYTHONPATH"] = f"{module}:{ROOT}"
    command = [sys.executable, "-m", "celery", "-A", "reports", "worker", "-P", "prefork", "-c", "1", "-Q", "reports"]
    with subprocess.Popen(
        command, cwd=module, env=environ, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ) as worker:
        try:
            said = subprocess.check_output(
                [sys.executable, "-c", SEND], cwd=module, env=environ, text=True, timeout=WAIT
            )
        finally:
            worker.terminate()
    assert said == "report of 7 None\n"
