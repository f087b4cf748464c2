"""What ``import django_rlock`` loads: each module costs every process of a project some of its start."""

import ast
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


def test_what_few_processes_need_is_loaded_when_it_is_used() -> None:
    program = """
import sys, django_rlock
locks, quorum = "django_rlock.locks.", "django_rlock._transport.quorum."
few = [locks + "counters", locks + "expirable", locks + "semaphore", quorum + "nodes", quorum + "tasks"]
print(*[name for name in [*few, "multiprocessing"] if name in sys.modules])
django_rlock.PermitExpirableSemaphore
print(*[name for name in few if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "",
        "django_rlock.locks.counters django_rlock.locks.expirable django_rlock.locks.semaphore",
    ]


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


# --- imports that Python defers ---------------------------------------------------------------------------------------

OWN_AFFAIRS = {"on_fork", "on_restore", "on_exit", "on_changed_settings", "when_left", "when_unclaimed"}
"""Functions by which a module asks to be called for what it has itself: until it is executed, it has nothing."""
NAMING = {
    "locks/__init__.py",  # executed by whoever uses a lock
    "celery.py",  # a task
    "admin.py",  # Django's admin
    "_core/process.py",  # anything that the process owns
}
"""The files that register something, theirs or that of other modules."""


def effects_of(path: Path) -> list[str]:
    """What a module changes or calls in others when it is executed."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    imported = {name.asname or name.name for node in body if isinstance(node, ast.ImportFrom) for name in node.names}
    targets = [target for node in body if isinstance(node, ast.Assign) for target in node.targets]
    changed = [each for target in targets for each in ast.walk(target) if isinstance(each, ast.Attribute)]
    statements = [node.value for node in body if isinstance(node, ast.Expr)]
    decorators = [each for node in body if isinstance(node, ast.FunctionDef) for each in node.decorator_list]
    called = [each.func for each in statements if isinstance(each, ast.Call)]
    called += [each.func for each in decorators if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute)]
    names = [ast.unparse(each).split(".") for each in [*changed, *called]]
    return [".".join(each) for each in names if each[0] in imported and each[-1] not in OWN_AFFAIRS]


def test_no_import_changes_another_module() -> None:
    """With ``-X lazy_imports=all``, Python 3.15 executes a module when it is used, so it can't register itself."""
    package = Path(django_rlock.__file__).parent
    found = {path.relative_to(package).as_posix(): effects_of(path) for path in package.rglob("*.py")}
    assert {name: each for name, each in found.items() if each and name not in NAMING} == {}


@pytest.mark.parametrize(
    "option",
    [
        "dont_write_bytecode",
        pytest.param("lazy_imports=all", marks=pytest.mark.skipif(sys.version_info < (3, 15), reason="of Python 3.15")),
    ],
)
def test_whoever_uses_a_lock_has_all_that_serves_it(option: str) -> None:
    program = """
import django
from django.conf import settings
settings.configure(INSTALLED_APPS=["django_rlock"])
django.setup()
from celery.signals import task_received, worker_init
from django_rlock import rlock
from django_rlock.celery import LockedTask
rlock("stock:42"), LockedTask
from django_rlock._transport.worker import worker
from django_rlock.locks.holds import INSPECTOR, NEWCOMERS, WAITS
from django_rlock.locks.watchdog import FORCED_RELEASES
print(*(each.__name__ for each in worker("default").jobs))
print(*(each.__module__.rpartition(".")[2] for each in (INSPECTOR.holder, NEWCOMERS.notify, WAITS.hurry)), end=" ")
print(FORCED_RELEASES.confirm.__module__.rpartition(".")[2], len(task_received.receivers), len(worker_init.receivers))
"""
    told = subprocess.run([sys.executable, "-X", option, "-c", program], check=True, capture_output=True, text=True)
    assert told.stdout.splitlines() == [
        "Renewals ForcedReleaseWatcher CleanUps IdleConnections Heartbeats",
        "inspection reporter heartbeats forced 1 2",
    ]
