"""Save a tree as a safetensors file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cordwood.formats.format_protocol import SaveOptions, SavePlan
from cordwood.formats.safetensors.plan_file import plan_file
from cordwood.formats.safetensors.read_header import read_header
from cordwood.formats.save_single_file import SingleFileSave, refuse_foreign_file, write_single_file
from cordwood.formats.table import Format
from cordwood.storage.locations import Location, require_local
from cordwood.tree.flatten import flatten
from cordwood.tree.leaves import describe_leaf

if TYPE_CHECKING:
    from cordwood.processes.rendezvous import Rendezvous


write = write_single_file


def plan_save(
    format: Format, location: Location, tree: Any, options: SaveOptions, rendezvous: Rendezvous
) -> SavePlan:
    """Plan the file of a tree."""
    del format, rendezvous
    flat = flatten(tree)
    specs = [describe_leaf(p, leaf) for p, leaf in zip(flat.paths, flat.leaves, strict=True)]
    plan = plan_file(flat.structure, specs, metadata=options.metadata)
    return SavePlan(flat.leaves, SingleFileSave(require_local(location), plan, options.page_cache))


def refuse_foreign(format: Format, location: Location) -> None:
    """Raise NotACheckpointError for a file that is not of safetensors."""
    refuse_foreign_file(require_local(location), read_header, name=format.name)
