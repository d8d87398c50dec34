"""What commands print: plain rows and JSON; tables and colours only where they fit a screen."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import repeat
from typing import Any, NoReturn

import click

from cordwood.engine.screen import screen_size

__all__ = [
    "as_json_has_it",
    "columns",
    "fail",
    "json_option",
    "one_line",
    "print_json",
    "print_table",
    "print_text",
    "size_text",
]

_MOST_BITS = 2000  # of an int that Python prints in decimal however it is configured
_TABLE_LINES = 6  # of a table beside its rows: titles, rules, caption, the prompt after it

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def print_json(value: Any) -> None:
    """One JSON document."""
    has_all = (sys.stdout.encoding or "").lower().startswith("utf")
    print_text(json.dumps(value, indent=1, ensure_ascii=not has_all, allow_nan=False))


def as_json_has_it(value: Any) -> Any:
    """A value of a leaf as JSON has one, or else its text."""
    if hasattr(value, "dtype") and value.dtype.kind in "mM":
        value = value.astype(str)
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, tuple | list):
        return [as_json_has_it(item) for item in value]
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return f"{value:#x}"
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and value - value == 0:
        return value
    return str(value)


def one_line(text: str) -> str:
    r"""A text of anybody's with what would move the cursor, or colour what follows, escaped.

    >>> print(one_line("a\n\x1b[31mé"))
    a\n\x1b[31mé
    """
    return "".join([c if c.isprintable() else ascii(c)[1:-1] for c in text])


def print_text(text: str) -> None:
    """Lines, in one write."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def print_table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], caption: str, *, right: Iterable[int] = ()
) -> bool:
    """Rows under titles, in a terminal and where all of it fits; returns whether it was printed.

    A column without any text is left out.
    """
    if not sys.stdout.isatty() or not rows:
        return False
    width, height = screen_size()
    if len(rows) + _TABLE_LINES > height:
        return False
    kept = [i for i, column in enumerate(zip(*rows, strict=True)) if any(column)]
    widest = [max(len(titles[i]), *[len(row[i]) for row in rows]) for i in kept]
    if sum(widest) + 2 * len(kept) > width:
        return False
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    ends = set(right)
    for i in kept:
        table.add_column(titles[i], justify="right" if i in ends else "left", no_wrap=True)
    for row in rows:
        table.add_row(*[Text(row[i]) for i in kept])
    console = Console(highlight=False)
    console.print(table)
    console.print(Text(caption))
    return True


def fail(error: BaseException, *, wants_json: bool, code: int) -> NoReturn:
    """Tell an error, and exit."""
    if isinstance(error, click.ClickException):
        text = error.format_message()
    elif isinstance(error, KeyError):
        text = str(error.args[0]) if error.args else "KeyError"
    else:
        text = str(error)
    kind = type(error).__name__
    try:
        if wants_json:
            print_json({"error": {"type": kind, "message": text}})
    except OSError:  # nothing can be printed there: that may be what is told
        wants_json = False
    if not wants_json:
        click.echo(f"{kind}: {text}", err=True)
    sys.exit(code)


@cache
def size_text(size_bytes: int) -> str:
    """A size for people: 4.2 MiB.

    >>> [size_text(size) for size in (0, 1023, 1024, 5_000_000)]
    ['0 B', '1023 B', '1.0 KiB', '4.8 MiB']
    """
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size_bytes} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


def columns(rows: Sequence[Sequence[str]], *, right: Iterable[int] = ()) -> str:
    """Rows of cells in columns as wide as they need; those in `right` end together.

    >>> print(columns([["a", "10"], ["bcd", "9"]], right=[1]))
    a    10
    bcd   9
    """
    ends = set(right)
    padded = []
    for i, column in enumerate(zip(*rows, strict=True)):
        pad = str.rjust if i in ends else str.ljust
        padded.append(map(pad, column, repeat(max(map(len, column)))))
    return "\n".join([line.rstrip() for line in map("  ".join, zip(*padded, strict=True))])
