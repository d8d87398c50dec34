"""Malformed msgpack: each case small, each with its error. None may hang or eat memory."""

from __future__ import annotations

import struct
from pathlib import Path

import msgpack as library
import numpy as np
import pytest

import cordwood
from cordwood import msgpack
from cordwood.errors import FormatError, LimitError, TruncatedError
from tests.formats.hostile_files import Row, refused_file

F32 = b"\xa7float32"


def payload(
    shape: bytes = b"\x91\x02", dtype: bytes = F32, elements: bytes = b"\xc4\x08" + b"\0" * 8
) -> bytes:
    return b"\x93" + shape + dtype + elements


def ext(data: bytes, code: int = 1) -> bytes:
    packed: bytes = library.Packer().pack_ext_type(code, data)
    return packed


def array(
    shape: bytes = b"\x91\x02", dtype: bytes = F32, elements: bytes = b"\xc4\x08" + b"\0" * 8
) -> bytes:
    return ext(payload(shape, dtype, elements))


def dict_of(*pairs: tuple[str, bytes]) -> bytes:
    header = library.Packer().pack_map_header(len(pairs))
    return header + b"".join(library.packb(key) + value for key, value in pairs)


def chunked(
    shape: bytes | None = None, chunks: bytes | None = None, marker: bytes = b"\xc3"
) -> bytes:
    return dict_of(
        ("__msgpack_chunked_array__", marker),
        ("shape", dict_of(("0", b"\x04")) if shape is None else shape),
        ("chunks", dict_of(("0", array()), ("1", array())) if chunks is None else chunks),
    )


CASES: dict[str, Row] = {
    "empty": (b"", TruncatedError, "expected a tree in Flax's msgpack, found an empty file"),
    "unused byte": (b"\xc1", FormatError, "byte 0: expected a value, found 0xc1"),
    "trailing byte": (
        b"\x01\x02",
        FormatError,
        "byte 1: expected the end of the data, found 1 more byte",
    ),
    "trailing after an empty dict": (b"\x80\x80", FormatError, "byte 1: expected the end"),
    "int cut": (b"\xcd\x01", TruncatedError, "byte 1: truncated: the length or value of an int"),
    "float cut": (b"\xcb" + b"\0" * 7, TruncatedError, "needs 8 more bytes, found 7"),
    "str length cut": (b"\xda\x01", TruncatedError, "the length or value of a str needs 2"),
    "short str cut": (b"\xa5abc", TruncatedError, "byte 1: truncated: a str needs 5 more bytes"),
    "str cut": (b"\xd9\x05abc", TruncatedError, "byte 2: truncated: a str needs 5 more bytes"),
    "bin cut": (b"\xc4\x05abc", TruncatedError, "byte 2: truncated: a bin needs 5 more bytes"),
    "bin of 4 GiB": (b"\xc6\xff\xff\xff\xff", TruncatedError, "needs 4294967295 more bytes"),
    "ext length cut": (b"\xc9\0\0\0", TruncatedError, "the length or value of an ext needs 5"),
    "ext cut": (b"\xc7\x09\x01\x93", TruncatedError, "byte 3: truncated: an ext needs 9"),
    "ext of 4 GiB": (b"\xc9\xff\xff\xff\xff\x01", TruncatedError, "found 0"),
    "bad UTF-8": (b"\xa2\x61\xff", FormatError, "byte 2: expected UTF-8 in a str, found 0xff"),
    "surrogate in UTF-8": (b"\xa3\xed\xa0\x80", FormatError, "byte 1: expected UTF-8"),
    # Containers.
    "list cut": (b"\x92\x01", TruncatedError, "a list of 2 entries needs at least 2 more bytes"),
    "list of 4 billion": (
        b"\xdd\xff\xff\xff\xff",
        TruncatedError,
        "byte 0: truncated: a list of 4294967295 entries needs at least 4294967295",
    ),
    "dict of 4 billion": (b"\xdf\xff\xff\xff\xff\xa1a", TruncatedError, "at least 8589934590"),
    "dict cut after a key": (b"\x81\xa3abc", TruncatedError, "byte 5: truncated: a value needs 1"),
    "dict cut in a key": (b"\x81\xa3a", TruncatedError, "byte 2: truncated: a str needs 3"),
    "inner list longer than the rest": (b"\x92\x95\x01\x02", TruncatedError, "list of 5 entries"),
    "too deep lists": (b"\x91" * 1025 + b"\x01", LimitError, "byte 1024: containers nest deeper"),
    "too deep dicts": (b"\x81\xa1a" * 1025 + b"\x01", LimitError, "nest deeper than 1024"),
    "too deep tuples": (
        (ext(bytes(5000), 4)[:-5000] + b"\x91") * 1025 + b"\0" * 5000,
        LimitError,
        "nest deeper than 1024",
    ),
    # Keys.
    "duplicate key": (
        b"\x82\xa1a\x01\xa1a\x02",
        FormatError,
        "byte 4: a dict has the key 'a' twice",
    ),
    "duplicate int key": (b"\x82\x01\x01\xcc\x01\x02", FormatError, "has the key 1 twice"),
    "equal keys": (b"\x82\x01\x01\xc3\x02", FormatError, "has the key True twice"),
    "duplicate long key": (
        dict_of(("k" * 200, b"\x01"), ("k" * 200, b"\x01")),
        FormatError,
        "twice",
    ),
    "list as a key": (b"\x81\x90\x01", FormatError, "byte 1: expected a dict key, found an array"),
    "dict as a key": (b"\x81\x80\x01", FormatError, "byte 1: expected a dict key"),
    "array as a key": (b"\x81" + array() + b"\x01", FormatError, "byte 1: expected a dict key"),
    "bad UTF-8 in a key": (b"\x81\xa1\xff\x01", FormatError, "byte 2: expected UTF-8"),
    # Arrays.
    "array of no payload": (b"\xc7\x00\x01", FormatError, "byte 3: an array's extension ends"),
    "payload no array": (ext(b"\x01\x02"), FormatError, "expected [shape, dtype, elements]"),
    "payload of two": (ext(b"\x92\x90" + F32), FormatError, "found an array of 2"),
    "payload of four": (ext(b"\x94\x90" + F32 + b"\xc4\0\0"), FormatError, "found an array of 4"),
    "payload too long": (
        ext(payload() + b"\0"),
        FormatError,
        "expected the end of the array's extension, found 1 more byte",
    ),
    "payload too short": (
        ext(payload()[:-1]) + b"\0",
        FormatError,
        "an array's extension ends at byte",
    ),
    "shape no array": (array(shape=b"\x02"), FormatError, "expected the shape of an array"),
    "shape of floats": (
        array(shape=b"\x91\xca\0\0\0\0"),
        FormatError,
        "expected a dimension of an array, found the float 0.0",
    ),
    "shape of bools": (array(shape=b"\x91\xc3"), FormatError, "found the bool True"),
    "negative dimension": (
        array(shape=b"\x91\xfe"),
        FormatError,
        "a dimension of an array, found -2",
    ),
    "two unknown dimensions": (array(shape=b"\x92\xff\xff"), FormatError, "found -1"),
    "unknown dimension that does not fit": (
        array(shape=b"\x92\x03\xff"),
        FormatError,
        "8 bytes of float32 cannot make shape [3, -1]",
    ),
    "unknown dimension beside zero": (
        array(shape=b"\x92\x00\xff"),
        FormatError,
        "cannot make shape",
    ),
    "too many dimensions": (
        array(shape=b"\xdc\x00\x41" + b"\x01" * 65),
        LimitError,
        "has 65 dimensions; at most 64 are read",
    ),
    "size overflow": (
        array(shape=b"\x94" + b"\xce\xff\xff\xff\xff" * 4),
        LimitError,
        "has more than 2**63 bytes",
    ),
    "size overflow beside zero": (
        array(shape=b"\x94\x00" + b"\xce\xff\xff\xff\xff" * 3, elements=b"\xc4\0"),
        LimitError,
        "has more than 2**63 bytes",
    ),
    "size wraps to what is there": (
        array(shape=b"\x92\xcf" + struct.pack(">Q", 2**62) + b"\x04", elements=b"\xc4\0"),
        LimitError,
        "has more than 2**63 bytes",
    ),
    "too few elements": (
        array(shape=b"\x91\x03"),
        FormatError,
        "expected 12 bytes for float32[3], found 8",
    ),
    "too many elements": (
        array(shape=b"\x91\x01"),
        FormatError,
        "expected 4 bytes for float32[1], found 8",
    ),
    "a terabyte in eight bytes": (
        array(shape=b"\x91\xcf" + struct.pack(">Q", 2**38)),
        FormatError,
        "expected 1099511627776 bytes",
    ),
    "dtype of objects": (array(dtype=b"\xa1O"), FormatError, "expected a numeric dtype, found 'O'"),
    "dtype of strings": (
        array(dtype=b"\xa5str96"),
        FormatError,
        "expected a numeric dtype, found 'str96', which Flax writes but cannot read",
    ),
    "dtype of structs": (array(dtype=b"\xa6void64"), FormatError, "which Flax writes but cannot"),
    "dtype of records": (array(dtype=b"\xa8record64"), FormatError, "which Flax writes but cannot"),
    "dtype of fields": (array(dtype=b"\xa5f4,f4"), FormatError, "found 'f4,f4'"),
    "dtype unknown": (array(dtype=b"\xa7float33"), FormatError, "found 'float33'"),
    "dtype of no name": (array(dtype=b"\xa0"), FormatError, "expected a numeric dtype, found ''"),
    "dtype no str": (
        array(dtype=b"\x05"),
        FormatError,
        "expected the name of a dtype, found the int",
    ),
    "dtype of a long name": (
        array(dtype=b"\xd9\x50" + b"f" * 80),
        FormatError,
        "a str of 80 bytes",
    ),
    "dtype with a tail": (array(dtype=b"\xa8float32\n"), FormatError, "found 'float32\\n'"),
    "elements no binary": (array(elements=b"\x01"), FormatError, "elements of an array as binary"),
    "elements beyond the extension": (
        array(elements=b"\xc6\x7f\xff\xff\xff" + b"\0" * 8),
        TruncatedError,
        "a bin needs 2147483647 more bytes",
    ),
    "scalar of a wrong size": (
        ext(payload(b"\x90"), 3),
        FormatError,
        "expected 4 bytes for float32[]",
    ),
    # Other extensions.
    "complex of one": (
        ext(b"\x91" + library.packb(1.0), 2),
        FormatError,
        "the two floats of a complex",
    ),
    "complex of nothing": (b"\xc7\x00\x02", FormatError, "the two floats of a complex number"),
    "complex of strings": (ext(b"\x92\xa1a\xa1b", 2), FormatError, "the two floats of a complex"),
    "complex with a tail": (
        ext(b"\x92" + library.packb(1.0) * 2 + b"\0", 2),
        FormatError,
        "the two floats of a complex",
    ),
    "complex beyond its extension": (
        ext(b"\x92" + library.packb(1.0), 2) + library.packb(1.0),
        FormatError,
        "the two floats of a complex",
    ),
    "tuple of nothing": (b"\xc7\x00\x04\x01", FormatError, "expected the array of a tuple"),
    "tuple longer than its extension": (
        ext(b"\x92\x01", 4) + b"\x02",
        FormatError,
        "byte 5: the extension of a tuple ends at byte 4",
    ),
    "tuple shorter than its extension": (
        ext(b"\x91\x01\x02", 4),
        FormatError,
        "the extension of a tuple ends at byte",
    ),
    "timestamp of 5 bytes": (ext(b"\0" * 5, -1), FormatError, "extension -1 of 5 bytes"),
    "reserved extension": (ext(b"\0", -2), FormatError, "extension -2 of 1 byte cannot be read"),
    # Chunked arrays.
    "chunks too few": (
        chunked(chunks=dict_of(("0", array()))),
        FormatError,
        "byte 0: a chunked array: expected 4 elements for shape [4], found 2 in its chunks",
    ),
    "chunk missing": (
        chunked(chunks=dict_of(("0", array()), ("2", array()))),
        FormatError,
        "expected keys '0' to '1' in 'chunks', '1' is missing",
    ),
    "chunks none": (chunked(chunks=b"\x80"), FormatError, "a chunked array has no chunks"),
    "chunk no array": (
        chunked(chunks=dict_of(("0", array()), ("1", b"\x01"))),
        FormatError,
        "expected a flat array as chunk 1, found a value of kind int",
    ),
    "chunk not flat": (
        chunked(chunks=dict_of(("0", array(shape=b"\x92\x02\x01")), ("1", array()))),
        FormatError,
        "expected a flat array as chunk 0, found float32[2, 1]",
    ),
    "chunks of two dtypes": (
        chunked(chunks=dict_of(("0", array()), ("1", array(dtype=b"\xa5int32")))),
        FormatError,
        "chunk 1 is int32, and chunk 0 float32",
    ),
    "chunked shape with a gap": (
        chunked(shape=dict_of(("1", b"\x04"))),
        FormatError,
        "expected keys '0' to '0' in 'shape', '0' is missing",
    ),
    "chunked shape negative": (
        chunked(shape=dict_of(("0", b"\xff"))),
        FormatError,
        "expected dimensions in 'shape', found -1",
    ),
    "chunked shape of strings": (
        chunked(shape=dict_of(("0", b"\xa14"))),
        FormatError,
        "expected dimensions in 'shape', found '4' (str)",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_malformed_file_is_refused(tmp_path: Path, name: str) -> None:
    refused_file(tmp_path / "evil.msgpack", CASES[name])
    data, error, _ = CASES[name]
    with pytest.raises(error):
        msgpack.msgpack_restore(data)


def test_every_truncation_is_refused() -> None:
    tree = {
        "w": np.arange(6, dtype=np.float32).reshape(2, 3),
        "more": {"s": np.int8(1), "c": 1j, "l": ["text", b"bytes", 2**40, 1.5, None, True]},
    }
    data = msgpack.msgpack_serialize(tree)
    for length in range(len(data)):
        with pytest.raises(FormatError, match=r"^<bytes>: byte [0-9]+: "):
            msgpack.msgpack_restore(data[:length])


def test_random_damage_is_refused_with_its_offset_or_read(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    monkeypatch.setattr(msgpack, "MAX_CHUNK_SIZE", 16)
    data = msgpack.msgpack_serialize(
        {"w": np.ones((3, 4)), "x": {"k": [1, "a", None]}, "s": np.float32(1), "c": 2j}
    )
    refused = 0
    for _ in range(3000):
        damaged = bytearray(data)
        for _ in range(rng.integers(1, 4)):
            damaged[rng.integers(len(data))] = rng.integers(256)
        refused += _refused(bytes(damaged))
    assert refused > 500


def _refused(data: bytes) -> bool:
    try:
        msgpack.msgpack_restore(data)
    except FormatError as e:
        return str(e).startswith("<bytes>: byte ") or pytest.fail(str(e))
    return False


def test_many_values_in_deep_places_are_bounded(tmp_path: Path) -> None:
    """A key path each, of a thousand keys: 8 KB for a byte."""
    data = b"\x91" * 1000 + b"\xdd" + struct.pack(">I", 100_000) + b"\xc0" * 100_000
    (tmp_path / "evil.msgpack").write_bytes(data)
    with pytest.raises(LimitError, match=r"byte 1000: key paths hold more than .* too deep"):
        cordwood.load(tmp_path / "evil.msgpack")
