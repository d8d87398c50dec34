"""The sidebar, from the tables of links that some pages have: one list of pages, not two.

GitHub shows those tables as they are. Each "## Heading" of the front page becomes a part of the
sidebar; the tables of the other pages become its next level.
"""

from __future__ import annotations

import posixpath
import re

from sphinx.application import Sphinx

_SECTION = re.compile(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
_ROW_LINK = re.compile(r"^\| \[[^\]]*\]\(([^)#:\s]+)\.md\)", re.MULTILINE)


def pages_in_tables(docname: str, text: str) -> list[str]:
    r"""Return the pages that the first cells of tables link to, as document names.

    >>> pages_in_tables("docs/README", "| [a](a.md) | see [b](b.md) |\n| [c](../c.md) | |\n")
    ['docs/a', 'c']
    """
    folder = posixpath.dirname(docname)
    return [posixpath.normpath(posixpath.join(folder, link)) for link in _ROW_LINK.findall(text)]


def toctree(pages: list[str], caption: str = "") -> str:
    """Return a hidden table of contents, as MyST writes it."""
    options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["", "```{toctree}", *options, "", *[f"/{page}" for page in pages], "```", ""])


def _add_contents(app: Sphinx, docname: str, source: list[str]) -> None:
    if docname == app.config.root_doc:
        parts = {
            title: pages_in_tables(docname, text) for title, text in _SECTION.findall(source[0])
        }
        source[0] += "".join(toctree(pages, title) for title, pages in parts.items() if pages)
    elif docname in app.config.contents_pages:
        source[0] += toctree(pages_in_tables(docname, source[0]))


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the extension."""
    app.add_config_value("contents_pages", [], "env")
    app.connect("source-read", _add_contents)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
