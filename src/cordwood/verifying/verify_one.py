"""The checks of one checkpoint against its digests, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from cordwood.errors import CordwoodError
from cordwood.formats.detect_format import read_with_format
from cordwood.formats.format_protocol import Opened, OpenOptions
from cordwood.formats.load_format import collector_of, item_names, reader_of
from cordwood.formats.table import Format
from cordwood.index import Index
from cordwood.io.find_damage import Damage, damage_in_sources, raise_damage
from cordwood.io.memory_file import MemoryFile
from cordwood.io.source_digests import SourceDigests
from cordwood.io.verify_sample import VerifySample
from cordwood.keypath import format_path
from cordwood.loading.open_reader import explaining_format
from cordwood.storage.locations import Location
from cordwood.storage.retry_reading import ReplacedError, retry_reading
from cordwood.verifying.verify_result import Verification


def verify_one(
    location: Location, sample: VerifySample, *, format: str | None, max_bytes: int | None
) -> Verification:
    """Verify one checkpoint, again if a save replaces it meanwhile.

    Args:
        location: the checkpoint.
        sample: chooses the blocks to read, and counts them. The result counts all.
        format: the name of its format, if the caller gave one.
        max_bytes: the limit for the decompressed size of a compressed file.
    """
    options = OpenOptions(max_bytes=max_bytes, for_verify=True)

    def verify_as(detected_format: Format) -> Verification:
        if not detected_format.is_directory:
            with explaining_format(location, detected_format):
                return _verify_items(location, detected_format, [""], options, sample)

        def read() -> Verification:
            items = item_names(detected_format, location)
            return _verify_items(location, detected_format, items, options, sample)

        return retry_reading(read)

    return read_with_format(location, verify_as, format=format, prefix=None)


def _verify_items(
    location: Location,
    format: Format,
    items: Sequence[str],
    options: OpenOptions,
    sample: VerifySample,
) -> Verification:
    """Check all items of a checkpoint. Raises ReplacedError for one that has been replaced."""
    with ExitStack() as stack:
        opened: list[Opened] = []
        try:
            checked = _Checked(sample)
            for item in items:
                each = reader_of(format).open_item(format, location, item or None, options)
                opened.append(each)
                stack.callback(each.close)
                _check_item(each, item, checked)
            stale: Sequence[str] = ()
            if format.collector:
                collector = collector_of(format)
                checked.damage += map(Damage, collector.extra_problems(location))
                stale = collector.stale_files(location)
            raise_damage(checked.damage, directory=str(location) if format.is_directory else None)
        except CordwoodError as e:
            is_replaced = not all(each.is_current() for each in opened)
            if is_replaced or item_names(format, location) != items:
                raise ReplacedError(e) from e
            raise
        verified, total = checked.verified_bytes, checked.total_bytes
        index_bytes = max([each.index_bytes for each in opened], default=0)
        return Verification(
            str(location),
            format.name,
            checked.leaves,
            verified + index_bytes,
            total - verified,
            checked.unstored_chunks,
            tuple(checked.unstored_leaves),
            tuple(stale),
        )


class _Checked:
    """The sums over the items that were checked, and the sample by which they were."""

    def __init__(self, sample: VerifySample) -> None:
        self.sample = sample
        self.leaves = 0
        self.verified_bytes = 0
        self.total_bytes = 0
        self.unstored_chunks = 0
        self.unstored_leaves: list[str] = []
        self.damage: list[Damage] = []


def _check_item(opened: Opened, item: str, checked: _Checked) -> None:
    index, files = opened.index, opened.files
    digests = SourceDigests(index.sources, opened.fetch_digests)
    checked.damage += damage_in_sources(
        index,
        files,
        digests,
        whole_index=None if opened.locate is None else lambda: with_all_pieces(opened),
        skip_broken=opened.fetch_digests is not None,
        sample=checked.sample,
    )
    checked.leaves += len(index.leaves)
    checked.verified_bytes += opened.checked_bytes
    for source, file in zip(index.sources, files, strict=True):
        if source.digests is not None or source.header_digest is not None:
            checked.verified_bytes += source.size_bytes
        elif source.checksums:
            checked.verified_bytes += sum([each.stop - each.start for each in source.checksums])
        elif opened.stored_bytes is None and isinstance(file, MemoryFile):
            checked.verified_bytes += file.checked_bytes  # decompressed, its checksums checked
    stored_bytes = opened.stored_bytes
    if stored_bytes is None:
        stored_bytes = sum([source.size_bytes for source in index.sources])
    checked.total_bytes += stored_bytes
    checked.unstored_chunks += sum(opened.unstored.values())
    for key_path in opened.unstored:
        name = format_path((item, *key_path) if item else key_path)
        checked.unstored_leaves.append(name or "the root")


def with_all_pieces(opened: Opened) -> Index:
    """Return the index of an open item with the pieces that it leaves out."""
    assert opened.locate is not None
    leaves = opened.locate(dict.fromkeys(range(len(opened.index.leaves))))
    return opened.index._replace(leaves=tuple([leaves[n] for n in range(len(leaves))]))
