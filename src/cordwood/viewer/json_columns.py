"""A table as JSON, column by column, which is encoded some rows at a time.

A list of 200,000 leaves is 22 MB of JSON; as Python values it would be several times as much.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

_ROWS = 4096  # encoded at a time


class JsonColumns:
    """The columns of a table as JSON in ASCII, which `json_bytes` puts into the value around it."""

    def __init__(self, encoded: Mapping[str, Sequence[bytes]]) -> None:
        self._encoded = encoded

    def parts(self) -> Iterator[bytes]:
        """Yield the JSON object of the table, a list for each column."""
        separator = b"{"
        for name, lists in self._encoded.items():
            yield separator + json.dumps(name).encode("ascii") + b":["
            for number, values in enumerate(lists):
                if number:
                    yield b","
                yield values
            yield b"]"
            separator = b","
        yield b"{}" if separator == b"{" else b"}"


def encode_columns(
    columns_of: Callable[[range], Mapping[str, Sequence[Any]]], count: int, *, rows: int = _ROWS
) -> JsonColumns:
    """Encode a table.

    Args:
        columns_of: returns columns of some rows, by name; the same names each time. Their values
            are of types that JSON has.
        count: the number of rows.
        rows: how many are encoded at a time.

    >>> b"".join(encode_columns(lambda rows: {"n": rows, "x": "a" * len(rows)}, 3, rows=2).parts())
    b'{"n":[0,1,2],"x":["a","a","a"]}'
    """
    encoded: dict[str, list[bytes]] = {}
    for start in range(0, max(1, count), rows):
        for name, values in columns_of(range(start, min(start + rows, count))).items():
            text = json.dumps(list(values), allow_nan=False, separators=(",", ":"))
            encoded.setdefault(name, []).append(text[1:-1].encode("ascii"))
    return JsonColumns(encoded)
