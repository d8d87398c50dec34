"""delta: write the difference between two checkpoints as a checkpoint of its own."""

from __future__ import annotations

import os
from contextlib import ExitStack

from cordwood.converting.refuse_existing import refuse_existing
from cordwood.deltas.compare_versions import compare_versions
from cordwood.deltas.delta_report import DeltaReport
from cordwood.deltas.encode_delta import delta_leaves, delta_paths, encoded_leaves
from cordwood.formats.choose_format import format_for_saving
from cordwood.formats.format_protocol import SaveOptions
from cordwood.formats.load_format import writer_of
from cordwood.formats.plan_save import plan_save, write_save
from cordwood.formats.version_record import KEY, encode_version
from cordwood.index import size_in_memory
from cordwood.io.leaves_to_write import Leaves
from cordwood.io.progress import ProgressMeter, ProgressOption
from cordwood.io.progress_bar import progress_display
from cordwood.loading.checkpoint import open_at
from cordwood.processes.key_value_store import SINGLE_PROCESS
from cordwood.processes.rendezvous import TIMEOUT_SECONDS, Rendezvous
from cordwood.saving.background_saves import raise_unreported_failures, wait_for_saves
from cordwood.saving.interrupted_saves import after_interrupted_saves
from cordwood.storage.locations import parse_location
from cordwood.storage.paths import refuse_to_replace
from cordwood.threads.garbage_collector import gc_paused
from cordwood.threads.run_in_worker import in_worker
from cordwood.tree.flatten import FlatTree


@in_worker
def delta(
    base: str | os.PathLike[str],
    target: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    prefix: str | None = None,
    overwrite: bool = False,
    progress: ProgressOption = None,
) -> DeltaReport:
    """Write what changes from one checkpoint to another, as a small checkpoint: a delta.

    `apply_delta` makes `target` of `base` and the delta, bit for bit. A delta of trained weights
    takes about a byte for each element that changed, in a bfloat16 tree often 2 % of the size. It
    is a checkpoint like any other: `verify`, `copy` and `ls` work on it.

    Both checkpoints are read a few MiB at a time, and everything that is read is checked against
    its digests. The delta is in memory until it is written.

    Args:
        base: the path of a checkpoint of any format that `load` reads.
        target: a checkpoint of a tree with the same leaves, of the same kinds, shapes and dtypes.
        destination: the path to write, as in `save`.
        prefix: the tree of each, if they hold several, as in `load`.
        overwrite: replace an existing checkpoint at `destination`.
        progress: True for a bar in a terminal or a notebook; or a function that is called from
            time to time with a `cordwood.results.Progress`. None: neither.

    Returns:
        The sizes of the delta and of the tree.

    Raises:
        MismatchError: the trees differ in more than their values; lists the leaves.
        UnsupportedFormatError: a leaf cannot be read.
        FileExistsError: there is a checkpoint at `destination`.
        NotACheckpointError: there is something else at `destination`.
        ValueError: `destination` is `base` or `target`, or a part of one.
        Exception: all errors of `open` and `save`.

    >>> from cordwood import save
    >>> import numpy as np
    >>> save("run/1", {"w": np.zeros(1000, np.float32)})
    >>> save("run/2", {"w": np.append(np.zeros(999), 1.5).astype(np.float32)})
    >>> delta("run/1", "run/2", "delta-1-2").changed_tiles
    1
    """
    location = parse_location(destination)
    to_format = format_for_saving(location, format=None, prefix=None, exports=False)
    raise_unreported_failures()
    with ExitStack() as stack, gc_paused():
        stack.enter_context(after_interrupted_saves(str(location)))
        writer_of(to_format).refuse_foreign(to_format, location)
        refuse_existing(
            location, to_format, [""], beside=False, overwrite=overwrite, has_to_prefix=False
        )
        old = stack.enter_context(open_at(parse_location(base), prefix=prefix))
        new = stack.enter_context(open_at(parse_location(target), prefix=prefix))
        refuse_to_replace(str(location), (old.path, new.path), result="delta")
        size_bytes = sum(map(size_in_memory, new.index.leaves))
        report = stack.enter_context(progress_display(progress, "comparing"))
        meter = None if report is None else ProgressMeter(size_bytes, report)
        compared = compare_versions(old._reader, new._reader, meter)
        if meter is not None:
            meter.finish()
        tree, tiles = compared.tree, compared.tiles
        leaves = delta_leaves(tree, tiles, encoded_leaves(tree, tiles))
        flat = FlatTree(*delta_paths(tree), leaves, ())
        wait_for_saves(str(location))
        options = SaveOptions(metadata={KEY: encode_version(compared.record)})
        rendezvous = Rendezvous(SINGLE_PROCESS, f"save {location}", timeout_seconds=TIMEOUT_SECONDS)
        plan = plan_save(to_format, location, flat, options, rendezvous)
        write_save(to_format, plan.save, Leaves(plan.leaves), rendezvous)
    return DeltaReport(
        old.path,
        new.path,
        str(location),
        sum([len(tile.encoded) for tile in tiles]),
        size_bytes,
        sum([bool(tile.encoded) for tile in tiles]),
        len(tiles),
    )
