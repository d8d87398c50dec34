"""Text forms of names, counts, lists and sizes for messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache

_LISTED = 8  # names of steps that a message lists


def printable(text: str, *, keep: str = "\n\t") -> str:
    r"""Return a text with every character escaped that is not safe to show on a terminal.

    Escaped are control characters (C0 and C1: they move the cursor and change colours), format
    characters such as bidirectional overrides (they make a name look like another one), surrogates
    and unassigned code points. Names of leaves, metadata and paths come from the writer of a file
    and are not trusted.

    Args:
        text: the text to show.
        keep: characters that are not escaped.

    >>> print(printable("a\x1b[31m\u202eb\nc"))
    a\x1b[31m\u202eb
    c
    >>> print(printable("a\nc", keep=""))
    a\nc
    """
    if text.isprintable():
        return text
    return "".join([c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text])


def shortened(text: str, length: int) -> str:
    """Return a printable text of at most `length` characters; the middle is left out.

    >>> shortened("layers/attention/kernel", 15)
    'layers...kernel'
    """
    text = printable(text, keep="")
    if len(text) <= length:
        return text
    start = (length - 3) // 2
    return f"{text[:start]}...{text[start + 3 - length :]}"


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return a count and its noun for a message: 1 byte, 2 bytes."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def first_lines(lines: Sequence[str], limit: int) -> str:
    """Return the first lines of a list, indented, and a line that counts the others.

    >>> print(first_lines(["a: f4", "b: f4", "c: f4"], 2))
      a: f4
      b: f4
      ... and 1 more
    """
    more = [f"  ... and {len(lines) - limit} more"] if len(lines) > limit else []
    return "\n".join([*[f"  {line}" for line in lines[:limit]], *more])


def first_names(names: Sequence[str], limit: int) -> str:
    """Return the first names, and how many more there are.

    >>> first_names(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


@cache
def size_text(size_bytes: float) -> str:
    """Return a size in readable units: 4.2 MiB.

    >>> [size_text(size) for size in (0, 1023, 1024, 5_000_000)]
    ['0 B', '1023 B', '1.0 KiB', '4.8 MiB']
    """
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


def text_literal(text: str) -> str:
    r"""Return the source text of a str in double quotes, for code that a message proposes.

    >>> print(text_literal('params/"w"'))
    "params/\"w\""
    """
    return json.dumps(text, ensure_ascii=False)


def listed(names: Sequence[str]) -> str:
    """Return names as text for a message.

    >>> listed([str(i) for i in range(100)])
    '0, 1, 2, 3, ..., 96, 97, 98, 99'
    """
    if len(names) <= _LISTED:
        return ", ".join(names)
    half = _LISTED // 2
    return ", ".join([*names[:half], "...", *names[-half:]])
