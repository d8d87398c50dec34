"""The checks of checkpoints against their digests, one after another."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from numbers import Real
from typing import NamedTuple

from cordwood.errors import CordwoodError
from cordwood.formats.detect_format import read_with_format
from cordwood.formats.format_protocol import Opened, OpenOptions
from cordwood.formats.load_format import collector_of, item_names, reader_of
from cordwood.formats.table import Format
from cordwood.index import Index
from cordwood.io.find_damage import Damage, damage_in_sources, raise_damage
from cordwood.io.memory_file import MemoryFile
from cordwood.io.progress import ProgressOption, report_progress
from cordwood.io.progress_bar import progress_display
from cordwood.io.source_digests import SourceDigests
from cordwood.io.stale_handles import retry_stale
from cordwood.io.verify_sample import VerifySample
from cordwood.keypath import format_path
from cordwood.loading.locate_step import locate_checkpoint
from cordwood.loading.open_reader import explaining_format
from cordwood.storage.directories import size_on_disk
from cordwood.storage.locations import Location, parse_local_path
from cordwood.storage.retry_reading import ReplacedError, retry_reading
from cordwood.storage.verify_record import VerifyRecord
from cordwood.verifying.verify_result import Verification


class VerifyOptions(NamedTuple):
    """The arguments of `verify` for one checkpoint or for several."""

    sample: float = 1.0
    seed: int | None = None
    resume: str | os.PathLike[str] | None = None
    progress: ProgressOption = None
    format: str | None = None
    max_bytes: int | None = None


def verify_checkpoint(location: Location, options: VerifyOptions) -> Verification:
    """Verify the checkpoint that a caller means, as `verify`."""
    (verification,) = verify_each([locate_checkpoint(location)], options, catch=())
    assert isinstance(verification, Verification)
    return verification


def verify_each(
    checkpoints: Sequence[Location],
    options: VerifyOptions,
    *,
    catch: tuple[type[Exception], ...] = (CordwoodError, OSError),
) -> list[Verification | Exception]:
    """Verify several checkpoints, such as the steps of a run, with one sample and one record.

    Args:
        checkpoints: their locations.
        options: the arguments of `verify`.
        catch: errors of one checkpoint that are returned in place of its result.

    Returns:
        The result of each.
    """
    sample, seed, resume, progress, format, max_bytes = options
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
