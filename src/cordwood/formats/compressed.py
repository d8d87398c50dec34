"""Compressed streams: gzip (RFC 1952) and Zstandard (RFC 8878), one frame around a whole file.

Both carry a checksum of what they hold, which is checked while decompressing. The same bytes in
give the same bytes out: the gzip header tells no time and no system.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from cordwood.engine.files import MemoryFile, ReadableFile
from cordwood.engine.growing import GrowingMemory
from cordwood.errors import CorruptionError, FormatError, LimitError, TruncatedError

__all__ = ["CompressedDataError", "compress", "decompress", "default_limit", "require_magic"]

GZIP_LEVEL = 6
ZSTD_LEVEL = 3
MAX_RATIO = 1100  # of deflate, at most 1032
LEAST_LIMIT_BYTES = 4 << 30  # what any stream may grow to, however small it is

_STEP_BYTES = 1 << 20
# Deflate, no flags, no time, no extra flags, unknown system.
_GZIP_HEADER = struct.pack("<BBBBIBB", 0x1F, 0x8B, 8, 0, 0, 0, 255)
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_HEADER_BYTES = 18  # at most
_ZSTD_SKIPPABLE = b"\x2a\x4d\x18"  # after a byte from 0x50 to 0x5f

Buffer = bytes | bytearray | memoryview


class CompressedDataError(CorruptionError, FormatError, gzip.BadGzipFile):
    """A compressed stream is damaged, or was never one."""


def compress(
    chunks: Iterable[Buffer], kind: str, *, size_bytes: int | None = None
) -> Iterator[bytes]:
    """Compress `chunks`, one after another, as one frame.

    Args:
        chunks: what to compress.
        kind: "gz" or "zst".
        size_bytes: of all chunks together, where that is known: the zstd header tells it.
    """
    if kind == "gz":
        return _gzip(_steps(chunks))
    if kind == "zst":
        return _zstd(_steps(chunks), size_bytes)
    raise ValueError(f'expected "gz" or "zst", found {kind!r}')


def _steps(chunks: Iterable[Buffer]) -> Iterator[memoryview]:
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        for start in range(0, len(view), _STEP_BYTES):
            yield view[start : start + _STEP_BYTES]


def _gzip(steps: Iterable[memoryview]) -> Iterator[bytes]:
    yield _GZIP_HEADER
    deflate = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    checksum, size = 0, 0
    for step in steps:
        checksum = zlib.crc32(step, checksum)
        size += len(step)
        if data := deflate.compress(step):
            yield data
    yield deflate.flush()
    yield struct.pack("<II", checksum, size & 0xFFFFFFFF)


def _zstd(steps: Iterable[memoryview], size_bytes: int | None) -> Iterator[bytes]:
    import zstandard

    compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True)
    stream = compressor.compressobj(size=-1 if size_bytes is None else size_bytes)
    for step in steps:
        if data := stream.compress(step):
            yield data
    yield stream.flush()


def default_limit(compressed_bytes: int) -> int:
    """How far a stream of that size may grow where the caller sets no limit."""
    return max(LEAST_LIMIT_BYTES, MAX_RATIO * compressed_bytes)


def decompress(
    file: ReadableFile, kind: str, *, max_bytes: int | None, read_once: bool = False
) -> MemoryFile:
    """What a compressed file holds, in memory, its checksums checked.

    `checked_bytes` of the result are those of frames with a checksum: a gzip stream always has
    one, a zstd frame of others may have none.

    Args:
        file: open; any number of frames, one after another.
        kind: "gz" or "zst".
        max_bytes: how much to accept; None: 4 GiB, or 1100 times the file's size if that is more.
        read_once: whether memory is given back as the result is read by `read_into`, so that a
            load does not hold everything twice.

    Raises:
        TruncatedError: the file ends inside a frame.
        CompressedDataError: it is damaged, or is no such stream.
        LimitError: it holds more than `max_bytes`.
    """
    limit = default_limit(file.size_bytes) if max_bytes is None else max_bytes
    data = file.map()
    if kind == "gz":
        found = _expand(data, file.name, limit, "gzip", _new_gzip, (zlib.error,), _begins_gzip)
    elif kind == "zst":
        import zstandard

        errors = (zstandard.ZstdError,)
        found = _expand(data, file.name, limit, "zstd", _new_zstd, errors, _begins_zstd)
    else:
        raise ValueError(f'expected "gz" or "zst", found {kind!r}')
    out, checked = found
    done_with = out.give_back if read_once else None
    return MemoryFile(out.view(), file.name, checked_bytes=checked, done_with=done_with)


def require_magic(file: ReadableFile, kind: str) -> None:
    """Raise FormatError unless a file begins as one of that kind does."""
    head = file.read(0, min(4, file.size_bytes))
    if len(head) < 4 or not {"gz": _begins_gzip, "zst": _begins_zstd}[kind](head):
        raise FormatError(f"{file.name}: byte 0: expected a {kind} stream, found {head!r}")


def _new_gzip() -> Any:
    return zlib.decompressobj(16 + zlib.MAX_WBITS)


def _new_zstd() -> Any:
    import zstandard

    return zstandard.ZstdDecompressor().decompressobj()


def _begins_gzip(head: bytes) -> bool:
    return head[:2] == b"\x1f\x8b"


def _begins_zstd(head: bytes) -> bool:
    return head == _ZSTD_MAGIC or (0x50 <= head[0] <= 0x5F and head[1:] == _ZSTD_SKIPPABLE)


def _expand(
    data: memoryview,
    name: str,
    limit: int,
    what: str,
    new: Callable[[], Any],
    errors: tuple[type[Exception], ...],
    begins: Callable[[bytes], bool],
) -> tuple[GrowingMemory, int]:
    """What the frames hold, and how many bytes of it were under a checksum.

    They are fed to their decoders in small steps, so that a bomb is met before it is big.
    """
    out = GrowingMemory()
    checked = 0
    pos, end = 0, len(data)
    if end == 0:
        raise TruncatedError(f"{name}: byte 0: expected a {what} stream, found an empty file")
    while pos < end:
        begin = pos
        head = bytes(data[pos : pos + 4])
        if not begins(head.ljust(4, b"\0")):
            if begin and what == "gzip" and not any(data[pos:]):
                break  # padding with zeros, which gzip allows
            raise CompressedDataError(
                f"{name}: byte {pos}: expected a {what} stream, found {head.hex() or 'nothing'}"
            )
        decoder = new()
        size_before = out.size_bytes
        frame = _zstd_frame(data[pos : pos + _ZSTD_HEADER_BYTES])
        if frame is not None and frame.size_bytes is not None:
            _require_room(size_before + frame.size_bytes, limit, name)
        try:
            pos = _expand_frame(decoder, data, pos, out, limit, name)
        except errors as e:
            raise CompressedDataError(
                f"{name}: the {what} stream that begins at byte {begin} is damaged: {e}"
            ) from e
        if not decoder.eof:
            raise TruncatedError(
                f"{name}: byte {end}: truncated: the {what} stream that begins at byte {begin} "
                "has no end; copy or save it again"
            )
        if frame is None or frame.has_checksum:
            checked += out.size_bytes - size_before
    return out, checked


class _Frame(NamedTuple):
    """What the header of a zstd frame tells."""

    size_bytes: int | None  # of what it holds, where that is told
    has_checksum: bool


def _zstd_frame(head: memoryview) -> _Frame | None:
    """None where no such header begins, or it is damaged: its decoder will say so."""
    if head[:4] != _ZSTD_MAGIC:
        return None
    import zstandard

    try:
        found = zstandard.get_frame_parameters(head)
    except zstandard.ZstdError:
        return None
    told = found.content_size != zstandard.CONTENTSIZE_UNKNOWN
    return _Frame(found.content_size if told else None, found.has_checksum)


def _require_room(size_bytes: int, limit: int, name: str) -> None:
    if size_bytes > limit:
        raise LimitError(
            f"{name}: decompresses to {size_bytes} bytes, and at most {limit} are accepted; pass "
            f"max_bytes={size_bytes} to accept it"
        )


def _expand_frame(
    decoder: Any, data: memoryview, pos: int, out: GrowingMemory, limit: int, name: str
) -> int:
    """Append what a frame holds; the offset after it."""
    is_gzip = isinstance(decoder, _GZIP_DECODER)
    end = len(data)
    while pos < end and not decoder.eof:
        # zstandard gives all that a step decodes to, up to 128 KiB for every 4 bytes: no more
        # than 16 MiB, or an eighth of what there is already.
        step = _STEP_BYTES if is_gzip else max(512, out.size_bytes >> 18)
        piece = data[pos : pos + step]
        pos += len(piece)
        if is_gzip:
            _append(out, decoder.decompress(piece, _STEP_BYTES), limit, name)
            while decoder.unconsumed_tail and not decoder.eof:
                rest = decoder.decompress(decoder.unconsumed_tail, _STEP_BYTES)
                _append(out, rest, limit, name)
        else:
            _append(out, decoder.decompress(piece), limit, name)
        if decoder.eof:
            pos -= len(decoder.unused_data)
    return pos


_GZIP_DECODER = type(zlib.decompressobj())


def _append(out: GrowingMemory, data: bytes, limit: int, name: str) -> None:
    if out.size_bytes + len(data) > limit:
        raise LimitError(
            f"{name}: decompresses to more than {limit} bytes; pass max_bytes to accept more"
        )
    out.append(data)
