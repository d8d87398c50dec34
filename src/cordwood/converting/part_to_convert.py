"""The part of a tree that a conversion writes, and what it loses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cordwood import dtypes
from cordwood.converting.conversion import MAX_NAMED
from cordwood.errors import LossError
from cordwood.formats.format_losses import losses_in
from cordwood.formats.table import Format
from cordwood.index import Index, Leaf
from cordwood.loading.cast import cast_dtypes
from cordwood.loading.checkpoint import Checkpoint
from cordwood.loading.load_options import Cast
from cordwood.loading.unreadable_leaves import require_readable, unreadable_names
from cordwood.message_text import counted, first_names
from cordwood.plan.path_patterns import Select
from cordwood.plan.rename_paths import Rename
from cordwood.plan.select_leaves import SelectedLeaves, select_leaves
from cordwood.plan.transpose_leaves import Transpose
from cordwood.recipes.map_index import map_selected, require_alone
from cordwood.recipes.recipe import Recipe
from cordwood.storage.locations import Location


class LeafOptions(NamedTuple):
    """The arguments of `convert` about leaves: which are written, and as what."""

    select: Select | None
    rename: Rename | None
    transpose: Transpose | None
    recipe: Recipe | None
    cast: Cast | None
    lossy: bool


class PartToConvert(NamedTuple):
    """A tree of the source, and the part of it to write."""

    checkpoint: Checkpoint
    to_prefix: str | None
    selected: SelectedLeaves
    dtypes: Sequence[str]  # of the leaves as written
    metadata: Mapping[str, str]
    lost: Sequence[str]


def part_to_convert(
    checkpoint: Checkpoint, to_prefix: str | None, options: LeafOptions
) -> PartToConvert:
    """Return the part of an open tree to write, without its strings and the losses of the format.

    Leaves that cannot be read are left out if `lossy`, unless all are.

    Raises LossError for arrays without names, UnsupportedFormatError for leaves that cannot be
    read.
    """
    select, rename, transpose, recipe, cast, lossy = options
    name, whole = checkpoint.path, checkpoint.index
    if whole.naming == "positions":
        raise LossError(
            f"{name} holds {counted(len(whole.leaves), 'array')} without names or structure: load "
            "it with like=, and save what that returns"
        )
    lost: list[str] = []
    if lossy:
        select, lost = _readable(whole, select, where=name)
    if recipe is None:
        selected = select_leaves(
            whole, select=select, rename=rename, transpose=transpose, where=name
        )
    else:
        require_alone(recipe, rename=rename, transpose=transpose)
        recipe = recipe.replace(lossy=lossy or recipe.lossy)
        selected = map_selected(whole, recipe, select=select, where=name)
    index = selected.stored
    remedy = "leave out what cannot be read by lossy=True (--lossy), or convert"
    require_readable(index.leaves, index.naming, name=name, remedy=remedy)
    dtype_names = [leaf.dtype for leaf in index.leaves]
    if cast is not None:
        paths = [leaf.key_path for leaf in index.leaves]
        dtype_names = cast_dtypes(index.leaves, paths, cast, naming=index.naming, where=name)
    return PartToConvert(checkpoint, to_prefix, selected, dtype_names, {}, lost)


def _readable(
    index: Index, select: Select | None, *, where: str
) -> tuple[Select | None, list[str]]:
    """Return a `select` of the selected leaves that can be read, and a line about the others."""
    numbers = select_leaves(index, select=select, rename=None, where=where).numbers
    leaves = [index.leaves[number] for number in numbers]
    names = unreadable_names(leaves, index.naming)
    if not names or len(names) == len(leaves):
        return select, []
    patterns = ["**"] if select is None else [select] if isinstance(select, str) else select
    what = counted(len(names), "leaf that cannot be read", "leaves that cannot be read")
    lost = f"{what}: {first_names(names, MAX_NAMED)}"
    return [*patterns, *[f"!{name}" for name in names]], [lost]


def size_of_leaves(leaves: Sequence[Leaf], dtype_names: Sequence[str] | None = None) -> int:
    """Return the size of the elements of all arrays in bytes, in those dtypes or in their own."""
    names = [leaf.dtype for leaf in leaves] if dtype_names is None else dtype_names
    sizes = zip(leaves, names, strict=True)
    return sum([math.prod(leaf.shape) * dtypes.itemsize(name) for leaf, name in sizes if name])


def accepted_losses(
    part: PartToConvert,
    destination: Location,
    format: Format,
    metadata: Mapping[str, str],
    *,
    lossy: bool,
) -> list[str]:
    """Return what the conversion loses; raise LossError unless `lossy` accepts that."""
    lost = losses_in(format, part.selected.stored, metadata)
    if lost and not lossy:
        has_no_strings = bool(metadata) and "metadata" not in format.save_options
        leave_out = "; metadata={} leaves out the strings" if has_no_strings else ""
        raise LossError(
            f"converting {part.checkpoint.path} to {destination} would lose something "
            f"(lossy=True or --lossy accepts the loss{leave_out}):\n"
            + "\n".join([f"  {line}" for line in lost])
        )
    return lost
