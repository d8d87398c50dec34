"""Compressed streams around a whole file, decompressed: gzip (RFC 1952) and Zstandard (RFC 8878).

Any number of frames are decompressed, a few MiB at a time, and their checksums are checked. gzip
and zstd share a loop: zstd's decoder has no limit of what it returns at once, so that loop counts
the blocks of a frame before it feeds them.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from cordwood.errors import CorruptionError, FormatError, LimitError, TruncatedError
from cordwood.formats.flax_msgpack.value_size import ValueSize
from cordwood.formats.flax_msgpack.zstd_frames import (
    MAGIC,
    SKIPPABLE,
    ZstdFrame,
    block_ends,
    read_frame,
    read_frame_header,
)
from cordwood.io.memory.buffers import GrowableBuffer
from cordwood.io.memory_file import MemoryFile
from cordwood.io.open_files import ReadableFile

MAX_RATIO = 1100  # the ratio of deflate is at most 1032
MIN_LIMIT_BYTES = 4 << 30  # any stream may decompress to this size
UNKNOWN_SIZE_LIMIT_BYTES = 256 << 20  # the same, of zstd frames whose headers do not have it
MAX_EMPTY_FRAMES = 10_000  # more than there are frames that are not: pzstd writes one for each
SLACK_BYTES = 64 << 20  # allowed excess over the size that the contents announce

_PIECE_BYTES = 256 << 10
_FIRST_PIECE_BYTES = 1 << 10
_STEP_BYTES = 1 << 20  # of gzip data that is decoded at a time


class CompressedDataError(CorruptionError, FormatError, gzip.BadGzipFile):
    """A compressed stream is damaged, or was never one."""


def default_limit(compressed_bytes: int) -> int:
    """Return the limit of the decompressed size if the caller sets none."""
    return max(MIN_LIMIT_BYTES, MAX_RATIO * compressed_bytes)


class Sink(Protocol):
    """A receiver of decompressed bytes."""

    size_bytes: int

    def reserve(self, size_bytes: int) -> None:
        """Prepare for `size_bytes` more bytes."""
        ...

    def append(self, data: bytes) -> None: ...


def decompress(
    file: ReadableFile,
    kind: str,
    *,
    max_bytes: int | None,
    size_reader: ValueSize | None = None,
    read_once: bool = False,
) -> MemoryFile:
    """Decompress a file into memory and check its checksums.

    `checked_bytes` of the result counts the bytes of frames with a checksum. A gzip stream always
    has one; a zstd frame of another writer may have none.

    Arguments and errors are those of `decompress_into`. With `read_once` releases memory
    as the result is read by `read_into`, so that a load does not hold everything twice.
    """
    out = GrowableBuffer()
    checked = decompress_into(out, file, kind, max_bytes=max_bytes, size_reader=size_reader)
    done_with = out.release_pages if read_once else None
    return MemoryFile(out.view(), file.name, checked_bytes=checked, discard=done_with)


def decompress_into(
    out: Sink,
    file: ReadableFile,
    kind: str,
    *,
    max_bytes: int | None,
    size_reader: ValueSize | None = None,
) -> int:
    """Decompress a file into `out`, a few MiB at a time, and check its checksums.

    Args:
        out: receives the bytes.
        file: an open file of any number of frames, one after another.
        kind: "gz" or "zst".
        max_bytes: the limit of the decompressed size. None: 4 GiB, or 1100 times the size of the
            file if that is more; for zstd frames without a size, 256 MiB instead of 4 GiB.
        size_reader: reads the decompressed bytes. A stream is refused as soon as it exceeds the
            size that `size_reader` derives by more than SLACK_BYTES.

    Returns:
        The number of bytes that a checksum covers.

    Raises:
        TruncatedError: the file ends inside a frame.
        CompressedDataError: the stream is damaged, or of another kind; or it holds less than
            `size_reader` derives.
        FormatError: it holds more than `size_reader` derives.
        LimitError: it holds more than `max_bytes`, or hardly anything but empty frames.
    """
    limit = default_limit(file.size_bytes) if max_bytes is None else max_bytes
    codec = _codec(kind)
    name, end = file.name, file.size_bytes
    if end == 0:
        raise TruncatedError(f"{name}: byte 0: expected a {codec.name} stream, found an empty file")
    pos = checked = surplus = 0
    while pos < end:
        head = file.read(pos, min(4, end - pos))
        if not codec.begins(head.ljust(4, b"\0")):
            if pos and kind == "gz" and not any(map(any, _pieces(file, pos))):
                break  # padding with zeros, which gzip allows
            raise CompressedDataError(
                f"{name}: byte {pos}: expected a {codec.name} stream, found {head.hex()}"
            )
        size_before = out.size_bytes
        frame = read_frame_header(file, pos)
        frame_limit, frames_bytes = limit, None
        if frame is not None and frame.size_bytes is not None:
            if size_before + frame.size_bytes > limit:
                raise LimitError(
                    f"{name}: decompresses to {size_before + frame.size_bytes} bytes, and at most "
                    f"{limit} are accepted; pass max_bytes={size_before + frame.size_bytes} to "
                    "accept it"
                )
            out.reserve(frame.size_bytes)
            if size_reader is not None and max(block_ends(file, pos, frame), default=end) >= end:
                frames_bytes = size_before + frame.size_bytes
                if frames_bytes <= SLACK_BYTES:
                    size_reader = None  # a check would save nothing
        elif frame is not None and max_bytes is None:
            frame_limit = max(min(UNKNOWN_SIZE_LIMIT_BYTES, MIN_LIMIT_BYTES), MAX_RATIO * end)
        output = _LimitedOutput(out, name, frame_limit, size_reader, frames_bytes)
        pos = _expand_frame(file, pos, frame, codec, output)
        if frame is None or frame.has_checksum:
            checked += out.size_bytes - size_before
        surplus += 1 if out.size_bytes == size_before else -1
        if surplus > MAX_EMPTY_FRAMES:
            raise LimitError(
                f"{name}: byte {pos}: {surplus} more empty frames than others, and at most "
                f"{MAX_EMPTY_FRAMES} are read (MAX_EMPTY_FRAMES)"
            )
    return checked


class _LimitedOutput(NamedTuple):
    """The output of a frame, with the limits of its size."""

    out: Sink
    name: str  # of the file, for errors
    limit: int  # of all frames
    size_reader: ValueSize | None
    frames_bytes: int | None  # the size of all frames, if this is the last and its header has one

    def append(self, data: bytes) -> None:
        """Append bytes. Raises LimitError, FormatError or CompressedDataError beyond a limit."""
        out, name, size_reader = self.out, self.name, self.size_reader
        if out.size_bytes + len(data) > self.limit:
            raise LimitError(
                f"{name}: decompresses to more than {self.limit} bytes; pass max_bytes to accept "
                "more"
            )
        out.append(data)
        if size_reader is None:
            return
        size_reader.feed(data)
        if not size_reader.is_known:
            return
        if size_reader.is_whole and out.size_bytes > size_reader.least_bytes + SLACK_BYTES:
            raise FormatError(
                f"{name}: byte {size_reader.least_bytes}: expected the end of the data, found "
                f"more than {SLACK_BYTES} more bytes"
            )
        if self.frames_bytes is not None and size_reader.least_bytes > self.frames_bytes:
            raise CompressedDataError(
                f"{name}: by its headers the decompressed value takes {size_reader.least_bytes} "
                f"bytes or more, but its frames hold {self.frames_bytes}: it is truncated or "
                "damaged; copy or save it again"
            )


def require_magic(file: ReadableFile, kind: str) -> None:
    """Raise FormatError unless a file begins with the magic number of that kind."""
    head = file.read(0, min(4, file.size_bytes))
    if len(head) < 4 or not _codec(kind).begins(head):
        raise FormatError(f"{file.name}: byte 0: expected a {kind} stream, found {head!r}")


class _StreamCodec(NamedTuple):
    """The functions that recognise and decode the frames of one kind."""

    name: str
    begins: Callable[[bytes], bool]  # of the first four bytes of a frame
    decoder: Callable[[], Any]  # of one frame
    step: tuple[int, ...]  # the limit of what the decoder returns at once, if it has one
    error: type[Exception]  # raised by a decoder


def _codec(kind: str) -> _StreamCodec:
    if kind == "gz":
        return _StreamCodec(
            "gzip",
            lambda head: head[:2] == b"\x1f\x8b",
            lambda: zlib.decompressobj(16 + zlib.MAX_WBITS),
            (_STEP_BYTES,),
            zlib.error,
        )
    if kind == "zst":
        import zstandard

        decoder = zstandard.ZstdDecompressor
        return _StreamCodec(
            "zstd",
            lambda head: head == MAGIC or (0x50 <= head[0] <= 0x5F and head[1:] == SKIPPABLE),
            lambda: decoder().decompressobj(),
            (),
            zstandard.ZstdError,
        )
    raise ValueError(f'expected "gz" or "zst", found {kind!r}')


def _expand_frame(
    file: ReadableFile,
    start: int,
    frame: ZstdFrame | None,
    codec: _StreamCodec,
    output: _LimitedOutput,
) -> int:
    """Decompress one frame into `output`; return the offset after it."""
    pos, decoder = start, codec.decoder()
    pieces = _pieces(file, start) if frame is None else read_frame(file, start, frame)
    try:
        for piece in pieces:
            data = piece
            while data and not decoder.eof:
                output.append(decoder.decompress(data, *codec.step))
                data = decoder.unconsumed_tail if codec.step else b""
            pos += len(piece)
            if decoder.eof:
                return pos - len(decoder.unused_data)
    except codec.error as e:
        raise CompressedDataError(
            f"{file.name}: the {codec.name} stream that begins at byte {start} is damaged: {e}"
        ) from e
    raise TruncatedError(
        f"{file.name}: byte {file.size_bytes}: truncated: the {codec.name} stream that begins at "
        f"byte {start} has no end; copy or save it again"
    )


def _pieces(file: ReadableFile, start: int) -> Iterator[bytes]:
    """Yield the bytes from an offset to the end, in pieces that grow, as a stream may be short.

    Bytes after the end of a stream are read again for the next stream, and a file may have hundreds
    of thousands of streams.
    """
    at, size = start, _FIRST_PIECE_BYTES
    while at < file.size_bytes:
        yield file.read(at, min(size, file.size_bytes - at))
        at += size
        size = min(2 * size, _PIECE_BYTES)
