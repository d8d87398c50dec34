"""The sidebar, from the tables of links that some pages have: one list of pages, not two.

GitHub shows those tables as they are. Each "## Heading" of the front page becomes a part of the
sidebar, and its table becomes cards; the tables of the other pages become the next level of the
sidebar. The text of a link is the title in the sidebar, unless it is the name of the file.
"""

from __future__ import annotations

import posixpath
import re
from typing import NamedTuple

from sphinx.application import Sphinx

_SECTION = re.compile(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
_ROW = re.compile(r"^\| \[([^\]]*)\]\(([^)#:\s]+)\.md\) \| (.*) \|$", re.MULTILINE)
_TABLE = re.compile(r"(?:^\|.*\|\n)+", re.MULTILINE)


class Row(NamedTuple):
    """A row of a table of pages: the text and the document of its link, and what the page is about.

    Attributes:
        title: the text of the link.
        page: the name of the document, from the root.
        content: the second cell.
    """

    title: str
    page: str
    content: str

    @property
    def entry(self) -> str:
        """The line of the table of contents."""
        name = posixpath.basename(self.page)
        return f"/{self.page}" if self.title == f"{name}.md" else f"{self.title} </{self.page}>"


def rows_of(docname: str, text: str) -> list[Row]:
    r"""Return the rows of tables whose first cells are links to pages.

    >>> rows_of("docs/README", "| [A](../a.md) | see [b](b.md) |\n")
    [Row(title='A', page='a', content='see [b](b.md)')]
    """
    folder = posixpath.dirname(docname)
    return [
        Row(title, posixpath.normpath(posixpath.join(folder, link)), content)
        for title, link, content in _ROW.findall(text)
    ]


def toctree(rows: list[Row], caption: str = "") -> str:
    """Return a hidden table of contents, as MyST writes it."""
    options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["", "```{toctree}", *options, "", *[row.entry for row in rows], "```", ""])


def cards(rows: list[Row]) -> str:
    """Return the rows as cards, each of them a link."""
    lines = ["", "::::{grid} 1 2 2 2", ":gutter: 2", ""]
    for row in rows:
        lines += [f":::{{grid-item-card}} {row.title}", f":link: /{row.page}", ":link-type: doc"]
        lines += ["", row.content, ":::"]
    return "\n".join([*lines, "::::", ""])


def _add_contents(app: Sphinx, docname: str, source: list[str]) -> None:
    if docname == app.config.root_doc:
        rows = {title: rows_of(docname, text) for title, text in _SECTION.findall(source[0])}
        text = _TABLE.sub(lambda table: cards(rows_of(docname, table[0])), source[0])
        source[0] = text + "".join(toctree(part, title) for title, part in rows.items() if part)
    elif docname in app.config.contents_pages:
        source[0] += toctree(rows_of(docname, source[0]))


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the extension."""
    app.add_config_value("contents_pages", [], "env")
    app.connect("source-read", _add_contents)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
