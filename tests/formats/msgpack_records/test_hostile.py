"""Malformed streams of msgpack records: each small, each with its error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flax.serialization
import msgpack
import numpy as np
import pytest

from cordwood.errors import FormatError, LimitError, TruncatedError
from tests.formats.hostile_files import Row, damaged, refused_file, require_tree_or_error


def record(keys: Any, value: bytes) -> bytes:
    data: bytes = msgpack.packb((keys, value))
    return data


ARRAY = flax.serialization.to_bytes(np.ones(2, np.float32))

HOSTILE: dict[str, Row] = {
    "no record": (b"\x80", FormatError, "byte 0: expected a record of keys and a value, found map"),
    "three": (msgpack.packb([["a"], b"", 1]), FormatError, "expected a record of keys"),
    "no keys": (record([], ARRAY), FormatError, "byte 1: expected the keys of a record"),
    "a key alone": (record("a", ARRAY), FormatError, "byte 1: expected the keys of a record"),
    "a number as key": (record([1], ARRAY), FormatError, "expected a key, a str, found int"),
    "many keys": (record(["a"] * 65, ARRAY), LimitError, "65 keys; expected at most 64"),
    "keys of a gigabyte": (b"\x92\xdd\x3f\xff\xff\xff", LimitError, "1073741823 keys"),
    "no bytes": (msgpack.packb([["a"], 1]), FormatError, "expected the bytes of a value, found"),
    "cut": (record(["a"], ARRAY)[:-1], TruncatedError, "truncated"),
    "cut after a record": (record(["a"], ARRAY) + b"\x92", TruncatedError, "truncated"),
    "trailing": (record(["a"], ARRAY) + b"\0", FormatError, "found int"),
    "value of nothing": (record(["a"], b""), TruncatedError, "the value at byte"),
    "value and more": (record(["a"], ARRAY + b"\0"), FormatError, "expected the end"),
    "one place": (record(["a"], ARRAY) * 2, FormatError, "'a': another record has the same keys"),
    "within another": (
        record(["a"], ARRAY) + record(["a", "b"], ARRAY),
        FormatError,
        "'a/b' is inside the value of another record",
    ),
    "around another": (
        record(["a", "b"], ARRAY) + record(["a"], ARRAY),
        FormatError,
        "'a': another record has the same keys",
    ),
    "nothing of a record": (b"\x92", TruncatedError, "truncated"),
    "keys that are cut": (b"\x92\x92\xa1a", TruncatedError, "truncated"),
    "a key of gigabytes": (b"\x92\x91\xdb\x7f\xff\xff\xff", TruncatedError, "truncated"),
    "a value of gigabytes": (b"\x92\x91\xa1a\xc6\x7f\xff\xff\xff", TruncatedError, "truncated"),
    "a key that is no text": (b"\x92\x91\xa1\xff\xc4\x01\xc0", FormatError, "UTF-8"),
    "an unknown byte": (b"\x92\x91\xa1a\xc1", FormatError, "byte 4: "),
    "a deep value": (record(["a"], b"\x91" * 2000), LimitError, "1024"),
    "a value of many nothings": (
        record(["a"], b"\xdd\x7f\xff\xff\xff"),
        TruncatedError,
        "the value at byte 6",
    ),
    "an array of terabytes": (
        record(["a"], ARRAY.replace(b"\x91\x02", b"\x91\xcf" + (1 << 40).to_bytes(8, "big"))),
        FormatError,
        "the value at byte 6",
    ),
}


@pytest.mark.parametrize("row", HOSTILE.values(), ids=HOSTILE)
def test_a_malformed_stream_is_refused(tmp_path: Path, row: Row) -> None:
    refused_file(tmp_path / "bad", row, format="msgpack-records")


def test_every_bit_and_every_cut_give_a_tree_or_an_error(tmp_path: Path) -> None:
    good = record(["a", "b"], ARRAY) + record(["c"], flax.serialization.to_bytes({"x": 1}))
    path = tmp_path / "bad"
    path.write_bytes(good)
    broken = damaged(good, bits=range(8))
    require_tree_or_error(path, path, broken, format="msgpack-records")
