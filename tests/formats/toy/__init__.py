"""A toy format in a package of its own, as a format inside cordwood would have it.

<checkpoint>/toy.json       the structure, the leaves and the strings of a tree
<checkpoint>/elements.bin   the elements of its arrays, one after another
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from cordwood import dtypes
from cordwood.encoding.json_tree_structure import structure_from_json, structure_to_json
from cordwood.encoding.json_values import decode_value, encode_value
from cordwood.errors import FormatError, IncompleteCheckpointError, NotACheckpointError
from cordwood.formats.format_losses import refuse_opaque
from cordwood.formats.format_protocol import Opened, OpenOptions, SaveOptions, SavePlan
from cordwood.formats.table import Format
from cordwood.index import (
    ARRAY_KINDS,
    Index,
    Inline,
    Leaf,
    LeafSpec,
    Piece,
    Pieces,
    Source,
    Span,
    leaf_paths,
)
from cordwood.io.lazy_array import LazyArray
from cordwood.io.leaves_to_write import Leaves
from cordwood.processes.rendezvous import Rendezvous
from cordwood.storage.directories import list_names
from cordwood.storage.local_directory import FileOwningDirectory, LocalDirectory
from cordwood.storage.locations import LocalPath, Location, require_local
from cordwood.storage.paths import path_exists
from cordwood.storage.staging.staging_directory import DirectoryChange, StagingDirectory
from cordwood.storage.storage_protocol import Garbage
from cordwood.tree.flatten import flatten
from cordwood.tree.leaves import describe_leaf

INDEX_NAME, ELEMENTS_NAME = "toy.json", "elements.bin"
_MAX_INDEX_BYTES = 1 << 20


TOY = Format(
    name="toy",
    description="a toy of the tests",
    index_name=INDEX_NAME,
    reader=__name__,
    writer=__name__,
    save_options=frozenset({"metadata"}),
    losses=__name__,
    collector=__name__,
)


def open_item(format: Format, location: Location, item: str | None, options: OpenOptions) -> Opened:
    del options
    if item:
        raise ValueError(f"{location} holds one tree")
    directory = LocalDirectory(require_local(location))
    try:
        index = _read_index(directory)
    except BaseException:
        directory.close()
        raise
    (source,) = index.sources
    return Opened(
        format.name, index, (FileOwningDirectory(directory, source.name, source.size_bytes),)
    )


class ToySave(NamedTuple):
    path: LocalPath
    specs: Sequence[LeafSpec]
    index_bytes: bytes


def plan_save(
    format: Format, location: Location, tree: Any, options: SaveOptions, rendezvous: Rendezvous
) -> SavePlan:
    del format, rendezvous
    flat = flatten(tree)
    specs = [describe_leaf(p, leaf) for p, leaf in zip(flat.paths, flat.leaves, strict=True)]
    index = {
        "structure": structure_to_json(flat.structure),
        "leaves": [_encode_leaf(spec) for spec in specs],
        "metadata": dict(options.metadata),
    }
    data = json.dumps(index).encode()
    return SavePlan(flat.leaves, ToySave(require_local(location), specs, data))


def write(save: ToySave, leaves: Leaves, rendezvous: Rendezvous) -> None:
    arrays = [n for n, spec in enumerate(save.specs) if spec.kind in ARRAY_KINDS]
    elements = [_bytes_of(leaves.part(n), save.specs[n]) for n in arrays]
    stage = StagingDirectory(save.path, timeout_seconds=rendezvous.timeout_seconds)
    with stage.abandon_on_error():
        stage.begin()
        stage.create_file(ELEMENTS_NAME, elements)
        stage.create_file(INDEX_NAME, [save.index_bytes])
        stage.commit(_replace_all)


def refuse_foreign(format: Format, location: Location) -> None:
    del format
    text = str(location)
    if os.path.exists(text) and list_names(text) and not path_exists(f"{text}/{INDEX_NAME}"):
        raise NotACheckpointError(f"{text} is no toy: remove it, or save to another path")


def losses(format: Format, index: Index, metadata: Mapping[str, str]) -> list[str]:
    del metadata
    refuse_opaque(index, format.name)
    return []


def extra_problems(location: Location) -> Iterable[str]:
    for name in list_names(str(location)):
        if name not in (INDEX_NAME, ELEMENTS_NAME):
            yield f"{name}: the index does not refer to it"


def stale_files(location: Location) -> Sequence[str]:
    del location
    return ()


def collect(location: Location, *, dry_run: bool) -> Garbage:
    del location, dry_run
    return Garbage([])


def _encode_leaf(spec: LeafSpec) -> list[Any]:
    value = None if spec.kind in ARRAY_KINDS else encode_value(spec.kind, spec.value)
    return [spec.kind, spec.dtype, spec.shape, spec.weak_type, spec.prng_impl, value]


def _bytes_of(elements: np.ndarray | LazyArray, spec: LeafSpec) -> bytes:
    if isinstance(elements, LazyArray):
        return b"".join(elements.buffers(0, prod(spec.shape) * dtypes.itemsize(spec.dtype)))
    return bytes(elements.tobytes())


def _replace_all(_old: str | None) -> DirectoryChange:
    return DirectoryChange()


def _read_index(directory: LocalDirectory) -> Index:
    if not directory.has(INDEX_NAME):
        raise IncompleteCheckpointError(f"{directory.name} has no {INDEX_NAME}")
    data = directory.read(INDEX_NAME, limit_bytes=_MAX_INDEX_BYTES)
    try:
        return _parse_index(json.loads(data))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as e:
        raise FormatError(f"{directory.name}/{INDEX_NAME}: {e}") from e


def _parse_index(found: Any) -> Index:
    structure = structure_from_json(found["structure"])
    leaves: list[Leaf] = []
    offset = 0
    for path, row in zip(leaf_paths(structure), found["leaves"], strict=True):
        kind, dtype, shape, weak_type, prng_impl, value = row
        if kind not in ARRAY_KINDS:
            leaves.append(Leaf(path, kind, (), "", Inline(decode_value(kind, value))))
            continue
        if not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError(f"expected a shape, found {shape!r:.80}")
        count = prod(shape)
        length = count * dtypes.itemsize(dtypes.parse(dtype))
        pieces = Pieces((Piece(Span(0, count), 0, offset, length),))
        leaves.append(Leaf(path, kind, tuple(shape), dtype, pieces, bool(weak_type), prng_impl))
        offset += length
    metadata = {str(name): str(value) for name, value in found["metadata"].items()}
    sources = (Source(ELEMENTS_NAME, offset),)
    return Index("toy", structure, tuple(leaves), sources, metadata=metadata)
