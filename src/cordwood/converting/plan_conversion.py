"""The planned save of one tree of a conversion."""

from __future__ import annotations

from cordwood.converting.source_leaves import StoredLeaves
from cordwood.formats.format_protocol import SaveOptions, SavePlan
from cordwood.formats.plan_save import plan_save
from cordwood.formats.table import Format
from cordwood.index import Structure, leaf_paths
from cordwood.processes.key_value_store import SINGLE_PROCESS
from cordwood.processes.rendezvous import TIMEOUT_SECONDS, Rendezvous
from cordwood.storage.locations import Location
from cordwood.tree.flatten import FlatTree


def plan_conversion(
    format: Format,
    destination: Location,
    structure: Structure,
    leaves: StoredLeaves,
    options: SaveOptions,
) -> tuple[SavePlan, Rendezvous]:
    """Plan the save of a tree by this process; return the plan, and its rendezvous.

    Args:
        format: the format to write.
        destination: the place to write.
        structure: that of the tree.
        leaves: its leaves.
        options: those of the save.
    """
    tree = FlatTree(structure, tuple(leaf_paths(structure)), leaves.leaves, ())
    purpose = f"convert to {destination}"
    rendezvous = Rendezvous(SINGLE_PROCESS, purpose, timeout_seconds=TIMEOUT_SECONDS)
    return plan_save(format, destination, tree, options, rendezvous), rendezvous
