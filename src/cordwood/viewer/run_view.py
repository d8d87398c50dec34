"""The resources `run` and `norms`: the steps of a run, and the L2 norm of each leaf of a step."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Sequence
from itertools import chain
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import xxhash

from cordwood import dtypes
from cordwood.comparing.array_change import has_numbers
from cordwood.comparing.equal_parts import contents_by_digest
from cordwood.comparing.operands import CheckpointOperand
from cordwood.comparing.sample_parts import fitting
from cordwood.errors import CordwoodError
from cordwood.index import Inline, Leaf, size_in_memory
from cordwood.io.progress import ProgressMeter, Report
from cordwood.keypath import format_path, format_paths
from cordwood.loading.checkpoint import Checkpoint
from cordwood.manager.step_summaries import StepSummary, summarize_steps
from cordwood.plan.split_arrays import Part, all_boxes, chunks_of, group_parts
from cordwood.sharding.boxes import element_count
from cordwood.storage.directories import linked_bytes
from cordwood.storage.locations import LocalPath
from cordwood.threads.thread_pool import map_in_threads
from cordwood.viewer.leaf_kinds import LeafPlace, is_weight, place_of
from cordwood.viewer.sources import Sources

Read: TypeAlias = Literal["sample", "all"]

_PART_BYTES = 4 << 20
_NORM_ELEMENTS = 1 << 20  # converted to float64 at a time: a chunk that was read may be large
_GROUP_BYTES = 16 << 20  # of parts, read at a time by one thread
_SAMPLED_BYTES = 2 << 20  # a sample takes smaller leaves whole
_SAMPLE_PART_BYTES = 512 << 10  # of a larger one, of which it takes two
MAX_SAMPLE_BYTES = 256 << 20  # of a step; leaves beyond it have no norm
_MAX_CACHED = 500_000
_MAX_PROBLEMS = 20
_NO_POLICY = (
    "The files do not record which policy the job has: manager.plan() in the job says which steps "
    "it will delete."
)


def run_view(sources: Sources, report: Report | None) -> dict[str, object]:  # noqa: ARG001
    """Return the steps that the run has now, oldest first; of each step only its index is read."""
    sources.list_steps()
    root, paths = sources.root, sources.paths
    assert root is not None
    steps = summarize_steps(root, list(paths))
    linked: Sequence[int | None] = [None] * len(steps)
    if isinstance(root, LocalPath):
        linked = linked_bytes([str(paths[step.name]) for step in steps])
    else:  # the page shows what each step has added, which only reading all indexes would tell
        steps = [step._replace(disk_bytes=None) for step in steps]
    newest = next((step.name for step in reversed(steps) if not step.problem), None)
    names = dict.fromkeys(name for step in steps for name in step.metrics)
    return {
        "root": str(root),
        "steps": [
            _as_json(step, size, is_newest=step.name == newest)
            for step, size in zip(steps, linked, strict=True)
        ],
        "metric_names": list(names),
        "policy": _NO_POLICY,
    }


def _as_json(step: StepSummary, linked: int | None, *, is_newest: bool) -> dict[str, object]:
    disk = step.disk_bytes
    return {
        **step._asdict(),
        "number": step.step,
        "metrics": dict(step.metrics),
        "written_bytes": None if disk is None or linked is None else disk - linked,
        "linked_bytes": linked,
        "kept": _reasons(step, is_newest=is_newest),
    }


def _reasons(step: StepSummary, *, is_newest: bool) -> list[str]:
    """Return the reasons why no policy deletes a step, as far as its files say."""
    if step.state not in ("whole", "damaged"):
        return []
    reasons = ["it is the newest whole step"] if is_newest else []
    reasons += ["a job has pinned it"] if step.pinned else []
    reasons += ["it is damaged: no policy deletes it"] if step.state == "damaged" else []
    return reasons + ([step.note] if step.note else [])


class NormCache:
    """Norms of leaves by the digests of their bytes; the least recently used are dropped.

    Threads may use it at the same time.
    """

    def __init__(self, most: int = _MAX_CACHED) -> None:
        self._norms: OrderedDict[tuple[bytes, Read], float] = OrderedDict()
        self._most = most
        self._lock = threading.Lock()

    def get(self, key: bytes, read: Read) -> tuple[float, bool] | None:
        """Return the norm of the leaf with these bytes, and True if it is an estimate.

        Return None if it is not in the cache.
        """
        entries: list[tuple[bytes, Read]] = [(key, "all"), (key, read)]
        with self._lock:
            for entry in entries:
                if entry in self._norms:
                    self._norms.move_to_end(entry)
                    return self._norms[entry], entry[1] == "sample"
        return None

    def put(self, key: bytes, read: Read, norm: float) -> None:
        """Keep the norm of a leaf."""
        with self._lock:
            self._norms[key, read] = norm
            if len(self._norms) > self._most:
                self._norms.popitem(last=False)


_CACHE = NormCache()


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
) -> dict[str, object]:
    """Return the L2 norm of each leaf of a step, with its place in the model."""
    if read not in ("sample", "all"):
        raise KeyError(f"norms are read from a sample or from all, not from {read}")
    with sources.checkpoint(source) as checkpoint:
        norms = leaf_norms(checkpoint, "all" if read == "all" else "sample", _CACHE, report)
        leaves = checkpoint.index.leaves
        paths = format_paths([leaf.key_path for leaf in leaves])
        places = [place_of(leaf.key_path) if is_weight(leaf) else None for leaf in leaves]
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
            key = keys[number] = _content_key(operand, number)
            cached = None if key is None else cache.get(key, read)
            if cached is None:
                missing.append(number)
            else:
                norms[number], sampled[number] = cached
    parts, complete = _parts(operand, missing, read, max_sample_bytes)
    sums: dict[int, tuple[float, int]] = {}  # the norm of what was read of a leaf, and its size
    problems: dict[int, str] = {}
    meter = ProgressMeter(sum([part.size_bytes for part in parts]), report or (lambda _: None))

    def read_group(group: Sequence[Part]) -> list[tuple[Part, float]]:
        norms_of_parts = _norms_of_parts(operand, group, problems)
        for part in group:
            meter.advance(part.size_bytes, format_path(leaves[part.number].key_path))
        return norms_of_parts

    groups = [(group,) for group in group_parts(parts, _GROUP_BYTES)]
    for part, norm in chain.from_iterable(map_in_threads(read_group, groups)):
        before, count = sums.get(part.number, (0.0, 0))
        sums[part.number] = _hypot(before, norm), count + element_count(part.box)
    meter.finish()
    for number, (norm, count) in sums.items():
        if number in problems:
            continue
        size = math.prod(leaves[number].shape)
        sampled[number] = count < size
        estimate = norms[number] = norm * math.sqrt(size / count)
        if key := keys[number]:
            cache.put(key, "sample" if sampled[number] else "all", estimate)
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
    return has_numbers(leaf) and leaf.dtype != "bool"


def norm_of(array: np.ndarray) -> float:
    """Return the L2 norm of the elements; NaN if one is NaN, otherwise infinity if one is.

    Squares of large numbers do not overflow.

    >>> print(f"{norm_of(np.array([3e200, 4e200])):.3g}")
    5e+200
    """
    flat = array.reshape(-1)
    norm = 0.0
    for start in range(0, flat.size, _NORM_ELEMENTS):
        norm = _hypot(norm, _norm_of_part(flat[start : start + _NORM_ELEMENTS]))
    return norm


def _norm_of_part(flat: np.ndarray) -> float:
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


def _norm_of_value(value: object) -> float | None:
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
    leaf, contents = operand.index.leaves[number], contents_by_digest(operand, number)
    if contents is None:
        return None
    return xxhash.xxh3_128_digest(repr((leaf.dtype, leaf.shape, contents)).encode())


def _parts(
    operand: CheckpointOperand, numbers: Sequence[int], read: Read, max_sample_bytes: int
) -> tuple[list[Part], bool]:
    """Return the boxes to read of some leaves, and True if no leaf is left out.

    Of each step, a sample takes the leaves of the same key paths.
    """
    parts = {number: _parts_of(operand, number, read) for number in numbers}
    sizes = {number: sum([part.size_bytes for part in some]) for number, some in parts.items()}
    chosen = set(numbers)
    if read == "sample" and sum(sizes.values()) > max_sample_bytes:
        leaves = operand.index.leaves
        chosen = fitting(sizes, lambda n: repr(leaves[n].key_path), max_sample_bytes)
    return [part for n in numbers if n in chosen for part in parts[n]], len(chosen) == len(numbers)


def _parts_of(operand: CheckpointOperand, number: int, read: Read) -> list[Part]:
    """Return all parts of a leaf; for a sample of a large one two, evenly spread."""
    leaf = operand.index.leaves[number]
    item = dtypes.itemsize(leaf.dtype)
    is_sampled = read == "sample" and size_in_memory(leaf) > _SAMPLED_BYTES
    boxes = list(
        all_boxes(
            leaf.shape,
            item_bytes=item,
            limit_bytes=_SAMPLE_PART_BYTES if is_sampled else _PART_BYTES,
            chunk_shape=chunks_of(operand.pieces(number)),
        )
    )
    if is_sampled:
        boxes = list(dict.fromkeys([boxes[len(boxes) // 4], boxes[len(boxes) * 3 // 4]]))
    return [Part(number, box, element_count(box) * item) for box in boxes]


def _norms_of_parts(
    operand: CheckpointOperand, parts: Sequence[Part], problems: dict[int, str]
) -> list[tuple[Part, float]]:
    """Return the norms of parts; leave out those that cannot be read, and note why."""
    try:
        arrays = operand.read([(part.number, part.box) for part in parts])
        return [(part, norm_of(array)) for part, array in zip(parts, arrays, strict=True)]
    except (CordwoodError, OSError) as e:
        if len(parts) == 1:
            problems[parts[0].number] = str(e)
            return []
    # One leaf cannot be read: read the parts one by one.
    return [norm for part in parts for norm in _norms_of_parts(operand, [part], problems)]
