"""The pages of the reference leave nothing out: public names, loggers, keys."""

import re
from pathlib import Path

import pytest

import django_rlock
from django_rlock import celery, exceptions, management, testing
from django_rlock._redis import keys
from tests.docs.pages import DOCS

PACKAGE = Path(django_rlock.__file__).parent
API = (DOCS / "api.md").read_text(encoding="utf-8")

# Projects write these names into LOGGING, so a name stays when a module is moved.
LOGGERS = {
    "django_rlock." + name
    for name in (
        "callbacks",
        "celery",
        "checks",
        "cleanup",
        "commands",
        "heartbeats",
        "listening",
        "locks",
        "middleware",
        "redlock",
        "reports",
        "stores",
        "watchdog",
        "web",
        "worker",
    )
}


def listed() -> set[str]:
    """The names that the page of the API shows, by themselves or as members of their module."""
    by_themselves = re.findall(r"^\.\. auto(?:class|data|function):: (?:[\w.]+\.)?(\w+)$", API, re.MULTILINE)
    modules = [each for each in (exceptions, testing) if f".. automodule:: {each.__name__}\n   :members:" in API]
    return {*by_themselves, *(name for each in modules for name in vars(each))}


@pytest.mark.parametrize("module", [django_rlock, celery, management, testing], ids=lambda module: module.__name__)
def test_each_public_name_is_in_the_reference(module) -> None:
    assert set(module.__all__) - listed() == set()


def test_loggers_keep_their_names_and_are_listed() -> None:
    code = "\n".join(file.read_text(encoding="utf-8") for file in PACKAGE.rglob("*.py"))
    page = (DOCS / "monitoring.md").read_text(encoding="utf-8").partition("\n## Loggers\n")[2].partition("\n## ")[0]
    assert set(re.findall(r'getLogger\("(.+)"\)', code)) == LOGGERS
    assert set(re.findall(r"^\| `(\S+)` \|", page, re.MULTILINE)) == LOGGERS


def test_each_key_and_channel_is_listed() -> None:
    page = (DOCS / "keys.md").read_text(encoding="utf-8")
    code = Path(keys.__file__).read_text(encoding="utf-8")
    assert set(re.findall(r"\"((?:rlock|redisson)_\w+)", code)) <= set(re.findall(r"`(\w+)[:`{]", page))
