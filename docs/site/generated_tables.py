"""Tables that are made from the code: the formats, and the errors of `cordwood.errors`."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import ClassVar

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from cordwood import errors
from cordwood.formats.table import EXPORTS, FORMATS

Row = Sequence[str]


def format_rows() -> list[Row]:
    """Return a row for each format: its name, its path, what it is, who writes it."""
    rows: list[Row] = []
    for format in (*FORMATS, *EXPORTS):
        path = (
            f"a directory with `{format.index_name}`"
            if format.is_directory
            else ", ".join(f"`{suffix}`" for suffix in format.suffixes)
        )
        read = "yes" if format in FORMATS else "as safetensors"
        written = "no"
        if format.is_writable:
            written = "by `convert`" if format in EXPORTS else "yes"
        rows.append((f"`{format.name}`", path, format.description, read, written))
    return rows


def error_rows() -> list[Row]:
    """Return a row for each error: its class, the builtin error that it also is, its meaning."""
    rows: list[Row] = []
    for name in errors.__all__:
        error = getattr(errors, name)
        builtin = next(base for base in error.__mro__ if base.__module__ == "builtins")
        first_line = (inspect.getdoc(error) or "").split("\n\n")[0].replace("\n", " ")
        rows.append((f"{{py:exc}}`~cordwood.errors.{name}`", f"`{builtin.__name__}`", first_line))
    return rows


def as_table(head: Row, rows: Iterable[Row]) -> list[str]:
    """Return a table in Markdown."""
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


class _Table(SphinxDirective):
    """A directive that is replaced by a table."""

    tables: ClassVar = {
        "formats": (("`format=`", "path", "is", "read", "written"), format_rows),
        "errors": (("error", "is also a", "raised when"), error_rows),
    }
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Parse the table in place of the directive."""
        head, rows = self.tables[self.arguments[0]]
        lines = StringList(as_table(head, rows()), source=self.get_location())
        return self.parse_text_to_nodes("\n".join(lines))


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the extension."""
    app.add_directive("generated-table", _Table)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
