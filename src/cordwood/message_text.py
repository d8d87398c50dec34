"""Text forms of names, counts, lists and sizes for messages, and suggestions of existing names."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from itertools import takewhile
from operator import eq

_MANY = 1000  # names: at most so many are compared with one
_LISTED = 8  # names of steps that a message lists
_SHOWN = 3  # leaves of a container, or of a checkpoint, that a message names


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


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """Return the most similar of `names` by difflib; None if none is similar."""
    import difflib  # seldom needed, and slow to import

    close = difflib.get_close_matches(name, list(names), n=1)
    return close[0] if close else None


def nearest_path(name: str, names: Sequence[str]) -> str | None:
    """Return the most similar key path; paths that share more leading keys come first.

    The keys after the shared ones are compared. If there are very many paths, only those with the
    same last key or in the same container are compared.
    """
    container, _, last = name.rpartition("/")
    if len(names) > _MANY:
        beside = [each for each in names if each.rpartition("/")[0] == container]
        names = [*beside, *[each for each in names if each.endswith(f"/{last}")]][:_MANY]
    keys = name.split("/")
    groups: dict[int, dict[str, str]] = {}
    for each in names:
        others = each.split("/")
        shared = len([*takewhile(bool, map(eq, keys, others))])
        groups.setdefault(shared, {})["/".join(others[shared:])] = each
    for shared in sorted(groups, reverse=True):
        close = nearest_name("/".join(keys[shared:]), groups[shared])
        if close is not None:
            return groups[shared][close]
    return None


def absent_leaf(name: str, names: Collection[str], *, path: str) -> str:
    """Return the message for a key path that is not a leaf of a checkpoint.

    It says if the path is a container, and otherwise suggests leaves.

    Args:
        name: the requested key path.
        names: the key paths of all leaves.
        path: the path of the checkpoint.

    >>> print(absent_leaf("a", ["a/b", "a/c"], path="run/1").partition("; ")[0])
    run/1: 'a' is a container of 2 leaves: 'a/b', 'a/c'
    >>> print(absent_leaf("x", ["a/b"], path="1"))
    1 has no leaf 'x'; it has 'a/b'; list(checkpoint), or `cordwood ls 1` in a shell, lists all
    """
    container = name.rstrip("/")
    within = [each for each in names if each.startswith(f"{container}/")]
    command = f"cordwood ls {shlex.quote(path)}"
    if within and container:
        command += f" {shlex.quote(container)}"
        count = counted(len(within), "leaf", "leaves")
        what = f"is a container of {count}: {_first(within)}"
        both = f"load(select={container!r}) returns them, `{command}` in a shell lists them"
        return f"{path}: {container!r} {what}; {both}"
    close = nearest_path(name, list(names))
    if close is not None:
        return f"{path} has no leaf {name!r}; did you mean {close!r}?"
    if not names:
        return f"{path} has no leaf {name!r}; it has none at all"
    every = f"list(checkpoint), or `{command}` in a shell, lists all"
    return f"{path} has no leaf {name!r}; it has {_first(names)}; {every}"


def text_literal(text: str) -> str:
    r"""Return the source text of a str in double quotes, for code that a message proposes.

    >>> print(text_literal('params/"w"'))
    "params/\"w\""
    """
    return json.dumps(text, ensure_ascii=False)


def _first(names: Collection[str]) -> str:
    shown = [repr(name) for _, name in zip(range(_SHOWN), names, strict=False)]
    return ", ".join([*shown, *["..."] * (len(names) > _SHOWN)])


def listed(names: Sequence[str]) -> str:
    """Return names as text for a message.

    >>> listed([str(i) for i in range(100)])
    '0, 1, 2, 3, ..., 96, 97, 98, 99'
    """
    if len(names) <= _LISTED:
        return ", ".join(names)
    half = _LISTED // 2
    return ", ".join([*names[:half], "...", *names[-half:]])
