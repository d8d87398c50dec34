"""The tensors that a header lists: their types, and the check of each entry."""

from __future__ import annotations

import json
import math
from typing import NamedTuple

from cordwood.errors import FormatError, LimitError, TruncatedError
from cordwood.formats.safetensors.dtype_codes import CODES
from cordwood.index import MAX_ARRAY_BYTES, MAX_DIMS, Encoding, Span

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


def tensor_table(entries: dict[str, object], header: bytes, *, size_bytes: int) -> Tensors:
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


def _checked_entry(entry: object) -> tuple[str, tuple[int, ...], int, int]:
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
