"""docs/format.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from cordwood.dtypes import DTYPES
from cordwood.formats.safetensors import layout, seal
from cordwood.formats.safetensors.codes import CODES, stored_as
from cordwood.formats.safetensors.header import MAX_HEADER_BYTES
from cordwood.formats.safetensors.names import MAX_NAME_BYTES
from cordwood.tree import structure

TEXT = (Path(__file__).parent.parent / "docs" / "format.md").read_text()


def test_the_dtype_table_is_the_one_in_the_code() -> None:
    rows = re.findall(r"^\| (\w+) \| (\d+) \| ([^|]+) \| (\w+) \|$", TEXT, re.MULTILINE)
    expected = []
    for row in DTYPES.values():
        stored = stored_as(row.name)
        code = f"{stored.code}, shape + {list(stored.extra)}" if stored.extra else stored.code
        expected.append((row.name, str(row.itemsize), code, row.name))
    assert rows == expected


def test_every_code_of_the_format_is_listed() -> None:
    cells = re.findall(r"\b[A-Z]+[0-9]*(?:_[A-Z0-9]+)?\b", TEXT)
    assert set(CODES) <= set(cells)


def test_limits_and_constants() -> None:
    assert f"{MAX_HEADER_BYTES:,} bytes (`MAX_HEADER_BYTES`)" in TEXT
    assert f"longer than {MAX_NAME_BYTES} bytes" in TEXT
    assert f"begins at a multiple of {layout.DATA_ALIGNMENT}" in TEXT
    assert f"more than {layout.INLINE_BYTES} bytes" in TEXT
    assert f"`{seal.HEADER_START}`" in TEXT
    assert f"bytes {8 + len(seal.HEADER_START)} to {40 + len(seal.HEADER_START)}" in TEXT
    assert f"At most {structure.MAX_DEPTH} levels" in TEXT
    assert f"at most {structure.MAX_KEY_DEPTH} deep" in TEXT
    assert f"| `{seal.VERSION_KEY}` | `{seal.VERSION}` |" in TEXT
