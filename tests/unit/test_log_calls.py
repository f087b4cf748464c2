"""No text that comes from a client or from Redis writes a line of its own into a log."""

import ast
import logging
from pathlib import Path

import pytest

import django_rlock
from django_rlock._core.callbacks import flush, log
from tests.eventually import PATIENCE

PACKAGE = Path(django_rlock.__file__).parent
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
OF_THE_PROJECT = {"alias", "fix", "function", "hold.noun", "message", "message.hint", "message.msg", "name"}
"""Texts of the project's own code and settings."""
NUMBERS = {"dropped", "message.level", "problem.status"}


def logged_directly() -> list[tuple[str, ast.expr]]:
    """What the package hands to a logger itself, and not to ``callbacks.log``, which makes all printable."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                is_logger = ast.unparse(node.func.value) == "logger"
                level = node.func.attr
                if is_logger and (level in LEVELS or level == "log"):
                    skipped = 2 if level == "log" else 1
                    found += [(f"{path.name}:{node.lineno}", argument) for argument in node.args[skipped:]]
    return found


def is_safe(argument: ast.expr) -> bool:
    text = ast.unparse(argument)
    return text in OF_THE_PROJECT | NUMBERS or text.startswith("printable(")


def test_what_is_logged_directly_is_printable():
    found = logged_directly()
    assert len(found) > 10
    assert [(place, ast.unparse(each)) for place, each in found if not is_safe(each)] == []


@pytest.mark.parametrize("value", ["a\n\x1b[31mb", ValueError("a\n\x1b[31mb")], ids=["a text", "an error"])
def test_what_is_logged_by_the_thread_for_callbacks_is_printable(caplog, value):
    log(logging.getLogger("django_rlock.locks"), logging.WARNING, "%s %r", value, value)
    flush(PATIENCE)
    (record,) = caplog.records
    assert record.getMessage().isprintable()
    assert all(argument.isprintable() for argument in record.args or ())
