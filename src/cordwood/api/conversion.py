"""convert: a checkpoint of one format into another, piece by piece."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple

from cordwood import dtypes
from cordwood.api.casting import Cast, cast_dtypes
from cordwood.api.checkpoint import Checkpoint
from cordwood.api.checkpoint import open as open_checkpoint
from cordwood.api.formats import Format
from cordwood.api.jobs import plan_job, require_strings
from cordwood.api.layouts import Layout, destination_for
from cordwood.api.save import refuse_foreign
from cordwood.api.stored_leaves import StoredLeaves
from cordwood.engine import meeting as engine
from cordwood.engine.collector import collector_paused
from cordwood.engine.hosts import ALONE
from cordwood.engine.meeting import TIMEOUT_SECONDS, Meeting
from cordwood.engine.meter import Meter, Report
from cordwood.engine.pending import raise_unreported, wait_for
from cordwood.engine.presence import is_same_place
from cordwood.engine.unnamed import folder_beside
from cordwood.engine.urls import local_or_url, parse_url
from cordwood.errors import LossError, UnsupportedLeafError, counted
from cordwood.index import Index, Leaf
from cordwood.keypath import format_path
from cordwood.plan.losses import losses_in_a_state_dict
from cordwood.plan.partial import partial
from cordwood.plan.patterns import Select
from cordwood.sharding.boxes import element_count, whole
from cordwood.tree.flatten import Flat, build
from cordwood.tree.structure import leaf_paths

__all__ = ["Conversion", "convert"]


class Conversion(NamedTuple):
    """What was converted."""

    source: str
    destination: str
    source_format: str
    format: str
    leaves: int
    size_bytes: int  # of the elements of all arrays, as they are written
    lost: tuple[str, ...]  # what the format has no place for


def convert(
    source: str | os.PathLike[str] | Checkpoint,
    destination: str | os.PathLike[str],
    *,
    select: Select | None = None,
    rename: Mapping[str, str] | None = None,
    cast: Cast | None = None,
    lossy: bool = False,
    format: str | None = None,
    layout: Literal["packs", "zarr"] | None = None,
    compression: Literal["zstd", "blosc"] | None = None,
    metadata: Mapping[str, str] | None = None,
    prefix: str | None = None,
    max_bytes: int | None = None,
    scratch: str | os.PathLike[str] | None = None,
    progress: Report | None = None,
) -> Conversion:
    """Write what one checkpoint holds as another, of any format that `save` writes.

    The elements pass through a few MiB at a time: memory stays below some 250 MiB, and what a
    chunk takes that is decoded whole, whatever the size of the checkpoint. A `.msgpack.zst` or
    `.msgpack.gz` is one stream: it is decompressed first, into a file without a name beside
    `destination`, where there has to be room for both. What is read is checked; the result is as
    durable as what `save` writes, and until this returns, what was at `destination` is whole.

    Args:
        source: the path of a checkpoint of any format that `load` reads, or an open one.
        destination: where to, as for `save`.
        select: patterns over the key paths, as `load` has them: write only those leaves.
        rename: other key paths for leaves and containers, as `load` has them.
        cast: a floating dtype for all floating arrays, or a mapping of patterns to dtypes.
        lossy: write what the format can hold, where it has no place for all; otherwise that
            is an error.
        format, layout, compression: of what is written, as `save` has them.
        metadata: strings to keep beside the tree. None: those of the source.
        prefix: which tree of a source of several, as `load` has it.
        max_bytes: how far a compressed source may grow, as `open` has it.
        scratch: a directory with room for what a compressed source holds. None: that of
            `destination`; or of the source, where `destination` is in an object store.
        progress: called now and then with a `cordwood.Progress`: the bytes of elements that were
            read, and the leaf that is.

    Returns:
        What was written, and with `lossy` what was lost.

    Raises:
        LossError: the format has no place for something; lists all of it.
        MismatchError: a pattern matches nothing, or a cast would change integers.
        StorageError: there is no room for what a compressed source holds; says how much it is.
        Whatever `open` and `save` raise.

    >>> from cordwood import save
    >>> import numpy as np
    >>> save("/tmp/example.safetensors", {"w": np.ones(4, np.float32)})
    >>> convert("/tmp/example.safetensors", "/tmp/example.msgpack", cast="bf16").size_bytes
    8
    """
    path = local_or_url(destination)
    row = destination_for(path, format=format, layout=layout, prefix=None)
    name = source.path if isinstance(source, Checkpoint) else os.fspath(local_or_url(source))
    _refuse_itself(name, os.fspath(path))
    raise_unreported()
    wait_for(path)
    refuse_foreign(path, row)
    with (
        _opened(source, path, prefix=prefix, max_bytes=max_bytes, scratch=scratch) as opened,
        collector_paused(),
    ):
        index, numbers = opened.index, list(range(len(opened.index.leaves)))
        _refuse_positions(name, index)
        if select is not None or rename:
            part = partial(index, select=select, rename=rename, where=name)
            index, numbers = part.stored, list(part.numbers)
        wanted = [leaf.dtype for leaf in index.leaves]
        if cast is not None:
            paths = [leaf.key_path for leaf in index.leaves]
            wanted = cast_dtypes(index.leaves, paths, cast, naming=index.naming, where=name)
        strings = opened.metadata if metadata is None else metadata
        require_strings(strings)
        lost = _losses(name, os.fspath(path), index, row, strings, lossy=lossy)
        size_bytes = _size(index, [leaf.dtype for leaf in index.leaves])
        meter = None if progress is None else Meter(size_bytes, progress)
        leaves = StoredLeaves(opened, index, numbers, wanted, meter)
        wait_for(path)  # once more: to decompress a source takes its time
        refuse_foreign(path, row)
        _write(path, row, index, leaves, {} if lost else strings, compression)
        if meter is not None:
            meter.finish()
    return Conversion(
        name,
        os.fspath(path),
        opened.format,
        row.name,
        len(index.leaves),
        _size(index, wanted),
        tuple(lost),
    )


def _opened(
    source: str | os.PathLike[str] | Checkpoint,
    destination: str | os.PathLike[str],
    *,
    prefix: str | None,
    max_bytes: int | None,
    scratch: str | os.PathLike[str] | None,
) -> AbstractContextManager[Checkpoint]:
    """A source, open in a `with` block; one that was open before stays so after it."""
    if isinstance(source, Checkpoint):
        if (prefix, max_bytes, scratch) != (None, None, None):
            raise ValueError(
                f"{source.path} is open: pass prefix=, max_bytes= and scratch= to cordwood.open"
            )
        return nullcontext(source)
    if scratch is None:
        in_a_store = parse_url(destination) is not None
        scratch = folder_beside(local_or_url(source) if in_a_store else destination)
    return open_checkpoint(source, prefix=prefix, max_bytes=max_bytes, scratch=scratch)


def _size(index: Index, wanted: Sequence[str]) -> int:
    """The bytes of the elements of all arrays, of the dtypes that they are to have."""
    return sum(
        element_count(whole(leaf.shape)) * dtypes.itemsize(dtype)
        for leaf, dtype in zip(index.leaves, wanted, strict=True)
        if dtype
    )


def _write(
    path: str | os.PathLike[str],
    row: Format | Layout,
    index: Index,
    leaves: StoredLeaves,
    metadata: Mapping[str, str],
    compression: str | None,
) -> None:
    stand_ins = leaves.stand_ins
    tree: Any
    if _is_state_dict(row):
        tree = build(index.structure, stand_ins)
    else:
        paths = tuple(leaf_paths(index.structure))
        tree = Flat(index.structure, paths, tuple(stand_ins), ())
    meeting = Meeting(
        ALONE,
        f"convert to {os.fspath(path)}",
        timeout_seconds=TIMEOUT_SECONDS,
        silence_seconds=engine.SILENCE_SECONDS,
    )
    job = plan_job(path, tree, row, metadata, prefix=None, compression=compression, meeting=meeting)
    job.write(lambda number: leaves.fetch(job.leaves[number]))


def _is_state_dict(row: Format | Layout) -> bool:
    return row.name.startswith("msgpack")


def _refuse_itself(source: str, destination: str) -> None:
    if is_same_place(source, destination):
        raise ValueError(f"{source} would be converted into itself: write to another path")


def _refuse_positions(name: str, index: Index) -> None:
    if index.naming == "positions":
        raise LossError(
            f"{name} holds {counted(len(index.leaves), 'array')} without names or structure: load "
            "it with like=, and save what that returns"
        )


def _losses(
    source: str,
    destination: str,
    index: Index,
    row: Format | Layout,
    metadata: Mapping[str, str],
    *,
    lossy: bool,
) -> list[str]:
    """What gets lost; raises where that is not wanted, or more than can be borne."""
    opaque = [leaf for leaf in index.leaves if leaf.kind == "opaque"]
    if opaque and not _is_state_dict(row):
        raise UnsupportedLeafError(
            f"{_names(opaque)}: a value that only {index.format} understands cannot be stored as "
            f"{row.name}; select the other leaves"
        )
    if not _is_state_dict(row):
        return []
    lost = losses_in_a_state_dict(index, metadata)
    if lost and not lossy:
        leave_out = "; metadata={} leaves the strings out" if metadata else ""
        raise LossError(
            f"converting {source} to {destination} would lose (lossy=True does so{leave_out}):\n"
            + "\n".join([f"  {line}" for line in lost])
        )
    return lost


def _names(leaves: Sequence[Leaf]) -> str:
    return ", ".join([format_path(leaf.key_path) for leaf in leaves[:3]])
