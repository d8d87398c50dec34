"""One tree of an Orbax checkpoint: opened, and its index."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

from cordwood.formats.format_protocol import Opened, OpenOptions
from cordwood.formats.ocdbt.manifest import MANIFEST_NAME
from cordwood.formats.ocdbt.values import OcdbtValues
from cordwood.formats.orbax.aggregate_file import read_aggregate, tree_of, value_in_file, values_in
from cordwood.formats.orbax.array_item import array_tree, as_array, is_saved_as_array, is_single
from cordwood.formats.orbax.chunk_messages import MESSAGES
from cordwood.formats.orbax.index_leaf import index_leaf
from cordwood.formats.orbax.json_files import MAX_FILE_BYTES
from cordwood.formats.orbax.orbax_directory import inspect_checkpoint
from cordwood.formats.orbax.other_items import item_kind
from cordwood.formats.orbax.prng_keys import read_key_implementations
from cordwood.formats.orbax.select_tree import select_tree
from cordwood.formats.orbax.shardings import read_shardings
from cordwood.formats.orbax.string_leaves import read_strings
from cordwood.formats.orbax.tree_metadata import TREE_NAME, TreeMetadata, parse_tree_metadata
from cordwood.formats.table import Format
from cordwood.formats.zarr.array_reader import ArrayReader
from cordwood.formats.zarr.key_values import FileValues
from cordwood.formats.zarr.unstored_chunks import ZeroChunks
from cordwood.index import Index
from cordwood.io.open_files import naming
from cordwood.keypath import path_label
from cordwood.message_text import first_names, printable
from cordwood.storage.locations import Location
from cordwood.storage.open_directory import directory_at
from cordwood.storage.readable_directory import OpenDirectory
from cordwood.threads.garbage_collector import gc_paused

FORMAT = "orbax"

_MOST_SHOWN = 200  # characters of a name, in an error


def open_item(format: Format, location: Location, item: str | None, options: OpenOptions) -> Opened:
    """Open a tree.

    Args:
        format: the row of Orbax.
        location: the checkpoint, or the directory of one of its items.
        item: the item's name. None: the checkpoint itself, or its only item that is a tree.
        options: for `verify`, do not warn; see `open_tree`.

    Raises:
        IncompleteCheckpointError: the save did not finish, or the directory is a root of steps;
            names the newest.
        PrefixError: there is no such item, or none is asked for and there are several.
        FormatError, CorruptionError: as `open_tree`.
    """
    del format
    text = str(location)
    place = directory_at(location)
    try:
        inspected = inspect_checkpoint(place)
        # A prefix that is not the name of an item could be a path to anywhere: it is not opened.
        kind = item_kind(place, item) if item is not None and item in inspected.others else ""
        tree = select_tree(inspected, item, name=text, kind=kind)
        directory = place.folder(tree) if tree else place
    except BaseException:
        place.close()
        raise
    try:
        is_array = partial(is_saved_as_array, place, tree)
        return open_tree(directory, warn=not options.for_verify, is_array=is_array)
    except BaseException:
        directory.close()
        raise
    finally:
        if tree:
            place.close()


def open_tree(
    directory: OpenDirectory, *, warn: bool, is_array: Callable[[], bool] = lambda: False
) -> Opened:
    """Read the index of one tree of an Orbax checkpoint; its files own the directory.

    Names of sources are relative to the directory. Arrays are of jax or numpy, as Orbax recorded
    them. Scalars of a dtype in which Python numbers are stored become Python numbers.

    Args:
        directory: the directory that has `_METADATA`, or the aggregate file of an old version.
        is_array: returns True if `ArraySave` wrote the tree. Asked only if it has one leaf, with
            the name that Orbax gives such an array: then it is the leaf.
        warn: warn of arrays without any chunk: zeros that nothing vouches for must not pass in
            silence.

    Raises:
        FormatError: `_METADATA`, the database, the metadata of an array or a chunk is malformed;
            the message names the file or the array.
        CorruptionError: a file or chunk is missing, or does not match its checksum.
        UnsupportedFormatError: it is of a newer version, or uses an unsupported codec.
    """
    with gc_paused():
        aggregate = read_aggregate(directory)
        if directory.has(TREE_NAME):
            data = directory.read(TREE_NAME, limit_bytes=MAX_FILE_BYTES)
            with naming(directory.name):
                tree = parse_tree_metadata(data, values_in(aggregate))
            if is_single(tree) and is_array():
                tree = as_array(tree)
        else:
            tree = array_tree(directory) if aggregate is None else tree_of(aggregate)
        opened, assumed = _open(directory, tree, aggregate)
    if warn and assumed:
        warnings.warn(
            f"{directory.name}: no chunk of {first_names(assumed, 1)} is stored: zeros, which "
            "older versions of Orbax left out without saying so, or files that are lost; "
            "cordwood.verify lists them",
            RuntimeWarning,
            stacklevel=2,
        )
    return opened


def _open(
    directory: OpenDirectory, tree: TreeMetadata, aggregate: Index | None
) -> tuple[Opened, list[str]]:
    """Return the tree, open, and the names of leaves that are assumed to be zeros."""
    use_ocdbt = tree.use_ocdbt
    are_strings = {leaf.value_type == "string" for leaf in tree.leaves if not leaf.in_aggregate}
    if use_ocdbt is None or False not in are_strings:  # Orbax makes no database without arrays
        use_ocdbt = directory.has(MANIFEST_NAME)
    values = OcdbtValues(directory) if use_ocdbt else FileValues(directory, are_listed=False)
    zero_chunks = None
    if not tree.stores_zeros:
        zero_chunks = ZeroChunks(
            values.sources, values.memory, is_certain=use_ocdbt or tree.stores_zeros is False
        )
    version = None if tree.use_zarr3 is None else 3 if tree.use_zarr3 else 2
    reader = ArrayReader(values, MESSAGES, version=version, zero_chunks=zero_chunks)

    strings = read_strings(directory) if True in are_strings else {}
    keys = read_key_implementations(directory)
    in_file, aggregate_source = values_in(aggregate), len(values.sources)
    if aggregate is not None:
        values.sources += aggregate.sources
    leaves = []
    for leaf in tree.leaves:
        shown = leaf.name
        if not shown.isprintable() or len(shown) > _MOST_SHOWN:
            shown = f"{shown!r:.{_MOST_SHOWN}}"
        with naming(f"{directory.name}: {shown or 'the root'}", within=directory.name):
            if leaf.in_aggregate:
                leaves.append(value_in_file(leaf, in_file, source=aggregate_source))
            else:
                leaves.append(index_leaf(leaf, reader, values, strings, keys.get(leaf.name)))
    by_name = read_shardings(directory)
    shardings = {
        n: by_name[leaf.name] for n, leaf in enumerate(tree.leaves) if leaf.name in by_name
    }
    sources = tuple(values.sources)
    paths = {leaf.name: leaf.key_path for leaf in tree.leaves}
    opened = Opened(
        FORMAT,
        Index(FORMAT, tree.structure, tuple(leaves), sources, "keys", shardings=shardings),
        values.open_sources(directory),
        checked_bytes=values.checked_bytes,
        stored_bytes=values.stored_bytes,
        unstored={paths[name]: count for name, count in reader.unstored.items()},
    )
    return opened, [printable(path_label(paths[name])) for name in reader.assumed]
