"""From a file to an Index."""

from __future__ import annotations

import math

from cordwood.engine.collector import collector_paused
from cordwood.engine.digest import check_coverage
from cordwood.engine.files import ReadableFile
from cordwood.errors import CorruptionError, FormatError, UnsupportedFormatError
from cordwood.formats.safetensors.codes import stored_as
from cordwood.formats.safetensors.header import read_header
from cordwood.formats.safetensors.leaf_table import (
    BYTE_KINDS,
    LeafTable,
    LeafType,
    parse_table,
)
from cordwood.formats.safetensors.names import dotted_name
from cordwood.formats.safetensors.seal import (
    DATA_DIGESTS,
    STRUCTURE,
    check_header,
    decode_digests,
    split_metadata,
)
from cordwood.formats.safetensors.tensors import Extent, Tensor, tensor_table
from cordwood.index import Index, Inline, Leaf, Piece, Pieces, Source, Span
from cordwood.tree.structure import LEAF, Node, leaf_paths

__all__ = ["FORMAT", "scan"]

FORMAT = "safetensors"

_new = tuple.__new__


def scan(file: ReadableFile) -> Index:
    """What a safetensors file holds.

    A file of cordwood's comes with its tree, exact key paths and digests, its header verified
    here. Any other comes as a flat dict of its names, in the header's order, as numpy arrays.
    `Index.metadata` is the user's part of `__metadata__`.

    Raises:
        FormatError: it is not a safetensors file; the message names the byte or the tensor.
        TruncatedError: it ends too early.
        CorruptionError: cordwood wrote it, and its header is not what cordwood wrote.
        UnsupportedFormatError: a newer cordwood wrote it.
    """
    try:
        with collector_paused():
            return _scan(file)
    except (FormatError, CorruptionError, UnsupportedFormatError) as e:
        raise type(e)(f"{file.name}: {e}") from e


def _scan(file: ReadableFile) -> Index:
    header = read_header(file)
    metadata = split_metadata(header.metadata)
    if metadata.own is not None:
        check_header(header.raw)
    tensors = header.tensors
    if tensors is None:
        tensors = tensor_table(header.entries, header.raw, size_bytes=file.size_bytes)
    if metadata.own is None:
        return _foreign(file, tensors, metadata.user)
    digests = decode_digests(metadata.own[DATA_DIGESTS], len(header.raw))
    check_coverage("the data", file.size_bytes, digests)
    table = parse_table(metadata.own[STRUCTURE], tensor_count=len(tensors))
    return Index(
        FORMAT,
        table.structure,
        tuple(_leaves(table, tensors)),
        (Source(file.name, file.size_bytes, digests),),
        "exact",
        metadata.user,
    )


def _foreign(file: ReadableFile, tensors: dict[str, Tensor], metadata: dict[str, str]) -> Index:
    leaves = [
        _new(Leaf, ((name,), "numpy", extent[1], extent[2], _storage(extent, offset), False, None))
        for name, (extent, offset) in tensors.items()
    ]
    structure = (Node("dict", len(tensors), tuple(tensors)), *[LEAF] * len(tensors))
    source = Source(file.name, file.size_bytes)
    return Index(FORMAT, structure, tuple(leaves), (source,), "dotted", metadata)


def _storage(extent: Extent, offset: int) -> Pieces:
    _, _, _, encoding, span, length = extent
    return _new(Pieces, ((_new(Piece, (span, 0, offset, length)),), encoding))


def _leaves(table: LeafTable, tensors: dict[str, Tensor]) -> list[Leaf]:
    paths = leaf_paths(table.structure)
    names = table.names
    values = iter(table.values)
    unclaimed = dict(tensors)
    claim = unclaimed.pop
    leaves: list[Leaf] = []
    add = leaves.append
    start = 0
    for number, length in table.runs:
        leaf_type = table.types[number]
        kind, in_tensor, _, weak_type, impl = leaf_type
        if not in_tensor:
            for path in paths[start : start + length]:
                add(Leaf(path, kind, (), "", Inline(next(values))))
            start += length
            continue
        known: dict[int, Extent] = {}  # by the id of the tensor's extent, which many share
        for i, path in enumerate(paths[start : start + length], start):
            name = names[i] if i in names else dotted_name(path)
            tensor = claim(name, None)
            if tensor is None:
                raise FormatError(
                    f"cordwood.structure: leaf {i} is the tensor {name!r:.200}, which the file "
                    "lacks or another leaf has taken"
                )
            stored, offset = tensor
            extent = known.get(id(stored))
            if extent is None:
                extent = known[id(stored)] = _interpreted(leaf_type, stored, name)
            _, shape, dtype, encoding, span, size = extent
            pieces = (_new(Piece, (span, 0, offset, size)),)
            storage = _new(Pieces, (pieces, encoding))
            add(_new(Leaf, (path, kind, shape, dtype, storage, weak_type, impl)))
        start += length
    return leaves


def _interpreted(leaf_type: LeafType, stored: Extent, name: str) -> Extent:
    """What a tensor is as a leaf. Raises FormatError where the leaf cannot be stored so."""
    fits = stored.encoding == "raw"  # cordwood writes no packed ones
    extent = stored
    if leaf_type.dtype:
        extra = stored_as(leaf_type.dtype).extra
        shape = stored.shape[: len(stored.shape) - len(extra)]
        fits = stored_as(leaf_type.dtype).disguised and stored.code == "U8"
        fits = fits and shape + extra == stored.shape
        span = Span(0, math.prod(shape))
        extent = stored._replace(shape=shape, dtype=leaf_type.dtype, span=span)
    if leaf_type.kind == "numpy_scalar":
        fits = fits and extent.shape == ()
    elif leaf_type.kind == "prng_key":
        fits = fits and extent.dtype == "uint32" and extent.shape != ()
    elif leaf_type.kind in BYTE_KINDS:
        fits = fits and extent.dtype == "uint8" and len(extent.shape) == 1
    if not fits:
        what = f"{leaf_type.kind} {leaf_type.dtype}".rstrip()
        raise FormatError(
            f"cordwood.structure: tensor {name!r:.200}: {stored.code}{list(stored.shape)} cannot "
            f"hold a leaf of type {what}"
        )
    return extent
