"""Save a tree as a file of Flax's msgpack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cordwood.formats.flax_msgpack.plan_state import plan_state
from cordwood.formats.flax_msgpack.read_index import read_index
from cordwood.formats.format_losses import losses_in_a_state_dict
from cordwood.formats.format_protocol import SaveOptions, SavePlan
from cordwood.formats.save_single_file import SingleFileSave, refuse_foreign_file, write_single_file
from cordwood.formats.table import Format
from cordwood.index import Index
from cordwood.plan.file_plan import FilePlan
from cordwood.state_dict.state_dicts import to_state_dict
from cordwood.storage.locations import Location, require_local
from cordwood.tree.flatten import FlatTree, build_tree

if TYPE_CHECKING:
    from cordwood.processes.rendezvous import Rendezvous


write = write_single_file


def plan_save(
    format: Format, location: Location, tree: Any, options: SaveOptions, rendezvous: Rendezvous
) -> SavePlan:
    """Plan the file of a tree."""
    del format, rendezvous
    plan, arrays = plan_tree(tree)
    return SavePlan(arrays, SingleFileSave(require_local(location), plan, options.page_cache))


def plan_tree(tree: Any) -> tuple[FilePlan, tuple[Any, ...]]:
    """Return the plan of the bytes of a tree, or of a `FlatTree`, and its arrays."""
    if type(tree) is FlatTree:
        tree = build_tree(tree.structure, tree.leaves)
    return plan_state(to_state_dict(tree))


def refuse_foreign(format: Format, location: Location) -> None:
    """Raise NotACheckpointError for a file that is no msgpack.

    All of it is read, as msgpack has no magic number: text begins like a number, and only the bytes
    after that show it. A file of one letter is a tree of one int too, and so is replaced.
    """
    refuse_foreign_file(require_local(location), read_index, name=format.name)


def losses(format: Format, index: Index, metadata: Mapping[str, str]) -> list[str]:
    """Return what Flax's msgpack cannot store of an index."""
    del format
    return losses_in_a_state_dict(index, metadata)
