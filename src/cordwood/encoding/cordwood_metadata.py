"""Cordwood's metadata of a file: digests of its blocks, and the leaf table with tensor names.

The digests are xxh3-128, one for each block, packed one after another. A header with them begins
with `{"__metadata__":{"cordwood.header_digest":"`. Then come 32 characters: the digest of the whole
header, including its 8-byte length, computed with zeros in their place.

A leaf table holds what the tensors of a file do not. It is the value of `cordwood.structure`, a
JSON object of five members; docs/format.md describes them:

    nodes   the containers, in the JSON form of cordwood.encoding.strict_json
    types   each distinct way to store a leaf
    leaves  [type, count, type, count, ...]: the types of the leaves in order, run by run
    names   [leaf, name, leaf, name, ...]: tensor names other than the dotted key path
    values  Python values, in leaf order

The name of a tensor is its key path, joined by dots. It is changed only if it could be
confused with another one (on a file system or in a tool that ignores case or normalises Unicode),
or if the format or its readers would reject it. The file lists the changed names, so readers need
none of the rules here.

One file, because the metadata of a file is all of this, and the header digest covers it.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, repeat
from typing import Any, NamedTuple, TypeAlias, cast

import xxhash

from cordwood import dtypes
from cordwood.encoding.strict_json import (
    VALUE_KINDS,
    decode_value,
    parse_json,
    structure_from_json,
    structure_to_json,
)
from cordwood.errors import CorruptionError, FormatError, LimitError, newer_version_error
from cordwood.index import ARRAY_KINDS, LEAF, Digests, LeafKind, Structure
from cordwood.keypath import DictKey, Key, KeyPath, key_literal

BLOCK_BYTES = 1 << 20
DIGEST_BYTES = 16
MAX_BLOCK_BYTES = 64 << 20  # blocks are read whole: this limits the memory that a file can claim

Buffer: TypeAlias = bytes | bytearray | memoryview


def digest_of(block: Buffer) -> bytes:
    """Return the digest of one block. Hashing releases the GIL."""
    return xxhash.xxh3_128_digest(block)


def digest_of_parts(parts: Iterable[memoryview]) -> bytes:
    """Return the digest of a block that is in several parts of memory."""
    state = xxhash.xxh3_128()
    for part in parts:
        state.update(part)
    return state.digest()


def block_count(size_bytes: int, block_bytes: int) -> int:
    """Return the number of blocks that cover `size_bytes`."""
    return -(-size_bytes // block_bytes)


def digests_of(data: Buffer, *, start: int, block_bytes: int = BLOCK_BYTES) -> Digests:
    """Return the digests of the blocks of `data`, which begins at file offset `start`."""
    view = memoryview(data).cast("B")
    blocks = range(0, len(view), block_bytes)
    values = b"".join([digest_of(view[at : at + block_bytes]) for at in blocks])
    return Digests(start, block_bytes, values)


def check_coverage(name: str, size_bytes: int, digests: Digests) -> None:
    """Raise unless there is exactly one digest for each block of a file of `size_bytes`.

    Raises:
        CorruptionError: the counts differ; the file grew or shrank.
        LimitError: the block size is not in 1 to MAX_BLOCK_BYTES.
    """
    if not 0 < digests.block_bytes <= MAX_BLOCK_BYTES:
        raise LimitError(
            f"{name}: digest blocks of {digests.block_bytes} bytes; "
            f"expected 1 to {MAX_BLOCK_BYTES} (MAX_BLOCK_BYTES)"
        )
    expected = block_count(max(0, size_bytes - digests.start), digests.block_bytes)
    if digests.start < 0 or len(digests.values) != expected * DIGEST_BYTES:
        raise CorruptionError(
            f"{name}: expected {expected} block digests for its {size_bytes} bytes "
            f"(blocks of {digests.block_bytes} from byte {digests.start}), "
            f"found {len(digests.values) / DIGEST_BYTES:g}: the file grew, shrank or is damaged"
        )


CORDWOOD_PREFIX = "cordwood."
HEADER_DIGEST = "cordwood.header_digest"
VERSION_KEY = "cordwood.version"
DATA_DIGESTS = "cordwood.digests"
STRUCTURE = "cordwood.structure"
_OWN_KEYS = (HEADER_DIGEST, VERSION_KEY, DATA_DIGESTS, STRUCTURE)

VERSION = 1
HEADER_START = f'{{"__metadata__":{{"{HEADER_DIGEST}":"'
_DIGEST_START = 8 + len(HEADER_START)
_DIGESTS_SCHEME = f"xxh3-128:{BLOCK_BYTES}:"


def split_metadata(metadata: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str] | None]:
    """Divide `__metadata__` into the user's part and cordwood's; None if another tool wrote it.

    A file with one of cordwood's keys counts as cordwood's, and must have all of them. So a file
    that loses some keys is refused, and never read without verification.

    Raises:
        UnsupportedFormatError: the file is of a newer version of the format.
        CorruptionError: keys are missing, unknown, or not of this version.
    """
    cordwood = {key: value for key, value in metadata.items() if key.startswith(CORDWOOD_PREFIX)}
    if not cordwood:
        return dict(metadata), None
    version = cordwood.get(VERSION_KEY, "")
    if version.isascii() and version.isdigit() and version[0] != "0" and version != str(VERSION):
        found = f"{VERSION_KEY} is {version:.20}, a newer version of the format"
        raise newer_version_error(found, VERSION)
    if set(cordwood) != set(_OWN_KEYS) or version != str(VERSION):
        missing = [key for key in _OWN_KEYS if key not in cordwood]
        unknown = [key for key in cordwood if key not in _OWN_KEYS]
        raise CorruptionError(
            "written by cordwood, but its metadata is incomplete"
            + (f": no {', '.join(missing)}" if missing else "")
            + (f": unknown {', '.join(unknown)}" if unknown else "")
            + (f": {VERSION_KEY} is {version!r:.20}" if not missing and not unknown else "")
            + "; the header is damaged or another tool changed it"
        )
    return {k: v for k, v in metadata.items() if k not in cordwood}, cordwood


def check_header(header: bytes) -> None:
    """Compare the header (from the first byte of the file on) with the digest in it.

    Raises:
        CorruptionError: they differ.
    """
    begins = header.startswith(HEADER_START.encode(), 8)
    if not begins or not has_own_digest(header, _DIGEST_START):
        raise CorruptionError(
            f"the header (bytes 0 to {len(header)}) does not match its own digest: it is damaged, "
            "or another tool changed the file after cordwood wrote it; restore a copy, or, if the "
            "change was meant, have that tool write the file without the metadata keys that "
            f"begin with {CORDWOOD_PREFIX!r}"
        )


def finish_header(header: str, header_bytes: int) -> bytes:
    """Return the header of `header_bytes`: length, JSON text padded with spaces, with digest."""
    raw = struct.pack("<Q", header_bytes - 8) + header.encode()
    raw += b" " * (header_bytes - len(raw))
    return with_own_digest(raw, _DIGEST_START)


def with_own_digest(data: bytes, start: int) -> bytes:
    """Return data with its own digest: 32 characters from `start` on, computed with zeros there."""
    return data[:start] + _own_digest(data, start) + data[start + 2 * DIGEST_BYTES :]


def has_own_digest(data: bytes, start: int) -> bool:
    """Return True if data is as `with_own_digest` returned it."""
    return data[start : start + 2 * DIGEST_BYTES] == _own_digest(data, start)


def _own_digest(data: bytes, start: int) -> bytes:
    state = xxhash.xxh3_128(memoryview(data)[:start])
    state.update(b"0" * 2 * DIGEST_BYTES)
    state.update(memoryview(data)[start + 2 * DIGEST_BYTES :])
    return state.hexdigest().encode()


def digest_width(data_bytes: int) -> int:
    """Return the number of characters that `encode_digests` returns for that much data."""
    size = block_count(data_bytes, BLOCK_BYTES) * DIGEST_BYTES
    return len(_DIGESTS_SCHEME) + 4 * -(-size // 3)


def encode_digests(digests: Digests) -> str:
    """Return the digests of the data blocks as text."""
    return _DIGESTS_SCHEME + base64.b64encode(digests.values).decode()


def decode_digests(text: str, start: int) -> Digests:
    """Return the digests in a text of `encode_digests`; the data begins at offset `start`.

    Raises:
        FormatError: the text is no such text.
    """
    try:
        scheme, block_bytes, values = text.split(":")
        packed = base64.b64decode(values, validate=True)
        size = int(block_bytes) if block_bytes.isdecimal() and len(block_bytes) < 16 else 0
    except (ValueError, binascii.Error) as e:
        raise FormatError(f"{DATA_DIGESTS}: expected xxh3-128:BYTES:BASE64 ({e})") from e
    if scheme != "xxh3-128" or size < 1:
        raise FormatError(f"{DATA_DIGESTS}: expected xxh3-128:BYTES:BASE64, found {text:.40}")
    return Digests(start, size, packed)


def check_metadata_strings(metadata: Mapping[str, str]) -> None:
    """Raise unless `metadata` maps strings to strings that can be stored.

    Raises:
        TypeError: a key or a value is not a str.
        ValueError: a key or a value holds a lone surrogate.
    """
    for key, value in metadata.items():
        if type(key) is not str or type(value) is not str:
            raise TypeError(
                f"metadata: expected str keys and values, found {key!r:.80}: {value!r:.80}; "
                "convert it (json.dumps, for one)"
            )
        try:
            f"{key}{value}".encode()
        except UnicodeEncodeError as e:
            raise ValueError(f"metadata: {key!r:.80}: holds a lone surrogate") from e


METADATA_KEY = "__metadata__"
MAX_NAME_BYTES = 1024

_SURROGATES = re.compile("[\ud800-\udfff]")
_KEPT_CHARACTERS = 200  # of a name that is too long; the rest becomes a digest


def dotted_name(path: KeyPath) -> str:
    """Return the keys of a path, joined by dots; '' for the root. The names are not unique.

    >>> dotted_name(("layers", 0, "kernel"))
    'layers.0.kernel'
    """
    return ".".join([key if type(key) is str else _key_text(key) for key in path])


def dotted_names(paths: Sequence[KeyPath]) -> Iterator[str]:
    """Return an iterator over the dotted name of each path."""
    if set(map(type, chain.from_iterable(paths))) <= {str}:
        return map(".".join, cast("Sequence[tuple[str, ...]]", paths))
    return map(dotted_name, paths)


def _key_text(key: Key) -> str:
    return key_literal(key.value if isinstance(key, DictKey) else key)


class TensorNames(NamedTuple):
    """Unique names of paths, and the positions of those that are not the dotted names."""

    names: list[str]
    changed: list[int]  # positions in `names`


def tensor_names(paths: Sequence[KeyPath]) -> TensorNames:
    """Return a unique name for each path: its dotted name if that is usable."""
    names = list(dotted_names(paths))
    if _all_usable(names):
        return TensorNames(names, [])
    taken: set[str] = set()
    # The first of two names that collide keeps its name.
    changed = []
    for i, name in enumerate(names):
        folded = _folded(name)
        if _usable(name) and folded not in taken:
            taken.add(folded)
        else:
            changed.append(i)
    counts: dict[str, int] = {}
    for i in changed:
        stem = _usable_form(names[i])
        name = stem
        while (folded := _folded(name)) in taken:
            counts[stem] = counts.get(stem, 1) + 1
            name = f"{stem}~{counts[stem]}"
        taken.add(folded)
        names[i] = name
    return TensorNames(names, changed)


def _all_usable(names: list[str]) -> bool:
    """Return True in the common case of plain ASCII names; a quick check."""
    return (
        len(set(map(str.lower, names))) == len(names)
        and "".join(names).isascii()
        and max(map(len, names), default=0) <= MAX_NAME_BYTES
        and "" not in names
        and METADATA_KEY not in names
    )


def _usable(name: str) -> bool:
    return (
        name not in ("", METADATA_KEY)
        and not _SURROGATES.search(name)
        and len(name.encode()) <= MAX_NAME_BYTES
    )


def _usable_form(name: str) -> str:
    if name in ("", METADATA_KEY):
        return f"~{name}"
    name = _SURROGATES.sub(lambda match: f"~{ord(match[0]):x}", name)
    if len(name.encode()) > MAX_NAME_BYTES:
        return f"{name[:_KEPT_CHARACTERS]}~{digest_of(name.encode()).hex()}"
    return name


def _folded(name: str) -> str:
    """Return a form that is equal for names that could be confused."""
    if name.isascii():
        return name.lower()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


BYTE_KINDS: frozenset[LeafKind] = frozenset({"str", "bytes"})  # as tensors when long

_MEMBERS = ("nodes", "types", "leaves", "names", "values")
_TYPE_MEMBERS = {"kind", "tensor", "dtype", "weak_type", "prng_impl"}


class LeafType(NamedTuple):
    """The type of a leaf, as far as its tensor does not hold it."""

    kind: LeafKind
    tensor: bool  # stored as a tensor, not as a value
    dtype: str = ""  # set if the tensor is U8 because the format lacks the dtype
    weak_type: bool = False
    prng_impl: str | None = None


class LeafTable(NamedTuple):
    """The decoded members, checked against one another."""

    structure: Structure
    types: tuple[LeafType, ...]
    runs: tuple[tuple[int, int], ...]  # of leaves: position in `types`, count
    names: dict[int, str]  # by leaf
    values: list[Any]  # decoded

    def leaf_types(self) -> Iterator[LeafType]:
        """Return the type of each leaf."""
        return chain.from_iterable(repeat(self.types[number], count) for number, count in self.runs)


def encode_table(
    structure: Structure,
    types: Iterable[LeafType],
    leaf_types: Iterable[int],
    names: Iterable[tuple[int, str]],
    values: Iterable[Any],
) -> str:
    """Return the JSON text. `values` are already in their JSON form."""
    table = {
        "nodes": structure_to_json(structure),
        "types": [type_to_json(kind) for kind in types],
        "leaves": encode_runs(leaf_types),
        "names": [part for pair in names for part in pair],
        "values": list(values),
    }
    return json.dumps(table, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def encode_runs(numbers: Iterable[int]) -> list[int]:
    """Return the run lengths of numbers: [number, count, number, count, ...]."""
    return [part for number, run in groupby(numbers) for part in (number, len(list(run)))]


def type_to_json(leaf_type: LeafType) -> dict[str, Any]:
    """Return the JSON form, without the members that do not apply."""
    item: dict[str, Any] = {"kind": leaf_type.kind}
    if leaf_type.tensor and leaf_type.kind in BYTE_KINDS:
        item["tensor"] = True
    if leaf_type.dtype:
        item["dtype"] = leaf_type.dtype
    if leaf_type.weak_type:
        item["weak_type"] = True
    if leaf_type.prng_impl is not None:
        item["prng_impl"] = leaf_type.prng_impl
    return item


def parse_table(text: str, *, tensor_count: int) -> LeafTable:
    """Parse and check the JSON text of a file that holds `tensor_count` tensors.

    Raises:
        FormatError: the text is invalid; the message names the member and the item. LimitError,
            a subclass, if a limit is passed.
    """
    table = parse_json(text, "cordwood.structure")
    if type(table) is not dict or set(table) != set(_MEMBERS):
        raise FormatError(f"cordwood.structure: expected an object of {', '.join(_MEMBERS)}")
    for member in _MEMBERS:
        if type(table[member]) is not list:
            raise FormatError(f"cordwood.structure: {member}: expected a list")
    types = tuple(
        [
            type_from_json(item, where=f"cordwood.structure: types[{i}]")
            for i, item in enumerate(table["types"])
        ]
    )
    # Every leaf is a tensor or a value of this file: so a small file cannot claim many leaves.
    max_leaves = tensor_count + len(table["values"])
    structure = structure_from_json(table["nodes"], max_leaves=max_leaves)
    count = structure.count(LEAF)
    runs = parse_runs(table["leaves"], len(types), count, where="cordwood.structure: leaves")
    stored = sum(length for number, length in runs if types[number].tensor)
    if stored != tensor_count or count - stored != len(table["values"]):
        raise FormatError(
            f"cordwood.structure: leaves: expected {tensor_count} tensors and "
            f"{len(table['values'])} values, found {stored} and {count - stored}"
        )
    names = _names(table["names"], count)
    kinds = [(types[number], length) for number, length in runs]
    values = parse_values(table["values"], kinds, where="cordwood.structure: values")
    return LeafTable(structure, types, runs, names, values)


def type_from_json(item: Any, *, where: str) -> LeafType:
    """Return the leaf type whose JSON form is `item`.

    Raises:
        FormatError: `item` is no such form.
    """
    if type(item) is not dict or not set(item) <= _TYPE_MEMBERS:
        raise FormatError(f"{where}: expected an object with a kind, found {item!r:.80}")
    kind = item.get("kind")
    dtype = item.get("dtype", "")
    impl = item.get("prng_impl")
    in_tensor = item.get("tensor", False)
    weak_type = item.get("weak_type", False)
    if type(kind) is not str or (kind not in ARRAY_KINDS and kind not in VALUE_KINDS):
        raise FormatError(f"{where}: unknown kind of leaf {kind!r:.80}")
    if type(dtype) is not str or (dtype and not dtypes.is_storable(dtype)):
        raise FormatError(f"{where}: unknown dtype {dtype!r:.80}")
    fits = (
        type(in_tensor) is bool
        and type(weak_type) is bool
        and (impl is None or type(impl) is str)
        and (not in_tensor or kind in BYTE_KINDS)
        and (not weak_type or kind == "jax")
        and (impl is not None) == (kind == "prng_key")
        and (not dtype or kind in ("jax", "numpy", "numpy_scalar"))
    )
    if not fits:
        raise FormatError(f"{where}: no leaf can be stored so: {item!r:.200}")
    return LeafType(kind, in_tensor or kind in ARRAY_KINDS, dtype, weak_type, impl)


def parse_runs(
    items: list[Any], types: int, count: int, *, where: str
) -> tuple[tuple[int, int], ...]:
    """Return the types of `count` leaves as (type, count) pairs.

    Raises:
        FormatError: `items` are not such runs, or not for `count` leaves.
    """
    if len(items) % 2 or not set(map(type, items)) <= {int}:
        raise FormatError(f"{where}: expected pairs of integers")
    runs = tuple(zip(items[::2], items[1::2], strict=True))
    for number, length in runs:
        if not 0 <= number < types or length < 1:
            raise FormatError(f"{where}: no run can be [{number}, {length}]")
    total = sum(length for _, length in runs)
    if total != count:
        raise FormatError(f"{where}: expected types for {count} leaves, found {total}")
    return runs


def _names(items: list[Any], count: int) -> dict[int, str]:
    where = "cordwood.structure: names"
    if len(items) % 2:
        raise FormatError(f"{where}: expected pairs of leaf and name")
    names: dict[int, str] = {}
    for leaf, name in zip(items[::2], items[1::2], strict=True):
        if type(leaf) is not int or not 0 <= leaf < count or leaf in names:
            raise FormatError(f"{where}: expected leaves below {count}, each once, found {leaf!r}")
        if type(name) is not str:
            raise FormatError(f"{where}: expected a name for leaf {leaf}, found {name!r:.80}")
        names[leaf] = name
    return names


def parse_values(
    items: list[Any], kinds: Iterable[tuple[LeafType, int]], *, where: str
) -> list[Any]:
    """Return the values of the leaves that are no tensors; `kinds` are runs of leaf types.

    There must be an item for each such leaf.

    Raises:
        FormatError: a value is not of its kind.
    """
    values: list[Any] = []
    for leaf_type, length in kinds:
        if leaf_type.tensor:
            continue
        for _ in range(length):
            try:
                values.append(decode_value(leaf_type.kind, items[len(values)]))
            except FormatError as e:
                raise FormatError(f"{where}[{len(values)}]: {e}") from e
    return values
