"""The header: eight bytes of length, then JSON. Read and checked as the format defines it."""

from __future__ import annotations

import json
import math
from itertools import chain
from typing import Any, NamedTuple

from cordwood.engine.files import ReadableFile
from cordwood.errors import FormatError, LimitError, TruncatedError
from cordwood.formats.safetensors.codes import CODES
from cordwood.formats.safetensors.names import METADATA_KEY
from cordwood.formats.safetensors.strict_json import parse_json

__all__ = ["MAX_DIMS", "MAX_HEADER_BYTES", "Header", "Tensor", "read_header", "tensor_table"]

MAX_HEADER_BYTES = 100_000_000  # of the JSON; the reference's limit
MAX_DIMS = 64  # numpy's limit
MAX_TENSOR_BYTES = (1 << 63) - 1

_new = tuple.__new__  # a third of what calling a named tuple costs
_LFS_POINTER = b"version "


class Header(NamedTuple):
    """A header's parts."""

    raw: bytes  # with its length in front: the data begins at len(raw)
    metadata: dict[str, str]
    tensors: dict[str, Any]  # unchecked


class Tensor(NamedTuple):
    """A checked tensor."""

    code: str  # a key of CODES
    shape: tuple[int, ...]
    elements: int
    offset: int  # in bytes, from the start of the file
    length: int  # in bytes


def read_header(file: ReadableFile) -> Header:
    """Read and parse the header of a file.

    Raises FormatError, TruncatedError or LimitError, without naming the file.
    """
    if file.size_bytes < 8:
        raise TruncatedError(
            f"expected 8 bytes of header length at byte 0, found {file.size_bytes} bytes in all"
        )
    prefix = file.read(0, 8)
    length = int.from_bytes(prefix, "little")
    if length > MAX_HEADER_BYTES:
        if prefix == _LFS_POINTER:
            raise FormatError("this is a Git LFS pointer, not the file itself: run `git lfs pull`")
        raise LimitError(
            f"the length of the header, at byte 0, is {length}; expected at most "
            f"{MAX_HEADER_BYTES} (MAX_HEADER_BYTES): this is no safetensors file, or it is damaged"
        )
    if length > file.size_bytes - 8:
        raise TruncatedError(
            f"the header ends at byte {8 + length}, after the end of the file at "
            f"byte {file.size_bytes}"
        )
    raw = file.read(0, 8 + length)
    if raw[8:9] != b"{":
        raise FormatError(f"expected '{{' at byte 8, found {raw[8:9]!r}")
    try:
        text = raw[8:].decode()
    except UnicodeDecodeError as e:
        raise FormatError(f"the header is not UTF-8 at byte {8 + e.start}") from e
    entries = parse_json(text, "the header", start=8)
    metadata = entries.pop(METADATA_KEY, None)
    return Header(raw, _checked_metadata(metadata), entries)


def _checked_metadata(metadata: Any) -> dict[str, str]:
    if metadata is None:  # the reference allows null
        return {}
    if type(metadata) is not dict:
        raise FormatError(f"{METADATA_KEY}: expected an object, found {metadata!r:.80}")
    for key, value in metadata.items():
        if type(value) is not str:
            raise FormatError(
                f"{METADATA_KEY}: {key!r:.80}: expected a string, found {value!r:.80}"
            )
    _require_unicode("".join(chain.from_iterable(metadata.items())), METADATA_KEY)
    return metadata


def _require_unicode(text: str, where: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as e:
        raise FormatError(f"{where}: a lone surrogate is no character") from e


def tensor_table(header: Header, size_bytes: int) -> dict[str, Tensor]:
    """The tensors of a file of `size_bytes`, in the header's order.

    Checked: dtypes, shapes, sizes, and that the tensors cover the data exactly.

    Raises FormatError or TruncatedError; the message names the tensor and where in the header
    it stands.
    """
    start = len(header.raw)
    tensors: dict[str, Tensor] = {}
    known: dict[tuple[str, tuple[int, ...]], tuple[int, int, tuple[int, ...]]] = {}
    ranges: list[tuple[int, int]] = []
    try:
        plain = _all_plain(header.tensors)
        for name, entry in header.tensors.items():
            if not plain:
                _check_entry(entry)
            code = entry["dtype"]
            shape = tuple(entry["shape"])
            begin, end = entry["data_offsets"]
            found = known.get((code, shape))
            if found is None:
                found = known[code, shape] = (*_sizes(code, shape), shape)
            elements, length, shape = found
            if end - begin != length:
                raise FormatError(
                    f"{code}{list(shape)} takes {length} bytes, found data_offsets "
                    f"[{begin}, {end}], {end - begin} bytes"
                )
            ranges.append((begin, end))
            tensors[name] = _new(Tensor, (code, shape, elements, start + begin, length))
    except FormatError as e:
        raise FormatError(f"tensor {name!r:.200}{_position(header, name)}: {e}") from e
    _require_unicode("".join(tensors), "tensor names")
    _check_coverage(header, ranges, size_bytes)
    return tensors


def _all_plain(entries: dict[str, Any]) -> bool:
    """Whether every entry has the right members of the right types: a quick check of all."""
    try:
        if not set(map(type, entries.values())) <= {dict} or not set(
            map(len, entries.values())
        ) <= {3}:
            return False
        shapes = [entry["shape"] for entry in entries.values()]
        offsets = [entry["data_offsets"] for entry in entries.values()]
        codes = {entry["dtype"] for entry in entries.values()}
    except (KeyError, TypeError):
        return False
    if not set(map(type, shapes)) | set(map(type, offsets)) <= {list}:
        return False
    if not set(map(type, codes)) <= {str} or not set(map(len, offsets)) <= {2}:
        return False
    numbers = list(chain.from_iterable(chain(shapes, offsets)))
    return set(map(type, numbers)) <= {int} and min(numbers, default=0) >= 0


def _check_entry(entry: Any) -> None:
    if type(entry) is not dict or set(entry) != {"dtype", "shape", "data_offsets"}:
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


def _sizes(code: str, shape: tuple[int, ...]) -> tuple[int, int]:
    """How many elements and bytes a tensor has."""
    row = CODES.get(code)
    if row is None:
        raise FormatError(f"unknown dtype {code!r:.80}; expected one of {', '.join(sorted(CODES))}")
    if len(shape) > MAX_DIMS:
        raise LimitError(f"{len(shape)} dimensions; expected at most {MAX_DIMS} (MAX_DIMS)")
    # As numpy counts: axes of no elements do not make the others small enough.
    if math.prod(filter(None, shape)) * row.bits > 8 * MAX_TENSOR_BYTES:
        raise FormatError("the shape takes more than 2**63 bytes")
    elements = math.prod(shape)
    bits = elements * row.bits
    if bits % 8:
        raise FormatError(
            f"{elements} elements of {code}, {row.bits} bits each, do not fill whole bytes"
        )
    return elements, bits // 8


def _check_coverage(header: Header, ranges: list[tuple[int, int]], size_bytes: int) -> None:
    """Require the tensors to lie one after another, from the header to the end of the file."""
    start = len(header.raw)
    end = 0
    for begin, stop in sorted(ranges):
        if begin != end:
            names = list(header.tensors)
            name = names[ranges.index((begin, stop))]
            what = "overlaps the one before it" if begin < end else "leaves a gap before it"
            raise FormatError(
                f"tensor {name!r:.200}{_position(header, name)}: begins at byte {begin} of the "
                f"data and {what}; expected byte {end}"
            )
        end = stop
    if start + end > size_bytes:
        raise TruncatedError(
            f"the tensors end at byte {start + end}, after the end of the file at byte {size_bytes}"
        )
    if start + end < size_bytes:
        raise FormatError(
            f"{size_bytes - start - end} bytes after the last tensor, from byte {start + end} on"
        )


def _position(header: Header, name: str) -> str:
    """Where a name stands in the header, for an error."""
    for quoted in (json.dumps(name, ensure_ascii=False), json.dumps(name)):
        position = header.raw.find(f"{quoted}:".encode("utf-8", "surrogatepass"))
        if position >= 0:
            return f" (header byte {position})"
    return ""
