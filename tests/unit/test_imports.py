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


DJANGO = """
import django, sys
from django.conf import settings
settings.configure({})
django.setup()
"""
WITH_THE_APP = DJANGO.format('INSTALLED_APPS=["django_rlock"]')


def told_by(program: str, *options: str) -> str:
    """What another interpreter prints."""
    command = [sys.executable, *options, "-c", program]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def loaded_by(statement: str) -> set[str]:
    """The packages and modules right below this package that an interpreter has after a statement."""
    show = 'print(*{name.split(".")[1] for name in sys.modules if name.startswith("django_rlock.")})'
    return {*told_by(f"{DJANGO.format('')}{statement}\n{show}").split()}


def test_only_what_takes_a_lock_is_loaded() -> None:
    assert loaded_by("from django_rlock import rlock, Semaphore, fenced") == NEEDED


def test_what_few_processes_need_is_loaded_when_it_is_used() -> None:
    """A subinterpreter refuses faulthandler; without it, stacks of other threads are missing in errors."""
    program = """
import sys, django_rlock
locks, quorum = "django_rlock.locks.", "django_rlock._transport.quorum."
few = [locks + "counters", locks + "expirable", locks + "semaphore", quorum + "nodes", quorum + "tasks"]
print(*[name for name in [*few, "multiprocessing", "faulthandler"] if name in sys.modules])
django_rlock.PermitExpirableSemaphore
print(*[name for name in few if name in sys.modules])
"""
    assert told_by(program).splitlines() == [
        "",
        "django_rlock.locks.counters django_rlock.locks.expirable django_rlock.locks.semaphore",
    ]


def test_the_decorator_is_loaded_when_it_is_used() -> None:
    assert loaded_by("from django_rlock import distributed_lock") == OFTEN


def test_the_app_reports_and_inspects_locks_from_the_start() -> None:
    """Otherwise the admin of another process misses this one, and errors do not name holders."""
    program = """
from django_rlock.locks.holds import INSPECTOR
print(INSPECTOR.holder.__module__, "django_rlock._monitoring.reporter" in sys.modules)
"""
    assert told_by(WITH_THE_APP + program).split() == ["django_rlock.console.inspection", "True"]


def test_a_process_that_only_sends_tasks_does_not_load_the_worker() -> None:
    program = 'import django_rlock.celery; print("celery.worker.request" in sys.modules)'
    assert told_by(DJANGO.format("") + program) == "False\n"


def test_a_project_needs_no_celery() -> None:
    program = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == "celery":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
"""
    setup = DJANGO.format('INSTALLED_APPS=["django.contrib.contenttypes", "django_rlock"]')
    told_by(f'{program}{setup}from django.core.management import call_command; call_command("check")')


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


# --- imports that Python defers ---------------------------------------------------------------------------------------

OWN_AFFAIRS = {"on_fork", "on_restore", "on_exit", "on_changed_settings", "when_closed", "when_unclaimed"}
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
    assert told_by(WITH_THE_APP + program, "-X", option).splitlines() == [
        "Renewals ForcedReleaseWatcher CleanUps IdleConnections Heartbeats",
        "inspection reporter heartbeats forced 1 2",
    ]
