"""verify: check every byte of a checkpoint against its digests."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from numbers import Real
from typing import NamedTuple

from cordwood.errors import CordwoodError
from cordwood.formats.detect_format import read_with_format
from cordwood.formats.format_protocol import (
    Opened,
    OpenOptions,
)
from cordwood.formats.load_format import collector_of, item_names, reader_of
from cordwood.formats.table import Format
from cordwood.index import Index
from cordwood.io.find_damage import Damage, damage_in_sources, raise_damage
from cordwood.io.open_files import MemoryFile
from cordwood.io.progress import ProgressOption, report_progress
from cordwood.io.progress_bar import progress_display
from cordwood.io.source_digests import SourceDigests
from cordwood.io.stale_handles import retry_stale
from cordwood.io.verify_sample import VerifySample
from cordwood.keypath import format_path
from cordwood.loading.locate_step import locate_checkpoint
from cordwood.loading.open_reader import explaining_format
from cordwood.message_text import counted, first_names, printable, size_text
from cordwood.public_names import document_fields
from cordwood.storage.directories import size_on_disk
from cordwood.storage.locations import Location, parse_local_path, parse_location
from cordwood.storage.retry_reading import ReplacedError, retry_reading
from cordwood.storage.verify_record import VerifyRecord

_MAX_NAMED = 5  # leaves of an Orbax checkpoint that lack chunks


@document_fields
class Verification(NamedTuple):
    """The result of `verify` for a checkpoint without damage. As a string, one line.

    Attributes:
        path: the checkpoint.
        format: the name of its format.
        leaves: the number of its leaves.
        verified_bytes: the number of bytes that were read and match a digest or checksum.
        unverified_bytes: the number of bytes without a digest, or that the sample left out.
        unstored_chunks: for Orbax and zarr trees, the number of chunks that are not stored, which
            are read as zeros or as the fill value.
        unstored_leaves: the key paths of their leaves.
        stale: the names of files beside the index that are still those of an earlier save, because
            this one was killed at its very end. The checkpoint is whole, and so is the earlier one
            for the tools that read such a file, `model.safetensors.index.json`. `gc` and the next
            save write it again.
    """

    path: str
    format: str
    leaves: int
    verified_bytes: int
    unverified_bytes: int
    unstored_chunks: int = 0
    unstored_leaves: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = (
            f"{self.path}: {self._verdict}: {counted(self.leaves, 'leaf', 'leaves')}, "
            f"{size_text(self.verified_bytes)} verified"
        )
        if self.unverified_bytes:
            text += f", {size_text(self.unverified_bytes)} not read or without a digest"
        if self.unstored_chunks:
            leaves = first_names(self.unstored_leaves, _MAX_NAMED)
            fill = "the fill value" if self.format == "zarr-tree" else "zeros"
            text += (
                f", {counted(self.unstored_chunks, 'chunk')} not stored and read as {fill} "
                f"({leaves})"
            )
        if self.stale:
            text += (
                f"; stale: {first_names(self.stale, _MAX_NAMED)}, by which other tools read the "
                "tree of an earlier save: gc (cordwood gc) writes it again"
            )
        return printable(text)

    def __repr__(self) -> str:
        return str(self)

    @property
    def _verdict(self) -> str:
        if self.unverified_bytes and not self.verified_bytes:
            return "no damage to the structure, and no digests"
        return "no damage"

    def _repr_html_(self) -> str:
        from cordwood.notebook.html_parts import result_html

        verified, unverified = self.verified_bytes, self.unverified_bytes
        fields = [
            ("format", self.format),
            ("leaves", f"{self.leaves:,}"),
            ("verified", size_text(verified)),
            ("not read or without a digest", size_text(unverified) if unverified else ""),
            ("chunks not stored", f"{self.unstored_chunks:,}" if self.unstored_chunks else ""),
            ("of the leaves", ", ".join(self.unstored_leaves[:_MAX_NAMED])),
            ("stale", ", ".join(self.stale)),
        ]
        return result_html(self._verdict, self.path, fields)


def verify(
    path: str | os.PathLike[str],
    *,
    sample: float = 1.0,
    seed: int | None = None,
    resume: str | os.PathLike[str] | None = None,
    progress: ProgressOption = None,
    format: str | None = None,
    max_bytes: int | None = None,
) -> Verification:
    """Read a checkpoint and check every byte that a digest or checksum covers.

    A bare `.msgpack`, a safetensors file of another writer, and a zstd frame without a checksum
    carry no digests: their structure is checked, and their bytes are counted as unverified.

    In a directory all trees are checked, and all files are compared with its index. Files of saves
    that are in progress, or that died, are ignored. Trees that another tool saved into a directory
    of the zarr layout carry no digests. Orbax's checkpoints carry checksums only in the nodes of
    their databases. Members of a `.npz` carry a CRC-32.

    Chunks that an older Orbax left out because they were zeros are counted separately. If the
    files do not record such chunks, an array may lack all of its chunks, but not some of them.

    Args:
        path: a file, a directory, or the URL of a directory in an object store. The suffix of a
            file gives its format.
        sample: the share of the blocks of each file to check, chosen at random; more than 0, at
            most 1. 0.05 takes a twentieth of the time, and may miss damage that is in few places.
            The result counts only the bytes that were read as verified.
        seed: the seed of the random choice. None: another choice in each call.
        resume: a file that records which files of the checkpoint were verified. If it exists,
            left by an interrupted call, those files are not read again. It is removed at the
            end. A file that is not such a record is refused.
        progress: True for a bar in a terminal or a notebook; or a function that is called from
            time to time with a `cordwood.results.Progress`. None: neither.
        format: the name of the format, for a file whose suffix does not give it. For a directory,
            no other format is looked for.
        max_bytes: the limit for the decompressed size of a compressed file, in bytes; see
            `cordwood.load`.

    Returns:
        The numbers of leaves and bytes that were checked. Damage is an error instead.

    Raises:
        CorruptionError: bytes do not match or cannot be read from the disk (EIO), or files of a
            directory are missing, of another size, or too many; names each leaf, file and byte
            range.
        FileChangedError: another program wrote to a file in place while it was read.
        FormatError: the file, or the index of a directory, does not follow its format.
        IncompleteCheckpointError: the directory has no index.
    """
    (verification,) = verify_each(
        [locate_checkpoint(parse_location(path))],
        sample,
        seed,
        resume,
        progress,
        format,
        max_bytes,
        catch=(),
    )
    assert isinstance(verification, Verification)
    return verification


def verify_each(
    checkpoints: Sequence[Location],
    sample: float = 1.0,
    seed: int | None = None,
    resume: str | os.PathLike[str] | None = None,
    progress: ProgressOption = None,
    format: str | None = None,
    max_bytes: int | None = None,
    *,
    catch: tuple[type[Exception], ...] = (CordwoodError, OSError),
) -> list[Verification | Exception]:
    """Verify several checkpoints, such as the steps of a run, with one sample and one record.

    Args:
        checkpoints: their locations.
        sample: as in `verify`.
        seed: as in `verify`.
        resume: as in `verify`.
        progress: as in `verify`.
        format: as in `verify`.
        max_bytes: as in `verify`.
        catch: errors of one checkpoint that are returned in place of its result.

    Returns:
        The result of each.
    """
    if not isinstance(sample, Real) or not 0 < sample <= 1:
        raise ValueError(f"sample={sample!r}: expected a share: more than 0, and at most 1")
    if resume is not None and sample < 1:
        raise ValueError("resume= is for checking all: a sample is chosen anew by each call")
    record = None
    if resume is not None:
        record = VerifyRecord(parse_local_path(resume, purpose="for resume=").text)
    chosen = VerifySample(sample, seed, record)
    results: list[Verification | Exception] = []
    with ExitStack() as stack:
        report = stack.enter_context(progress_display(progress, "verifying"))
        size_bytes = 0 if report is None else int(sum(map(size_on_disk, checkpoints)) * sample)
        stack.enter_context(report_progress(size_bytes, report))
        for location in checkpoints:
            before = chosen.checked_bytes
            try:
                verification = retry_stale(
                    partial(_verify, location, chosen, format=format, max_bytes=max_bytes)
                )
            except catch as e:
                results.append(e)
                continue
            if sample < 1:
                total = verification.verified_bytes + verification.unverified_bytes
                read = chosen.checked_bytes - before
                verification = verification._replace(
                    verified_bytes=read, unverified_bytes=total - read
                )
            results.append(verification)
    whole = all(isinstance(verification, Verification) for verification in results)
    if record is not None and whole:
        record.delete()
    return results


def _verify(
    location: Location, sample: VerifySample, *, format: str | None, max_bytes: int | None
) -> Verification:
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
        whole_index=None if opened.locate is None else lambda: _with_all_pieces(opened),
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


def _with_all_pieces(opened: Opened) -> Index:
    assert opened.locate is not None
    leaves = opened.locate(dict.fromkeys(range(len(opened.index.leaves))))
    return opened.index._replace(leaves=tuple([leaves[n] for n in range(len(leaves))]))
