"""The frames of a zstd stream (RFC 8878): their headers and blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cordwood.io.zstd_block_header import BLOCK_HEADER_BYTES, parse_block_header
from cordwood.storage.open_files import ReadableFile

MAGIC = b"\x28\xb5\x2f\xfd"

_SKIPPABLE = b"\x2a\x4d\x18"  # after a byte from 0x50 to 0x5f
_HEADER_BYTES = 18  # at most
_BLOCKS = 32  # decompressed at once; each holds at most 128 KiB
_PIECE_BYTES = 1 << 20


class ZstdFrame(NamedTuple):
    """The header of a frame."""

    size_bytes: int | None  # decompressed; None if the header does not say
    has_checksum: bool
    header_bytes: int


def is_zstd_magic(head: bytes) -> bool:
    """Return whether four bytes begin a zstd frame, also a skippable one."""
    return head == MAGIC or (0x50 <= head[0] <= 0x5F and head[1:] == _SKIPPABLE)


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


def frame_end(file: ReadableFile, pos: int, frame: ZstdFrame) -> int:
    """Return the offset after the frame that begins at `pos`, by the headers of its blocks.

    The offset may be after the end of the file, if that is truncated.
    """
    at, is_last = pos + frame.header_bytes, False
    while not is_last and at < file.size_bytes:
        size, is_last = parse_block_header(
            file.read(at, min(BLOCK_HEADER_BYTES, file.size_bytes - at))
        )
        at += size
    return at + (4 if frame.has_checksum else 0)


def read_frame(file: ReadableFile, pos: int, frame: ZstdFrame) -> Iterator[bytes]:
    """Yield the bytes of a frame, a few blocks at a time, which decode to 4 MiB at most.

    A decoder returns everything that its input decodes to, which can be 128 KiB for 4 bytes.
    Therefore the blocks are counted.
    """
    end = file.size_bytes
    at, is_last = pos + frame.header_bytes, False
    while not is_last and pos < end:
        for _ in range(_BLOCKS):
            if at >= min(end, pos + _PIECE_BYTES):
                break
            size, is_last = parse_block_header(file.read(at, min(BLOCK_HEADER_BYTES, end - at)))
            at += size
            if is_last:
                at += 4 if frame.has_checksum else 0
                break
        stop = min(at, end)
        yield file.read(pos, stop - pos)
        pos = stop
