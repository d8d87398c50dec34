"""Save a tree as a checkpoint of Orbax: a directory of zarr arrays for each leaf, without OCDBT.

All versions of Orbax since 0.6 read this layout.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from cordwood import dtypes
from cordwood.encoding.cordwood_metadata import check_metadata_strings
from cordwood.errors import UnsupportedLeafError
from cordwood.formats.format_losses import losses_in_an_orbax_tree, refuse_opaque, unstorable_error
from cordwood.formats.format_protocol import SaveOptions, SavePlan
from cordwood.formats.new_directory import put_in_place, require_one_process, require_vacant
from cordwood.formats.ocdbt.manifest import MANIFEST_NAME
from cordwood.formats.orbax.aggregate_file import AGGREGATE_NAME
from cordwood.formats.orbax.checkpoint_metadata import (
    CHECKPOINT_NAME,
    TREE_HANDLER,
    encode_checkpoint_metadata,
)
from cordwood.formats.orbax.encode_tree import encode_tree, number_files, unsupported
from cordwood.formats.orbax.prng_keys import KEYS_FOLDER
from cordwood.formats.orbax.shardings import SHARDINGS_NAME
from cordwood.formats.orbax.string_leaves import STRINGS_NAME
from cordwood.formats.orbax.tree_metadata import TREE_NAME
from cordwood.formats.orbax.unfinished_saves import COMMIT_NAME
from cordwood.formats.zarr.array_metadata import MAX_DIMS
from cordwood.formats.zarr.plan_item import files_of_array, plan_array
from cordwood.index import ARRAY_KINDS, Index, LeafSpec
from cordwood.io.leaves_to_write import Leaves
from cordwood.plan.cells import merge_small_shards
from cordwood.plan.file_plan import PlannedFile, SmallFile
from cordwood.processes.rendezvous import Rendezvous
from cordwood.storage.locations import LocalPath, Location, require_local
from cordwood.storage.staging.staging_directory import StagingDirectory
from cordwood.tree.flatten import describe_tree

if TYPE_CHECKING:
    from cordwood.formats.table import Format

_COMMIT = b"Checkpoint commit was successful"
_MAX_NAME_BYTES = 255  # of a directory, on the usual file systems
# Files beside the arrays, and those by which Orbax recognises other layouts.
_RESERVED = {
    *(TREE_NAME, STRINGS_NAME, SHARDINGS_NAME, KEYS_FOLDER, CHECKPOINT_NAME, COMMIT_NAME),
    *(MANIFEST_NAME, AGGREGATE_NAME, "orbax.checkpoint"),
}


class OrbaxSave(NamedTuple):
    """A planned save of a tree as a checkpoint of Orbax."""

    format: Format
    path: LocalPath
    files: Sequence[PlannedFile]
    page_cache: bool


def plan_save(
    format: Format, location: Location, tree: Any, options: SaveOptions, rendezvous: Rendezvous
) -> SavePlan:
    """Plan the files of a tree; by one process.

    Args:
        format: the row of directories for Orbax.
        location: of the directory, which is made anew.
        tree: the tree.
        options: `metadata` is the `custom_metadata` of the checkpoint.
        rendezvous: of this process alone; says how long to wait for locks.

    Raises:
        UnsupportedLeafError: Orbax cannot hold a leaf; names its key path.
        UnsupportedFormatError: there are several processes.
    """
    path = require_local(location)
    require_one_process(format, path, rendezvous)
    check_metadata_strings(options.metadata)
    described = describe_tree(tree, process=rendezvous.index, process_count=rendezvous.count)
    encoded = encode_tree(described.structure, described.specs)
    beside = {
        **encoded.files,
        CHECKPOINT_NAME: encode_checkpoint_metadata(TREE_HANDLER, {}, strings=options.metadata),
        COMMIT_NAME: _COMMIT,
    }
    files: list[PlannedFile] = [SmallFile(name, data) for name, data in beside.items()]
    zarrays: dict[tuple[object, ...], bytes] = {}
    leaves = zip(encoded.names, described.specs, described.shards, strict=True)
    for number, (name, spec, shards) in enumerate(leaves):
        if spec.kind == "str":
            continue
        _require_path(name, spec)
        if spec.kind in ARRAY_KINDS:
            cuts = merge_small_shards(shards, dtypes.itemsize(spec.dtype)).cuts
            array = plan_array(number, spec, cuts, None, zarrays, marked=False)
            files += files_of_array(array, name)
        else:
            numbers = number_files(name, spec)
            files += [SmallFile(path, data) for path, data in numbers.items()]
    _require_distinct(encoded.names, described.specs, {file.path for file in files})
    return SavePlan(described.leaves, OrbaxSave(format, path, files, options.page_cache))


def write(save: OrbaxSave, leaves: Leaves, rendezvous: Rendezvous) -> None:
    """Write the files into a staging directory, and put it in place."""
    stage = StagingDirectory(
        save.path, timeout_seconds=rendezvous.timeout_seconds, page_cache=save.page_cache
    )
    with stage.abandon_on_error():
        stage.write(save.files, leaves)
        put_in_place(save.format, stage)


def refuse_foreign(format: Format, location: Location) -> None:
    """Raise NotACheckpointError unless there is nothing, or an empty directory."""
    require_vacant(format, require_local(location))


def losses(format: Format, index: Index, metadata: Mapping[str, str]) -> list[str]:
    """Return what Orbax does not record of a tree."""
    del metadata
    refuse_opaque(index, format.name)
    return losses_in_an_orbax_tree(index)


def _require_path(name: str, spec: LeafSpec) -> None:
    """Raise UnsupportedLeafError for an array whose name is no path of a directory for it."""
    if len(spec.shape) >= MAX_DIMS:
        raise unstorable_error(spec, MAX_DIMS, "Orbax takes")
    parts = name.split("/") if name else []
    is_usable = all(
        part not in ("", ".", "..") and len(part.encode(errors="replace")) <= _MAX_NAME_BYTES
        for part in parts
    )
    if not is_usable or not _is_encodable(name) or "\0" in name or set(parts[:1]) & _RESERVED:
        raise _unusable(name, spec)


def _is_encodable(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _require_distinct(
    names: Sequence[str], specs: Sequence[LeafSpec], files: Collection[str]
) -> None:
    """Raise UnsupportedLeafError if the directory of an array has the path of a file."""
    for name, spec in zip(names, specs, strict=True):
        if spec.kind != "str" and any(
            folder in files for folder in accumulate(name.split("/"), "{}/{}".format)
        ):
            raise _unusable(name, spec)


def _unusable(name: str, spec: LeafSpec) -> UnsupportedLeafError:
    return unsupported(
        spec.key_path, f"Orbax would have its array in a directory {name!r:.100}, which cannot be"
    )
