"""Decompress: any number of frames, one after another, a few MiB at a time."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from cordwood.engine.files import MemoryFile, ReadableFile
from cordwood.engine.growing import GrowingMemory
from cordwood.errors import CorruptionError, FormatError, LimitError, TruncatedError
from cordwood.formats.compressed import zstd_frames
from cordwood.formats.compressed.zstd_frames import ZstdFrame

__all__ = [
    "CompressedDataError",
    "Sink",
    "decompress",
    "decompress_into",
    "default_limit",
    "require_magic",
]

MAX_RATIO = 1100  # of deflate, at most 1032
LEAST_LIMIT_BYTES = 4 << 30  # what any stream may grow to, however small it is

_PIECE_BYTES = 256 << 10
_STEP_BYTES = 1 << 20  # of what gzip gives at once


class CompressedDataError(CorruptionError, FormatError, gzip.BadGzipFile):
    """A compressed stream is damaged, or was never one."""


def default_limit(compressed_bytes: int) -> int:
    """How far a stream of that size may grow where the caller sets no limit."""
    return max(LEAST_LIMIT_BYTES, MAX_RATIO * compressed_bytes)


class Sink(Protocol):
    """Where decompressed bytes go, one after another."""

    size_bytes: int

    def reserve(self, size_bytes: int) -> None:
        """Be told that so many more are to come."""
        ...

    def append(self, data: bytes) -> None: ...


def decompress(
    file: ReadableFile, kind: str, *, max_bytes: int | None, read_once: bool = False
) -> MemoryFile:
    """What a compressed file holds, in memory, its checksums checked.

    `checked_bytes` of the result are those of frames with a checksum: a gzip stream always has
    one, a zstd frame of others may have none.

    Args:
        file, kind, max_bytes: as `decompress_into` has them.
        read_once: whether memory is given back as the result is read by `read_into`, so that a
            load does not hold everything twice.

    Raises as `decompress_into` does.
    """
    out = GrowingMemory()
    checked = decompress_into(out, file, kind, max_bytes=max_bytes)
    done_with = out.give_back if read_once else None
    return MemoryFile(out.view(), file.name, checked_bytes=checked, done_with=done_with)


def decompress_into(out: Sink, file: ReadableFile, kind: str, *, max_bytes: int | None) -> int:
    """Append what a compressed file holds, a few MiB at a time, its checksums checked.

    Args:
        out: where to.
        file: open; any number of frames, one after another.
        kind: "gz" or "zst".
        max_bytes: how much to accept; None: 4 GiB, or 1100 times the file's size if that is more.

    Returns:
        How many bytes were under a checksum.

    Raises:
        TruncatedError: the file ends inside a frame.
        CompressedDataError: it is damaged, or is no such stream.
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
        frame = zstd_frames.frame_at(file, pos)
        if frame is not None and frame.size_bytes is not None:
            _require_room(size_before + frame.size_bytes, limit, name)
            out.reserve(frame.size_bytes)
        pos = _expand_frame(file, pos, frame, codec, out, limit)
        if frame is None or frame.has_checksum:
            checked += out.size_bytes - size_before
    return checked


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

        return _Codec("zstd", zstd_frames.begins, _new_zstd, _feed_zstd, zstandard.ZstdError)
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
    file: ReadableFile,
    start: int,
    frame: ZstdFrame | None,
    codec: _Codec,
    out: Sink,
    limit: int,
) -> int:
    """Append what a frame holds; the offset after it."""
    pos, decoder = start, codec.decoder()
    pieces = _pieces(file, start) if frame is None else zstd_frames.pieces(file, start, frame)
    try:
        for piece in pieces:
            for data in codec.feed(decoder, piece):
                _append(out, data, limit, file.name)
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
    """The bytes from an offset to the end."""
    for at in range(start, file.size_bytes, _PIECE_BYTES):
        yield file.read(at, min(_PIECE_BYTES, file.size_bytes - at))


def _require_room(size_bytes: int, limit: int, name: str) -> None:
    if size_bytes > limit:
        raise LimitError(
            f"{name}: decompresses to {size_bytes} bytes, and at most {limit} are accepted; pass "
            f"max_bytes={size_bytes} to accept it"
        )


def _append(out: Sink, data: bytes, limit: int, name: str) -> None:
    if out.size_bytes + len(data) > limit:
        raise LimitError(
            f"{name}: decompresses to more than {limit} bytes; pass max_bytes to accept more"
        )
    out.append(data)
