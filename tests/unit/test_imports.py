"""What ``import django_rlock`` loads: each module costs every process of a project some of its start."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import django_rlock

NEEDED = {"_core", "_redis", "_transport", "exceptions", "locks", "settings", "signals", "version"}
"""What takes a lock."""
OFTEN = {*NEEDED, "_web"}
"""And what decorates a view with one."""


def loaded_by(statement: str) -> set[str]:
    """The packages and modules right below this package that an interpreter has after a statement."""
    program = f"""
import django, sys
from django.conf import settings
settings.configure()
django.setup()
{statement}
print(*{{name.split(".")[1] for name in sys.modules if name.startswith("django_rlock.")}})
"""
    return {*subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()}


def test_only_what_takes_a_lock_is_loaded() -> None:
    assert loaded_by("import django_rlock") == NEEDED
    assert loaded_by("from django_rlock import rlock, Semaphore, fenced") == NEEDED


def test_the_decorator_is_loaded_when_it_is_used() -> None:
    assert loaded_by("from django_rlock import distributed_lock") == OFTEN


def test_the_app_reports_and_inspects_locks_from_the_start() -> None:
    """Otherwise the admin of another process misses this one, and errors do not name holders."""
    program = """
import django, sys
from django.conf import settings
settings.configure(INSTALLED_APPS=["django_rlock"])
django.setup()
from django_rlock.locks.holds import INSPECTOR
print(INSPECTOR.holder.__module__, "django_rlock._monitoring.reporter" in sys.modules)
"""
    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert told.split() == ["django_rlock.console.inspection", "True"]


def test_a_process_that_only_sends_tasks_does_not_load_the_worker() -> None:
    program = """
import django, sys
from django.conf import settings
settings.configure()
django.setup()
import django_rlock.celery
print("celery.worker.request" in sys.modules)
"""
    shown = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert shown.split() == ["False"]


def test_a_project_needs_no_celery() -> None:
    program = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == "celery":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
import django
from django.conf import settings
settings.configure(INSTALLED_APPS=["django.contrib.contenttypes", "django_rlock"])
django.setup()
from django.core.management import call_command
call_command("check")
"""
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_the_public_modules_are_listed() -> None:
    folder = Path(django_rlock.__file__).parent
    code = {each.stem for each in folder.iterdir() if each.suffix == ".py" or any(each.glob("*.py"))}
    public = {name for name in code if not name.startswith("_")} - {"console", "locks", "migrations"}
    page = (folder.parent / "docs/api.md").read_text(encoding="utf-8")
    listed = page.partition("Public modules: ")[2].partition(".")[0]
    assert public == {*re.findall(r"`(\w+)`", listed)}


def test_all_that_is_exported_is_there() -> None:
    assert {*django_rlock.__all__} <= {*dir(django_rlock)}
    assert all(getattr(django_rlock, name) is not None for name in django_rlock.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'distributed_locks'"):
        _ = django_rlock.distributed_locks


def test_on_windows_it_says_that_it_does_not_run_there() -> None:
    code = "import sys; sys.platform = 'win32'; import django_rlock"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ImportError: django-rlock does not run on Windows" in done.stderr


def test_nothing_is_loaded_that_a_subinterpreter_refuses() -> None:
    """Its extension supports the main interpreter only; without it, stacks of other threads are missing in errors."""
    program = "import sys, django_rlock; sys.exit('faulthandler' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
