"""Save a tree as a safetensors file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from cordwood.formats.format_protocol import SaveOptions, SavePlan
from cordwood.formats.safetensors.header import plan_save as plan_file
from cordwood.formats.safetensors.header import read_header
from cordwood.formats.single_file import refuse_foreign_file
from cordwood.storage.locations import LocalPath, Location, require_local
from cordwood.storage.write_files import write_file
from cordwood.tree.flatten import flatten
from cordwood.tree.leaves import describe_leaf

if TYPE_CHECKING:
    from cordwood.formats.table import Format
    from cordwood.io.leaves_to_write import Leaves
    from cordwood.plan.file_plan import FilePlan
    from cordwood.processes.rendezvous import Rendezvous


class SafetensorsSave(NamedTuple):
    """A planned save of a tree as a safetensors file."""

    path: LocalPath
    plan: FilePlan
    page_cache: bool


def plan_save(
    format: Format, location: Location, tree: Any, options: SaveOptions, rendezvous: Rendezvous
) -> SavePlan:
    """Plan the file of a tree."""
    del format, rendezvous
    flat = flatten(tree)
    specs = [describe_leaf(p, leaf) for p, leaf in zip(flat.paths, flat.leaves, strict=True)]
    plan = plan_file(flat.structure, specs, metadata=options.metadata)
    return SavePlan(flat.leaves, SafetensorsSave(require_local(location), plan, options.page_cache))


def write(save: SafetensorsSave, leaves: Leaves, rendezvous: Rendezvous) -> None:
    """Write the file."""
    del rendezvous
    write_file(save.path, save.plan, leaves, page_cache=save.page_cache)


def refuse_foreign(format: Format, location: Location) -> None:
    """Raise NotACheckpointError for a file that is not of safetensors."""
    refuse_foreign_file(require_local(location), read_header, name=format.name)
