"""How Sphinx makes the site: ``make docs``."""

import os
import re
from collections.abc import Callable
from html import escape
from typing import Any

import django
from docutils import nodes
from pygments.lexers.special import TextLexer
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer

from django_rlock import __version__

os.environ["DJANGO_SETTINGS_MODULE"] = "example_project.settings"  # models can be imported only in a project
django.setup()

project = "django-rlock"
author = "The django-rlock authors"
release = version = __version__

REPOSITORY = "https://github.com/django-rlock/django-rlock"
NUMBERS = {
    "commands": ["69", "70", "75", "127"],
    "decorator": ["204", "400", "423", "503"],
    "cookbook": ["429"],
}
"""The numbers that a search finds, and the pages that explain them."""

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
html_theme = "furo"
html_theme_options = {"source_repository": REPOSITORY, "source_branch": "main", "source_directory": "docs/"}
html_title = f"django-rlock {release}"
html_static_path = ["_static"]
html_js_files = ["accessibility.js"]
html_favicon = "images/icon.svg"
html_copy_source = False
html_show_copyright = False
highlight_language = "python"  # of examples in docstrings; blocks in pages name theirs
toc_object_entries_show_parents = "hide"

# Each heading has the anchor that it has on GitHub, so links work in both places.
myst_heading_anchors = 4

autodoc_class_signature = "mixed"
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 100
python_display_short_literal_types = True
# Nothing is fetched from other sites, so what others define is not linked to.
nitpick_ignore_regex = [("py:.*", r"(?!django_rlock\.).*")]
# Types in signatures that are of internal modules: users need not name them.
nitpick_ignore_regex += [("py:class", r"django_rlock\.(_\w+\..*|locks\.[a-z]\w*\..*|testing\.C)")]


def setup(app: Sphinx) -> None:
    app.add_lexer("acl", TextLexer)
    app.connect("doctree-read", keep_anchors)
    app.connect("doctree-read", find_numbers)
    app.connect("autodoc-process-signature", shorten)
    app.connect("autodoc-skip-member", leave_out_awaited)
    app.connect("html-page-context", describe)
    ModuleAnalyzer.analyze = without_overloads(ModuleAnalyzer.analyze)  # type: ignore[method-assign, assignment]


def without_overloads(analyze: Callable[[ModuleAnalyzer], None]) -> Callable[[ModuleAnalyzer], None]:
    """Show the signature of a function itself, which has all options, and not eight for as many kinds of locks."""

    def analyze_and_forget(analyzer: ModuleAnalyzer) -> None:
        analyze(analyzer)
        analyzer.overloads.clear()

    return analyze_and_forget


def keep_anchors(_app: Sphinx, document: nodes.document) -> None:
    """Give each heading the anchor that it has on GitHub; Sphinx makes "rlock-run" of "rlock_run"."""
    for section in document.findall(nodes.section):
        anchor: Any = section.get("slug")
        if anchor and anchor not in section["ids"]:
            section["ids"].append(anchor)


def find_numbers(app: Sphinx, document: nodes.document) -> None:
    """The search knows no numbers but those of index entries."""
    for number in NUMBERS.get(app.env.current_document.docname, ()):
        target = f"index-{number}"
        document[0].insert(1, addnodes.index(entries=[("single", number, target, "", None)]))
        document[0].insert(2, nodes.target("", "", ids=[target]))


def describe(_app: Sphinx, _page: str, _template: str, context: dict[str, Any], document: Any) -> None:
    """Search engines show the first paragraph of a page, if it has a document."""
    paragraph = document and next(document.findall(nodes.paragraph), None)
    if paragraph:
        text = escape(paragraph.astext().replace("\n", " "))
        context["metatags"] += f'<meta name="description" content="{text}">'


def shorten(*args: Any) -> tuple[str | None, str | None]:
    """Options that a signature does not name are those of BaseLock; unknown options are refused by name."""
    *_, signature, returned = args
    if signature:
        signature = re.sub(r", \*\*(options: [^)]*LockOptions\]|unknown: [\w.~]*Never)", "", signature)
        signature = signature.replace("<not given>", "...")
    return signature, returned


def leave_out_awaited(_app: Sphinx, _what: str, _name: str, member: Any, _skip: bool, _options: Any) -> bool | None:
    """``aacquire`` is described by ``acquire``; both run one flow, ``_acquire``."""
    flow = getattr(member, "__wrapped__", None)
    awaited = flow is not None and member.__name__.rstrip("_") == "a" + flow.__name__.removeprefix("_")
    return True if awaited else None
