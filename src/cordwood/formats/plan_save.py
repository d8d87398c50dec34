"""A save in whichever format: its options are checked, the format plans, and later writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cordwood.formats.format_protocol import SaveOptions, SavePlan
from cordwood.formats.load_format import writer_of
from cordwood.formats.table import Format
from cordwood.storage.locations import Location

if TYPE_CHECKING:
    from cordwood.io.leaves_to_write import Leaves
    from cordwood.processes.rendezvous import Rendezvous


def require_strings(metadata: object) -> None:
    """Raise TypeError for metadata that is no mapping; its format checks the content."""
    if not isinstance(metadata, Mapping):
        raise TypeError(f"metadata: expected a dict of strings, found {metadata!r:.80}")


def plan_save(
    format: Format,
    location: Location,
    tree: Any,
    options: SaveOptions,
    rendezvous: Rendezvous,
) -> SavePlan:
    """Plan the save of a tree. Raises as `cordwood.save` does, before anything is written."""
    require_strings(options.metadata)
    _check_options(format, str(location), options)
    return writer_of(format).plan_save(format, location, tree, options, rendezvous)


def write_save(format: Format, save: object, leaves: Leaves, rendezvous: Rendezvous) -> None:
    """Write and commit a planned save.

    Args:
        format: the format that planned it.
        save: `SavePlan.save`.
        leaves: the leaves of the plan, or snapshots of them.
        rendezvous: that of the plan.
    """
    writer_of(format).write(save, leaves, rendezvous)


def _check_options(format: Format, path: str, options: SaveOptions) -> None:
    """Raise ValueError for an option that the format does not accept."""
    accepted = format.save_options
    size = options.max_shard_bytes
    if size is not None:
        if "max_shard_bytes" not in accepted:
            raise ValueError(
                f'{path}: max_shard_bytes= (--max-shard-bytes) is for format="packs" and '
                '"hugging_face" (--format)'
            )
        if type(size) is not int or size < 1:
            raise ValueError(f"max_shard_bytes: expected an int of at least 1, found {size!r:.80}")
    if options.compression is not None and "compression" not in accepted:
        raise ValueError(f'{path}: compression= is for format="zarr"')
    if options.metadata and "metadata" not in accepted:
        raise ValueError(f"{path}: the {format.name} format has no place for metadata")
    for name in ("prefix", "linking", "items"):
        if getattr(options, name) is not None and name not in accepted:
            raise ValueError(f"{path}: the {format.name} format has no {name}")
