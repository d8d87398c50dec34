"""The resource `norms`: the L2 norm of each leaf of a step, over which the run view draws lines."""

from __future__ import annotations

import math
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import xxhash

from cordwood import dtypes
from cordwood.api.checkpoint import Checkpoint
from cordwood.api.diff_operands import CheckpointOperand
from cordwood.errors import CordwoodError
from cordwood.index import ARRAY_KINDS, Box, Encoded, Inline, Leaf, Pieces
from cordwood.io.progress import Progress, ProgressMeter, Report
from cordwood.io.threads import default_threads, run_tasks
from cordwood.keypath import format_path, format_paths
from cordwood.plan.equal_digests import digest_key
from cordwood.plan.split_arrays import split_array
from cordwood.sharding.boxes import element_count
from cordwood.viewer.leaf_kinds import LeafPlace, place_of
from cordwood.viewer.sources import Sources

Array: TypeAlias = np.ndarray[Any, Any]
Read: TypeAlias = Literal["sample", "all"]

_PART_BYTES = 4 << 20
_GROUP_BYTES = 16 << 20  # of parts, read at a time by one thread
_SAMPLED_BYTES = 2 << 20  # a sample takes smaller leaves whole
_SAMPLE_PARTS = 2
_SAMPLE_PART_BYTES = 512 << 10
MAX_SAMPLE_BYTES = 256 << 20  # of a step; leaves beyond it have no norm
_MAX_CACHED = 500_000
_MAX_PROBLEMS = 20


class NormCache:
    """Norms of leaves by the digests of their bytes; the least recently used are dropped.

    Threads may use it at the same time.
    """

    def __init__(self, most: int = _MAX_CACHED) -> None:
        self._norms: OrderedDict[tuple[bytes, Read], float] = OrderedDict()
        self._most = most
        self._lock = threading.Lock()

    def get(self, key: bytes | None, read: Read) -> tuple[float, bool] | None:
        """Return the norm of the leaf with these bytes, and True if it is an estimate.

        Return None if it is not in the cache.
        """
        if key is None:
            return None
        with self._lock:
            entries: list[tuple[bytes, Read]] = [(key, "all"), (key, read)]
            for entry in entries:
                if entry in self._norms:
                    self._norms.move_to_end(entry)
                    return self._norms[entry], entry[1] == "sample"
        return None

    def put(self, key: bytes | None, read: Read, norm: float) -> None:
        """Keep the norm of a leaf."""
        if key is None:
            return
        with self._lock:
            self._norms[key, read] = norm
            if len(self._norms) > self._most:
                self._norms.popitem(last=False)


_CACHE = NormCache()
_place_of = lru_cache(100_000)(place_of)  # the steps of a run have the same key paths


class _Part(NamedTuple):
    """A box of a leaf to read."""

    number: int
    box: Box
    size_bytes: int


class _Sum(NamedTuple):
    """The norm of the elements of a leaf that were read, and their number."""

    norm: float = 0.0
    elements: int = 0


class LeafNorms(NamedTuple):
    """The norms of the leaves of a checkpoint.

    Attributes:
        norms: of each leaf; None for a leaf that is no number, was left out of the sample or
            could not be read.
        sampled: True for a norm that is an estimate from a part of the elements.
        problems: errors of reading, by leaf.
        read_bytes: the size of the elements that were read.
        cached: the number of leaves that were not read because of their digests.
        complete: True if no leaf was left out, and no norm is an estimate.
    """

    norms: list[float | None]
    sampled: list[bool]
    problems: dict[int, str]
    read_bytes: int
    cached: int
    complete: bool


def norms_view(
    sources: Sources, report: Report | None, *, source: str, read: str
) -> dict[str, Any]:
    """Return the L2 norm of each leaf of a step, with its place in the model."""
    if read not in ("sample", "all"):
        raise KeyError(f"norms are read from a sample or from all, not from {read}")
    with sources.checkpoint(source) as checkpoint:
        norms = leaf_norms(checkpoint, "all" if read == "all" else "sample", _CACHE, report)
        leaves = checkpoint.index.leaves
        paths = format_paths([leaf.key_path for leaf in leaves])
        places = [_place_of(leaf.key_path) for leaf in leaves]
    return {
        "path": paths,
        "group": ["" if place is None else place.group for place in places],
        "layer": layer_names(places),
        "kind": ["" if place is None else place.kind for place in places],
        "l2": norms.norms,
        "sampled": norms.sampled,
        "complete": norms.complete,
        "read_bytes": norms.read_bytes,
        "cached": norms.cached,
        "problems": [
            {"path": paths[number], "message": message}
            for number, message in list(norms.problems.items())[:_MAX_PROBLEMS]
        ],
    }


def layer_names(places: Sequence[LeafPlace | None]) -> list[str]:
    """Return the name of the layer of each leaf, "" outside of layers.

    >>> layer_names([place_of(("params", "h_3", "attn", "c_attn", "kernel")), None])
    ['h 3', '']
    """
    stacks = {place.stack for place in places if place is not None and place.stack}
    full = {stack: (stack[1:] or stack) if stack[0] == "params" else stack for stack in stacks}
    unique = {stack[-1] for stack in full.values()}
    is_short = len(unique) == len(set(full.values()))
    names = []
    for place in places:
        if place is None or not place.stack:
            names.append("")
            continue
        stack = full[place.stack][-1] if is_short else "/".join(full[place.stack])
        names.append(stack if place.layer is None else f"{stack} {place.layer}")
    return names


def leaf_norms(
    checkpoint: Checkpoint,
    read: Read,
    cache: NormCache,
    report: Report | None = None,
    *,
    max_sample_bytes: int = MAX_SAMPLE_BYTES,
) -> LeafNorms:
    """Return the norms of the leaves, read a few MiB at a time from several threads.

    A leaf whose digests are those of a leaf in the cache is not read.

    Args:
        checkpoint: the open checkpoint.
        read: "sample" for about 1 MiB of each leaf, up to `max_sample_bytes`; or "all".
        cache: norms of leaves that were read before; new ones are added.
        report: called with the progress; what it raises ends the reading.
        max_sample_bytes: the limit of a sample.
    """
    operand = CheckpointOperand(checkpoint, None)
    leaves = checkpoint.index.leaves
    norms: list[float | None] = [None] * len(leaves)
    sampled = [False] * len(leaves)
    keys: dict[int, bytes | None] = {}
    missing = []
    for number, leaf in enumerate(leaves):
        if isinstance(leaf.storage, Inline):
            norms[number] = _norm_of_value(leaf.storage.value)
        elif 0 in leaf.shape and is_number(leaf):
            norms[number] = 0.0
        elif is_number(leaf):
            keys[number] = _content_key(operand, number)
            cached = cache.get(keys[number], read)
            if cached is None:
                missing.append(number)
            else:
                norms[number], sampled[number] = cached
    parts, complete = _parts(operand, missing, read, max_sample_bytes)
    sums: dict[int, _Sum] = {}
    problems: dict[int, str] = {}
    _read(operand, parts, sums, problems, report)
    for number, total in sums.items():
        if number in problems:
            continue
        size = math.prod(leaves[number].shape)
        sampled[number] = total.elements < size
        norm = norms[number] = total.norm * math.sqrt(size / total.elements)
        cache.put(keys[number], "sample" if sampled[number] else "all", norm)
    return LeafNorms(
        norms,
        sampled,
        problems,
        sum([part.size_bytes for part in parts]),
        len(keys) - len(missing),
        complete and not any(sampled) and not problems,
    )


def is_number(leaf: Leaf) -> bool:
    """Return True for an array whose elements have a norm: integers, real or complex numbers."""
    kinds = ARRAY_KINDS - {"prng_key"}
    return leaf.kind in kinds and not leaf.dtype.startswith(("bool", "datetime", "timedelta"))


def norm_of(array: Array) -> float:
    """Return the L2 norm of the elements; NaN if one is NaN, otherwise infinity if one is.

    Squares of large numbers do not overflow.

    >>> print(f"{norm_of(np.array([3e200, 4e200])):.3g}")
    5e+200
    """
    flat = array.reshape(-1)
    if flat.dtype.kind == "c":
        flat = np.abs(flat)
    with np.errstate(all="ignore"):
        values = flat.astype(np.float64, copy=False)
        squares = float(np.dot(values, values))
        if 1e-200 < squares < math.inf or math.isnan(squares) or not values.size:
            return math.sqrt(squares)
        largest = float(np.abs(values).max())
        if not 0 < largest < math.inf:
            return largest
        scaled = values / largest
        return largest * math.sqrt(float(np.dot(scaled, scaled)))


def _hypot(one: float, other: float) -> float:
    """Return the norm of both; NaN if one is NaN, also where `math.hypot` would say infinity."""
    return math.nan if math.isnan(one) or math.isnan(other) else math.hypot(one, other)


def _norm_of_value(value: Any) -> float | None:
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        is_extension = array.dtype.kind == "V" and array.dtype.names is None  # bfloat16 and others
        return norm_of(array) if array.dtype.kind in "iufc" or is_extension else None
    if type(value) not in (int, float, complex):
        return None
    try:
        return norm_of(np.asarray(value, np.complex128))
    except OverflowError:  # an integer beyond the range of float64
        return math.inf


def _content_key(operand: CheckpointOperand, number: int) -> bytes | None:
    """Return a value that two leaves have only if they hold equal elements; None if unknown."""
    leaf = operand.pieces(number)
    if leaf is None:
        return None
    storage = leaf.storage
    assert isinstance(storage, Pieces | Encoded)
    state = xxhash.xxh3_128()
    coding = storage.encoding if isinstance(storage, Pieces) else storage.codec
    chunk_shape = storage.chunk_shape if isinstance(storage, Encoded) else ()
    state.update(repr((leaf.dtype, leaf.shape, coding, chunk_shape)).encode())
    for piece in storage.pieces:
        key = digest_key(operand.digests(piece.source), piece.offset, piece.length)
        if key is None:
            return None
        state.update(repr((piece.where, key.inside, key.block_bytes, piece.length)).encode())
        state.update(key.values)
    return state.digest()


def _parts(
    operand: CheckpointOperand, numbers: Sequence[int], read: Read, max_sample_bytes: int
) -> tuple[list[_Part], bool]:
    """Return the boxes to read of some leaves, and True if no leaf is left out."""
    if read == "all":
        return [part for number in numbers for part in _all_of(operand, number)], True
    samples = {number: _sample_of(operand, number) for number in numbers}
    sizes = {number: sum([p.size_bytes for p in parts]) for number, parts in samples.items()}
    chosen = set(numbers)
    if sum(sizes.values()) > max_sample_bytes:
        chosen = _chosen(operand, sizes, max_sample_bytes)
    parts = [part for number in numbers if number in chosen for part in samples[number]]
    return parts, len(chosen) == len(numbers)


def _chosen(operand: CheckpointOperand, sizes: dict[int, int], budget: int) -> set[int]:
    """Return leaves that fit into a budget: of each step those of the same key paths."""
    leaves = operand.index.leaves
    chosen = set()
    for number in sorted(sizes, key=lambda n: zlib.crc32(repr(leaves[n].key_path).encode())):
        if sizes[number] <= budget:
            chosen.add(number)
            budget -= sizes[number]
    return chosen


def _all_of(operand: CheckpointOperand, number: int) -> Iterator[_Part]:
    leaf = operand.pieces(number)
    assert leaf is not None
    rows = 1
    if isinstance(leaf.storage, Encoded) and leaf.storage.chunk_shape:
        rows = leaf.storage.chunk_shape[0]
    item = dtypes.itemsize(leaf.dtype)
    for box in split_array(leaf.shape, item_bytes=item, limit_bytes=_PART_BYTES, rows=rows):
        yield _Part(number, box, element_count(box) * item)


def _sample_of(operand: CheckpointOperand, number: int) -> list[_Part]:
    """Return all parts of a small leaf, or a few, evenly spread, of a large one."""
    leaf = operand.index.leaves[number]
    item = dtypes.itemsize(leaf.dtype)
    if math.prod(leaf.shape) * item <= _SAMPLED_BYTES:
        return list(_all_of(operand, number))
    boxes = list(split_array(leaf.shape, item_bytes=item, limit_bytes=_SAMPLE_PART_BYTES))
    positions = [len(boxes) * (2 * i + 1) // (2 * _SAMPLE_PARTS) for i in range(_SAMPLE_PARTS)]
    parts = [boxes[position] for position in positions]
    return [_Part(number, box, element_count(box) * item) for box in parts]


def _read(
    operand: CheckpointOperand,
    parts: Sequence[_Part],
    sums: dict[int, _Sum],
    problems: dict[int, str],
    report: Report | None,
) -> None:
    """Read parts and add them up by leaf, several groups at a time."""
    groups = list(_groups(parts))
    meter = ProgressMeter(sum([part.size_bytes for part in parts]), report or _no_report)
    lock = threading.Lock()

    def read_group(position: int) -> None:
        group = groups[position]
        try:
            arrays: list[Array | None] = [*operand.read([(p.number, p.box) for p in group])]
        except (CordwoodError, OSError):  # of one leaf: read the others one by one
            arrays = [_read_one(operand, part, problems) for part in group]
        for part, array in zip(group, arrays, strict=True):
            if array is not None:
                norm = norm_of(array)
                with lock:
                    before = sums.get(part.number, _Sum())
                    after = _Sum(_hypot(before.norm, norm), before.elements + array.size)
                    sums[part.number] = after
            meter.advance(part.size_bytes, format_path(operand.index.leaves[part.number].key_path))

    run_tasks(len(groups), threads=default_threads(), make_worker=lambda: read_group)
    meter.finish()


def _read_one(operand: CheckpointOperand, part: _Part, problems: dict[int, str]) -> Array | None:
    """Return the elements of a part; None if they cannot be read, and note why."""
    try:
        return operand.read([(part.number, part.box)])[0]
    except (CordwoodError, OSError) as e:
        problems[part.number] = str(e)
        return None


def _groups(parts: Sequence[_Part]) -> Iterator[list[_Part]]:
    """Yield parts together, some MiB at a time."""
    group: list[_Part] = []
    size = 0
    for part in parts:
        if group and size + part.size_bytes > _GROUP_BYTES:
            yield group
            group, size = [], 0
        group.append(part)
        size += part.size_bytes
    if group:
        yield group


def _no_report(_: Progress) -> None:
    pass
