"""No page mixes languages: each text of the templates and the admin is in each catalogue."""

import re
from gettext import GNUTranslations
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "django_rlock"
CATALOGUES = sorted(PACKAGE.glob("locale/*/LC_MESSAGES/django.mo"))
IN_A_TEMPLATE = re.compile(r"""{% translate (["'])(.+?)\1""")
IN_PYTHON = re.compile(r"""\b_\(\s*(["'])(.+?)\1\s*\)""")


def texts() -> set[str]:
    found = {
        text for page in PACKAGE.glob("templates/**/*.html") for _, text in IN_A_TEMPLATE.findall(page.read_text())
    }
    for module in PACKAGE.glob("**/*.py"):
        source = module.read_text()
        if "gettext" in source:
            found |= {text for _, text in IN_PYTHON.findall(source)}
    return found


def test_texts_are_found():
    assert {"Locks", "queued"} <= texts()


@pytest.mark.parametrize("catalogue", CATALOGUES, ids=lambda path: path.parts[-3])
def test_each_text_is_translated(catalogue: Path):
    with catalogue.open("rb") as file:
        catalog = GNUTranslations(file)._catalog  # type: ignore[attr-defined]  # gettext() does not tell what it lacks
    known = {key if isinstance(key, str) else key[0] for key in catalog}
    assert sorted(texts() - known) == []
