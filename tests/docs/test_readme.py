"""The README's examples run, and what it says about settings and files is so."""

import re
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from celery import Celery
from django.test import RequestFactory

from django_rlock import rlock
from django_rlock.settings import AliasSettings, get_settings
from example_project.embedded import EmbeddedServer
from tests.docs.pages import PAGES, ROOT
from tests.docs.readme import follow_readme

README = (ROOT / "README.md").read_text(encoding="utf-8")


def example(containing: str) -> SimpleNamespace:
    """The names that the README's Python example with this text defines."""
    (source,) = (code for code in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if containing in code)
    return run(source)


def run(source: str) -> SimpleNamespace:
    """Its tasks belong to an app of their own: another test's may be the current one."""
    names: dict[str, object] = {"INSTALLED_APPS": [], "MIDDLEWARE": [], "__name__": "readme"}
    app = Celery("readme", broker="memory://", set_as_current=False, fixups=[])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("celery.shared_task", partial(app.task, shared=False))
        exec(compile(source, "README.md", "exec"), names)
    return SimpleNamespace(**names)


def test_the_view_answers_423_while_another_is_inside(settings) -> None:
    settings.RLOCK = {"default": {"VIEW_WAIT_TIME": 0}}
    shop = example("def buy")
    with rlock("stock:cake", owner="another owner"):
        response = shop.buy(RequestFactory().post("/buy/cake/"), sku="cake")
    assert response.status_code == 423
    assert int(response["Retry-After"]) >= 1


def test_the_settings_of_the_installation_are_valid(settings) -> None:
    project = example("INSTALLED_APPS +=")
    settings.CACHES = {"default": settings.CACHES["default"] | {"BACKEND": project.CACHES["default"]["BACKEND"]}}
    settings.RLOCK = project.RLOCK
    assert get_settings().cache == "default"


def test_a_project_of_its_blocks_works(tmp_path) -> None:
    with EmbeddedServer(port=0) as server:
        assert server.port
        follow_readme(sys.executable, tmp_path, server.port)


def test_the_table_of_settings_names_each_with_its_default() -> None:
    table = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    documented = dict(re.findall(r"^\| `(\w+)` \| `?\"?([^|`\"]+?)\"?`? \|", table, re.MULTILINE))
    defaults = AliasSettings("default")
    names = [name for name in AliasSettings.__slots__ if name != "alias"]
    assert documented == {name.upper(): shown(getattr(defaults, name)) for name in names}


def shown(value: object) -> str:
    return f"{value:g}" if type(value) is float else str(value)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


# The README is the page of the package as well, where relative links lead nowhere.
OF_THIS_PROJECT = re.compile(r"https://[\w.]+/django-rlock/django-rlock/(?:blob/)?main/")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_links_to_is_there(page: Path) -> None:
    text = OF_THIS_PROJECT.sub("", page.read_text(encoding="utf-8"))
    assert page.parent != ROOT or "](docs/settings.md)" in text
    for target, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", text):
        file = page.parent / target if target else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), f"{target}#{anchor}"


def test_what_messages_name_is_there() -> None:
    for file in (ROOT / "django_rlock").rglob("*.py"):
        for target, anchor in re.findall(r"\b(docs/[\w/-]+\.md)(?:#(\w[\w-]*))?", file.read_text(encoding="utf-8")):
            assert not anchor or anchor in anchors(ROOT / target), f"{file}: {target}#{anchor}"
            assert (ROOT / target).exists(), f"{file}: {target}"
