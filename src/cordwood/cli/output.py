"""Output of the commands: plain rows and JSON; tables only where they fit a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, NoReturn

import click

from cordwood.cli.terminal import screen_size
from cordwood.message_text import printable, shortened

_MOST_BITS = 2000  # of an int that Python prints in decimal however it is configured
_MAX_PADDED = 100  # characters of a cell that widen the other rows
_MIN_KEY = 20  # characters that are left of a key path, however narrow the terminal is
_TABLE_LINES = 6  # of a table beside its rows: titles, rules, caption, the prompt after it

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def print_json(value: Any) -> None:
    """Print one JSON document; control and format characters in it are escaped."""
    has_all = (sys.stdout.encoding or "").lower().startswith("utf")
    text = json.dumps(value, indent=1, ensure_ascii=not has_all, allow_nan=False)
    lines = [
        line if line.isprintable() else "".join([_json_character(c) for c in line])
        for line in text.split("\n")
    ]
    print_text("\n".join(lines))


def _json_character(character: str) -> str:
    return character if character.isprintable() else json.dumps(character)[1:-1]


def as_json_has_it(value: Any) -> Any:
    """Return a value of a leaf as JSON has one, or else its text."""
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


def print_text(text: str, *, raw: bool = False) -> None:
    """Print lines, in one write.

    Args:
        text: the lines; control and format characters in them are escaped.
        raw: print what goes to a file or a pipe as it is.
    """
    if not raw or sys.stdout.isatty():
        text = "\n".join([printable(line) for line in text.split("\n")])
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def print_table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], caption: str, *, right: Iterable[int] = ()
) -> bool:
    """Print rows under titles, on a terminal and where all of it fits; return True if it was.

    A column without any text is left out.
    """
    rows = fitted([[printable(cell, keep="") for cell in row] for row in rows])
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
    console = Console(width=width, highlight=False)  # else COLUMNS counts, which may differ
    console.print(table)
    console.print(Text(caption))
    return True


def fail(error: BaseException, *, wants_json: bool, code: int) -> NoReturn:
    """Print an error, and exit."""
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
        click.echo(printable(f"{kind}: {text}"), err=True)
    sys.exit(code)


def fitted(rows: Sequence[Sequence[str]]) -> Sequence[Sequence[str]]:
    """Return rows that fit the width of a terminal: the first cell of each is cut in the middle.

    Rows that go to a file or a pipe stay as they are.
    """
    width, _ = screen_size() if sys.stdout.isatty() else (0, 0)
    if not width or not rows:
        return rows
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    room = max(_MIN_KEY, width - sum(widths[1:]) - 2 * len(widths))
    if widths[0] <= room:
        return rows
    return [[shortened(row[0], room), *row[1:]] for row in rows]


def columns(rows: Sequence[Sequence[str]], *, right: Iterable[int] = ()) -> str:
    """Return rows of cells as text, in columns as wide as they need; those in `right` end together.

    >>> print(columns([["a", "10"], ["bcd", "9"]], right=[1]))
    a    10
    bcd   9
    """
    ends = set(right)
    padded = []
    for i, column in enumerate(zip(*rows, strict=True)):
        pad = str.rjust if i in ends else str.ljust
        padded.append(map(pad, column, repeat(min(max(map(len, column)), _MAX_PADDED))))
    return "\n".join([line.rstrip() for line in map("  ".join, zip(*padded, strict=True))])
