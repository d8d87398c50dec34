"""The header of a safetensors file: eight bytes of length, then JSON that lists the tensors.

One regular expression parses a header without spaces, as the reference and cordwood write it, in an
eighth of the time of a JSON parser for 20,000 tensors. It gives up on anything unusual; the JSON
parser then decides what is wrong.

One file, because the plan of a file is mostly its header, with the same codes and limits.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from itertools import accumulate
from json.encoder import encode_basestring  # type: ignore[attr-defined, unused-ignore]
from typing import Any, NamedTuple

from cordwood import dtypes
from cordwood.encoding.cordwood_metadata import (
    CORDWOOD_PREFIX,
    DATA_DIGESTS,
    HEADER_START,
    STRUCTURE,
    VERSION,
    VERSION_KEY,
    check_metadata_strings,
    digest_width,
    encode_digests,
    finish_header,
)
from cordwood.encoding.digests import BLOCK_BYTES
from cordwood.encoding.json_values import VALUE_KINDS, encode_value
from cordwood.encoding.leaf_table import BYTE_KINDS, LeafType, encode_table
from cordwood.encoding.strict_json import parse_json, parse_value
from cordwood.encoding.tensor_names import METADATA_KEY, tensor_names
from cordwood.errors import (
    FormatError,
    LimitError,
    TruncatedError,
    UnsupportedLeafError,
)
from cordwood.index import (
    MAX_ARRAY_BYTES,
    MAX_DIMS,
    Digests,
    Encoding,
    LeafSpec,
    Span,
    Structure,
    leaf_paths,
)
from cordwood.io.open_files import ReadableFile
from cordwood.keypath import format_path
from cordwood.plan.file_plan import FilePlan, LeafBytes, LeafPart
from cordwood.plan.packs import data_order
from cordwood.threads.garbage_collector import gc_paused

DATA_ALIGNMENT = 4096  # of the data in the file: a mapping of it begins at a page
INLINE_BYTES = 4096  # a longer str or bytes is a tensor


class Code(NamedTuple):
    """The meaning of a dtype code."""

    dtype: str  # a name of cordwood.dtypes
    bits: int  # per element, as stored
    encoding: Encoding = "raw"


CODES: dict[str, Code] = {
    row.safetensors: Code(row.name, 8 * row.itemsize)
    for row in dtypes.DTYPES.values()
    if row.safetensors is not None
}
# Packed types: cordwood reads but never writes them. It writes these dtypes as U8, one byte per
# element.
CODES["F4"] = Code("float4_e2m1fn", 4, "packed4")
CODES["F6_E2M3"] = Code("float6_e2m3fn", 6, "packed6")
CODES["F6_E3M2"] = Code("float6_e3m2fn", 6, "packed6")


class StoredDtype(NamedTuple):
    """The form in which cordwood writes a dtype."""

    code: str
    itemsize: int  # of the dtype
    is_substitute: bool  # True if stored as U8, because the format lacks the dtype
    extra_shape: tuple[int, ...]  # axes that U8 adds at the end of the shape


def stored_dtype(dtype: str) -> StoredDtype:
    """Return the form in which `dtype` is written. Raises ValueError if it is not storable."""
    itemsize = dtypes.itemsize(dtype)
    row = dtypes.DTYPES.get(dtype)
    if row is not None and row.safetensors is not None:
        return StoredDtype(row.safetensors, itemsize, False, ())
    return StoredDtype("U8", itemsize, True, () if itemsize == 1 else (itemsize,))


_MEMBERS = {"dtype", "shape", "data_offsets"}


class TensorType(NamedTuple):
    """The dtype and the shape of a tensor, and the values that follow from them."""

    code: str  # a key of CODES
    shape: tuple[int, ...]
    dtype: str  # a name of cordwood.dtypes
    encoding: Encoding
    span: Span  # all of its elements
    length: int  # in bytes


class Tensors(NamedTuple):
    """The tensors of a file in the order of its header, column by column."""

    names: list[str]  # each once
    types: list[TensorType]  # equal types may be one object
    offsets: list[int]  # in bytes from the start of the file


def tensor_type(code: str, shape: tuple[int, ...]) -> TensorType:
    """Return the type of a tensor. Raises FormatError if no tensor can have it."""
    row = CODES.get(code)
    if row is None:
        raise FormatError(f"unknown dtype {code!r:.80}; expected one of {', '.join(sorted(CODES))}")
    if len(shape) > MAX_DIMS:
        raise LimitError(f"{len(shape)} dimensions; expected at most {MAX_DIMS} (MAX_DIMS)")
    # As in numpy: axes of length 0 are left out of this product.
    if math.prod(filter(None, shape)) * row.bits > 8 * MAX_ARRAY_BYTES:
        raise FormatError(f"the shape takes more than {MAX_ARRAY_BYTES} bytes")
    elements = math.prod(shape)
    bits = elements * row.bits
    if bits % 8:
        raise FormatError(
            f"{elements} elements of {code}, {row.bits} bits each, do not fill whole bytes"
        )
    return TensorType(code, shape, row.dtype, row.encoding, Span(0, elements), bits // 8)


def tensor_table(entries: dict[str, Any], header: bytes, *, size_bytes: int) -> Tensors:
    """Return the tensors of a file of `size_bytes`, in the order of its header.

    Checked: dtypes, shapes, sizes, and that the tensors cover the data exactly.

    Raises FormatError, TruncatedError or LimitError, which names the tensor and its position in the
    header.
    """
    start = len(header)
    tensors = Tensors(list(entries), [], [])
    ranges: list[tuple[int, int, str]] = []
    for name, entry in entries.items():
        try:
            code, shape, begin, end = _checked_entry(entry)
            type_ = tensor_type(code, shape)
            if end - begin != type_.length:
                raise FormatError(
                    f"{code}{list(shape)} takes {type_.length} bytes, found data_offsets "
                    f"[{begin}, {end}]"
                )
            name.encode()
        except UnicodeEncodeError as e:
            where = _position(header, name)
            raise FormatError(f"tensor {name!r:.200}{where}: a lone surrogate in its name") from e
        except FormatError as e:
            raise type(e)(f"tensor {name!r:.200}{_position(header, name)}: {e}") from e
        ranges.append((begin, end, name))
        tensors.types.append(type_)
        tensors.offsets.append(start + begin)
    _check_coverage(ranges, header, size_bytes)
    return tensors


def _checked_entry(entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    if type(entry) is not dict or set(entry) != _MEMBERS:
        raise FormatError(
            f"expected an object of dtype, shape and data_offsets, found {entry!r:.200}"
        )
    if type(entry["dtype"]) is not str:
        raise FormatError(f"expected a dtype, found {entry['dtype']!r:.80}")
    for member in ("shape", "data_offsets"):
        numbers = entry[member]
        if type(numbers) is not list:
            raise FormatError(f"{member}: expected a list, found {numbers!r:.80}")
        for number in numbers:
            if type(number) is not int or number < 0:
                raise FormatError(f"{member}: expected integers of 0 or more, found {number!r:.80}")
    if len(entry["data_offsets"]) != 2:
        raise FormatError(f"data_offsets: expected 2 of them, found {len(entry['data_offsets'])}")
    return (entry["dtype"], tuple(entry["shape"]), *entry["data_offsets"])


def _check_coverage(ranges: list[tuple[int, int, str]], header: bytes, size_bytes: int) -> None:
    """Raise FormatError unless the tensors fill the file from the header to the end."""
    start = len(header)
    end = 0
    for begin, stop, name in sorted(ranges):
        if begin != end:
            problem = "overlaps the one before it" if begin < end else "leaves a gap before it"
            raise FormatError(
                f"tensor {name!r:.200}{_position(header, name)}: begins at byte {begin} of the "
                f"data and {problem}; expected byte {end}"
            )
        end = stop
    if start + end > size_bytes:
        raise TruncatedError(
            f"the tensors end at byte {start + end}, after the end of the file at "
            f"byte {size_bytes}: it is cut short: download or copy it again"
        )
    if start + end < size_bytes:
        raise FormatError(
            f"{size_bytes - start - end} bytes after the last tensor, from byte {start + end} on"
        )


def _position(header: bytes, name: str) -> str:
    """Return a text with the position of a name in the header, for an error."""
    for quoted in (json.dumps(name, ensure_ascii=False), json.dumps(name)):
        position = header.find(f"{quoted}:".encode("utf-8", "surrogatepass"))
        if position >= 0:
            return f" (header byte {position})"
    return ""


_ENTRY = re.compile(
    r',"([^"\\\x00-\x1f]*)":\{"dtype":"([A-Z0-9_]+","shape":\[[0-9,]*)\],'
    r'"data_offsets":\[([0-9]+),([0-9]+)\]\}'
)
_GROUPS = 4
_NUMBER = "(?:0|[1-9][0-9]{0,18})"
_TYPE = re.compile(rf'([A-Z0-9_]{{1,16}})","shape":\[((?:{_NUMBER}(?:,{_NUMBER}){{0,63}})?)')
METADATA_FIRST = f'{{"{METADATA_KEY}":'


def read_fast_header(text: str, start: int, size_bytes: int) -> tuple[Any, Tensors] | None:
    """Parse the JSON text of a header.

    Args:
        text: the JSON text.
        start: the offset of the data in the file.
        size_bytes: the size of the file.

    Returns the metadata, unchecked, and checked tensors; None if the text is not compact JSON, or
    if anything in it is wrong.
    """
    metadata: Any = None
    entries = f",{text[1:]}"
    try:
        if text.startswith(METADATA_FIRST):
            metadata, end = parse_value(text, len(METADATA_FIRST))
            entries = text[end:]
        stop = len(entries.rstrip(" ")) - 1
        if stop < 0 or entries[stop] != "}":
            return None
        tensors = _tensors(entries, stop, start, size_bytes - start)
    except FormatError:
        return None
    return None if tensors is None else (metadata, tensors)


def _tensors(entries: str, stop: int, start: int, data_bytes: int) -> Tensors | None:
    if entries[:stop] in ("", ","):
        return Tensors([], [], []) if data_bytes == 0 else None
    parts = _ENTRY.split(entries[:stop])  # the text between entries, and the groups of each entry
    if any(parts[:: _GROUPS + 1]):
        return None
    names, types, begins, ends = (parts[i :: _GROUPS + 1] for i in range(1, _GROUPS + 1))
    parsed = {text: _parse_type(text) for text in set(types)}
    tensor_types = [parsed[text] for text in types]
    offsets = list(accumulate([each.length for each in tensor_types], initial=0))
    # Compared as text: this refuses numbers with leading zeros.
    if list(map(str, offsets[1:])) != ends or begins != ["0", *ends[:-1]]:
        return None
    if offsets.pop() != data_bytes or len({METADATA_KEY, *names}) != len(names) + 1:
        return None
    return Tensors(names, tensor_types, [start + offset for offset in offsets])


def _parse_type(text: str) -> TensorType:
    match = _TYPE.fullmatch(text)
    if match is None:
        raise FormatError(f"no dtype and shape: {text!r:.80}")
    code, shape = match.groups()
    return tensor_type(code, tuple([int(number) for number in shape.split(",") if number]))


MAX_HEADER_BYTES = 100_000_000  # of the JSON; the limit of the reference implementation

_LFS_POINTER = b"version "


class Header(NamedTuple):
    """The parts of a header."""

    raw: bytes  # the length and the JSON; the data begins at len(raw)
    metadata: dict[str, str]
    entries: dict[str, Any]  # the entry of each tensor, unchecked; empty if `tensors` is set
    tensors: Tensors | None  # the checked tensors, if the header is compact


def read_header(file: ReadableFile) -> Header:
    """Read and parse the header of a file.

    Raises FormatError, TruncatedError or LimitError, whose messages do not name the file.
    """
    raw = _read_raw(file)
    try:
        text = str(memoryview(raw)[8:], "utf-8")
    except UnicodeDecodeError as e:
        raise FormatError(f"the header is not UTF-8 at byte {8 + e.start}") from e
    fast_header = read_fast_header(text, len(raw), file.size_bytes)
    if fast_header is not None:
        metadata, tensors = fast_header
        return Header(raw, _checked_metadata(metadata), {}, tensors)
    entries = parse_json(text, "the header", start=8)
    metadata = entries.pop(METADATA_KEY, None)
    return Header(raw, _checked_metadata(metadata), entries, None)


def _read_raw(file: ReadableFile) -> bytes:
    if file.size_bytes < 8:
        raise TruncatedError(
            f"expected 8 bytes of header length at byte 0, found {file.size_bytes} bytes in all: "
            "the file is cut short: download or copy it again"
        )
    prefix = file.read(0, 8)
    length = int.from_bytes(prefix, "little")
    if length > MAX_HEADER_BYTES:
        if prefix == _LFS_POINTER:
            raise FormatError("this is a Git LFS pointer, not the file itself: run `git lfs pull`")
        raise LimitError(
            f"the length of the header, at byte 0, is {length}; expected at most "
            f"{MAX_HEADER_BYTES} (MAX_HEADER_BYTES): not a safetensors file, or damaged"
        )
    first = file.read(8, min(1, length, file.size_bytes - 8))
    if first not in (b"", b"{"):
        raise FormatError(
            f"expected '{{' at byte 8, found {first!r}: this is not a safetensors file"
        )
    if length > file.size_bytes - 8:
        raise TruncatedError(
            f"the header ends at byte {8 + length}, after the end of the file at "
            f"byte {file.size_bytes}: it is cut short: download or copy it again"
        )
    if not length:
        raise FormatError("expected a header at byte 8, found a length of 0 for it")
    return file.read(0, 8 + length)


def _checked_metadata(metadata: Any) -> dict[str, str]:
    if metadata is None:  # the reference implementation allows null
        return {}
    if type(metadata) is not dict:
        raise FormatError(f"{METADATA_KEY}: expected an object, found {metadata!r:.80}")
    for key, value in metadata.items():
        if type(value) is not str:
            raise FormatError(
                f"{METADATA_KEY}: {key!r:.80}: expected a string, found {value!r:.80}"
            )
        try:
            key.encode()
            value.encode()
        except UnicodeEncodeError as e:
            raise FormatError(f"{METADATA_KEY}: {key!r:.80}: holds a lone surrogate") from e
    return metadata


# The plan of a file


class _Form(NamedTuple):
    """The properties that tensors of one kind, shape and dtype share."""

    leaf_type: int  # position in `types`
    sort_key: tuple[bool, int]  # see data_order
    entry: str  # the text in the header between the name and the offsets
    length: int  # in bytes


@gc_paused()
def plan_save(
    structure: Structure,
    specs: Sequence[LeafSpec],
    *,
    metadata: Mapping[str, str],
    parts: Sequence[LeafPart] | None = None,
) -> FilePlan:
    """Plan a safetensors file.

    The same arguments give the same bytes. The bytes of a long str are its UTF-8; lone surrogates
    are encoded like other characters.

    Args:
        structure: the containers, with one leaf for each of `specs`, in order.
        specs: the leaves. For a PRNG key array, shape and dtype are those of its key data.
        metadata: the user's strings, stored in `__metadata__` unchanged.
        parts: what `LeafBytes` of the plan name for each of `specs`. None: they are the leaves.

    Raises:
        UnsupportedLeafError: a leaf cannot be stored in this format.
        LimitError: the header would exceed MAX_HEADER_BYTES, or the tree has too many nodes.
        ValueError, TypeError: `metadata` holds something that cannot be stored.
    """
    check_metadata(metadata)
    if parts is None:
        parts = [(leaf, None) for leaf in range(len(specs))]
    leaf_count = len(leaf_paths(structure))
    if leaf_count != len(specs):
        raise ValueError(f"a structure of {leaf_count} leaves, but {len(specs)} leaves given")
    tensors, tensor_forms, values, types, leaf_types = _group_leaves(specs)
    names, changed = tensor_names([specs[i].key_path for i in tensors])
    renamed = [(tensors[i], names[i]) for i in changed]
    table = encode_table(structure, types, leaf_types, renamed, values)
    # In the order of the file; ties keep the order of leaves.
    order = sorted(range(len(tensors)), key=[form.sort_key for form in tensor_forms].__getitem__)
    forms = [tensor_forms[i] for i in order]
    ends = list(accumulate([form.length for form in forms], initial=0))
    offsets = list(map(str, ends))
    quoted = [encode_basestring(names[i]) for i in order]
    entries = [
        f",{name}{form.entry}{begin},{end}]}}"
        for name, form, begin, end in zip(quoted, forms, offsets, offsets[1:], strict=False)
    ]
    file_parts = [parts[tensors[i]] for i in order]
    segments = [
        _new(LeafBytes, (leaf, 0, form.length, box))
        for (leaf, box), form in zip(file_parts, forms, strict=True)
        if form.length
    ]
    head = f'{HEADER_START}{"0" * 32}","{VERSION_KEY}":"{VERSION}","{DATA_DIGESTS}":"'
    tail = "".join(
        [
            f'","{STRUCTURE}":{encode_basestring(table)}',
            *[f",{encode_basestring(k)}:{encode_basestring(v)}" for k, v in metadata.items()],
            "}",
            *entries,
            "}",
        ]
    )
    data_bytes = ends[-1]
    digests_width = digest_width(data_bytes)
    size = 8 + len(head) + digests_width + len(tail.encode())
    header_bytes = -(-size // DATA_ALIGNMENT) * DATA_ALIGNMENT
    if header_bytes - 8 > MAX_HEADER_BYTES:
        raise LimitError(
            f"the header would take {header_bytes} bytes; readers of safetensors accept at most "
            f"{MAX_HEADER_BYTES} (MAX_HEADER_BYTES): store fewer or larger leaves in one file"
        )

    def seal(digests: Digests) -> bytes:
        text = encode_digests(digests)
        if (digests.start, digests.block_bytes) != (header_bytes, BLOCK_BYTES) or len(
            text
        ) != digests_width:
            raise ValueError(
                f"expected digests of {BLOCK_BYTES}-byte blocks of the {data_bytes} bytes from "
                f"byte {header_bytes} on, found {len(digests.values)} bytes of digests of "
                f"{digests.block_bytes}-byte blocks from byte {digests.start} on"
            )
        return finish_header(f"{head}{text}{tail}", header_bytes)

    return FilePlan(header_bytes + data_bytes, tuple(segments), header_bytes, seal)


def _form(leaf_type: int, code: str, shape: tuple[int, ...], itemsize: int, length: int) -> _Form:
    entry = f':{{"dtype":"{code}","shape":[{",".join(map(str, shape))}],"data_offsets":['
    return _Form(leaf_type, data_order(length, itemsize), entry, length)


def _group_leaves(
    specs: Sequence[LeafSpec],
) -> tuple[list[int], list[_Form], list[Any], list[LeafType], list[int]]:
    """Divide the leaves into tensors and values in the header.

    Returns the positions and the forms of the tensors; the other leaves, encoded; the types of
    leaves; and the position of each leaf's type among them.
    """
    tensors: list[int] = []
    forms: list[_Form] = []
    values: list[Any] = []
    numbers: dict[LeafType, int] = {}
    leaf_types: list[int] = []
    # Most leaves are of few types: the form is computed once for each type.
    cache: dict[tuple[Any, ...], _Form] = {}
    for i, spec in enumerate(specs):
        cache_key = spec[1:6]  # all but the path and the value
        form = cache.get(cache_key)
        if form is None and spec.kind in VALUE_KINDS:
            size = value_bytes(spec.value) if spec.kind in BYTE_KINDS else 0
            leaf_type = LeafType(spec.kind, size > INLINE_BYTES)
            number = numbers.setdefault(leaf_type, len(numbers))
            if not leaf_type.tensor:
                values.append(encode_value(spec.kind, spec.value))
                leaf_types.append(number)
                continue
            form = _form(number, "U8", (size,), 1, size)
        elif form is None:
            form = cache[cache_key] = _array_form(spec, numbers)
        tensors.append(i)
        forms.append(form)
        leaf_types.append(form.leaf_type)
    return tensors, forms, values, list(numbers), leaf_types


def _array_form(spec: LeafSpec, numbers: dict[LeafType, int]) -> _Form:
    _, kind, shape, dtype, weak_type, impl, _ = spec
    if len(shape) >= MAX_DIMS or kind == "opaque":
        name = format_path(spec.key_path) or "the tree itself"
        problem = f"{len(shape)} dimensions; safetensors takes fewer than {MAX_DIMS} (MAX_DIMS)"
        if kind == "opaque":
            problem = "a value that only its original format understands cannot be stored here"
        raise UnsupportedLeafError(f"{name}: {problem}")
    code, itemsize, is_substitute, extra_shape = stored_dtype(dtype)
    leaf_type = LeafType(kind, True, dtype if is_substitute else "", weak_type, impl)
    number = numbers.setdefault(leaf_type, len(numbers))
    return _form(number, code, shape + extra_shape, itemsize, math.prod(shape) * itemsize)


_new = tuple.__new__


def value_bytes(value: str | bytes) -> int:
    """Return the size of the array that holds a value."""
    return len(value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass"))


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Raise TypeError or ValueError for user strings that cannot be stored."""
    check_metadata_strings(metadata)
    for key in metadata:
        if key.startswith(CORDWOOD_PREFIX):
            raise ValueError(
                f"metadata: {key!r:.80}: keys that begin with {CORDWOOD_PREFIX!r} are "
                "cordwood's own; choose another"
            )
