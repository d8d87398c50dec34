"""From a file to an Index."""

from __future__ import annotations

import math
from typing import NamedTuple

from cordwood.engine.digest import check_coverage
from cordwood.engine.files import ReadableFile
from cordwood.errors import CorruptionError, FormatError, UnsupportedFormatError
from cordwood.formats.safetensors.codes import CODES, stored_as
from cordwood.formats.safetensors.header import Tensor, read_header, tensor_table
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
        return _scan(file)
    except (FormatError, CorruptionError, UnsupportedFormatError) as e:
        raise type(e)(f"{file.name}: {e}") from e


def _scan(file: ReadableFile) -> Index:
    header = read_header(file)
    metadata = split_metadata(header.metadata)
    if metadata.own is not None:
        check_header(header.raw)
    tensors = tensor_table(header, file.size_bytes)
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
        _new(
            Leaf,
            (
                (name,),
                "numpy",
                tensor.shape,
                CODES[tensor.code].dtype,
                _storage(tensor, tensor.elements),
                False,
                None,
            ),
        )
        for name, tensor in tensors.items()
    ]
    structure = (Node("dict", len(tensors), tuple(tensors)), *[LEAF] * len(tensors))
    source = Source(file.name, file.size_bytes)
    return Index(FORMAT, structure, tuple(leaves), (source,), "dotted", metadata)


def _storage(tensor: Tensor, elements: int) -> Pieces:
    _, _, _, offset, length = tensor
    if not length:
        return _EMPTY
    piece = _new(Piece, (_new(Span, (0, elements)), 0, offset, length))
    return _new(Pieces, ((piece,), CODES[tensor.code].encoding))


_EMPTY = Pieces(())


class _Meaning(NamedTuple):
    """What a stored dtype and shape mean for a leaf."""

    dtype: str
    shape: tuple[int, ...]
    elements: int


def _leaves(table: LeafTable, tensors: dict[str, Tensor]) -> list[Leaf]:
    paths = leaf_paths(table.structure)
    names = table.names
    values = iter(table.values)
    unclaimed = dict(tensors)
    leaves: list[Leaf] = []
    start = 0
    for number, length in table.runs:
        leaf_type = table.types[number]
        kind = leaf_type.kind
        known: dict[tuple[str, tuple[int, ...]], _Meaning] = {}
        for i in range(start, start + length):
            path = paths[i]
            if not leaf_type.tensor:
                leaves.append(Leaf(path, kind, (), "", Inline(next(values))))
                continue
            name = names[i] if i in names else dotted_name(path)
            tensor = unclaimed.pop(name, None)
            if tensor is None:
                raise FormatError(
                    f"cordwood.structure: leaf {i} is the tensor {name!r:.200}, which the file "
                    "lacks or another leaf has taken"
                )
            meaning = known.get(tensor[:2])
            if meaning is None:
                meaning = known[tensor[:2]] = _meaning(leaf_type, tensor, name)
            dtype, shape, elements = meaning
            storage = _storage(tensor, elements)
            leaves.append(
                _new(
                    Leaf,
                    (path, kind, shape, dtype, storage, leaf_type.weak_type, leaf_type.prng_impl),
                )
            )
        start += length
    return leaves


def _meaning(leaf_type: LeafType, tensor: Tensor, name: str) -> _Meaning:
    """Raises FormatError where a leaf of that type cannot be stored so."""
    dtype = CODES[tensor.code].dtype
    shape = tensor.shape
    if leaf_type.dtype:
        stored = stored_as(leaf_type.dtype)
        dtype = leaf_type.dtype
        shape = tensor.shape[: len(tensor.shape) - len(stored.extra)]
        fits = stored.disguised and tensor.code == "U8" and shape + stored.extra == tensor.shape
    else:
        fits = CODES[tensor.code].encoding == "raw"
    if leaf_type.kind == "numpy_scalar":
        fits = fits and shape == ()
    elif leaf_type.kind == "prng_key":
        fits = fits and dtype == "uint32" and shape != ()
    elif leaf_type.kind in BYTE_KINDS:
        fits = fits and dtype == "uint8" and len(shape) == 1
    if not fits:
        what = f"{leaf_type.kind} {leaf_type.dtype}".rstrip()
        raise FormatError(
            f"cordwood.structure: tensor {name!r:.200}: {tensor.code}{list(tensor.shape)} cannot "
            f"hold a leaf of type {what}"
        )
    return _Meaning(dtype, shape, math.prod(shape))
