"""Parts of the HTML that notebooks show: folds, tables and lines. Pure.

The HTML has no scripts and needs nothing from elsewhere. It has the colours of the page around it,
so it is readable on dark and on light ones. Every text is escaped, and control and bidirectional
characters are shown as escapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from cordwood.message_text import printable, shortened

MAX_TEXT = 200  # characters of one value
_MAX_FIELDS = 60
_CELL = '<td style="text-align:left;vertical-align:top;padding:0 1em 0 0">'


def text_html(text: str, length: int = MAX_TEXT) -> str:
    r"""Return a text of at most `length` characters as HTML.

    >>> text_html("<b>\u202e")
    '&lt;b&gt;\\u202e'
    """
    return escape(shortened(text, length))


def dim_html(text: str, length: int = MAX_TEXT) -> str:
    """Return a text that is shown in a weaker colour."""
    return f'<span style="opacity:.65">{text_html(text, length)}</span>'


def fold_html(head: str, note: str, body: Iterable[str], *, is_open: bool = True) -> str:
    """Return a part that can be folded.

    Args:
        head: the text that stays when it is folded, in bold.
        note: more text beside it.
        body: the parts inside, as HTML.
        is_open: True if it is shown unfolded first.
    """
    summary = f"<summary><b>{text_html(head)}</b> {dim_html(note, 2 * MAX_TEXT)}</summary>"
    inside = f'<div style="padding-left:1.2em">{"".join(body)}</div>'
    return f"<details{' open' * is_open}>{summary}{inside}</details>"


def page_html(*parts: str) -> str:
    """Return the parts as the whole output of a cell."""
    return f'<div style="font-family:monospace;line-height:1.4">{"".join(parts)}</div>'


def fields_html(fields: Iterable[tuple[str, str]]) -> str:
    """Return pairs of a name and a value as a table; pairs without a value are left out."""
    rows = [
        f"<tr>{_CELL}{dim_html(name)}</td>{_CELL}{text_html(value, 2 * MAX_TEXT)}</td></tr>"
        for name, value in fields
        if value
    ]
    return f"<table>{''.join(rows)}</table>" if rows else ""


def table_html(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of texts with a row of names above it."""
    lines = ["".join([f"{_CELL}{dim_html(name)}</td>" for name in columns])]
    lines += ["".join([f"{_CELL}{text_html(cell)}</td>" for cell in row]) for row in rows]
    return f"<table>{''.join([f'<tr>{line}</tr>' for line in lines])}</table>"


def more_html(count: int) -> str:
    """Return a line that counts what is not shown; "" if that is nothing."""
    return f"<div>{dim_html(f'... and {count:,} more')}</div>" if count > 0 else ""


def result_html(head: str, note: str, fields: Sequence[tuple[str, str]]) -> str:
    """Return the result of a call as the output of a cell: a fold with a table, cut to 60 rows."""
    body = [fields_html(fields[:_MAX_FIELDS]), more_html(len(fields) - _MAX_FIELDS)]
    return page_html(fold_html(head, note, body))


def differences_html(head: str, note: str, lines: Iterable[tuple[str, str]], *, hidden: int) -> str:
    """Return the differences of two trees as the output of a cell.

    Args:
        head: the verdict.
        note: what was compared.
        lines: for each difference its key path, or "", and a line that may begin with it.
        hidden: the number of differences that are not shown.
    """
    parts = []
    for key_path, line in lines:
        name = printable(key_path, keep="")
        if name and line.startswith(f"{name}:"):
            start, rest = f"<b>{text_html(name)}</b>", line.removeprefix(name)
        else:
            start, rest = "", line
        parts.append(f"<div>{start}{text_html(rest, 2 * MAX_TEXT)}</div>")
    return page_html(fold_html(head, note, [*parts, more_html(hidden)]))
