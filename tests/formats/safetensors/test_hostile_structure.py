"""Forged structures of cordwood's files, sealed as they should be: each with its error."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood.errors import (
    CorruptionError,
    FormatError,
    LimitError,
    UnsupportedFormatError,
)
from tests.formats.hostile_files import Row, refused_file
from tests.formats.safetensors.assemble import file_bytes, header_of, sealed


def forged(
    change: Callable[[dict[str, Any]], None],
    tree: Any = None,
    own: Callable[[dict[str, str]], None] | None = None,
) -> bytes:
    """Return a file of cordwood's whose structure was changed and whose header was sealed again."""
    raw = good() if tree is None else file_bytes(tree)
    start = 8 + int.from_bytes(raw[:8], "little")
    header = header_of(raw)
    metadata = header["__metadata__"]
    table = json.loads(metadata["cordwood.structure"])
    change(table)
    metadata["cordwood.structure"] = json.dumps(table)
    if own is not None:
        own(metadata)
    return sealed(header) + raw[start:]


@cache
def good() -> bytes:
    return file_bytes({"a": np.ones(2), "b": 3})


def put(member: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda table: table.__setitem__(member, value)


def nothing(_table: dict[str, Any]) -> None:
    pass


def own_key(key: str, value: str) -> bytes:
    return forged(nothing, own=lambda metadata: metadata.__setitem__(key, value))


NUMPY = {"kind": "numpy"}
INT = {"kind": "int"}

FORGED: dict[str, Row] = {
    "member missing": (
        forged(lambda table: table.__delitem__("names")),
        FormatError,
        "cordwood.structure: expected an object of nodes, types, leaves, names, values",
    ),
    "member unknown": (forged(put("code", "x")), FormatError, "expected an object of nodes"),
    "member no list": (forged(put("names", {})), FormatError, "names: expected a list"),
    "structure no object": (own_key("cordwood.structure", "[]"), FormatError, "expected an object"),
    "structure no JSON": (own_key("cordwood.structure", "{"), FormatError, "structure is not JSON"),
    "structure nested": (
        own_key("cordwood.structure", '{"nodes":' + "[" * 100_000),
        FormatError,
        "cordwood.structure nests too deeply",
    ),
    "structure with a key twice": (
        own_key("cordwood.structure", '{"nodes":[],"nodes":[]}'),
        FormatError,
        "the key 'nodes' occurs twice",
    ),
    "nodes missing": (
        forged(put("nodes", [["dict", ["a", "b"]], 1])),
        FormatError,
        "ends with 1 nodes missing",
    ),
    "a bomb of leaves": (
        forged(put("nodes", [["list", 10**12], 10**12])),
        LimitError,
        "1000000000000 leaves or more; expected at most 2",
    ),
    "a bomb of types": (
        forged(put("leaves", [0, 10**15])),
        FormatError,
        "expected types for 2 leaves, found 1000000000000000",
    ),
    "a type that is not there": (
        forged(put("leaves", [0, 1, 5, 1])),
        FormatError,
        "no run can be [5, 1]",
    ),
    "a negative type": (forged(put("leaves", [-1, 2])), FormatError, "no run can be [-1, 2]"),
    "runs of nothing": (forged(put("leaves", [0, 0])), FormatError, "no run can be [0, 0]"),
    "runs of an odd length": (
        forged(put("leaves", [0])),
        FormatError,
        "expected pairs of integers",
    ),
    "true as a run": (forged(put("leaves", [0, True])), FormatError, "expected pairs of integers"),
    "an unknown kind": (
        forged(put("types", [{"kind": "pickle"}, INT])),
        FormatError,
        "types[0]: unknown kind of leaf 'pickle'",
    ),
    "an opaque leaf": (
        forged(put("types", [{"kind": "opaque"}, INT])),
        FormatError,
        "unknown kind of leaf 'opaque'",
    ),
    "a type that is no object": (
        forged(put("types", [1, INT])),
        FormatError,
        "types[0]: expected an object with a kind, found 1",
    ),
    "a type with more": (
        forged(put("types", [{"kind": "numpy", "import": "os"}, INT])),
        FormatError,
        "types[0]: expected an object with a kind",
    ),
    "an unknown dtype": (
        forged(put("types", [{"kind": "numpy", "dtype": "object"}, INT])),
        FormatError,
        "types[0]: unknown dtype 'object'",
    ),
    "a PRNG key without an implementation": (
        forged(put("types", [{"kind": "prng_key"}, INT])),
        FormatError,
        "types[0]: no leaf can be stored so",
    ),
    "a weak numpy array": (
        forged(put("types", [{"kind": "numpy", "weak_type": True}, INT])),
        FormatError,
        "no leaf can be stored so",
    ),
    "an int in a tensor": (
        forged(put("types", [NUMPY, {"kind": "int", "tensor": True}])),
        FormatError,
        "no leaf can be stored so",
    ),
    "a tensor for a value": (
        forged(put("leaves", [0, 2])),
        FormatError,
        "expected 1 tensors and 1 values, found 2 and 0",
    ),
    "a dtype the tensor cannot be": (
        forged(put("types", [{"kind": "numpy", "dtype": "int4"}, INT])),
        FormatError,
        "tensor 'a': F64[2] cannot hold a leaf of type numpy int4",
    ),
    "a scalar with a shape": (
        forged(put("types", [{"kind": "numpy_scalar"}, INT])),
        FormatError,
        "cannot hold a leaf of type numpy_scalar",
    ),
    "a str of floats": (
        forged(put("types", [{"kind": "str", "tensor": True}, INT])),
        FormatError,
        "cannot hold a leaf of type str",
    ),
    "a key of floats": (
        forged(put("types", [{"kind": "prng_key", "prng_impl": "rbg"}, INT])),
        FormatError,
        "cannot hold a leaf of type prng_key",
    ),
    "a tensor of another name": (
        forged(put("names", [0, "c"])),
        FormatError,
        "leaf 0 is the tensor 'c', which the file lacks or another leaf has",
    ),
    "two leaves of one tensor": (
        forged(put("names", [1, "a"]), tree={"a": np.ones(2), "b": np.ones(2)}),
        FormatError,
        "leaf 1 is the tensor 'a', which the file lacks or another leaf has",
    ),
    "a name for a leaf that is not there": (
        forged(put("names", [2, "a"])),
        FormatError,
        "names: expected leaves below 2, each once, found 2",
    ),
    "two names for a leaf": (
        forged(put("names", [0, "a", 0, "a"])),
        FormatError,
        "each once, found 0",
    ),
    "a name that is a number": (
        forged(put("names", [0, 1])),
        FormatError,
        "expected a name for leaf 0, found 1",
    ),
    "names of an odd length": (forged(put("names", [0])), FormatError, "pairs of leaf and name"),
    "a str for an int": (
        forged(put("values", ["x"])),
        FormatError,
        "values[0]: expected a value of kind int, found 'x'",
    ),
    "a float for an int": (forged(put("values", [1.5])), FormatError, "kind int, found 1.5"),
    "true for an int": (forged(put("values", [True])), FormatError, "kind int, found True"),
    "values left over": (
        forged(put("values", [1, 2])),
        FormatError,
        "expected 1 tensors and 2 values, found 1 and 1",
    ),
    "values missing": (forged(put("values", [])), LimitError, "2 leaves or more; expected at most"),
    "nested nodes": (
        forged(put("nodes", [["list", 1]] * 50_000)),
        LimitError,
        "nested deeper than 1000 levels (MAX_DEPTH)",
    ),
    "a duplicate dict key": (
        forged(put("nodes", [["dict", ["a", "a"]], 2])),
        FormatError,
        "the key 'a' occurs twice",
    ),
    "digests of another scheme": (
        own_key("cordwood.digests", "md5:1048576:AAAA"),
        FormatError,
        "expected xxh3-128:BYTES:BASE64, found md5",
    ),
    "digests that are not base64": (
        own_key("cordwood.digests", "xxh3-128:1048576:???"),
        FormatError,
        "cordwood.digests: expected xxh3-128:BYTES:BASE64",
    ),
    "digests of no blocks": (
        own_key("cordwood.digests", "xxh3-128:0:"),
        FormatError,
        "expected xxh3-128:BYTES:BASE64",
    ),
    "digests of huge blocks": (
        own_key("cordwood.digests", f"xxh3-128:{2**40}:AAAAAAAAAAAAAAAAAAAAAA=="),
        LimitError,
        "digest blocks of 1099511627776 bytes",
    ),
    "too few digests": (
        own_key("cordwood.digests", "xxh3-128:1048576:"),
        CorruptionError,
        "expected 1 block digests",
    ),
    "a version that is no number": (
        own_key("cordwood.version", "one"),
        CorruptionError,
        "cordwood.version is 'one'",
    ),
    "version 0": (own_key("cordwood.version", "0"), CorruptionError, "cordwood.version is '0'"),
    "a later version": (
        own_key("cordwood.version", "12"),
        UnsupportedFormatError,
        "cordwood.version is 12, a newer version",
    ),
    "a marker of no version": (
        own_key("cordwood.secret", ""),
        CorruptionError,
        "unknown cordwood.secret",
    ),
}


@pytest.mark.parametrize("row", FORGED.values(), ids=FORGED)
def test_a_forged_structure_is_refused(tmp_path: Path, row: Row) -> None:
    refused_file(tmp_path / "forged.safetensors", row)


def test_a_file_that_was_only_sealed_again_is_read(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(forged(nothing))
    assert cordwood.load(tmp_path / "x.safetensors")["b"] == 3
