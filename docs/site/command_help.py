"""The help texts of the command as reStructuredText: they are written for a terminal."""

from __future__ import annotations

import re
from itertools import groupby

import click
from sphinx.application import Sphinx

_OPTION = re.compile(r"(^|[\s(])(--[a-z][a-z-]*[a-z])\b")
_PARTS = ("description", "options", "arguments", "epilog")


def _escape(_: Sphinx, _context: click.Context, lines: list[str]) -> None:
    """Show patterns such as `**/kernel` as they are, and preformatted paragraphs as code."""
    result: list[str] = []
    for is_block, group in groupby(lines, lambda line: line.startswith("| ")):
        if is_block:
            result += ["", "::", "", *[f"    {line[2:]}" for line in group], ""]
        else:
            result += [_escape_line(line) for line in group]
    lines[:] = result


def _escape_line(line: str) -> str:
    """Show `*` as it is, and options as code."""
    line = line.replace("*", r"\*")
    return line if line.startswith("..") else _OPTION.sub(r"\1``\2``", line)


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the extension."""
    for part in _PARTS:
        app.connect(f"sphinx-click-process-{part}", _escape)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
