"""What a conversion would lose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cordwood.errors import LossError, UnsupportedLeafError, counted
from cordwood.formats.directory_formats import Layout
from cordwood.formats.file_formats import Format
from cordwood.index import ARRAY_KINDS, Index, Leaf
from cordwood.keypath import format_path
from cordwood.plan.format_losses import losses_in_a_state_dict, losses_in_tensors


def is_state_dict(row: Format | Layout) -> bool:
    """Return True for the formats that hold Flax's state dicts."""
    return row.name.startswith("msgpack")


def refuse_positions(name: str, index: Index) -> None:
    """Raise LossError for arrays without names."""
    if index.naming == "positions":
        raise LossError(
            f"{name} holds {counted(len(index.leaves), 'array')} without names or structure: load "
            "it with like=, and save what that returns"
        )


def losses_of(
    source: str,
    destination: str,
    index: Index,
    row: Format | Layout,
    metadata: Mapping[str, str],
    *,
    lossy: bool,
) -> list[str]:
    """Return what gets lost; raise LossError where that is not accepted."""
    opaque = [leaf for leaf in index.leaves if leaf.kind == "opaque"]
    if opaque and not is_state_dict(row):
        raise UnsupportedLeafError(
            f"{_names(opaque)}: a value that only {index.format} understands cannot be stored as "
            f"{row.name}; select the other leaves"
        )
    if row.name == "hugging_face":
        lost = [*losses_in_tensors(index), *_changed_names(index)]
    elif is_state_dict(row):
        lost = losses_in_a_state_dict(index, metadata)
    else:
        return []
    if lost and not lossy:
        leave_out = (
            "; metadata={} leaves the strings out" if metadata and is_state_dict(row) else ""
        )
        raise LossError(
            f"converting {source} to {destination} would lose (lossy=True does so{leave_out}):\n"
            + "\n".join([f"  {line}" for line in lost])
        )
    return lost


def _changed_names(index: Index) -> list[str]:
    """Return a line about the arrays whose dotted names other tools could not tell apart."""
    from cordwood.encoding.tensor_names import tensor_names

    paths = [leaf.key_path for leaf in index.leaves if leaf.kind in ARRAY_KINDS]
    names, changed = tensor_names(paths)
    if not changed:
        return []
    shown = ", ".join([f"{format_path(paths[i])} as {names[i]!r}" for i in changed[:3]])
    more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    return [f"{counted(len(changed), 'name')} that the hub's tools would mix up: {shown}{more}"]


def _names(leaves: Sequence[Leaf]) -> str:
    return ", ".join([format_path(leaf.key_path) for leaf in leaves[:3]])
