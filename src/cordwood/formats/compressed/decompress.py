"""Decompress: any number of frames, one after another, a few MiB at a time."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from cordwood.errors import CorruptionError, FormatError, LimitError, TruncatedError
from cordwood.formats.compressed import zstd_frames
from cordwood.formats.compressed.zstd_frames import ZstdFrame
from cordwood.io.growable_buffer import GrowableBuffer
from cordwood.storage.open_files import MemoryFile, ReadableFile

MAX_RATIO = 1100  # of deflate, at most 1032
MIN_LIMIT_BYTES = 4 << 30  # what any stream may grow to, however small it is
UNKNOWN_SIZE_LIMIT_BYTES = (
    256 << 20
)  # the same, of zstd frames whose headers do not tell their size
SLACK_BYTES = 64 << 20  # up to which a stream may be other than what it holds tells

_PIECE_BYTES = 256 << 10
_FIRST_PIECE_BYTES = 1 << 10
_STEP_BYTES = 1 << 20  # of what gzip gives at once


class CompressedDataError(CorruptionError, FormatError, gzip.BadGzipFile):
    """A compressed stream is damaged, or was never one."""


def default_limit(compressed_bytes: int) -> int:
    """How far a stream of that size may grow where the caller sets no limit."""
    return max(MIN_LIMIT_BYTES, MAX_RATIO * compressed_bytes)


class Sink(Protocol):
    """Where decompressed bytes go, one after another."""

    size_bytes: int

    def reserve(self, size_bytes: int) -> None:
        """Be told that so many more are to come."""
        ...

    def append(self, data: bytes) -> None: ...


class SizeReader(Protocol):
    """The size of what a stream holds, as far as what has arrived of it tells."""

    @property
    def is_known(self) -> bool: ...

    @property
    def is_whole(self) -> bool:
        """True once `least_bytes` is the size, and no longer the least that it can be."""
        ...

    @property
    def least_bytes(self) -> int: ...

    def feed(self, data: bytes) -> None: ...


def decompress(
    file: ReadableFile,
    kind: str,
    *,
    max_bytes: int | None,
    outline: SizeReader | None = None,
    read_once: bool = False,
) -> MemoryFile:
    """Return what a compressed file holds, in memory, its checksums checked.

    `checked_bytes` of the result are those of frames with a checksum: a gzip stream always has
    one, a zstd frame of others may have none.

    Args:
        file, kind, max_bytes, outline: as `decompress_into` has them.
        read_once: whether memory is given back as the result is read by `read_into`, so that a
            load does not hold everything twice.

    Raises as `decompress_into` does.
    """
    out = GrowableBuffer()
    checked = decompress_into(out, file, kind, max_bytes=max_bytes, outline=outline)
    done_with = out.release_pages if read_once else None
    return MemoryFile(out.view(), file.name, checked_bytes=checked, discard=done_with)


def decompress_into(
    out: Sink,
    file: ReadableFile,
    kind: str,
    *,
    max_bytes: int | None,
    outline: SizeReader | None = None,
    slack_bytes: int = SLACK_BYTES,
) -> int:
    """Append what a compressed file holds, a few MiB at a time, its checksums checked.

    Args:
        out: where to.
        file: open; any number of frames, one after another.
        kind: "gz" or "zst".
        max_bytes: how much to accept; None: 4 GiB, or 1100 times the file's size if that is more;
            of zstd frames that do not tell their size 256 MiB, or the same.
        outline: reads what is decompressed; what is larger than it tells by more than
            `slack_bytes` is refused as soon as that is known.
        slack_bytes: see `outline`.

    Returns:
        How many bytes were under a checksum.

    Raises:
        TruncatedError: the file ends inside a frame.
        CompressedDataError: it is damaged, or is no such stream; or it holds less than what is in
            it tells.
        FormatError: it holds more than that.
        LimitError: it holds more than `max_bytes`.
    """
    limit = default_limit(file.size_bytes) if max_bytes is None else max_bytes
    codec = _codec(kind)
    name, end = file.name, file.size_bytes
    if end == 0:
        raise TruncatedError(f"{name}: byte 0: expected a {codec.name} stream, found an empty file")
    pos = checked = 0
    while pos < end:
        head = file.read(pos, min(4, end - pos))
        if not codec.begins(head.ljust(4, b"\0")):
            if pos and kind == "gz" and not any(map(any, _pieces(file, pos))):
                break  # padding with zeros, which gzip allows
            raise CompressedDataError(
                f"{name}: byte {pos}: expected a {codec.name} stream, found {head.hex()}"
            )
        size_before = out.size_bytes
        frame = zstd_frames.read_frame_header(file, pos)
        frame_limit, told = limit, None
        if frame is not None and frame.size_bytes is not None:
            _require_room(size_before + frame.size_bytes, limit, name)
            out.reserve(frame.size_bytes)
            if outline is not None and zstd_frames.frame_end(file, pos, frame) >= end:
                told = size_before + frame.size_bytes
                if told <= slack_bytes:
                    outline = None  # there is nothing to save
        elif frame is not None and max_bytes is None:
            frame_limit = _untold_limit(end)
        room = _Room(out, name, frame_limit, outline, slack_bytes, told)
        pos = _expand_frame(file, pos, frame, codec, room)
        if frame is None or frame.has_checksum:
            checked += out.size_bytes - size_before
    return checked


def _untold_limit(compressed_bytes: int) -> int:
    """Return how far a stream of that size may grow whose frames do not tell their size."""
    return max(min(UNKNOWN_SIZE_LIMIT_BYTES, MIN_LIMIT_BYTES), MAX_RATIO * compressed_bytes)


class _Room(NamedTuple):
    """Where a frame is decompressed to, and how far."""

    out: Sink
    name: str  # of the file, for errors
    limit: int  # of all frames
    outline: SizeReader | None
    slack_bytes: int
    told: int | None  # the size of all frames together, where this is the last and tells its own

    def append(self, data: bytes) -> None:
        """Raise LimitError, FormatError or CompressedDataError where that is too much."""
        out, name, outline = self.out, self.name, self.outline
        if out.size_bytes + len(data) > self.limit:
            raise LimitError(
                f"{name}: decompresses to more than {self.limit} bytes; pass max_bytes to accept "
                "more"
            )
        out.append(data)
        if outline is None:
            return
        outline.feed(data)
        if not outline.is_known:
            return
        if outline.is_whole and out.size_bytes > outline.least_bytes + self.slack_bytes:
            raise FormatError(
                f"{name}: byte {outline.least_bytes}: expected the end, found more than "
                f"{self.slack_bytes} more bytes"
            )
        if self.told is not None and outline.least_bytes > self.told:
            raise CompressedDataError(
                f"{name}: what it decompresses to takes {outline.least_bytes} bytes or more, by "
                f"its own headers, and its frames hold {self.told}: it is truncated or damaged; "
                "copy or save it again"
            )


def require_magic(file: ReadableFile, kind: str) -> None:
    """Raise FormatError unless a file begins as one of that kind does."""
    head = file.read(0, min(4, file.size_bytes))
    if len(head) < 4 or not _codec(kind).begins(head):
        raise FormatError(f"{file.name}: byte 0: expected a {kind} stream, found {head!r}")


class _Codec(NamedTuple):
    """How the frames of a kind are told and decoded."""

    name: str
    begins: Callable[[bytes], bool]  # of the first four bytes of a frame
    decoder: Callable[[], Any]  # of one frame
    feed: Callable[[Any, bytes], Iterator[bytes]]  # what a decoder makes of some bytes
    error: type[Exception]  # what a decoder raises


def _codec(kind: str) -> _Codec:
    if kind == "gz":
        return _Codec("gzip", _begins_gzip, _new_gzip, _feed_gzip, zlib.error)
    if kind == "zst":
        import zstandard

        return _Codec("zstd", zstd_frames.is_zstd_magic, _new_zstd, _feed_zstd, zstandard.ZstdError)
    raise ValueError(f'expected "gz" or "zst", found {kind!r}')


def _begins_gzip(head: bytes) -> bool:
    return head[:2] == b"\x1f\x8b"


def _new_gzip() -> Any:
    return zlib.decompressobj(16 + zlib.MAX_WBITS)


def _new_zstd() -> Any:
    import zstandard

    return zstandard.ZstdDecompressor().decompressobj()


def _feed_gzip(decoder: Any, data: bytes) -> Iterator[bytes]:
    yield decoder.decompress(data, _STEP_BYTES)
    while decoder.unconsumed_tail and not decoder.eof:
        yield decoder.decompress(decoder.unconsumed_tail, _STEP_BYTES)


def _feed_zstd(decoder: Any, data: bytes) -> Iterator[bytes]:
    yield decoder.decompress(data)


def _expand_frame(
    file: ReadableFile, start: int, frame: ZstdFrame | None, codec: _Codec, room: _Room
) -> int:
    """Append what a frame holds; return the offset after it."""
    pos, decoder = start, codec.decoder()
    pieces = _pieces(file, start) if frame is None else zstd_frames.read_frame(file, start, frame)
    try:
        for piece in pieces:
            for data in codec.feed(decoder, piece):
                room.append(data)
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
    """Yield the bytes from an offset to the end: few at first, as a stream may be short.

    What is read after the end of a stream is read again for the next one, of which a file may have
    hundreds of thousands.
    """
    at, size = start, _FIRST_PIECE_BYTES
    while at < file.size_bytes:
        yield file.read(at, min(size, file.size_bytes - at))
        at += size
        size = min(2 * size, _PIECE_BYTES)


def _require_room(size_bytes: int, limit: int, name: str) -> None:
    if size_bytes > limit:
        raise LimitError(
            f"{name}: decompresses to {size_bytes} bytes, and at most {limit} are accepted; pass "
            f"max_bytes={size_bytes} to accept it"
        )
