"""What a conversion would lose."""

from __future__ import annotations

from collections.abc import Mapping

from cordwood.errors import LossError, counted
from cordwood.formats.format_protocol import WritableFormat
from cordwood.index import Index


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
    format: WritableFormat,
    metadata: Mapping[str, str],
    *,
    lossy: bool,
) -> list[str]:
    """Return what gets lost; raise LossError where that is not accepted."""
    lost = format.losses(index, metadata)
    if lost and not lossy:
        has_no_strings = bool(metadata) and "metadata" not in format.save_options
        leave_out = "; metadata={} leaves the strings out" if has_no_strings else ""
        raise LossError(
            f"converting {source} to {destination} would lose (lossy=True does so{leave_out}):\n"
            + "\n".join([f"  {line}" for line in lost])
        )
    return lost
