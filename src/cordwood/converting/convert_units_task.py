"""The task of a conversion: some files of the destination."""

from __future__ import annotations

from typing import Any, NamedTuple

from cordwood.converting.part_to_convert import LeafOptions, part_to_convert
from cordwood.converting.plan_conversion import plan_conversion
from cordwood.converting.source_leaves import StoredLeaves, scratch_near
from cordwood.formats.detect_in_store import format_saved_to_stores
from cordwood.formats.format_protocol import SaveOptions
from cordwood.formats.load_format import task_writer_of
from cordwood.formats.table import require_name
from cordwood.io.leaves_to_write import Leaves
from cordwood.loading.tree_reference import TreeReference
from cordwood.storage.locations import LocalPath, Location, Url
from cordwood.threads.garbage_collector import gc_paused


class TreeConversion(NamedTuple):
    """The conversion of one tree, for a worker.

    Attributes:
        source: the tree.
        destination: the place to write, an absolute path or a URL.
        format: the name of the format to write.
        options: those of the save.
        scratch: a directory on whose disk a large leaf is rearranged; None: that of `scratch_near`.
        leaf_options: which leaves are written, and as what.
    """

    source: TreeReference
    destination: Location
    format: str
    options: SaveOptions
    scratch: LocalPath | None
    leaf_options: LeafOptions


class ConvertUnits(NamedTuple):
    """The writing of some units of a destination.

    Attributes:
        tree: the conversion.
        token: that of the `DividedSave`.
        start, stop: the numbers of the units.
        size_bytes: of what is written.
    """

    tree: TreeConversion
    token: str
    start: int
    stop: int
    size_bytes: int

    def run(self) -> list[Any]:
        """Write the units, and return their reports."""
        tree = self.tree
        format = require_name(tree.format)
        if isinstance(tree.destination, Url):
            format = format_saved_to_stores(tree.destination, format)
        writer = task_writer_of(format)
        assert writer is not None
        with tree.source.open() as checkpoint, gc_paused():
            part = part_to_convert(checkpoint, tree.options.prefix, tree.leaf_options)
            scratch = tree.scratch or scratch_near(checkpoint.path, tree.destination)
            leaves = StoredLeaves(checkpoint, part.selected, part.dtypes, None, scratch)
            structure = part.selected.stored.structure
            plan, _ = plan_conversion(format, tree.destination, structure, leaves, tree.options)
            numbers = range(self.start, self.stop)
            return [*writer.write_units(plan.save, self.token, Leaves(plan.leaves), numbers)]

    def to_json(self, result: list[Any]) -> list[Any]:
        return result
