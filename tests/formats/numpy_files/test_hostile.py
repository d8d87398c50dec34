"""Malformed .npy, .npz and .eqx files: each small, each with its error.

None may hang or eat memory.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood.errors import (
    CorruptionError,
    FormatError,
    LimitError,
    TruncatedError,
    UnsupportedFormatError,
)
from tests.formats.hostile_files import Row, damaged, refused_file, require_tree_or_error


def npy(text: str, data: bytes = b"", *, version: tuple[int, int] = (1, 0)) -> bytes:
    raw = text.encode("latin-1")
    length = struct.pack("<H" if version[0] == 1 else "<I", len(raw))
    return b"\x93NUMPY" + bytes(version) + length + raw + data


def header(
    shape: Any = (1,), descr: Any = "<f4", fortran: Any = False, more: str = "", data: bytes = b""
) -> bytes:
    text = f"{{'descr': {descr!r}, 'fortran_order': {fortran!r}, 'shape': {shape!r}, {more}}}\n"
    return npy(text, data)


def saved(array: np.ndarray) -> bytes:
    data = io.BytesIO()
    np.save(data, array)
    return data.getvalue()


def zipped(*members: tuple[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return data.getvalue()


def changed(raw: bytes, at: int, data: bytes) -> bytes:
    at %= len(raw)
    return raw[:at] + data + raw[at + len(data) :]


FOUR = b"\0\0\x80?"
GOOD = saved(np.arange(4, dtype=np.float32))

NPY: dict[str, Row] = {
    "empty": (b"", FormatError, "expected one numpy array, found an empty file"),
    "text": (b"hello", FormatError, "byte 0: expected b'\\x93NUMPY', found b'hello'"),
    "magic alone": (b"\x93NUMPY", TruncatedError, "ends inside the header"),
    "a zip": (b"PK\3\4" + bytes(40), FormatError, "found a zip archive that is cut short"),
    "version 9": (npy("{}", version=(9, 0)), UnsupportedFormatError, "version 9.0 of .npy"),
    "header past the end": (
        GOOD[:40],
        TruncatedError,
        "its header takes 128 bytes, and the file has 40",
    ),
    "header of 4 GB": (
        b"\x93NUMPY\2\0\xff\xff\xff\xff",
        LimitError,
        "expected at most 10000 (MAX_HEADER_BYTES)",
    ),
    "no dict": (npy("[1, 2]"), FormatError, "expected '{'"),
    "code": (npy("__import__('os').abort()"), FormatError, "expected '{'"),
    "code inside": (
        npy("{'descr': eval('1'), 'fortran_order': False, 'shape': ()}"),
        FormatError,
        "expected a string, a bool or a shape",
    ),
    "deep": (npy("{'shape': " + "(" * 9000), FormatError, "expected an integer of 0 or more"),
    "not closed": (npy("{'descr': '<f4', "), FormatError, "expected a key, each once"),
    "a key twice": (header(more="'descr': '<f8', "), FormatError, "a key, each once"),
    "a key more": (header(more="'x': '<f8', "), FormatError, "expected ['descr', 'fortran_order'"),
    "a key less": (npy("{'descr': '<f4'}"), FormatError, "has the members ['descr']"),
    "text after it": (npy("{}{}"), FormatError, "expected the end"),
    "negative": (header((-1,)), FormatError, "an integer of 0 or more"),
    "a float": (header((1.5,)), FormatError, "',' or ')'"),
    "long number": (npy("{'shape': (" + "9" * 500), FormatError, "an integer of 0 or more"),
    "too many axes": (header((1,) * 65), LimitError, "65 dimensions; expected at most 64"),
    "overflow": (header((1 << 62, 1 << 62)), FormatError, "takes more than 9223372036854775807"),
    "overflow of no elements": (header((1 << 62, 1 << 62, 0)), FormatError, "takes more than"),
    "terabytes": (header((1 << 40,)), TruncatedError, "after the end of the file"),
    "cut": (GOOD[:-1], TruncatedError, "an array float32[4] ends at byte 144, after the end"),
    "trailing": (
        GOOD + b"\0",
        FormatError,
        "byte 144: expected the end of the data, found 1 more byte",
    ),
    "two arrays": (GOOD + GOOD, FormatError, 'load it with like= and format="eqx"'),
    "objects": (
        saved(np.array([{}, None])),
        UnsupportedFormatError,
        "Python objects is pickled, which cordwood never loads",
    ),
    "an array of text": (
        saved(np.array(["a"])),
        UnsupportedFormatError,
        "an array of text (dtype <U1)",
    ),
    "structured": (
        saved(np.zeros(1, [("a", "f4"), ("b", "i4")])),
        UnsupportedFormatError,
        "save each field as an array of its own",
    ),
    "void": (header(descr="|V1", data=b"\0"), UnsupportedFormatError, "float8 types, int4"),
    "unknown dtype": (header(descr="<f3"), FormatError, "the dtype '<f3' is unknown"),
    "bits": (header(descr="<i0"), FormatError, "the dtype '<i0' is unknown"),
    "no dtype": (header(descr="float32"), FormatError, "'float32' is not a dtype of numpy"),
    "dtype is a bool": (header(descr=True), FormatError, "expected a dtype, a bool and a shape"),
}

DEFLATED = zipped(("a.npy", saved(np.zeros(4096))), method=zipfile.ZIP_DEFLATED)
STORED = zipped(("a.npy", GOOD), ("b.npy", GOOD))
ENTRY = STORED.find(b"PK\1\2")
END = STORED.find(b"PK\5\6")
NESTED = zipped(
    ("a", STORED[: STORED.rfind(b"PK\3\4")].replace(b"a.npy", b"b.npy")), ("b.npy", GOOD)
)
EMPTY_BLOCKS = b"\0\0\0\xff\xff" * 4000  # deflate's stored blocks of no bytes


def with_size(raw: bytes, size: int) -> bytes:
    """Return an archive of one member with its size replaced in both headers."""
    entry = raw.find(b"PK\1\2")
    return changed(changed(raw, 22, struct.pack("<I", size)), entry + 24, struct.pack("<I", size))


def deflated_as(stream: bytes, size: int, crc32: int = 0) -> bytes:
    """Return an archive of one member whose deflate stream is given."""
    raw = zipped(("a.npy", stream))
    entry = raw.find(b"PK\1\2")
    for at, base in ((8, 0), (10, entry)):
        raw = changed(raw, base + at, struct.pack("<H", 8))
    for at, base in ((14, 0), (16, entry)):
        raw = changed(raw, base + at, struct.pack("<I", crc32))
    return with_size(raw, size)


def deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


NPZ: dict[str, Row] = {
    "empty": (b"", FormatError, "expected numpy arrays in a zip archive, found an empty file"),
    "text": (b"hello" * 30, FormatError, "it has no directory at its end"),
    "no directory": (STORED[:ENTRY], TruncatedError, "found a zip archive that is cut short"),
    "cut": (STORED[:-1], TruncatedError, "without its directory"),
    "front lost": (STORED[100:], FormatError, "does not end at its end record"),
    "front gained": (bytes(9) + STORED, FormatError, "does not end at its end record"),
    "too many declared": (changed(STORED, -12, b"\xf0\0"), UnsupportedFormatError, "several files"),
    "many declared": (
        changed(STORED, END + 8, b"\x03\0\x03\0"),
        FormatError,
        "does not end at its end record",
    ),
    "one declared": (
        changed(STORED, END + 8, b"\x01\0\x01\0"),
        FormatError,
        "the directory announces 1 members, and has 2",
    ),
    "another disk": (changed(STORED, END + 4, b"\1\0"), UnsupportedFormatError, "several files"),
    "entry damaged": (changed(STORED, ENTRY, b"XX"), FormatError, "expected an entry, found b'XX"),
    "name past the directory": (
        changed(STORED, ENTRY + 28, b"\xff\xff"),
        FormatError,
        "the directory is damaged",
    ),
    "a name twice": (
        changed(STORED, STORED.rfind(b"b.npy"), b"a.npy"),
        FormatError,
        "two members are called 'a.npy'",
    ),
    "two names of one leaf": (
        zipped(("a.npy", GOOD), ("a", b"x")),
        FormatError,
        "another member has the name 'a' too",
    ),
    "names disagree": (
        changed(STORED, STORED.find(b"a.npy"), b"c.npy"),
        FormatError,
        "a: byte 0: a member does not agree with the directory",
    ),
    "no member there": (
        changed(STORED, ENTRY + 42, b"\x07\0\0\0"),
        FormatError,
        "byte 7: expected a member",
    ),
    "member past the end": (
        changed(STORED, ENTRY + 42, b"\xf0\xff\xff\x7f"),
        FormatError,
        "expected a member, found b''",
    ),
    "one inside another": (
        changed(NESTED, NESTED.rfind(b"PK\1\2") + 42, struct.pack("<I", 31)),
        FormatError,
        "b: its bytes are another member's too",
    ),
    "sizes of 64 bits missing": (
        changed(STORED, ENTRY + 20, b"\xff" * 8),
        FormatError,
        "without its sizes of 64 bits",
    ),
    "stored in another size": (
        changed(STORED, ENTRY + 24, b"\1\0\0\0"),
        FormatError,
        "and is stored in 1",
    ),
    "an array cut": (
        zipped(("a.npy", GOOD[:-4])),
        FormatError,
        "a: expected 144 bytes for float32[4] and its header, found a member of 140",
    ),
    "an array and more": (zipped(("a.npy", GOOD + b"\0")), FormatError, "a member of 145"),
    "a header cut": (zipped(("a.npy", GOOD[:60])), TruncatedError, "a: it ends inside the header"),
    "not deflated": (deflated_as(b"\xff" * 200, 144), CorruptionError, "a: the member is damaged"),
    "holds less than declared": (
        with_size(DEFLATED, 128 + 8 * 4097),
        FormatError,
        "expected 32896 bytes for float64[4096]",
    ),
    "cannot hold what is declared": (
        with_size(DEFLATED, 1 << 31),
        LimitError,
        "cannot hold 2147483648 (MAX_RATIO is 1100)",
    ),
    "blocks of nothing": (
        deflated_as(EMPTY_BLOCKS + deflate(GOOD), 144),
        FormatError,
        "inflate to 0",
    ),
}


EQX: dict[str, Row] = {
    "trailing bytes": (GOOD + GOOD + b"\0", FormatError, "byte 288: expected the end or another"),
    "a zip": (STORED, FormatError, "after 0 arrays, found b'PK"),
    "the second cut": (GOOD + GOOD[:-1], TruncatedError, "byte 144: an array float32[4] ends at"),
    "the second header cut": (GOOD + GOOD[:50], TruncatedError, "byte 144: its header takes 128"),
    "half a magic": (GOOD + b"\x93NUM", FormatError, "after 1 array, found b'\\x93NUM'"),
    "objects": (
        GOOD + saved(np.array([{}, None])),
        UnsupportedFormatError,
        "(it is array 1, counted from 0, and its size is unknown",
    ),
    "terabytes": (GOOD + header((1 << 40,)), TruncatedError, "after the end of the file"),
    "many empty ones": (header((0,)) * 10_000 + b"\0", FormatError, "after 10000 arrays"),
}


# Verify need not read these; a load does.
UNREADABLE: dict[str, Row] = {
    "encrypted": (changed(STORED, ENTRY + 8, b"\1"), UnsupportedFormatError, "is encrypted"),
    "bzip2": (
        zipped(("a.npy", GOOD), method=zipfile.ZIP_BZIP2),
        UnsupportedFormatError,
        "compressed by method 12; expected 0 (stored) or 8",
    ),
    "objects": (
        zipped(("x/y.npy", saved(np.array([{}])))),
        UnsupportedFormatError,
        "x%2Fy: an array of Python objects is pickled",
    ),
}


@pytest.mark.parametrize("row", EQX.values(), ids=EQX)
def test_a_malformed_file_of_equinox_is_refused(tmp_path: Path, row: Row) -> None:
    refused_file(tmp_path / "bad.eqx", row)


@pytest.mark.parametrize("row", NPY.values(), ids=NPY)
def test_a_malformed_array_is_refused(tmp_path: Path, row: Row) -> None:
    refused_file(tmp_path / "bad.npy", row)


@pytest.mark.parametrize("row", NPZ.values(), ids=NPZ)
def test_a_malformed_archive_is_refused(tmp_path: Path, row: Row) -> None:
    refused_file(tmp_path / "bad.npz", row)


@pytest.mark.parametrize("row", UNREADABLE.values(), ids=UNREADABLE)
def test_a_load_refuses_members_that_cannot_be_read(tmp_path: Path, row: Row) -> None:
    refused_file(tmp_path / "bad.npz", row, calls=[cordwood.load])


def test_a_member_that_inflates_to_more_than_it_says_takes_little_memory(tmp_path: Path) -> None:
    """At most the announced size is inflated, and one byte."""
    raw = deflated_as(deflate(GOOD + bytes(64 << 20)), len(GOOD), zlib.crc32(GOOD))
    row = raw, CorruptionError, "expected 144 bytes once decoded, found more"
    refused_file(tmp_path / "bad.npz", row, calls=[cordwood.load])


@pytest.mark.parametrize("name", ["npy", "npz"])
def test_every_bit_and_every_cut_give_a_tree_or_an_error(tmp_path: Path, name: str) -> None:
    good = GOOD if name == "npy" else zipped(("a.npy", GOOD), method=zipfile.ZIP_DEFLATED)
    path = tmp_path / f"bad.{name}"
    path.write_bytes(good)
    trees = require_tree_or_error(path, path, damaged(good, bits=range(8)))
    assert trees
    for tree in trees:
        if name == "npz" and set(tree) == {"a"} and isinstance(tree["a"], np.ndarray):
            assert tree["a"].tobytes() == np.arange(4, dtype=np.float32).tobytes()


def test_a_damaged_archive_has_one_reason(tmp_path: Path) -> None:
    """It is not called an archive of another kind as well."""
    path = tmp_path / "x.npz"
    path.write_bytes(NPZ["a name twice"][0])
    with pytest.raises(FormatError) as raised:
        cordwood.load(path)
    assert str(raised.value) == f"{path}: two members are called 'a.npy'"
