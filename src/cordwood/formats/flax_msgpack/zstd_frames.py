"""The frames of a zstd stream: their headers, and the ends of their blocks (RFC 8878)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cordwood.io.chunk_codecs import BLOCK_HEADER_BYTES, parse_block_header
from cordwood.io.open_files import ReadableFile

MAGIC = b"\x28\xb5\x2f\xfd"

SKIPPABLE = b"\x2a\x4d\x18"  # after a byte from 0x50 to 0x5f
_HEADER_BYTES = 18  # at most
_BLOCKS = 32  # decompressed at once; each holds at most 128 KiB
_PIECE_BYTES = 1 << 20


class ZstdFrame(NamedTuple):
    """The header of a frame."""

    size_bytes: int | None  # decompressed; None if the header does not say
    has_checksum: bool
    header_bytes: int


def read_frame_header(file: ReadableFile, pos: int) -> ZstdFrame | None:
    """Return the header of the frame at `pos`.

    Returns None for a skippable or damaged frame; the decoder reports damage.
    """
    head = file.read(pos, min(_HEADER_BYTES, file.size_bytes - pos))
    if head[:4] != MAGIC:
        return None
    import zstandard

    try:
        parameters = zstandard.get_frame_parameters(head)
        header_bytes = zstandard.frame_header_size(head)
    except zstandard.ZstdError:
        return None
    is_known = parameters.content_size != zstandard.CONTENTSIZE_UNKNOWN
    size_bytes = parameters.content_size if is_known else None
    return ZstdFrame(size_bytes, parameters.has_checksum, header_bytes)


def block_ends(file: ReadableFile, pos: int, frame: ZstdFrame) -> Iterator[int]:
    """Yield the offset after each block of a frame; a checksum counts to the last one.

    The last offset may be after the end of the file, if that is truncated.
    """
    at, is_last = pos + frame.header_bytes, False
    while not is_last and at < file.size_bytes:
        header = file.read(at, min(BLOCK_HEADER_BYTES, file.size_bytes - at))
        size, is_last = parse_block_header(header)
        at += size + (4 if is_last and frame.has_checksum else 0)
        yield at


def read_frame(file: ReadableFile, pos: int, frame: ZstdFrame) -> Iterator[bytes]:
    """Yield the bytes of a frame, a few blocks at a time, which decode to 4 MiB at most.

    A decoder returns everything that its input decodes to, which can be 128 KiB for 4 bytes.
    Therefore the blocks are counted.
    """
    at, blocks = pos + frame.header_bytes, 0
    for at in block_ends(file, pos, frame):
        blocks += 1
        if blocks == _BLOCKS or at - pos >= _PIECE_BYTES:
            yield file.read(pos, min(at, file.size_bytes) - pos)
            pos, blocks = at, 0
    if pos < min(at, file.size_bytes):
        yield file.read(pos, min(at, file.size_bytes) - pos)
