"""No page mixes languages: each text of templates and code is in each catalogue, translated and well-formed."""

import ast
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from gettext import GNUTranslations, c2py
from pathlib import Path
from typing import Any

import pytest
from django.conf.locale import LANG_INFO
from django.test import Client
from django.urls import reverse
from django.utils import translation
from django.utils.translation import to_language
from django.utils.translation.template import templatize
from pytest_django import Settings

from django_rlock.console.tags import duration, precise, rate

PACKAGE = Path(__file__).parents[2] / "django_rlock"
CATALOGUES = sorted(PACKAGE.glob("locale/*/LC_MESSAGES/django.po"))
LANGUAGES = "ar", "de", "es", "fr", "ja", "ko", "pt_BR", "ru", "zh_Hans"
FUNCTIONS = {"_", "gettext", "gettext_lazy", "ngettext", "ngettext_lazy"}
PLACEHOLDER = re.compile(r"%\(\w+\)[sd]|\{\w+\}|</?\w+>")

SAME = {
    *("Alias", "Activity", "Position", "Process", "Status", "Version", "Message", "Role", "Host", "Task", "Deadlock"),
    *("alias", "deadlock", "s", "ms", "min", "h", "d", "quorum %(have)s/%(all)s"),
}
"""Texts that some language writes as English does."""

in_each = pytest.mark.parametrize("catalogue", CATALOGUES, ids=lambda path: path.parts[-3])

Entry = dict[str, str]
"""The parts of an entry of a catalogue: ``msgid``, ``msgid_plural``, ``msgstr`` or ``msgstr[0]`` and so on."""


@cache
def texts() -> frozenset[str]:
    """All texts that are to be translated; of a text with a plural, the singular."""
    sources = [source for path in PACKAGE.glob("**/*.py") if "gettext" in (source := path.read_text())]
    found = {text for source in sources for text in texts_in(source)}
    for page in PACKAGE.glob("templates/**/*.html"):
        # Lines of a template become lines with a call of gettext() or ngettext(), and X in place of the rest.
        calls = re.findall(r"n?gettext\(.*?\)(?= |$)", templatize(page.read_text()), re.MULTILINE)
        found |= {text for call in calls for text in texts_in(call)}
    return frozenset(found)


def texts_in(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id=name), args=[ast.Constant(value=text), *_]) if name in FUNCTIONS:
                yield str(text)


@cache
def entries(catalogue: Path) -> list[Entry]:
    found = []
    for block in re.split(r"\n{2,}", catalogue.read_text(encoding="utf-8")):
        entry, part = Entry(), ""
        for keyword, text in re.findall(r'^([a-z_]+(?:\[\d\])? )?"(.*)"$', block, re.MULTILINE):
            part = keyword.strip() or part
            entry[part] = entry.get(part, "") + json.loads(f'"{text}"')
        found.append(entry)
    return found


def plural(catalogue: Path) -> tuple[int, Callable[[int], int]]:
    """How many forms the language's plural has, and which form a number takes."""
    [(number, formula)] = re.findall(r"nplurals=(\d+); plural=(.*);", entries(catalogue)[0]["msgstr"])
    return int(number), c2py(formula)


def parts(text: str) -> list[str]:
    return sorted(PLACEHOLDER.findall(text))


def translations(entry: Entry) -> list[str]:
    return [text for part, text in entry.items() if part.startswith("msgstr")]


def test_texts_are_found() -> None:
    assert {"Locks", "queued", "%(n)s lock", "%(time)s ago", "%(count)d lock was freed."} <= texts()
    assert [path.parts[-3] for path in CATALOGUES] == sorted(LANGUAGES)


@in_each
def test_each_text_is_translated_and_nothing_else(catalogue: Path) -> None:
    assert {entry["msgid"] for entry in entries(catalogue)} - {""} == texts()
    assert [entry["msgid"] for entry in entries(catalogue) if not all(translations(entry))] == []
    same = {entry["msgid"] for entry in entries(catalogue) if entry["msgid"] in translations(entry)}
    assert same - SAME == set()


@in_each
def test_placeholders_and_markup_are_those_of_the_text(catalogue: Path) -> None:
    _, form_of = plural(catalogue)
    stands_for = Counter(map(form_of, range(1000)))
    wrong = [
        text
        for entry in entries(catalogue)[1:]
        for form, text in enumerate(translations(entry))
        if parts(text) not in (parts(entry["msgid"]), parts(entry.get("msgid_plural", entry["msgid"])))
        # The form of a single number, such as the dual, may say it in words.
        and not ("msgid_plural" in entry and stands_for[form] == 1 and not parts(text))
    ]
    assert wrong == []


@in_each
def test_each_plural_has_the_forms_of_its_language(catalogue: Path) -> None:
    number, form_of = plural(catalogue)
    forms = {form_of(n) for n in range(1000)}
    assert forms | {3} >= {*range(number)} >= forms  # Russian's fourth form is that of fractions
    lengths = {len(translations(entry)) for entry in entries(catalogue) if "msgid_plural" in entry}
    assert lengths == {number}


@in_each
def test_the_compiled_catalogue_is_that_of_its_source(catalogue: Path) -> None:
    with catalogue.with_suffix(".mo").open("rb") as file:
        compiled: dict[Any, str] = GNUTranslations(file)._catalog  # type: ignore[attr-defined]  # it has no other view
    expected: dict[Any, str] = {}
    for entry in entries(catalogue):
        if "msgid_plural" in entry:
            expected |= {(entry["msgid"], number): text for number, text in enumerate(translations(entry))}
        elif entry["msgid"]:
            expected[entry["msgid"]] = entry["msgstr"]
    assert {key: text for key, text in compiled.items() if key} == expected


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        ("en", ["7.1 s", "3 min 20 s", "2 h 5 min", "12 ms", "0.5 ms", "2.5/s", "120/s", "–"]),
        ("de", ["7,1 s", "3 min 20 s", "2 h 5 min", "12 ms", "0,5 ms", "2,5/s", "120/s", "–"]),
        ("ru", ["7,1 с", "3 мин 20 с", "2 ч 5 мин", "12 мс", "0,5 мс", "2,5/с", "120/с", "–"]),
        ("ja", ["7.1 秒", "3 分 20 秒", "2 時間 5 分", "12 ミリ秒", "0.5 ミリ秒", "2.5/秒", "120/秒", "–"]),
        ("ar", ["7,1 ث", "3 د 20 ث", "2 س 5 د", "12 م.ث", "0,5 م.ث", "2,5/ث", "120/ث", "–"]),
    ],
)
def test_durations_and_rates_are_localised(language: str, expected: list[str]) -> None:
    with translation.override(language):
        shown = [*map(duration, (7.1, 200, 7500)), precise(0.012), precise(0.0005), rate(2.5), rate(120), precise(None)]
    assert shown == expected


@pytest.mark.django_db
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_page_is_in_its_language(admin_client: Client, settings: Settings, language: str) -> None:
    settings.LANGUAGE_CODE = to_language(language)
    pages = [admin_client.get(reverse(f"admin:django_rlock_lock_{name}")) for name in ("changelist", "history")]
    about = LANG_INFO[to_language(language)]
    for page in (each.content.decode() for each in pages):
        assert f'lang="{to_language(language)}" dir="{"rtl" if about["bidi"] else "ltr"}"' in page
        assert not re.search(r">(?:Search|History|No lock is held at the moment\.|longest wait)[ <]", page)
