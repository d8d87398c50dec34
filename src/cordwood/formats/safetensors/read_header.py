"""The header of a safetensors file: eight bytes of length, then JSON that lists the tensors."""

from __future__ import annotations

from typing import NamedTuple

from cordwood.encoding.strict_json import parse_json
from cordwood.encoding.tensor_names import METADATA_KEY
from cordwood.errors import FormatError, LimitError, TruncatedError
from cordwood.formats.safetensors.fast_header import read_fast_header
from cordwood.formats.safetensors.tensors import Tensors
from cordwood.io.open_files import ReadableFile

MAX_HEADER_BYTES = 100_000_000  # of the JSON; the limit of the reference implementation

_LFS_POINTER = b"version "


class Header(NamedTuple):
    """The parts of a header."""

    raw: bytes  # the length and the JSON; the data begins at len(raw)
    metadata: dict[str, str]
    entries: dict[str, object]  # the entry of each tensor, unchecked; empty if `tensors` is set
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


def _checked_metadata(metadata: object) -> dict[str, str]:
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
