"""Output of the commands: JSON, plain rows, and tables where they fit the terminal."""

from __future__ import annotations

import datetime
import io
import json
import os
import sys
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, NoReturn

import click

from cordwood.message_text import printable, shortened

_MAX_INT_BITS = 2000  # Python prints such an int in decimal, however it is configured
_MAX_PADDED = 100  # characters: the widest column; longer cells stick out of it
_MIN_KEY = 20  # characters: a key path is never cut shorter, however narrow the terminal
_TABLE_LINES = 6  # lines of a table besides its rows: titles, rules, caption, the next prompt

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def print_json(value: Any) -> None:
    """Print one JSON document; control and format characters in it are escaped."""
    is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    text = json.dumps(value, indent=1, ensure_ascii=not is_unicode, allow_nan=False)
    lines = [
        line if line.isprintable() else "".join([_json_character(c) for c in line])
        for line in text.split("\n")
    ]
    print_text("\n".join(lines))


def print_answer(text: str, document: Any, *, as_json: bool) -> None:
    """Print the answer of a command: its lines, or with --json its document."""
    if as_json:
        print_json(document)
    else:
        print_text(text)


def _json_character(character: str) -> str:
    return character if character.isprintable() else json.dumps(character)[1:-1]


def to_json_value(value: Any) -> Any:
    """Return the value of a leaf as a JSON value, or as text if JSON has no such value."""
    if hasattr(value, "dtype") and value.dtype.kind in "mM":
        value = value.astype(str)
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, tuple | list):
        return [to_json_value(item) for item in value]
    if isinstance(value, int) and value.bit_length() > _MAX_INT_BITS:
        return f"{value:#x}"
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and value - value == 0:
        return value
    return str(value)


def print_text(text: str, *, raw: bool = False) -> None:
    """Print lines in one write.

    Args:
        text: the lines; control and format characters in them are escaped.
        raw: do not escape if the output is a file or a pipe.
    """
    if not raw or sys.stdout.isatty():
        text = "\n".join([printable(line) for line in text.split("\n")])
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def print_table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], caption: str, *, right: Iterable[int] = ()
) -> bool:
    """Print a table if the output is a terminal and the whole table fits; return True if printed.

    A column without any text is left out.
    """
    rows = fitted([[printable(cell, keep="") for cell in row] for row in rows])
    if not sys.stdout.isatty() or not rows:
        return False
    width, height = screen_size()
    if len(rows) + _TABLE_LINES > height:
        return False
    filled = [i for i, column in enumerate(zip(*rows, strict=True)) if any(column)]
    widest = [max(len(titles[i]), *[len(row[i]) for row in rows]) for i in filled]
    if sum(widest) + 3 * len(filled) > width:
        return False
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    ends = set(right)
    for i in filled:
        table.add_column(titles[i], justify="right" if i in ends else "left", no_wrap=True)
    for row in rows:
        table.add_row(*[Text(row[i]) for i in filled])
    console = Console(width=width, highlight=False)  # rich would use COLUMNS, which may differ
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
    except OSError:  # standard output is broken; that may be the error to report
        wants_json = False
    if not wants_json:
        click.echo(printable(f"{kind}: {text}"), err=True)
    sys.exit(code)


def fitted(rows: Sequence[Sequence[str]]) -> Sequence[Sequence[str]]:
    """Shorten the first cell of each row in the middle, so that rows fit the terminal's width.

    If the output is a file or a pipe, the rows stay as they are.
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
    """Return rows as text in aligned columns; `right` are the numbers of right-aligned columns.

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


def time_text(seconds: float | None, *, utc: bool = False) -> str | None:
    """Return a time as local time to read, or as UTC in ISO 8601; None if it is unknown."""
    if seconds is None:
        return None
    try:
        time = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
        return f"{time:%Y-%m-%dT%H:%M:%SZ}" if utc else f"{time.astimezone():%Y-%m-%d %H:%M}"
    except (OverflowError, ValueError, OSError):  # a step record may contain any number
        return None


def screen_size() -> tuple[int, int]:
    """Return the columns and lines of the terminal at standard output, or (0, 0) if it is none."""
    try:
        return os.get_terminal_size(1)
    except OSError:
        return 0, 0


def prepare_streams() -> None:
    """Make standard output and error accept every text.

    A closed stream is replaced by one that discards the text. Any other stream escapes the
    characters that its encoding lacks, as Python escapes them.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
