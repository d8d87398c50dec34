"""OCDBT databases changed byte by byte under right checksums, as one who wants harm would."""

from __future__ import annotations

from pathlib import Path

import pytest

from cordwood.errors import CordwoodError
from tests.formats.ocdbt.test_ocdbt import (
    CONFIG,
    MANIFEST,
    NODE,
    manifest,
    number,
    numbers,
    read,
    table,
    wrapped,
)
from tests.memory import traced_memory
from tests.old_files import write_old

VALUE = b"value of a file"
# Three keys, "w/.zarray", "w/0" and "w/1": two values within, one in the file `v`.
LEAF = (
    bytes([0])
    + table(b"v")
    + numbers(3, 2, 2, 7, 1, 1)  # how much of each is shared with the one before, and its rest
    + b".zarray01"
    + numbers(2, len(VALUE), 1)
    + numbers(0, 1, 0)
    + numbers(0, 0)
    + b"{}" + b"x"
)  # fmt: skip
LEAF = LEAF.replace(
    numbers(3, 2, 2, 7, 1, 1) + b".zarray01", numbers(3, 2, 2, 9, 1, 1) + b"w/.zarray01"
)


def inner(length: int) -> bytes:
    """One child, the leaf, which lies in the file `m`, with nothing in common taken away."""
    return bytes([1]) + table(b"m") + numbers(1, 1, 0) + b"w" + numbers(0, 0, length, 3, 9, 9)


ROOT = inner(len(wrapped(NODE, LEAF)))
TOP = (
    CONFIG + table(b"n") + numbers(1, 1) + b"\1" + numbers(0, 0, len(wrapped(NODE, ROOT)), 0, 0, 0)
)
TOP += bytes(8) + number(0)
GOOD = {"manifest.ocdbt": (MANIFEST, TOP), "n": (NODE, ROOT), "m": (NODE, LEAF)}


def database(folder: Path) -> Path:
    (folder / "v").write_bytes(VALUE)
    for name, (magic, body) in GOOD.items():
        (folder / name).write_bytes(wrapped(magic, body))
    return folder


def test_the_unchanged_database_is_read(tmp_path: Path) -> None:
    result = read(database(tmp_path))
    assert result == {"w/.zarray": b"{}", "w/0": VALUE, "w/1": b"x"}


@pytest.mark.parametrize("name", GOOD)
def test_each_changed_byte_gives_values_or_an_error_in_little_memory(
    tmp_path: Path, name: str
) -> None:
    """Keys and values, or an error of cordwood's that names the file, in little memory."""
    path = database(tmp_path)
    magic, body = GOOD[name]
    with traced_memory() as memory:
        for i in range(len(body)):
            for bits in (0x01, 0x10, 0x7F, 0x80, 0xFF):
                other = body[:i] + bytes([body[i] ^ bits]) + body[i + 1 :]
                write_old(path / name, wrapped(magic, other))
                try:
                    result = read(path)
                except CordwoodError as e:
                    assert str(path) in str(e)  # noqa: PT017
                else:
                    assert sum(map(len, result.values())) <= len(VALUE) + len(body)
    assert memory.peak_bytes < 16 << 20


@pytest.mark.parametrize("name", GOOD)
def test_every_truncation_is_refused(tmp_path: Path, name: str) -> None:
    path = database(tmp_path)
    magic, body = GOOD[name]
    for i in range(len(body)):
        (path / name).write_bytes(wrapped(magic, body[:i]))
        with pytest.raises(CordwoodError, match=str(path)):
            read(path)


@pytest.mark.parametrize("size", [0, 1, 0x7F, 0x80, 1 << 31, 1 << 62, (1 << 64) - 1])
def test_a_wrong_length_of_a_node_is_refused(tmp_path: Path, size: int) -> None:
    path = database(tmp_path)
    (path / "manifest.ocdbt").write_bytes(manifest(size, height=1))
    if size == 0:
        assert read(path) == {}
        return
    with pytest.raises(CordwoodError, match=str(path)):
        read(path)
