"""The formats of Flax's msgpack under gzip and zstd: recognise, open and decompress them."""

from __future__ import annotations

import zlib
from contextlib import suppress
from typing import Literal, TypeAlias

from cordwood.formats.flax_msgpack.format import begins_tree
from cordwood.formats.flax_msgpack.read_index import read_index
from cordwood.formats.flax_msgpack.value_size import ValueSize
from cordwood.formats.format_protocol import Opened, OpenOptions
from cordwood.formats.open_single_file import opened_file
from cordwood.formats.place import Match, Place
from cordwood.formats.table import Format
from cordwood.io.open_files import LocalFile, ReadableFile
from cordwood.storage.locations import LocalPath, Location, require_local

Compression: TypeAlias = Literal["gz", "zst"]

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


def compression_of(format: Format) -> Compression:
    """Return the compression that a format names."""
    return "gz" if format.name.endswith(".gz") else "zst"


def matches(format: Format, place: Place) -> Match:
    """Return MAYBE for a zstd stream that cannot be decompressed: it is damaged."""
    compression, head = compression_of(format), place.head
    if place.file is None or not head.startswith(_GZIP if compression == "gz" else _ZSTD):
        return Match.NO
    first = b""
    if compression == "gz":
        with suppress(zlib.error):
            first = zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(head, 8)
    else:
        import zstandard

        with suppress(zstandard.ZstdError):
            first = zstandard.ZstdDecompressor().stream_reader(head).read(8)
        if not first:
            return Match.MAYBE
    return Match.YES if begins_tree(first) else Match.NO


def open_item(format: Format, location: Location, item: str | None, options: OpenOptions) -> Opened:
    """Open what a file decompresses to."""
    del item
    source = _decompressed(require_local(location), compression_of(format), options)
    return opened_file(source, read_index, name=format.name)


def _decompressed(path: LocalPath, compression: Compression, options: OpenOptions) -> ReadableFile:
    """Return what a file decompresses to: in memory, or on the disk of `scratch`."""
    from cordwood.formats.flax_msgpack.decompress import decompress, decompress_into

    outline, max_bytes = ValueSize(), options.max_bytes
    with LocalFile(path) as file:
        if options.scratch is None:
            return decompress(
                file,
                compression,
                max_bytes=max_bytes,
                size_reader=outline,
                read_once=options.read_once,
            )
        from cordwood.storage.scratch.scratch_file import UnnamedTemporaryFile

        out = UnnamedTemporaryFile(options.scratch, file.name)
        try:
            decompress_into(out, file, compression, max_bytes=max_bytes, size_reader=outline)
            out.finish()
        except BaseException:
            out.close()
            raise
        return out
