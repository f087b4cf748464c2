"""The code in the pages: Python runs, settings are accepted, and commands take the options that they are given.

A block that cannot run here has ``<!-- not run: the reason -->`` above it. What README.md and docs/migrate.md define is
called as well, and docs/quickstart.md is followed step by step, by tests of their own.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from django.core.management import get_commands, load_command_class
from pytest_django import Settings

from django_rlock.checks import check_settings
from tests.docs.names import usual
from tests.docs.pages import DOCS, PAGES, TRANSLATED, Block, blocks

STEP_BY_STEP = DOCS / "quickstart.md", DOCS / "quickstart.zh-Hans.md"
COMMAND = re.compile(r"python manage\.py (rlock_\w+.*)")
OTHER_CACHES = "locks", "locks1", "locks2", "shared"


def with_python() -> list[Path]:
    return [page for page in PAGES if page not in STEP_BY_STEP and any(map(runs, blocks(page)))]


def runs(block: Block) -> bool:
    return block.language == "python" and not block.before.startswith("<!-- not run: ")


def commands() -> list[tuple[str, str]]:
    lines = [line for page in PAGES for block in blocks(page) for line in block.code.splitlines()]
    return [tuple(found[1].partition(" ")[::2]) for line in lines if (found := COMMAND.search(line))]


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    """Has the tasks of the examples, which other tests do not see then."""
    with Celery("examples", broker="memory://", set_as_current=False, fixups=[]) as made:
        monkeypatch.setattr("celery.shared_task", partial(made.task, shared=False))
        yield made


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_block_says_what_it_is(page: Path) -> None:
    assert [str(block) for block in blocks(page) if not block.language] == []
    assert len(blocks(page)) == page.read_text(encoding="utf-8").count("```") / 2


@pytest.mark.parametrize("page", TRANSLATED, ids=lambda page: page.name)
def test_a_translation_has_the_same_code(page: Path) -> None:
    """But for comments at the ends of lines."""
    name, _language, ending = page.name.split(".")
    original = page.with_name(f"{name}.{ending}")
    translated, code = ([without_comments(block) for block in blocks(each)] for each in (page, original))
    assert translated == code


def without_comments(block: Block) -> list[str]:
    return [block.language, *(re.sub(r"(?<=\S) +# .*", "", line) for line in block.code.splitlines())]


@pytest.mark.usefixtures("transactional_db")
@pytest.mark.parametrize("page", with_python(), ids=lambda page: page.name)
def test_python_runs(page: Path, app: Celery, settings: Settings) -> None:
    with usual() as names:
        for block in filter(runs, blocks(page)):
            names["__name__"] = f"{page.stem}_{block.line}"  # tasks are named by it
            exec(compile("\n" * block.line + block.code, page, "exec"), names)
            if re.search(r"^(CACHES|RLOCK) = ", block.code, re.MULTILINE):
                accept(settings, names)
    app.finalize()


def accept(settings: Settings, names: dict[str, Any]) -> None:
    """Let the package judge the settings of an example."""
    caches, locks = settings.CACHES, getattr(settings, "RLOCK", {})
    settings.CACHES = {**dict.fromkeys(OTHER_CACHES, caches["default"]), **caches, **names.pop("CACHES", {})}
    settings.RLOCK = names.pop("RLOCK", locks)
    assert [message.msg for message in check_settings()] == []
    settings.CACHES, settings.RLOCK = caches, locks


@pytest.mark.parametrize(("name", "options"), sorted(set(commands())))
def test_commands_take_what_they_are_given(name: str, options: str) -> None:
    parser = load_command_class(get_commands()[name], name).create_parser("manage.py", name)
    parser.parse_args(shlex.split(options, comments=True))
