"""Budgets of the package's structure: each figure may fall, and none may rise.

A reader follows a call through the files that it passes, and an import through the modules that it loads. Lower a
figure here as soon as the code is below it.
"""

import ast
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from asgiref.sync import SyncToAsync
from celery import Celery
from django.db import connection
from django.http import HttpResponse
from django.test import RequestFactory

import django_rlock
from django_rlock import distributed_lock, rlock
from django_rlock._core.process import forget_settings
from django_rlock._monitoring import reporter
from django_rlock.celery import LockedTask
from django_rlock.locks import forced
from tests.background import settle
from tests.eventually import PATIENCE

ROOT = Path(django_rlock.__file__).parent

BEHIND_DOORS = {"console", "admin", "inspection", "templatetags", "_embedded"}
"""What a reader of the core need not know: the console with its public modules, and the embedded server."""
FILES = {"core": 115, "behind doors": 19}
"""How many files the package may have. The aim for the core is 110. A second subject in a file of 500 lines gets its
own file."""
LONGEST_FILE = 500
"""How many lines a file may have."""
CHAIN = 19
"""How many modules the longest chain of imports may have. The aim is 15."""
PASSED = {"with": (16, 8), "with, after a wait": (21, 11), "view": (22, 13), "task": (22, 11)}
"""Through how many files a call may pass, and how deep its stack may be within the package. The aims are 18 files and
a depth of 9 for a ``with`` block, 22 files for a view, and 24 for a task. A process that has just waited for a lock
still listens to its server, so a ``with`` block joins the queue of waiters before it tries."""


def modules() -> dict[str, Path]:
    parts = {path: path.relative_to(ROOT.parent).with_suffix("").parts for path in ROOT.rglob("*.py")}
    return {".".join(names).removesuffix(".__init__"): path for path, names in parts.items()}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path, known: Collection[str], for_annotations: bool) -> Iterator[str]:
    """The modules that a module imports; ``for_annotations`` adds those under TYPE_CHECKING and inside functions."""
    waiting: list[ast.AST] = [parsed(path)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.ImportFrom) and node.module:
            named = [f"{node.module}.{each.name}" for each in node.names]
            yield from (each if each in known else node.module for each in named)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        is_late = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or (
            isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        )
        if for_annotations or not is_late:
            waiting += ast.iter_child_nodes(node)


@cache
def graph(for_annotations: bool) -> dict[str, set[str]]:
    """Which modules of the package each of them imports."""
    known = modules()
    return {name: ({*imports(path, known, for_annotations)} & known.keys()) - {name} for name, path in known.items()}


def circles(edges: dict[str, set[str]]) -> set[str]:
    """The modules that import themselves, directly or by way of others; and those that import them."""
    left = {name: set(needed) for name, needed in edges.items()}
    while done := {name for name, needed in left.items() if not needed & left.keys()}:
        left = {name: needed for name, needed in left.items() if name not in done}
    return {*left}


def longest_chain(edges: dict[str, set[str]]) -> int:
    @cache
    def length(name: str) -> int:
        return 1 + max(map(length, edges[name]), default=0)

    return max(map(length, edges))


def test_the_package_has_no_more_files_and_none_is_long():
    paths = modules().values()
    apart = sum(path.relative_to(ROOT).with_suffix("").parts[0] in BEHIND_DOORS for path in paths)
    assert len(paths) - apart <= FILES["core"]
    assert apart <= FILES["behind doors"]
    assert {path.name for path in paths if path.read_text(encoding="utf-8").count("\n") > LONGEST_FILE} == set()


def test_no_import_is_part_of_a_circle():
    assert circles(graph(for_annotations=True)) == set()


def test_no_chain_of_imports_is_longer():
    assert longest_chain(graph(for_annotations=False)) <= CHAIN


def passed_by(call: Callable[[], object]) -> tuple[Counter[str], int]:
    """The files of the package that a call passes, with how many calls of functions, and its greatest depth there."""
    files: Counter[str] = Counter()
    depth = deepest = 0

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal depth, deepest
        name = frame.f_code.co_filename
        if name.startswith(str(ROOT)) and event in {"call", "return"}:
            depth += 1 if event == "call" else -1
            deepest = max(deepest, depth)
            files[name] += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return files, deepest


def wait_for_a_lock() -> None:
    """A process that waited keeps its subscription for the next waiter."""
    rlock("counted:42", owner="another").acquire()
    rlock("counted:42").acquire(wait_time=0.01)
    rlock("counted:42", owner="another").release()


def passed_at_rest(call: Callable[[], object]) -> tuple[Counter[str], int]:
    """The same once the background threads sleep: a call notifies those that a busy machine has not run yet."""
    settle()
    return passed_by(call)


def with_block() -> None:
    with rlock("counted:42"):
        pass


@distributed_lock("counted:<pk>")
def view(request: Any, pk: int) -> HttpResponse:
    return HttpResponse(f"{pk}")


def a_view() -> None:
    view(RequestFactory().get("/"), pk=3)


def a_task() -> Callable[[], object]:
    app = Celery("budgets", broker="memory://", backend="cache+memory://", set_as_current=False)

    @app.task(base=LockedTask, shared=False)
    def job(number: int) -> int:
        return number

    return lambda: job(4)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", PASSED)
def test_a_call_passes_no_more_files(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    monkeypatch.delattr(
        SyncToAsync.threadlocal, "task_context", raising=False
    )  # other tests ran jobs of async code here
    # If a stall makes a hold old, its process listens for requests and forced releases from then on.
    monkeypatch.setattr(reporter, "MIN_AGE", PATIENCE)
    monkeypatch.setattr(forced, "LISTEN_AFTER", PATIENCE)
    forget_settings()  # and waited for locks: a process that listens to wake-ups takes its waiter first
    if name == "with, after a wait":
        wait_for_a_lock()
    call = a_task() if name == "task" else a_view if name == "view" else with_block
    for _ in range(3):
        call()
    # A process that was paused checks its connection and its background thread, in further files.
    files, deepest = min([passed_at_rest(call) for _ in range(3)], key=lambda passed: len(passed[0]))
    most, depth = PASSED[name]
    assert len(files) <= most, sorted(files)
    assert deepest <= depth
