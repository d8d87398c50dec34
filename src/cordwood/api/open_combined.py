"""open_combined: a linear combination of checkpoints as an open checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from cordwood.combining.addends import WeightedTree
from cordwood.combining.combined_checkpoint import open_combination
from cordwood.combining.copied_leaves import Others, tree_of_others
from cordwood.combining.match_leaves import match_leaves, require_names
from cordwood.combining.parse_weights import PathOf, parse_weights
from cordwood.combining.plan_combination import plan_combination
from cordwood.combining.weighted_sum import Accumulate
from cordwood.loading.checkpoint import Checkpoint, open_at
from cordwood.loading.leaf_reader import LeafReader
from cordwood.loading.load_options import Cast
from cordwood.loading.refuse_delta import refuse_delta
from cordwood.loading.unreadable_leaves import require_readable
from cordwood.plan.path_patterns import Select
from cordwood.plan.rename_paths import Rename
from cordwood.plan.select_leaves import select_leaves
from cordwood.storage.locations import Location
from cordwood.threads.run_in_worker import in_worker

_OURS = "cordwood-"  # the metadata that cordwood writes about one step or version


@in_worker
def open_combined(
    weights: Mapping[PathOf, float],
    *,
    select: Select | None = None,
    rename: Rename | None = None,
    cast: Cast | None = None,
    accumulate: Accumulate = "float32",
    others: Others = "equal",
    prefix: str | None = None,
) -> Checkpoint:
    """Open a linear combination of checkpoints as a checkpoint; it is computed when it is read.

    It has everything that an open checkpoint has: `load(like=..., mesh=...)` reads and adds up the
    parts that the devices of this process need, and `convert` writes it. Nothing is kept but a few
    tiles of 4 MiB. The checkpoints stay open until it is closed.

    Arrays of floating-point and complex numbers are added up. The order of operations is fixed, so
    that the result is the same for all formats and shardings: of each element, t = -0.0; then for
    each checkpoint in the order of `weights` t = t + weight * element, where the weight, the
    product and the sum are rounded to the dtype of t; at last t is rounded to the dtype of the
    result.

    Args:
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

    Returns:
        The open checkpoint; close it, or use it in a `with` block.

    Raises:
        MismatchError: leaves, shapes or dtypes differ, or leaves that are not added up; names them.
        ValueError: there is no checkpoint, or a weight is not finite.
        Exception: all errors of `open`.

    >>> import cordwood, numpy as np
    >>> cordwood.save("a.safetensors", {"w": np.array([1.0, 2.0], np.float32)})
    >>> cordwood.save("b.safetensors", {"w": np.array([3.0, 6.0], np.float32)})
    >>> with open_combined({"a.safetensors": 0.5, "b.safetensors": 0.5}) as mean:
    ...     print(mean.load()["w"])
    [2. 4.]
    """
    return open_combined_at(
        parse_weights(weights, accumulate),
        select=select,
        rename=rename,
        cast=cast,
        accumulate=accumulate,
        others=others,
        prefix=prefix,
    )


def open_combined_at(
    locations: Sequence[tuple[Location, float]],
    *,
    select: Select | None,
    rename: Rename | None,
    cast: Cast | None,
    accumulate: Accumulate,
    others: Others,
    prefix: str | None,
) -> Checkpoint:
    """Open a combination of checkpoints at locations, each with its weight, as `open_combined`."""
    if others not in ("equal", "first", "last"):
        raise ValueError(f'others: expected "equal", "first" or "last", found {others!r}')
    name = " + ".join([f"{weight:g} * {location}" for location, weight in locations])
    with ExitStack() as stack:
        readers = [
            _selected(location, stack, prefix=prefix, select=select, rename=rename)
            for location, _ in locations
        ]
        first, *following = readers
        matched = match_leaves(first.index, [(reader.path, reader.index) for reader in following])
        trees = [
            WeightedTree(reader, weight, leaves)
            for reader, (_, weight), leaves in zip(
                readers, locations, [first.index.leaves, *matched], strict=True
            )
        ]
        plan = plan_combination(
            first.index,
            [tree.leaves for tree in trees],
            cast=cast,
            accumulate=accumulate,
            where=name,
        )
        copied_from = tree_of_others(trees, plan, others, where=name)
        strings = [reader.index.metadata.items() for reader in readers]
        common = {key: text for key, text in strings[0] if all((key, text) in s for s in strings)}
        reader = open_combination(
            name,
            trees,
            trees,
            plan,
            copied_from=copied_from,
            metadata={key: text for key, text in common.items() if not key.startswith(_OURS)},
        )
        reader.made_of = [str(location) for location, _ in locations]
        stack.pop_all()
    return Checkpoint(reader)


def _selected(
    location: Location,
    stack: ExitStack,
    *,
    prefix: str | None,
    select: Select | None,
    rename: Rename | None,
) -> LeafReader:
    """Open a checkpoint, and return a reader of its selected leaves."""
    reader = stack.enter_context(open_at(location, prefix=prefix))._reader
    refuse_delta(reader)
    require_names(reader.path, reader.index)
    if select is not None or rename:
        chosen = select_leaves(reader.index, select=select, rename=rename, where=reader.path)
        reader = reader.mapped(chosen)
    require_readable(
        reader.index.leaves,
        reader.index.naming,
        name=reader.path,
        remedy="leave out what cannot be read by select= (--select), or combine",
    )
    return reader
