"""What pages refer to: source files get a page of their own, drawings become part of the page."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.osutil import relative_uri

_PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="([^"]*)">\s*'
    r'<img src="([^"]*)" alt="([^"]*)"[^>]*>\s*</picture>'
)
_STYLE = re.compile(r"<style>.*?</style>\s*", re.DOTALL)


class _LinkToPage(SphinxPostTransform):
    """A link to a Python file of the repository leads to its page, not to a download."""

    default_priority = 5
    builders = ("html",)

    def run(self, **_: Any) -> None:
        """Replace the download links of one document."""
        for node in list(self.document.findall(addnodes.download_reference)):
            path = posixpath.normpath(
                posixpath.join(posixpath.dirname(self.env.docname), node["reftarget"])
            )
            if not path.endswith(".py"):
                continue
            self.env.source_files.add(path)  # type: ignore[attr-defined]
            here = self.app.builder.get_target_uri(self.env.docname)
            uri = relative_uri(here, f"source/{path}.html")
            node.replace_self(nodes.reference("", "", *node.children, refuri=uri, internal=True))


class _ThemeOfPictures(SphinxTransform):
    """A `<picture>` with a dark variant becomes two images: the theme of the page shows one.

    GitHub shows the one of the system's theme.
    """

    default_priority = 100  # before the images are collected

    def apply(self, **_: Any) -> None:
        """Replace the pictures of one document."""
        for node in list(self.document.findall(nodes.raw)):
            picture = _PICTURE.fullmatch(node.astext().strip())
            if picture is not None:
                dark, light, text = picture.groups()
                node.replace_self(
                    [
                        nodes.image(uri=uri, alt=unescape(text), classes=[f"only-{theme}"])
                        for theme, uri in (("light", light), ("dark", dark))
                    ]
                )


class _TitlesOfPages(SphinxPostTransform):
    """A link whose text is the name of a Markdown file gets the title of that page."""

    default_priority = 5

    def run(self, **_: Any) -> None:
        """Change the links of one document."""
        for node in self.document.findall(addnodes.pending_xref):
            page = node["reftarget"]
            if node.get("refdomain") != "doc" or not node.astext().endswith(".md"):
                continue
            if page in self.env.titles and not page.startswith("benchmarks/"):  # long titles
                node.children = [nodes.inline("", self.env.titles[page].astext())]


class _PutDrawingIntoPage(SphinxPostTransform):
    """A drawing becomes part of the page, so that its lines have the colour of the page's text.

    Its own style is for GitHub, where it is an image.
    """

    default_priority = 5
    builders = ("html",)

    def run(self, **_: Any) -> None:
        """Replace the images of one document that are drawings."""
        for node in list(self.document.findall(nodes.image)):
            if "/drawings/" in node["uri"]:
                text = Path(self.app.srcdir, node["uri"]).read_text()
                node.replace_self(nodes.raw("", _STYLE.sub("", text), format="html"))


def _pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield a page for each file that was linked to."""
    for path in sorted(app.env.source_files):  # type: ignore[attr-defined]
        text = Path(app.srcdir, path).read_text()
        body = app.builder.highlighter.highlight_block(text, "python", linenos=False)  # type: ignore[attr-defined]
        yield f"source/{path}", {"title": path, "body": f"<h1>{path}</h1>{body}"}, "page.html"


def _begin(app: Sphinx) -> None:
    app.env.source_files = set()  # type: ignore[attr-defined]


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the extension."""
    app.connect("builder-inited", _begin)
    app.connect("html-collect-pages", _pages)
    app.add_transform(_ThemeOfPictures)
    app.add_post_transform(_LinkToPage)
    app.add_post_transform(_TitlesOfPages)
    app.add_post_transform(_PutDrawingIntoPage)
    return {"parallel_read_safe": False, "parallel_write_safe": False}
