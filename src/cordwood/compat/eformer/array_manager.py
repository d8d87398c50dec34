"""Saves and loads through a caller's array manager (jax's GlobalAsyncCheckpointManager)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Protocol

from cordwood import dtypes
from cordwood.devices.private_jax import set_weak_type
from cordwood.errors import FormatError
from cordwood.formats.format_protocol import Opened
from cordwood.formats.zarr.array_metadata import MAX_METADATA_BYTES
from cordwood.formats.zarr.chunk_grid import chunks
from cordwood.formats.zarr.commit_item import commit_item
from cordwood.formats.zarr.fill_together import fill_together
from cordwood.formats.zarr.metadata_v2 import METADATA_NAME, marked_metadata, parse_metadata
from cordwood.formats.zarr.plan_item import ArrayPlan, ItemPlan
from cordwood.formats.zarr.zarr_dtypes import stored_as
from cordwood.index import Encoded, Leaf, Piece, Pieces
from cordwood.io.find_damage import check_sources
from cordwood.io.leaves_to_write import Leaves
from cordwood.loading.check_x64 import check_x64
from cordwood.loading.leaf_reader import LeafReader
from cordwood.loading.load_target import Target
from cordwood.loading.restore_targets import restore_targets
from cordwood.processes.rendezvous import Rendezvous
from cordwood.storage.local_directory import LocalDirectory
from cordwood.storage.staging.staging_directory import StagingDirectory
from cordwood.storage.write_chunk_files import WrittenFile, adopt_files
from cordwood.threads.run_in_worker import run_in_worker
from cordwood.tree.leaves import is_jax_array


class ArrayManager(Protocol):
    """The methods of a manager that are called."""

    def serialize_with_paths(
        self, arrays: Any, paths: Any, *, on_commit_callback: Callable[[], None]
    ) -> None:
        """Write each array as a zarr array, perhaps in the background; then call back.

        Each process writes its shards. Process 0 calls back when all processes have finished.
        """
        ...

    def deserialize_with_paths(self, shardings: Any, paths: Any) -> Any:
        """Return the arrays, in the order of `paths`."""
        ...

    def wait_until_finished(self) -> None: ...


def save_with_manager(
    path: str,
    item: ItemPlan,
    manager: ArrayManager,
    commit_callback: Callable[[], None],
    rendezvous: Rendezvous,
) -> None:
    """Save a tree as one item of a directory; a manager writes the jax arrays.

    The manager writes into the staging directory. When it calls back, its files are hashed and the
    staging directory is committed, index last; until then the old checkpoint is unchanged. numpy
    arrays, and leaves that the manager cannot write, are written here before it is called.

    Args:
        path: the directory.
        item: the plan of the item.
        manager: its `serialize_with_paths` is called on every process.
        commit_callback: called on process 0 when the item is committed.
        rendezvous: of the processes that save; it ends before the manager is called.

    Raises as `formats.zarr.write.save_item`; from the manager's callback too.
    """
    arrays = item.arrays
    managed_arrays = [
        k for k, array in enumerate(arrays) if _can_manage(item, array, rendezvous.count)
    ]
    managed = set(managed_arrays)
    owners = [k for k, array in enumerate(arrays) for _ in range(1 + len(array.chunks))]
    file_numbers = [number for number, k in enumerate(owners) if k not in managed]
    written: dict[int, list[WrittenFile]] = {}

    def begin(written_files: list[WrittenFile]) -> None:
        stage.make_directories(item.paths)
        for number, each in zip(file_numbers, written_files, strict=True):
            written.setdefault(owners[number], []).append(each)

    leaves = item.tree.leaves
    stage = StagingDirectory(path, timeout_seconds=rendezvous.timeout_seconds)

    def write() -> None:
        fill_together(stage, item, file_numbers, Leaves(leaves), rendezvous, begin)

    def end() -> None:
        with stage.abandon_on_error():
            stage.doing = "flushing what the manager has written"
            for k in managed_arrays:
                written[k] = _adopt(stage, arrays[k], item.paths[k], item.covered)
            files = [written[k] for k in range(len(arrays))]
            sizes = [file.size_bytes for each in files for file in each[1:]]
            commit_item(stage, item, sizes, list(chain.from_iterable(files)))

    def on_commit() -> None:
        if rendezvous.index == 0:
            run_in_worker(end)
            commit_callback()

    try:
        run_in_worker(write)
        manager.serialize_with_paths(
            [leaves[arrays[k].leaf] for k in managed_arrays],
            [f"{stage.path}/{item.paths[k]}" for k in managed_arrays],
            on_commit_callback=on_commit,
        )
    except BaseException:
        if rendezvous.index == 0:
            run_in_worker(stage.abandon)
        raise


def _can_manage(item: ItemPlan, array: ArrayPlan, process_count: int) -> bool:
    leaf = item.tree.leaves[array.leaf]
    if not is_jax_array(leaf) or type(leaf.dtype).__module__.startswith("jax"):
        return False
    if process_count > 1 and leaf.is_fully_addressable:
        return False  # each process has its own array, which jax's manager refuses
    return dtypes.name_of(leaf.dtype) == array.dtype


def _adopt(stage: StagingDirectory, array: ArrayPlan, path: str, marked: bool) -> list[WrittenFile]:
    """Adopt the files of an array: mark its .zarray, hash and flush all files."""
    name = f"{path}/{METADATA_NAME}"
    with LocalDirectory(stage.path) as directory:
        data = directory.read(name, limit_bytes=MAX_METADATA_BYTES)
        metadata = parse_metadata(data)
        if (metadata.shape, metadata.dtype) != (array.shape, array.dtype):
            raise FormatError(
                f"{path}: the manager wrote {metadata.dtype}{list(metadata.shape)}, expected "
                f"{array.dtype}{list(array.shape)}"
            )
    if marked:
        stage.remove(name)
        stage.create_file(name, [marked_metadata(data)])
    names = [chunk for chunk, _ in chunks(metadata.shape, metadata.chunks, metadata.separator)]
    for chunk in names:
        steps = chunk.split("/")
        for count in range(len(steps)):
            stage.mark_unsynced("/".join([path, *steps[: count + 1]]))
    return adopt_files(stage.path, [name, *[f"{path}/{chunk}" for chunk in names]])


def load_leaves(
    item: Opened, path: str, targets: Sequence[Target], manager: ArrayManager | None
) -> list[Any]:
    """Load the targets; a manager, if any, loads the jax arrays after their files are checked."""
    managed_arrays = []
    if manager is not None:
        check_x64(path, targets)
        managed_arrays = [i for i, target in enumerate(targets) if _can_load(target)]
    others = [i for i in range(len(targets)) if i not in set(managed_arrays)]
    values: list[Any] = [None] * len(targets)
    reader = LeafReader(path, item)
    restored = restore_targets(reader, [targets[i] for i in others])
    for i, value in zip(others, restored, strict=True):
        values[i] = value
    if manager is None or not managed_arrays:
        return values
    used = {piece.source for i in managed_arrays for piece in _pieces(targets[i].leaf)}
    digests = [source.digests if n in used else None for n, source in enumerate(item.index.sources)]
    check_sources(item.index, item.files, digests)
    paths = [_place(item, targets[i].leaf) for i in managed_arrays]
    shardings = [targets[i].sharding for i in managed_arrays]
    arrays = manager.deserialize_with_paths(shardings=shardings, paths=paths)
    manager.wait_until_finished()
    for i, array in zip(managed_arrays, arrays, strict=True):
        values[i] = set_weak_type(array) if targets[i].weak_type else array
    return values


def _can_load(target: Target) -> bool:
    leaf = target.leaf
    if not target.kind == leaf.kind == "jax" or target.dtype != leaf.dtype:
        return False
    if target.sharding is None:  # a manager always commits arrays to devices
        return False
    return bool(_pieces(leaf)) and not stored_as(leaf.dtype).disguised


def _pieces(leaf: Leaf) -> Sequence[Piece]:
    return leaf.storage.pieces if isinstance(leaf.storage, Pieces | Encoded) else ()


def _place(item: Opened, leaf: Leaf) -> str:
    """Return the directory of an array, from the path of its first chunk."""
    name = item.files[_pieces(leaf)[0].source].name
    folder, _, chunk = name.rpartition("/")
    if len(leaf.shape) > 1 and "." not in chunk:  # a directory for each axis but the last
        folder = "/".join(name.split("/")[: -len(leaf.shape)])
    return folder
