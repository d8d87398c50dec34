"""A planned save: the leaves that it writes, and how to write them once they are given."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from cordwood.formats.format_protocol import WritableFormat
from cordwood.io.leaves_to_write import Leaves
from cordwood.processes.rendezvous import Rendezvous


class Linking:
    """The link of one save to an older checkpoint, whose files it keeps by hard links.

    Args:
        base: the name of the checkpoint, a directory beside the one that is saved, as process 0
            knows it; "" for none.

    Attributes:
        linked_bytes: of arrays, by this process, once all is written.
    """

    def __init__(self, base: str) -> None:
        self.base = base
        self.linked_bytes = 0


class SaveOptions(NamedTuple):
    """Options of a save. Each format lists those that it takes in `save_options`.

    Attributes:
        prefix: the name of the tree in a directory of several; None: it has none.
        metadata: strings that are stored beside the tree.
        compression: of the chunks; None: they are raw.
        max_shard_bytes: the bytes of arrays in one file; None: the format decides.
        linking: what is needed to link files of an older checkpoint; None: all is written.
        items: more trees by prefix, which are committed with this one. Trees of other prefixes are
            then dropped. None: this tree alone is saved, and those of other prefixes stay.
    """

    prefix: str | None = None
    metadata: Mapping[str, str] = {}
    compression: str | None = None
    max_shard_bytes: int | None = None
    linking: Linking | None = None
    items: Mapping[str, Any] | None = None


class SavePlan(NamedTuple):
    """A planned save, which no longer depends on the caller's containers.

    Attributes:
        leaves: the leaves of the tree.
        write: writes the files, given the leaves: these or snapshots of them.
        sizes: of each leaf, the bytes that this process writes; None: all of each.
    """

    leaves: Sequence[Any]
    write: Callable[[Leaves], None]
    sizes: Sequence[int] | None = None


def require_strings(metadata: Any) -> None:
    """Raise TypeError for metadata that is no mapping; its format checks the content."""
    if not isinstance(metadata, Mapping):
        raise TypeError(f"metadata: expected a dict of strings, found {metadata!r:.80}")


def plan_save(
    format: WritableFormat,
    path: str | os.PathLike[str],
    tree: Any,
    options: SaveOptions,
    rendezvous: Rendezvous,
) -> SavePlan:
    """Plan the save of a tree. Raises as `cordwood.save` does, before anything is written."""
    require_strings(options.metadata)
    _check_options(format, os.fspath(path), options)
    return format.plan_save(path, tree, options, rendezvous)


def _check_options(format: WritableFormat, path: str, options: SaveOptions) -> None:
    """Raise ValueError for an option that the format does not take."""
    takes = format.save_options
    size = options.max_shard_bytes
    if size is not None:
        if "max_shard_bytes" not in takes:
            raise ValueError(f"{path}: max_shard_bytes= is for directories of safetensors files")
        if type(size) is not int or size < 1:
            raise ValueError(f"max_shard_bytes: expected an int of at least 1, found {size!r:.80}")
    if options.compression is not None and "compression" not in takes:
        raise ValueError(f'{path}: compression= is for layout="zarr"')
    if options.metadata and "metadata" not in takes:
        raise ValueError(f"{path}: the {format.name} format has no place for metadata")
    for name in ("prefix", "linking", "items"):
        if getattr(options, name) is not None and name not in takes:
            raise ValueError(f"{path}: the {format.name} format has no {name}")
