"""Data files of a directory of packs that are copied to another place, and the index for there.

The header of a data file holds the digests of its blocks, and the index the digest of the header:
so each block is checked when it is read, and nothing is read twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from cordwood.errors import FormatError
from cordwood.formats.format_protocol import StepContent
from cordwood.formats.packs.cordwood_json import asks_for_orbax, decode_index, encode_index
from cordwood.formats.packs.file_names import HUGGING_FACE_NAME, PACK_NAME
from cordwood.formats.packs.for_orbax.orbax_sidecars import orbax_sidecars
from cordwood.formats.packs.hub_index import hugging_face_index
from cordwood.formats.packs.pack_headers import read_pack_digests, read_pack_header
from cordwood.formats.packs.parse_item import parse_items
from cordwood.formats.packs.step_records import change_of_metrics, metrics_if_same_save
from cordwood.formats.step_record import ORBAX_KEY
from cordwood.index import Box, Digests, Source
from cordwood.io.check_digests import check_blocks
from cordwood.io.check_files import check_files
from cordwood.io.lazy_array import LazyArray
from cordwood.io.leaves_to_write import Leaves
from cordwood.io.open_files import ReadableFile
from cordwood.io.progress import METER
from cordwood.io.read_from_holders import read_from_holders
from cordwood.plan.file_plan import FilePlan, LeafBytes, LiteralBytes
from cordwood.storage.locations import LocalPath, Location, Url
from cordwood.storage.paths import pooled_name
from cordwood.storage.storage_protocol import NewDataFile, Storage
from cordwood.storage.write_files import write_file
from cordwood.threads.stop_check import check_stop
from cordwood.threads.thread_counts import reading_threads
from cordwood.threads.thread_pool import map_in_threads

_LOCAL_FILES_AT_ONCE = 2
_BUFFERS = 8  # of uploads: reading needs about as much memory


def content_of(data: bytes, location: Location, *, in_pool: bool, has_links: bool) -> StepContent:
    """Return the content of an index whose files get other names.

    Args:
        data: the index.
        location: its directory.
        in_pool: True if files in the pool of a run stay there, and others go there if they are not
            in an object store already.
        has_links: True if there can be links. Otherwise an index for Orbax is left out.
    """
    items = parse_items(data, name=str(location))
    from_store = isinstance(location, Url)

    def new_name(old: str) -> str:
        if in_pool and from_store:
            return old
        match = PACK_NAME.fullmatch(old)
        assert match is not None  # `parse_items` has checked it
        base = old.rpartition("/")[2]
        return pooled_name(match["save"], base) if in_pool else base

    files: dict[str, Source] = {}
    for item in items.values():
        for pack in item.packs:
            file = files.setdefault(new_name(pack.source.name), pack.source)
            if file != pack.source:
                raise FormatError(f"{location}: two files have the name {pack.source.name}")
    decoded = decode_index(data)
    left_out = ""
    if asks_for_orbax(decoded) and not has_links:
        left_out = "the index for Orbax is not copied: object stores have no links"
        del decoded[""]["metadata"][ORBAX_KEY]
    if left_out or any(new != source.name for new, source in files.items()):
        for each in decoded.values():
            for row in each["files"]:
                row[0] = new_name(row[0])
        data = encode_index(decoded)
        items = parse_items(data, name=str(location))
    beside = {HUGGING_FACE_NAME: hugging_face_index(items)}
    return StepContent(data, beside, files, orbax_sidecars(items), left_out)


def with_metrics_of(content: StepContent, index: bytes, *, name: str) -> StepContent | None:
    """Return a content with the metrics of an index too; None for that of another save.

    None also if a metric has two values. `name` is the path or URL of the step, for errors.
    """
    metrics = metrics_if_same_save(index, content.index_bytes)
    if metrics is None:
        return None
    change = change_of_metrics(content.index_bytes, metrics, name=name, overwrite=True)
    sidecars = {**content.optional_sidecars, **change.optional_sidecars}
    return content._replace(index_bytes=change.new_index, optional_sidecars=sidecars)


def is_whole(file: ReadableFile, source: Source) -> bool:
    """Return True if a data file is the one of a source, byte by byte.

    Raises CorruptionError and FormatError for a header of another file.
    """
    assert source.header_digest is not None
    return not check_files([(file, read_pack_digests(file, source.header_digest))])[0]


def write_files(origin: Storage, files: Mapping[str, Source], destination: Location) -> None:
    """Copy data files; each has its name once it is whole.

    Args:
        origin: the storage of the source.
        files: the files to copy, by their new names.
        destination: the step to write.

    Raises CorruptionError that names a file and a range, and OSError.
    """
    if not files:
        return
    with ExitStack() as stack:
        opened = origin.open(list(files.values()))
        for file in opened:
            stack.enter_context(file)
        threads = reading_threads(latency_bound=origin.has_pool)
        pairs = list(zip(opened, files.values(), strict=True))
        copies = map_in_threads(
            partial(_FileCopy, counts=isinstance(destination, LocalPath)), pairs, threads=threads
        )
        leaves = Leaves([each.leaf() for each in copies])
        plans = [each.plan(number) for number, each in enumerate(copies)]
        if isinstance(destination, LocalPath):
            paths = [f"{destination}/{name}" for name in files]
            arguments = [(path, plan, leaves) for path, plan in zip(paths, plans, strict=True)]
            map_in_threads(write_file, arguments, threads=_LOCAL_FILES_AT_ONCE)
            return
        from cordwood.storage.object_stores.object_store_client import ObjectStore
        from cordwood.storage.object_stores.object_uploads import upload_objects

        new_files = [*map(NewDataFile, files, plans), *_lists_of_cells(origin, files)]
        upload_objects(
            ObjectStore(destination), new_files, leaves, max_buffers=_BUFFERS, are_new=False
        )
        for each in copies:
            each.raise_failure()


def _lists_of_cells(origin: Storage, files: Mapping[str, Source]) -> list[NewDataFile]:
    """Return the small objects beside data objects of a pool, by which later saves compare."""
    found = set()
    for name, source in files.items():
        match = PACK_NAME.fullmatch(source.name)
        if name.startswith("../") and match is not None and match["pool"]:
            found.add(f"{match['pool']}cells-{match['process']}.json")
    contents = {name: origin.read_sidecar(name) for name in sorted(found)}
    return [
        NewDataFile(name, FilePlan(len(data), (LiteralBytes(data),)))
        for name, data in contents.items()
        if data is not None
    ]


class _FileCopy:
    """A data file of the source: a header, and blocks that are checked when they are read.

    Args:
        file: the open file.
        source: its size, and the digest of its header.
        counts: True if bytes that are read count as progress.
    """

    def __init__(self, file: ReadableFile, source: Source, *, counts: bool) -> None:
        assert source.header_digest is not None
        self._file = file
        self._header = read_pack_header(file, source.header_digest)
        self._digests = read_pack_digests(file, source.header_digest, header=self._header)
        self._counts = counts
        self._failure: BaseException | None = None

    def leaf(self) -> LazyArray:
        """Return the bytes after the header, which are read on demand."""
        size = self._file.size_bytes - len(self._header)
        return LazyArray((size,), np.dtype(np.uint8), self._read, read_into=self._read_into)

    def plan(self, leaf: int) -> FilePlan:
        """Return the plan of the copy, whose data is that leaf."""
        size, base = self._file.size_bytes, len(self._header)
        segments = (LeafBytes(leaf, 0, size - base),) if size > base else ()
        return FilePlan(size, segments, base, self._same_header, self._digests)

    def raise_failure(self) -> None:
        """Raise the error of a read: an upload ignores it if there is an object of that size."""
        if self._failure is not None:
            raise self._failure

    def _same_header(self, digests: Digests) -> bytes:
        del digests  # each block was compared with those of the header
        self._advance(len(self._header))
        return self._header

    def _read(self, box: Box) -> np.ndarray[Any, np.dtype[np.uint8]]:
        data = np.empty(box.stop[0] - box.start[0], np.uint8)
        self._read_into(box.start[0], data.data)
        return data

    def _read_into(self, start: int, target: memoryview) -> None:
        """Read bytes after the header; blocks that are needed in part are read whole."""
        check_stop()
        base, block = len(self._header), self._digests.block_bytes
        first = start - start % block
        stop = start + len(target)
        last = min(stop + -stop % block, self._file.size_bytes - base)
        parts = [memoryview(bytearray(start - first)), target, memoryview(bytearray(last - stop))]
        parts = [part for part in parts if len(part)]

        def read() -> None:
            self._file.read_into(base + first, parts)
            check_blocks(self._file.name, base + first, parts, self._digests)

        try:
            read_from_holders(self._file, read)
        except BaseException as e:
            self._failure = e
            raise
        self._advance(len(target))

    def _advance(self, size_bytes: int) -> None:
        meter = METER.get()
        if self._counts and meter is not None:
            meter.advance(size_bytes, self._file.name)
