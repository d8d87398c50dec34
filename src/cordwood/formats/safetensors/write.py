"""Save a tree as a safetensors file."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from cordwood.formats.format_protocol import SaveOptions, SavePlan
from cordwood.formats.safetensors.header import plan_save as plan_file
from cordwood.formats.safetensors.header import read_header
from cordwood.formats.single_file import refuse_foreign_file
from cordwood.storage.locations import Location, require_local
from cordwood.storage.write_files import write_file
from cordwood.tree.flatten import flatten
from cordwood.tree.leaves import describe_leaf

if TYPE_CHECKING:
    from cordwood.formats.table import Format
    from cordwood.processes.rendezvous import Rendezvous


def plan_save(
    format: Format, location: Location, tree: Any, options: SaveOptions, rendezvous: Rendezvous
) -> SavePlan:
    """Plan the file of a tree."""
    del format, rendezvous
    flat = flatten(tree)
    specs = [describe_leaf(p, leaf) for p, leaf in zip(flat.paths, flat.leaves, strict=True)]
    path = require_local(location)
    plan = plan_file(flat.structure, specs, metadata=options.metadata)
    return SavePlan(flat.leaves, partial(write_file, path, plan, page_cache=options.page_cache))


def refuse_foreign(format: Format, location: Location) -> None:
    """Raise NotACheckpointError for a file that is not of safetensors."""
    refuse_foreign_file(require_local(location), read_header, name=format.name)
