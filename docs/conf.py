"""How Sphinx makes the site: ``make docs``."""

import os
from typing import Any

import django
from docutils import nodes
from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

from django_rlock import __version__

os.environ["DJANGO_SETTINGS_MODULE"] = "example_project.settings"  # models can be imported only in a project
django.setup()

project = "django-rlock"
author = "The django-rlock authors"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = f"django-rlock {release}"
html_copy_source = False
html_show_copyright = False
highlight_language = "python"  # of examples in docstrings; blocks in pages name theirs
toc_object_entries_show_parents = "hide"

# Each heading has the anchor that it has on GitHub, so links work in both places.
myst_heading_anchors = 4

autodoc_class_signature = "mixed"
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"
# Nothing is fetched from other sites, so what others define is not linked to.
nitpick_ignore_regex = [("py:.*", r"(?!django_rlock\.).*")]


def setup(app: Sphinx) -> None:
    app.add_lexer("acl", TextLexer)
    app.connect("doctree-read", keep_anchors)
    app.connect("autodoc-skip-member", leave_out_awaited)


def keep_anchors(_app: Sphinx, document: nodes.document) -> None:
    """Give each heading the anchor that it has on GitHub; Sphinx makes "rlock-run" of "rlock_run"."""
    for section in document.findall(nodes.section):
        anchor: Any = section.get("slug")
        if anchor and anchor not in section["ids"]:
            section["ids"].append(anchor)


def leave_out_awaited(_app: Sphinx, _what: str, _name: str, member: Any, _skip: bool, _options: Any) -> bool | None:
    """``aacquire`` is described by ``acquire``; both are made of one flow, ``_acquire``."""
    flow = getattr(member, "__wrapped__", None)
    awaited = flow is not None and member.__name__.rstrip("_") == "a" + flow.__name__.removeprefix("_")
    return True if awaited else None
