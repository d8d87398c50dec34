"""The plan of a safetensors file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from json.encoder import encode_basestring  # type: ignore[attr-defined, unused-ignore]
from operator import le
from typing import Any, NamedTuple

from cordwood.encoding.digests import (
    BLOCK_BYTES,
    CORDWOOD_PREFIX,
    DATA_DIGESTS,
    HEADER_START,
    STRUCTURE,
    VERSION,
    VERSION_KEY,
    check_metadata_strings,
    digest_width,
    encode_digests,
    finish_header,
)
from cordwood.encoding.leaf_table import BYTE_KINDS, LeafType, encode_table, tensor_names
from cordwood.encoding.strict_json import VALUE_KINDS, encode_value
from cordwood.errors import LimitError, UnsupportedLeafError
from cordwood.formats.safetensors.header import MAX_HEADER_BYTES, stored_dtype
from cordwood.index import MAX_DIMS, Digests, LeafSpec, Structure, leaf_paths
from cordwood.io.threads import gc_paused
from cordwood.keypath import format_path
from cordwood.plan.assign_to_files import data_order
from cordwood.plan.file_plan import FilePlan, LeafBytes, LeafPart

DATA_ALIGNMENT = 4096  # of the data in the file: a mapping of it begins at a page
INLINE_BYTES = 4096  # a longer str or bytes is a tensor


class _Form(NamedTuple):
    """The properties that tensors of one kind, shape and dtype share."""

    leaf_type: int  # position in `types`
    sort_key: tuple[bool, int]  # see data_order
    entry: str  # the text in the header between the name and the offsets
    length: int  # in bytes


class _LeafGroups(NamedTuple):
    """The leaves, divided into tensors and values in the header."""

    tensors: list[int]  # positions of leaves
    forms: list[_Form]  # of the tensors
    values: list[Any]  # of the other leaves, encoded
    types: list[LeafType]
    leaf_types: list[int]  # of each leaf: position in `types`


def plan_save(
    structure: Structure,
    specs: Sequence[LeafSpec],
    *,
    metadata: Mapping[str, str],
    parts: Sequence[LeafPart] | None = None,
) -> FilePlan:
    """Plan a safetensors file.

    The same arguments give the same bytes. The bytes of a long str are its UTF-8; lone surrogates
    are encoded like other characters.

    Args:
        structure: the containers, with one leaf for each of `specs`, in order.
        specs: the leaves. For a PRNG key array, shape and dtype are those of its key data.
        metadata: the user's strings, stored in `__metadata__` unchanged.
        parts: what `LeafBytes` of the plan name for each of `specs`. None: they are the leaves.

    Raises:
        UnsupportedLeafError: a leaf cannot be stored in this format.
        LimitError: the header would exceed MAX_HEADER_BYTES, or the tree has too many nodes.
        ValueError, TypeError: `metadata` holds something that cannot be stored.
    """
    check_metadata(metadata)
    if parts is None:
        parts = [(leaf, None) for leaf in range(len(specs))]
    with gc_paused():
        return _plan(structure, specs, metadata, parts)


def _plan(
    structure: Structure,
    specs: Sequence[LeafSpec],
    metadata: Mapping[str, str],
    parts: Sequence[LeafPart],
) -> FilePlan:
    paths = leaf_paths(structure)
    if len(paths) != len(specs):
        raise ValueError(f"a structure of {len(paths)} leaves, but {len(specs)} leaves given")
    groups = _group_leaves(specs)
    names, changed = tensor_names([specs[i].key_path for i in groups.tensors])
    table = encode_table(
        structure,
        groups.types,
        groups.leaf_types,
        [(groups.tensors[i], names[i]) for i in changed],
        groups.values,
    )
    order = _file_order(groups.forms)
    forms = [groups.forms[i] for i in order]
    ends = list(accumulate([form.length for form in forms], initial=0))
    offsets = list(map(str, ends))
    quoted = [encode_basestring(names[i]) for i in order]
    entries = [
        f",{name}{form.entry}{begin},{end}]}}"
        for name, form, begin, end in zip(quoted, forms, offsets, offsets[1:], strict=False)
    ]
    file_parts = [parts[groups.tensors[i]] for i in order]
    segments = [
        _new(LeafBytes, (leaf, 0, form.length, box))
        for (leaf, box), form in zip(file_parts, forms, strict=True)
        if form.length
    ]
    return _finish(table, metadata, "".join(entries), tuple(segments), ends[-1])


def _finish(
    table: str,
    metadata: Mapping[str, str],
    entries: str,
    segments: tuple[LeafBytes, ...],
    data_bytes: int,
) -> FilePlan:
    head = f'{HEADER_START}{"0" * 32}","{VERSION_KEY}":"{VERSION}","{DATA_DIGESTS}":"'
    tail = "".join(
        [
            f'","{STRUCTURE}":{encode_basestring(table)}',
            *[f",{encode_basestring(k)}:{encode_basestring(v)}" for k, v in metadata.items()],
            "}",
            entries,
            "}",
        ]
    )
    digests_width = digest_width(data_bytes)
    size = 8 + len(head) + digests_width + len(tail.encode())
    header_bytes = -(-size // DATA_ALIGNMENT) * DATA_ALIGNMENT
    if header_bytes - 8 > MAX_HEADER_BYTES:
        raise LimitError(
            f"the header would take {header_bytes} bytes; readers of safetensors accept at most "
            f"{MAX_HEADER_BYTES} (MAX_HEADER_BYTES): store fewer or larger leaves in one file"
        )

    def seal(digests: Digests) -> bytes:
        text = encode_digests(digests)
        if (digests.start, digests.block_bytes) != (header_bytes, BLOCK_BYTES) or len(
            text
        ) != digests_width:
            raise ValueError(
                f"expected digests of {BLOCK_BYTES}-byte blocks of the {data_bytes} bytes from "
                f"byte {header_bytes} on, found {len(digests.values)} bytes of digests of "
                f"{digests.block_bytes}-byte blocks from byte {digests.start} on"
            )
        return finish_header(f"{head}{text}{tail}", header_bytes)

    return FilePlan(header_bytes + data_bytes, segments, header_bytes, seal)


def _file_order(forms: Sequence[_Form]) -> Sequence[int]:
    """Return the positions of tensors in the order of the file; ties keep the order of leaves."""
    keys = [form.sort_key for form in forms]
    if all(map(le, keys, keys[1:])):
        return range(len(keys))
    return sorted(range(len(keys)), key=keys.__getitem__)


def _form(leaf_type: int, code: str, shape: tuple[int, ...], itemsize: int, length: int) -> _Form:
    entry = f':{{"dtype":"{code}","shape":[{",".join(map(str, shape))}],"data_offsets":['
    return _Form(leaf_type, data_order(length, itemsize), entry, length)


def _group_leaves(specs: Sequence[LeafSpec]) -> _LeafGroups:
    tensors: list[int] = []
    forms: list[_Form] = []
    values: list[Any] = []
    numbers: dict[LeafType, int] = {}
    leaf_types: list[int] = []
    # Most leaves are of few types: the form is computed once for each type.
    cache: dict[tuple[Any, ...], _Form] = {}
    for i, spec in enumerate(specs):
        cache_key = spec[1:6]  # all but the path and the value
        form = cache.get(cache_key)
        if form is None and spec.kind in VALUE_KINDS:
            size = _value_bytes(spec.value) if spec.kind in BYTE_KINDS else 0
            leaf_type = LeafType(spec.kind, size > INLINE_BYTES)
            number = numbers.setdefault(leaf_type, len(numbers))
            if not leaf_type.tensor:
                values.append(encode_value(spec.kind, spec.value))
                leaf_types.append(number)
                continue
            form = _form(number, "U8", (size,), 1, size)
        elif form is None:
            form = cache[cache_key] = _array_form(spec, numbers)
        tensors.append(i)
        forms.append(form)
        leaf_types.append(form.leaf_type)
    return _LeafGroups(tensors, forms, values, list(numbers), leaf_types)


def _array_form(spec: LeafSpec, numbers: dict[LeafType, int]) -> _Form:
    _, kind, shape, dtype, weak_type, impl, _ = spec
    if len(shape) >= MAX_DIMS or kind == "opaque":
        raise UnsupportedLeafError(_unsupported_text(spec))
    code, itemsize, is_substitute, extra_shape = stored_dtype(dtype)
    leaf_type = LeafType(kind, True, dtype if is_substitute else "", weak_type, impl)
    number = numbers.setdefault(leaf_type, len(numbers))
    return _form(number, code, shape + extra_shape, itemsize, math.prod(shape) * itemsize)


_new = tuple.__new__


def _value_bytes(value: str | bytes) -> int:
    return len(value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass"))


def _unsupported_text(spec: LeafSpec) -> str:
    name = format_path(spec.key_path) or "the tree itself"
    if spec.kind == "opaque":
        return f"{name}: a value that only its original format understands cannot be stored here"
    return (
        f"{name}: {len(spec.shape)} dimensions; safetensors takes fewer than {MAX_DIMS} (MAX_DIMS)"
    )


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Raise TypeError or ValueError for user strings that cannot be stored."""
    check_metadata_strings(metadata)
    for key in metadata:
        if key.startswith(CORDWOOD_PREFIX):
            raise ValueError(
                f"metadata: {key!r:.80}: keys that begin with {CORDWOOD_PREFIX!r} are "
                "cordwood's own; choose another"
            )
