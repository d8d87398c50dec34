"""Flax's msgpack, bare and under gzip and zstd; and streams of msgpack records, read only.

A record is a key path and Flax's bytes of a value. Flax's suffix is used for such streams too.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from cordwood.errors import FormatError
from cordwood.formats.format_protocol import (
    IndexListing,
    Match,
    Opened,
    OpenOptions,
    Place,
    SaveOptions,
    SavePlan,
)
from cordwood.storage.locations import LocalPath, Location, require_local

if TYPE_CHECKING:
    from cordwood.index import Index
    from cordwood.io.leaves_to_write import Leaves
    from cordwood.io.open_files import ReadableFile
    from cordwood.processes.rendezvous import Rendezvous


_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_PAIR = b"\x92"  # msgpack's first byte of a list of two, as records begin too
_EMPTY_MAP = 0x80
_MAPS = frozenset([*range(0x80, 0x90), 0xDE, 0xDF])  # msgpack's first bytes of a dict
_EXTENSIONS = frozenset([0xC7, 0xC8, 0xC9, *range(0xD4, 0xD9)])  # and of an array


class FlaxMsgpackFormat(NamedTuple):
    """Files of Flax's msgpack bytes: bare, or compressed by gzip or zstd."""

    name: str
    suffixes: tuple[str, ...]
    description: str
    compression: Literal["gz", "zst"] | None = None
    index_name: str = ""
    save_options: frozenset[str] = frozenset()

    @property
    def reads_stores(self) -> bool:
        """True for bare files: a run of Flax has them as its steps."""
        return self.compression is None

    def matches(self, place: Place) -> Match:
        """Read all of a bare file that may be msgpack: it has no magic number."""
        if place.file is None:
            return Match.NO
        if self.compression is not None:
            return _match_compressed(place.head, self.compression)
        from cordwood.formats.flax_msgpack.read_index import read_index
        from cordwood.formats.single_file import can_read

        # Numbers and lists look like text too: they need the suffix.
        if not _begins(place.head) and not place.file.name.endswith(self.suffixes):
            return Match.NO
        if not can_read(place.file, read_index):
            return Match.NO
        return Match.MAYBE if place.head.startswith(_PAIR) else Match.YES

    def open(self, location: Location, item: str | None, options: OpenOptions) -> Opened:
        from cordwood.formats.flax_msgpack.read_index import read_index
        from cordwood.formats.single_file import opened_file

        del item
        if isinstance(location, LocalPath):
            source = open_source(location, self.compression, options)
        else:
            from cordwood.storage.object_stores.object_file import whole_object

            source = whole_object(location)
        return opened_file(source, read_index, name=self.name)

    def list_index(self, path: LocalPath, item: str | None) -> IndexListing | None:
        if self.compression is not None or item is not None:
            return None
        from cordwood.formats.flax_msgpack.read_index import read_index
        from cordwood.io.open_files import LocalFile

        with LocalFile(path) as file:
            if not file.size_bytes or file.read(0, 1) == _PAIR:
                return None  # these may be records
            index = read_index(file)
        return IndexListing(index, index.metadata)

    def plan_save(
        self, location: Location, tree: Any, options: SaveOptions, rendezvous: Rendezvous
    ) -> SavePlan:
        from cordwood.formats.flax_msgpack.plan_save import plan_buffers, plan_state
        from cordwood.state_dict.state_dicts import to_state_dict
        from cordwood.storage.write_files import write_file
        from cordwood.storage.write_stream import write_stream
        from cordwood.tree.flatten import FlatTree, build_tree

        del rendezvous
        if type(tree) is FlatTree:
            tree = build_tree(tree.structure, tree.leaves)
        path = require_local(location)
        plan, arrays = plan_state(to_state_dict(tree))
        size_bytes, compression = plan.size_bytes, self.compression

        def write(leaves: Leaves) -> None:
            if compression is None:
                write_file(path, plan, leaves, page_cache=options.page_cache)
            else:
                from cordwood.formats.flax_msgpack.compression import compress

                buffers = plan_buffers(plan, leaves)
                write_stream(path, compress(buffers, compression, size_bytes=size_bytes))

        return SavePlan(arrays, write)

    def refuse_foreign(self, location: Location) -> None:
        from cordwood.formats.flax_msgpack.compression import require_magic
        from cordwood.formats.flax_msgpack.read_index import read_index
        from cordwood.formats.foreign_files import foreign_content
        from cordwood.formats.single_file import refuse_foreign_file

        # All of a bare file, as msgpack has no magic number: text begins like a number, and only
        # the bytes after that show it. A file of one letter is a tree of one int too, and so is
        # replaced.
        compression = self.compression

        def require(file: ReadableFile) -> None:
            if compression is None:
                read_index(file)
                return
            require_magic(file, kind=compression)
            content = foreign_content(file)
            if content is not None:
                raise FormatError(f"it contains {content}")

        refuse_foreign_file(require_local(location), require, name=self.name)

    def losses(self, index: Index, metadata: Mapping[str, str]) -> list[str]:
        from cordwood.formats.format_losses import losses_in_a_state_dict

        return losses_in_a_state_dict(index, metadata)


def _begins(head: bytes) -> bool:
    """Return whether bytes begin like the msgpack of a dict or an array.

    Pickles begin like an empty dict, of which nothing follows.
    """
    if not head or (head[0] == _EMPTY_MAP and len(head) > 1):
        return False
    return head[0] in _MAPS or head[0] in _EXTENSIONS


def _match_compressed(head: bytes, compression: Literal["gz", "zst"]) -> Match:
    """Return MAYBE for a zstd stream that cannot be decompressed: it is damaged."""
    if not head.startswith(_GZIP if compression == "gz" else _ZSTD):
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
    return Match.YES if _begins(first) else Match.NO


def open_source(
    path: LocalPath, compression: Literal["gz", "zst"] | None, options: OpenOptions
) -> ReadableFile:
    """Return the file, or what it decompresses to: in memory, or on the disk of `scratch`."""
    from cordwood.io.open_files import LocalFile

    file = LocalFile(path)
    if compression is None:
        return file
    from cordwood.formats.flax_msgpack.compression import decompress, decompress_into
    from cordwood.formats.flax_msgpack.wire import ValueSize

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


MSGPACK = FlaxMsgpackFormat("msgpack", (".msgpack",), "a tree in Flax's msgpack")
MSGPACK_GZ = FlaxMsgpackFormat(
    "msgpack.gz", (".msgpack.gz",), "a tree in Flax's msgpack, under gzip", "gz"
)
MSGPACK_ZST = FlaxMsgpackFormat(
    "msgpack.zst", (".msgpack.zst",), "a tree in Flax's msgpack, under zstd", "zst"
)


class MsgpackRecordsFormat:
    """Streams of msgpack records, read only."""

    name = "msgpack-records"
    description = "a stream of msgpack records, as EasyLM writes it"
    suffixes: tuple[str, ...] = (".msgpack",)
    index_name = ""

    def matches(self, place: Place) -> Match:
        """Return MAYBE for a damaged stream: it begins with a record and is no file of Flax's."""
        file = place.file
        if file is None or not file.size_bytes or file.read(0, 1) != _PAIR:
            return Match.NO
        from cordwood.formats.flax_msgpack.read_index import read_index as read_flax_index
        from cordwood.formats.flax_msgpack.read_records import begins_record, read_index
        from cordwood.formats.single_file import can_read

        if can_read(file, read_index):
            return Match.YES
        if begins_record(file) and not can_read(file, read_flax_index):
            return Match.MAYBE
        return Match.NO

    def open(self, location: Location, item: str | None, options: OpenOptions) -> Opened:
        from cordwood.formats.flax_msgpack.read_records import read_index
        from cordwood.formats.single_file import open_file

        del item, options
        return open_file(require_local(location), read_index, name=self.name)


MSGPACK_RECORDS = MsgpackRecordsFormat()
