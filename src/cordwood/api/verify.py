"""verify: every byte against its digest."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from numbers import Real
from typing import NamedTuple

from cordwood.api.checkpoint import open as open_checkpoint
from cordwood.errors import CordwoodError, CorruptionError, counted
from cordwood.field_docs import document_fields
from cordwood.formats.directory_formats import Layout, module_of, origin_of
from cordwood.formats.opened import Checked
from cordwood.index import Digests, Index, Inline
from cordwood.io.check_digests import UnreadableRange, check_files
from cordwood.io.crc32 import bad_checksums
from cordwood.io.progress import Report, report_progress
from cordwood.io.source_digests import SourceDigests
from cordwood.io.verify_sample import VerifySample, verify_sampling
from cordwood.keypath import format_path
from cordwood.message_text import printable, size_text
from cordwood.storage.disk_usage import size_on_disk
from cordwood.storage.open_files import MemoryFile, ReadableFile
from cordwood.storage.urls import expand_home, local_or_url

_MAX_LINES = 50
_MAX_NAMED = 5  # leaves of Orbax's that lack chunks


@document_fields
class Verification(NamedTuple):
    """What `verify` has checked; damage is an error instead. As a string, one line.

    Attributes:
        path: the checkpoint.
        format: its format's name.
        leaves: how many leaves it has.
        verified_bytes: bytes that were read, under a digest or checksum that matched.
        unverified_bytes: bytes that carry no digest, or that the sample left out.
        unstored_chunks: of Orbax's: chunks that are not stored, and are read as zeros.
        unstored_leaves: the key paths of their leaves.
    """

    path: str
    format: str
    leaves: int
    verified_bytes: int
    unverified_bytes: int
    unstored_chunks: int = 0
    unstored_leaves: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = (
            f"{self.path}: no damage: {counted(self.leaves, 'leaf', 'leaves')}, "
            f"{size_text(self.verified_bytes)} verified"
        )
        if self.unverified_bytes:
            text += f", {size_text(self.unverified_bytes)} not read or without a digest"
        if self.unstored_chunks:
            leaves = ", ".join(self.unstored_leaves[:_MAX_NAMED])
            more = len(self.unstored_leaves) - _MAX_NAMED
            more_text = f" and {more} more" if more > 0 else ""
            text += (
                f", {counted(self.unstored_chunks, 'chunk')} not stored and read as zeros "
                f"({leaves}{more_text})"
            )
        return printable(text)

    def __repr__(self) -> str:
        return str(self)


def verify(
    path: str | os.PathLike[str],
    *,
    sample: float = 1.0,
    seed: int | None = None,
    resume: str | os.PathLike[str] | None = None,
    progress: Report | None = None,
    format: str | None = None,
    max_bytes: int | None = None,
) -> Verification:
    """Read a checkpoint through and check every byte that is under a digest.

    A bare `.msgpack`, a safetensors file of another writer, and a zstd frame of one that left
    its checksum out carry no digests: their structure is checked, and their bytes are counted
    as unverified.

    Of a directory all trees are checked, and all files are compared with its index. Files that
    saves under way, or dead ones, have left there are passed over. Trees that another tool saved
    into a directory of the zarr layout carry no digests; nor do Orbax's checkpoints, but for the
    nodes of their databases. Members of a `.npz` carry a CRC-32.

    Chunks that an older Orbax left out because they were zeros are counted apart. Where its files
    do not say so themselves, an array may lack all of its chunks, and not some.

    Args:
        path: the file, whose suffix says the format, or the directory, or the URL of one.
        sample: check only this share of the blocks of each file, chosen at random: 0.05 takes a
            twentieth of the time, and finds damage that is not in few places. What the result
            counts as verified is what was read.
        seed: of the choice; None: another one each time.
        resume: a file to note in which files of the checkpoint were found whole. Where it is
            there, left by a call that was interrupted, those are not read again; it is removed
            at the end. Any other file is refused.
        progress: called now and then with a `cordwood.Progress`.
        format: the name of a file's format, where the suffix does not say it.
        max_bytes: how far a compressed file may grow; see `cordwood.load`.

    Raises:
        CorruptionError: bytes do not match or cannot be read from the disk (EIO), or files of a
            directory are missing, of another size, or too many; names each leaf, file and byte
            range.
        FormatError: the file, or the index of a directory, is not what its format says.
        IncompleteCheckpointError: there is a directory without an index.
    """
    ((_, found),) = verify_each(
        [path],
        sample=sample,
        seed=seed,
        resume=resume,
        progress=progress,
        format=format,
        max_bytes=max_bytes,
        catch=(),
    )
    assert isinstance(found, Verification)
    return found


def verify_each(
    paths: Sequence[str | os.PathLike[str]],
    *,
    sample: float = 1.0,
    seed: int | None = None,
    resume: str | os.PathLike[str] | None = None,
    progress: Report | None = None,
    format: str | None = None,
    max_bytes: int | None = None,
    catch: tuple[type[Exception], ...] = (CordwoodError, OSError),
) -> list[tuple[str, Verification | Exception]]:
    """Verify several checkpoints, such as the steps of a run, with one sample and one record.

    Args:
        paths: the checkpoints.
        sample, seed, resume, progress, format, max_bytes: as for `verify`.
        catch: errors that end one checkpoint only; they are returned in place of its result.

    Returns:
        Each path with its result.
    """
    if not isinstance(sample, Real) or not 0 < sample <= 1:
        raise ValueError(f"sample={sample!r}: expected a share: more than 0, and at most 1")
    if resume is not None and sample < 1:
        raise ValueError("resume= is for checking all: a sample is chosen anew by each call")
    chosen = VerifySample(sample, seed, None if resume is None else os.fspath(expand_home(resume)))
    size_bytes = 0 if progress is None else int(sum(map(size_on_disk, paths)) * sample)
    results: list[tuple[str, Verification | Exception]] = []
    with verify_sampling(chosen), report_progress(size_bytes, progress):
        for path in paths:
            before = chosen.checked_bytes
            try:
                found = _verify(path, format=format, max_bytes=max_bytes)
            except catch as e:
                results.append((os.fspath(path), e))
                continue
            if sample < 1:
                total = found.verified_bytes + found.unverified_bytes
                read = chosen.checked_bytes - before
                found = found._replace(verified_bytes=read, unverified_bytes=total - read)
            results.append((os.fspath(path), found))
    if all(isinstance(found, Verification) for _, found in results):
        chosen.delete_record()
    return results


def _verify(
    path: str | os.PathLike[str], *, format: str | None, max_bytes: int | None
) -> Verification:
    path = local_or_url(path)
    row = origin_of(path, format=format, prefix=None)
    if isinstance(row, Layout):
        checked: Checked = module_of(row).verify_all(path)
        return Verification(os.fspath(path), row.name, *checked)
    with open_checkpoint(path, format=format, max_bytes=max_bytes) as checkpoint:
        index = checkpoint.index
        check_sources(index, checkpoint.files, SourceDigests(index.sources))
        verified = 0
        for source, file in zip(index.sources, checkpoint.files, strict=True):
            if source.digests is not None:
                verified += source.size_bytes
            elif source.checksums:
                verified += sum(checksum.stop - checksum.start for checksum in source.checksums)
            elif isinstance(file, MemoryFile):  # decompressed, its checksums checked
                verified += file.checked_bytes
        total = sum(source.size_bytes for source in index.sources)
        return Verification(
            checkpoint.path, checkpoint.format, len(index.leaves), verified, total - verified
        )


def check_sources(
    index: Index, files: Sequence[ReadableFile], digests: Sequence[Digests | None]
) -> None:
    """Raise CorruptionError unless every digest and checksum of every source matches."""
    sources = index.sources
    bad = [bad_checksums(f, source.checksums) for source, f in zip(sources, files, strict=True)]
    covered = [(n, each) for n, each in enumerate(digests) if each is not None]
    found = check_files([(files[number], each) for number, each in covered])
    for (number, _), ranges in zip(covered, found, strict=True):
        bad[number] += ranges
    lines = []
    for number, source in enumerate(sources):
        for damage in bad[number]:
            names = _leaves_within(index, number, *damage)
            lines.append(f"  {range_text(damage, source.name)}: {names}")
    if lines:
        shown = lines[:_MAX_LINES]
        if len(lines) > _MAX_LINES:
            shown.append(f"  ... and {len(lines) - _MAX_LINES} more")
        unread = any(isinstance(damage, UnreadableRange) for ranges in bad for damage in ranges)
        raise CorruptionError(
            f"{counted(len(lines), 'damaged range')} (the stored bytes do not match their digests"
            f"{', or cannot be read' if unread else ''}):\n" + "\n".join(shown)
        )


def range_text(damage: tuple[int, int], name: str) -> str:
    """Return a byte range of a file in words, and why it could not be read, if that is so."""
    start, stop = damage
    why = f" (cannot be read: {damage.why.strerror})" if isinstance(damage, UnreadableRange) else ""
    return f"bytes {start} to {stop} of {name}{why}"


def _leaves_within(index: Index, source: int, start: int, stop: int) -> str:
    places = sorted(
        (piece.offset, piece.offset + piece.length, format_path(leaf.key_path) or "the root")
        for leaf in index.leaves
        if not isinstance(leaf.storage, Inline)
        for piece in leaf.storage.pieces
        if piece.source == source and piece.length
    )
    first = max(0, bisect_right(places, (start,)) - 1)
    names = []
    for low, high, name in places[first:]:
        if low >= stop:
            break
        if high > start:
            names.append(name)
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return shown or "padding"
