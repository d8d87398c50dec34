"""The frames of a zstd stream (RFC 8878): what their headers tell, and their blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cordwood.io.zstd_blocks import BLOCK_HEADER_BYTES, parse_block_header
from cordwood.storage.open_files import ReadableFile

MAGIC = b"\x28\xb5\x2f\xfd"

_SKIPPABLE = b"\x2a\x4d\x18"  # after a byte from 0x50 to 0x5f
_HEADER_BYTES = 18  # at most
_BLOCKS = 32  # decompressed at once; each holds at most 128 KiB
_PIECE_BYTES = 1 << 20


class ZstdFrame(NamedTuple):
    """What the header of a frame tells."""

    size_bytes: int | None  # of what it holds, where that is told
    has_checksum: bool
    header_bytes: int


def is_zstd_magic(head: bytes) -> bool:
    """Whether the first four bytes of a frame are one's; of those that hold nothing too."""
    return head == MAGIC or (0x50 <= head[0] <= 0x5F and head[1:] == _SKIPPABLE)


def read_frame_header(file: ReadableFile, pos: int) -> ZstdFrame | None:
    """None where none begins that holds something, or it is damaged: its decoder will say so."""
    head = file.read(pos, min(_HEADER_BYTES, file.size_bytes - pos))
    if head[:4] != MAGIC:
        return None
    import zstandard

    try:
        found = zstandard.get_frame_parameters(head)
        header_bytes = zstandard.frame_header_size(head)
    except zstandard.ZstdError:
        return None
    told = found.content_size != zstandard.CONTENTSIZE_UNKNOWN
    return ZstdFrame(found.content_size if told else None, found.has_checksum, header_bytes)


def frame_end(file: ReadableFile, pos: int, frame: ZstdFrame) -> int:
    """Return the offset after the frame that begins at `pos`, by the headers of its blocks.

    It may lie after the end of the file, where that is truncated.
    """
    at, is_last = pos + frame.header_bytes, False
    while not is_last and at < file.size_bytes:
        size, is_last = parse_block_header(
            file.read(at, min(BLOCK_HEADER_BYTES, file.size_bytes - at))
        )
        at += size
    return at + (4 if frame.has_checksum else 0)


def read_frame(file: ReadableFile, pos: int, frame: ZstdFrame) -> Iterator[bytes]:
    """The bytes of a frame, a few blocks at a time, which decode to 4 MiB at most.

    A decoder gives all that its input decodes to, up to 128 KiB for every 4 bytes of it: so the
    blocks are counted.
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
