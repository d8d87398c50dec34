"""apply_delta: make the new version of a checkpoint from the old one and a delta."""

from __future__ import annotations

import os
from contextlib import ExitStack

from cordwood.api.convert import convert
from cordwood.converting.conversion import Conversion
from cordwood.deltas.patched_checkpoint import open_patched
from cordwood.io.progress import ProgressOption
from cordwood.loading.checkpoint import Checkpoint, open_at
from cordwood.storage.locations import parse_location
from cordwood.threads.run_in_worker import in_worker


@in_worker
def apply_delta(
    base: str | os.PathLike[str],
    delta: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    prefix: str | None = None,
    format: str | None = None,
    overwrite: bool = False,
    progress: ProgressOption = None,
) -> Conversion:
    """Write the version that a delta makes of its base, in any format that `save` writes.

    Each tile of the result is compared with the digest that the delta has of it before it is
    written. So the result is the version that the delta was made for, bit for bit, or there is an
    error and nothing is written. The tree is read and written a few MiB at a time.

    Args:
        base: the path of the checkpoint that the delta was made from, in any format.
        delta: the path of the delta.
        destination: the path to write, as in `save`.
        prefix: the tree of `base`, if it holds several, as in `load`.
        format: the name of the format to write, as in `save`.
        overwrite: replace an existing checkpoint at `destination`.
        progress: True for a bar in a terminal or a notebook; or a function that is called from
            time to time with a `cordwood.results.Progress`. None: neither.

    Returns:
        The paths, format and sizes, as of `convert`.

    Raises:
        FormatError: there is no delta at `delta`.
        MismatchError: it is a delta of another tree.
        CorruptionError: a tile of the result does not match its digest: `base` is another version,
            or one of the two is damaged; names leaf and range.
        ValueError: `destination` is `base` or `delta`, or a part of one.
        Exception: all errors of `convert`.

    >>> import cordwood, numpy as np
    >>> cordwood.save("run/1", {"w": np.zeros(3, np.float32)})
    >>> cordwood.save("run/2", {"w": np.ones(3, np.float32)})
    >>> _ = cordwood.delta("run/1", "run/2", "delta-1-2", overwrite=True)
    >>> _ = apply_delta("run/1", "delta-1-2", "copy-of-2")
    >>> cordwood.load("copy-of-2")["w"]
    array([1., 1., 1.], dtype=float32)
    """
    with ExitStack() as stack:
        old = stack.enter_context(open_at(parse_location(base), prefix=prefix))
        changes = stack.enter_context(open_at(parse_location(delta)))
        patched = open_patched(old._reader, changes._reader)
        return convert(
            Checkpoint(patched), destination, format=format, overwrite=overwrite, progress=progress
        )
