"""combine: write a linear combination of checkpoints."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

from cordwood.api.convert import convert
from cordwood.api.open_combined import open_combined_at
from cordwood.combining.copied_leaves import Others
from cordwood.combining.parse_weights import PathOf, parse_weights
from cordwood.combining.weighted_sum import Accumulate
from cordwood.converting.conversion import Conversion
from cordwood.io.progress import ProgressOption
from cordwood.loading.load_options import Cast
from cordwood.loading.locate_step import locate_checkpoint
from cordwood.plan.path_patterns import Select
from cordwood.plan.rename_paths import Rename
from cordwood.threads.run_in_worker import in_worker


@in_worker
def combine(
    destination: str | os.PathLike[str],
    weights: Mapping[PathOf, float],
    *,
    select: Select | None = None,
    rename: Rename | None = None,
    cast: Cast | None = None,
    accumulate: Accumulate = "float32",
    others: Others = "equal",
    prefix: str | None = None,
    format: str | None = None,
    compression: Literal["zstd", "blosc", "archive"] | None = None,
    max_shard_bytes: int | None = None,
    overwrite: bool = False,
    progress: ProgressOption = None,
) -> Conversion:
    """Write the linear combination of checkpoints, in any format that `save` writes.

    The mean of two steps is `combine("mean", {"run/800": 0.5, "run/900": 0.5})`; what two
    fine-tunings have learned, added to their base, is `combine("both", {"a": 1, "b": 1, "base":
    -1})`. `open_combined` describes the order of operations. Structure and shapes are compared
    before anything is read or written. Then the checkpoints are read, and the result is written, a
    few MiB at a time, as `convert` does.

    Args:
        destination: the path to write, as in `save`.
        weights: the paths of the checkpoints, of any formats, each with its weight, which may be
            negative: {"tuned": 1, "other": 1, "base": -1}.
        select: patterns of key paths, as in `load`: combine only those leaves.
        rename: new key paths for leaves and containers, as in `load`.
        cast: the dtypes of the result, as in `load`. None: those of the checkpoints, which have to
            be the same.
        accumulate: the dtype in which elements are added up: "float32" or "float64". It is wider
            for leaves that are.
        others: for all other leaves, such as step counters, random keys and texts. "equal": they
            have to be equal in all checkpoints. "first" or "last": those of that one.
        prefix: the tree of each checkpoint, if it holds several, as in `load`.
        format: the name of the format to write, as in `convert`.
        compression: with format="zarr", "zstd", "blosc" or "archive", as in `save`.
        max_shard_bytes: the number of bytes of arrays in one file, as in `convert`.
        overwrite: replace an existing checkpoint at `destination`.
        progress: True for a bar in a terminal or a notebook; or a function that is called from
            time to time with a `cordwood.results.Progress`. None: neither.

    Returns:
        The paths, formats and sizes, as of `convert`.

    Raises:
        ValueError: `destination` is one of the checkpoints, or a part of one.
        Exception: all errors of `open_combined` and `convert`.

    >>> import cordwood, numpy as np
    >>> cordwood.save("run/800", {"w": np.array([1.0, 2.0], np.float32)})
    >>> cordwood.save("run/900", {"w": np.array([3.0, 6.0], np.float32)})
    >>> _ = combine("mean.safetensors", {"run/800": 0.5, "run/900": 0.5})
    >>> cordwood.load("mean.safetensors")["w"]
    array([2., 4.], dtype=float32)
    """
    # Located once: `run/latest` may be another step a moment later.
    locations = [
        (locate_checkpoint(location), weight)
        for location, weight in parse_weights(weights, accumulate)
    ]
    with open_combined_at(
        locations,
        select=select,
        rename=rename,
        cast=cast,
        accumulate=accumulate,
        others=others,
        prefix=prefix,
    ) as combination:
        return convert(
            combination,
            destination,
            format=format,
            compression=compression,
            max_shard_bytes=max_shard_bytes,
            overwrite=overwrite,
            progress=progress,
        )
