"""Open the bytes of a msgpack file: as they are, or decompressed."""

from __future__ import annotations

from typing import Literal

from cordwood.formats.format_protocol import OpenOptions, Path
from cordwood.storage.open_files import LocalFile, ReadableFile


def open_source(
    path: Path, compression: Literal["gz", "zst"] | None, options: OpenOptions
) -> ReadableFile:
    """Return the file, or what it decompresses to: in memory, or on the disk of `scratch`."""
    file = LocalFile(path)
    if compression is None:
        return file
    from cordwood.formats.compressed.streams import decompress, decompress_into
    from cordwood.formats.flax_msgpack.value_size import ValueSize

    outline, max_bytes = ValueSize(), options.max_bytes
    with file:
        if options.scratch is None:
            return decompress(
                file,
                compression,
                max_bytes=max_bytes,
                size_reader=outline,
                read_once=options.read_once,
            )
        from cordwood.storage.temporary_file import UnnamedTemporaryFile

        out = UnnamedTemporaryFile(options.scratch, file.name)
        try:
            decompress_into(out, file, compression, max_bytes=max_bytes, size_reader=outline)
            out.finish()
        except BaseException:
            out.close()
            raise
        return out
