"""The resources `diff` and `diff-leaf`: what changed between two checkpoints, and in one leaf.

A matrix has a row for each layer, and a column for each kind of weight. There is one for the
parameters, and one for each tree like them: the moments of an optimizer, averages of the
parameters. Facts about the optimizer are computed from the same leaves.

One file: rows, matrices and facts are made from one list of changes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from cordwood.api.array_change import root_of_scaled
from cordwood.api.checkpoint import Checkpoint, StoredLeaf
from cordwood.api.diff import ComparedPair, Comparison, LeafDiff, Values, compare_checkpoints
from cordwood.api.leaf_statistics import compare_leaves
from cordwood.api.pair_trees import pair_trees
from cordwood.formats.stored_trees import stored_trees
from cordwood.index import Leaf, Naming, leaf_text, size_in_memory
from cordwood.io.garbage_collector import gc_paused
from cordwood.io.progress import Report
from cordwood.keypath import KeyPath, format_path, format_paths
from cordwood.message_text import counted, first_names
from cordwood.storage.paths import local_or_url
from cordwood.viewer.checkpoint_view import Sources, leaf_at, split_path, value_text
from cordwood.viewer.leaf_kinds import (
    FIRST_MOMENTS,
    SECOND_MOMENTS,
    LeafPlace,
    group_of,
    is_counter,
    is_weight,
    kind_of,
    place_of,
)

_MAX_VALUE = 80  # characters of a Python value in a row
_MAX_STRUCTURE_LINES = 1000
_DIFFERENT = ("changed", "recast", "reshaped", "renamed", "added", "removed")  # states
_NO_DIFFERENCE = LeafDiff("", "value")
_MAX_LAYERS = 1024
_MAX_SKIPPED = 3
_MAX_KINDS = 32
_OUTSIDE = "outside layers"
_ALL = "all layers"

# The order of the columns; other kinds come between the first and the last ones.
_FIRST_KINDS = ("embedding", "norm", "qkv", *"qkvo", "gate", "up", "down", "conv", "bias")
_LAST_KINDS = ("head", "other")

# The state of a cell is the first of these that one of its leaves has.
_STATES = ("nan", "removed", "added", "reshaped", "changed", "unread", "renamed", "equal")
_STATE_OF = {"identical": "equal", "recast": "changed"}
_EQUAL_STATES = ("equal", "identical", "renamed")
# A row: its stack and the number of its layer. No stack: leaves outside of layers.
_Row = tuple[tuple[str, ...] | None, int | None]


def diff_view(
    sources: Sources,
    report: Report | None,
    *,
    a: str,
    b: str,
    read: str,
    sample_bytes: int = 256 << 20,
) -> dict[str, Any]:
    """Return what changed from one source to another, with a row for each leaf, by columns.

    "digests" reads no elements; "sample" reads up to `sample_bytes` of each side.
    """
    with sources.checkpoint(a) as first, sources.checkpoint(b) as second, gc_paused():
        values: Values = "digests" if read == "digests" else True
        limit = sample_bytes if read == "sample" else None
        comparison = compare_checkpoints(
            first, second, values=values, sample_bytes=limit, progress=report
        )
        pairs = comparison.pairs
        changes = [_leaf_change(pair, first, second, comparison.incomplete) for pair in pairs]
        matrices = layer_matrices(changes)
        counters = {} if read == "digests" else _counters(pairs, first, second)
        facts = optimizer_facts(changes, counters, matrices)
        return {
            "a": a,
            "b": b,
            "read": read,
            "complete": read != "digests" and not comparison.incomplete,
            **_summary(comparison, first, second, _skipped(sources, a, b)),
            "rows": _rows(pairs, first, second),
            "matrices": [matrix._asdict() for matrix in matrices],
            "optimizer": [fact._asdict() for fact in facts],
        }


def _path(pair: ComparedPair, first: Checkpoint, second: Checkpoint) -> KeyPath:
    """Return the key path of a leaf: in b if it is new there, otherwise in a."""
    if pair.i is None or pair.state == "renamed":
        assert pair.j is not None
        return second.index.leaves[pair.j].key_path
    return first.index.leaves[pair.i].key_path


def _leaf_change(
    pair: ComparedPair, first: Checkpoint, second: Checkpoint, incomplete: Collection[int]
) -> LeafChange:
    """Return the change of a leaf; norms of a sample are scaled to the size of the leaf."""
    path, change, difference = _path(pair, first, second), pair.change, pair.difference
    leaves = second.index.leaves if pair.i is None else first.index.leaves
    number = pair.j if pair.i is None else pair.i
    assert number is not None
    weight = is_weight(leaves[number])
    if change is None or not change.size or (difference is not None and difference.l2 is None):
        return LeafChange(path, pair.state, is_weight=weight)
    scale = 1.0
    if pair.i is not None and pair.i in incomplete:
        scale = math.sqrt(math.prod(first.index.leaves[pair.i].shape) / change.size)
    return LeafChange(
        path,
        pair.state,
        scale * root_of_scaled(change.change_squares),
        scale * root_of_scaled(change.a_squares),
        scale * root_of_scaled(change.b_squares),
        broken=change.differs and bool(change.b_nan or change.new_inf),
        is_weight=weight,
    )


def _counters(
    pairs: Sequence[ComparedPair], first: Checkpoint, second: Checkpoint
) -> Mapping[KeyPath, tuple[int, int]]:
    """Read the counters of steps; those that are identical by digest are left out."""
    counters = {}
    for pair in pairs:
        if pair.i is None or pair.j is None or pair.state == "identical":
            continue
        a, b = first.index.leaves[pair.i], second.index.leaves[pair.j]
        if is_counter(a.key_path) and _is_whole_number(a) and _is_whole_number(b):
            counters[a.key_path] = _integer(first, a), _integer(second, b)
    return counters


def _is_whole_number(leaf: Leaf) -> bool:
    return leaf.kind == "int" or (leaf.shape == () and leaf.dtype.startswith(("int", "uint")))


def _integer(checkpoint: Checkpoint, leaf: Leaf) -> int:
    return int(StoredLeaf(leaf, checkpoint).load(to="numpy"))


def _skipped(sources: Sources, a: str, b: str) -> Sequence[str]:
    """Return what the two sources also hold and is not compared, in words."""
    if sources.arguments.prefix is not None:
        return ()
    trees = [
        stored_trees(local_or_url(sources.path(name)), format=sources.arguments.format)
        for name in (a, b)
    ]
    return pair_trees(*trees, prefix=None, all_trees=False).skipped


def _summary(
    comparison: Comparison, first: Checkpoint, second: Checkpoint, skipped: Sequence[str]
) -> dict[str, object]:
    """Return the verdict and its numbers."""
    pairs = comparison.pairs
    counts = Counter[str]([pair.state for pair in pairs])
    sizes: dict[str, int] = dict.fromkeys(counts, 0)
    unread_bytes = 0
    for pair in pairs:
        size = _size(pair, first, second)
        sizes[pair.state] += size
        is_read = pair.change is not None and pair.i not in comparison.incomplete
        if pair.state in ("changed", "recast", "unread") and not is_read:
            unread_bytes += size
    differing = sum([counts[state] for state in _DIFFERENT])
    structure = comparison.diff.containers
    undecided = None if counts["unread"] or skipped else True
    return {
        "equal": False if differing or structure else undecided,
        "verdict": _verdict(counts, len(structure), skipped),
        "leaf_count": len(pairs),
        "differing": differing,
        "differing_bytes": sum([sizes.get(state, 0) for state in _DIFFERENT]),
        "size_bytes": sum(sizes.values()),
        "counts": dict(counts),
        "read_bytes": comparison.diff.read_bytes,
        "unread_bytes": unread_bytes,
        "equal_by_digest": comparison.diff.equal_by_digest,
        "structure": structure[:_MAX_STRUCTURE_LINES],
        "structure_count": len(structure),
    }


def _size(pair: ComparedPair, first: Checkpoint, second: Checkpoint) -> int:
    """Return the size of a leaf in bytes, of the larger side."""
    sides = ((first, pair.i), (second, pair.j))
    return max([size_in_memory(side.index.leaves[n]) for side, n in sides if n is not None])


def _verdict(counts: Mapping[str, int], containers: int, skipped: Sequence[str] = ()) -> str:
    """Return the result in one line.

    >>> _verdict({"identical": 3}, 0), _verdict({"changed": 1, "added": 1, "equal": 2}, 0)
    ('equal: 3 leaves', '2 of 4 leaves differ: 1 changed, 1 added')
    """
    leaves = counted(sum(counts.values()), "leaf", "leaves")
    unread = counts.get("unread", 0)
    different = [state for state in _DIFFERENT if counts.get(state)]
    if different:
        count = sum([counts[state] for state in different])
        states = ", ".join([f"{counts[state]} {state}" for state in different])
        parts = [f"{count} of {leaves} differ: {states}"]
    elif unread:
        parts = ["no difference known"]
    else:
        parts = [f"equal values: {leaves}" if containers else f"equal: {leaves}"]
    if containers:
        parts.append(f"the structure differs in {counted(containers, 'container')}")
    if unread:
        parts.append(f"{counted(unread, 'leaf', 'leaves')} not compared")
    if skipped:
        parts.append(f"not compared: {first_names(skipped, _MAX_SKIPPED)} (--prefix chooses)")
    return "; ".join(parts)


def _rows(
    pairs: Sequence[ComparedPair], first: Checkpoint, second: Checkpoint
) -> dict[str, Sequence[object]]:
    """Return a row for each leaf, column by column."""
    sides = [second if pair.state in ("added", "renamed") else first for pair in pairs]
    paths = format_paths([_path(pair, first, second) for pair in pairs])
    namings: list[Naming] = [side.index.naming for side in sides]
    differences = [pair.difference or _NO_DIFFERENCE for pair in pairs]
    counts = [each if each.read_size else None for each in differences]
    return {
        "path": paths,
        "keys": [split_path(path, naming) for path, naming in zip(paths, namings, strict=True)],
        "state": [pair.state for pair in pairs],
        "i": [pair.i for pair in pairs],
        "j": [pair.j for pair in pairs],
        "before": [_text(first, pair.i) for pair in pairs],
        "after": [_text(second, pair.j) for pair in pairs],
        "renamed_from": [each.renamed_from or None for each in differences],
        "share": [each.share for each in differences],
        "relative_l2": [each.relative_l2 for each in differences],
        "max_abs": [each.max_abs for each in differences],
        "cosine": [each.cosine for each in differences],
        "sign_flips": [each and each.sign_flips for each in counts],
        "new_nan": [each and each.new_nan for each in counts],
        "new_inf": [each and each.new_inf for each in counts],
        "size_bytes": [_size(pair, first, second) for pair in pairs],
    }


def _text(checkpoint: Checkpoint, number: int | None) -> str | None:
    """Return the type of an array, or a Python value; None if the leaf is on the other side."""
    if number is None:
        return None
    leaf = checkpoint.index.leaves[number]
    return leaf_text(leaf) if leaf.dtype else value_text(leaf, _MAX_VALUE) or leaf.kind


def diff_leaf_view(
    sources: Sources, report: Report | None, *, a: str, b: str, i: int, j: int, read: str
) -> dict[str, object]:
    """Return what changed from an array of one source to an array of another.

    "sample" reads some blocks of each, together about 4 MiB.
    """
    with sources.checkpoint(a) as first, sources.checkpoint(b) as second:
        before, after = leaf_at(first, i), leaf_at(second, j)
        comparison = compare_leaves(first, i, second, j, sample=read != "all", progress=report)
        return {
            "path": format_path(before.key_path),
            "before": leaf_text(before),
            "after": leaf_text(after),
            "size_bytes": max(size_in_memory(before), size_in_memory(after)),
            "statistics": comparison.difference._asdict(),
            "histogram": comparison.histogram and comparison.histogram._asdict(),
            "strip": comparison.strip,
            "complete": comparison.complete,
            "read_bytes": comparison.read_bytes,
        }


class LeafChange(NamedTuple):
    """The difference of one leaf between two checkpoints.

    Attributes:
        key_path: the leaf.
        state: the state of its row: "changed", "equal", "identical", "added" ...
        change_l2: the L2 norm of b - a; None if the values were not compared.
        before_l2: the L2 norm of a; None if its values were not read.
        after_l2: the L2 norm of b; None as well.
        broken: True if the leaf changed, and b has NaNs, or infinite elements where a has none.
        is_weight: False for random state and counters: they belong to no group.
    """

    key_path: KeyPath
    state: str
    change_l2: float | None = None
    before_l2: float | None = None
    after_l2: float | None = None
    broken: bool = False
    is_weight: bool = True


class LayerMatrix(NamedTuple):
    """The change of each layer and kind. Cells are row by row.

    Attributes:
        group: "params", "mu" ...
        layers: labels of the rows.
        kinds: labels of the columns.
        values: the relative L2 norm of the change of the leaves of a cell; None if there are no
            leaves or they were not compared.
        states: "nan", "added", "removed", "reshaped", "changed", "unread", "renamed" or "equal";
            None if there are no leaves.
        leaves: the positions of the leaves of each cell.
    """

    group: str
    layers: tuple[str, ...]
    kinds: tuple[str, ...]
    values: tuple[float | None, ...]
    states: tuple[str | None, ...]
    leaves: tuple[tuple[int, ...], ...]


def layer_matrices(changes: Sequence[LeafChange]) -> list[LayerMatrix]:
    """Return a matrix for each group of leaves that has layers, the parameters first."""
    groups: dict[str, dict[int, LeafPlace]] = {"params": {}}
    for position, change in enumerate(changes):
        place = place_of(change.key_path) if change.is_weight else None
        if place is not None:
            groups.setdefault(place.group, {})[position] = place
    matrices = [_matrix(group, places, changes) for group, places in groups.items()]
    return [matrix for matrix in matrices if matrix is not None]


def relative_l2(changes: Iterable[LeafChange]) -> float | None:
    """Return the norm of the changes relative to the norm of the leaves before.

    Leaves that are equal by digest have no norm, since they were not read: they do not count
    unless all are equal. None if another leaf was not compared.
    """
    changes = list(changes)
    different = [change for change in changes if change.state not in _EQUAL_STATES]
    if not different:
        return 0.0 if changes else None
    if any(change.change_l2 is None or change.before_l2 is None for change in different):
        return None
    change_l2 = math.hypot(*[change.change_l2 or 0.0 for change in different])
    before_l2 = math.hypot(*[change.before_l2 or 0.0 for change in changes])
    if not before_l2:
        return math.inf if change_l2 else 0.0
    return change_l2 / before_l2


def _matrix(
    group: str, places: dict[int, LeafPlace], changes: Sequence[LeafChange]
) -> LayerMatrix | None:
    """Return the matrix of the leaves of a group; None if they are in no layers."""
    typical = any(place.typical for place in places.values())
    cells = {position: _cell(place, typical=typical) for position, place in places.items()}
    rows = _matrix_rows([row for row, _ in cells.values()])
    if not any(stack for stack, _ in rows) or len(rows) > _MAX_LAYERS:
        return None
    kinds = _columns([kind for _, kind in cells.values()])
    row_numbers = {row: number for number, row in enumerate(rows)}
    column_numbers = {kind: number for number, kind in enumerate(kinds)}
    leaves: list[list[int]] = [[] for _ in range(len(rows) * len(kinds))]
    for position, (row, kind) in cells.items():
        column = column_numbers.get(kind, len(kinds) - 1)
        leaves[row_numbers[row] * len(kinds) + column].append(position)
    members = [[changes[position] for position in cell] for cell in leaves]
    return LayerMatrix(
        group,
        tuple(_labels(rows)),
        tuple(kinds),
        tuple(map(relative_l2, members)),
        tuple(map(_state, members)),
        tuple(map(tuple, leaves)),
    )


def _cell(place: LeafPlace, *, typical: bool) -> tuple[_Row, str]:
    """Return the row and the kind of a leaf.

    Stacks of unusual names count only where there are no others: `Dense_0` is a layer of a small
    network, but not of a transformer.
    """
    inside = place.stack or place.layer is not None
    if inside and (place.typical or not typical):
        return (place.stack, place.layer), place.kind
    kinds = (*_FIRST_KINDS, *_LAST_KINDS)
    return (None, None), place.kind if place.kind in kinds else kind_of(place.stack) or "other"


def _matrix_rows(rows: Iterable[_Row]) -> list[_Row]:
    """Return the rows in order: leaves outside of layers, then one stack after another."""
    rows = list(dict.fromkeys(rows))
    order = {stack: position for position, stack in enumerate(dict(rows))}
    order[None] = -1
    return sorted(rows, key=lambda row: (order[row[0]], -1 if row[1] is None else row[1]))


def _columns(kinds: Sequence[str]) -> list[str]:
    """Return the kinds in the order of the columns; if there are too many, the most frequent.

    The last column is then "other", and has the leaves of all other kinds.
    """
    counts = Counter(kinds)
    if len(counts) > _MAX_KINDS:
        frequent = [kind for kind, _ in counts.most_common(_MAX_KINDS - 1) if kind != "other"]
        counts = Counter([kind for kind in counts if kind in frequent] + ["other"])
    first = [kind for kind in _FIRST_KINDS if kind in counts]
    last = [kind for kind in _LAST_KINDS if kind in counts]
    return [*first, *[kind for kind in counts if kind not in (*first, *last)], *last]


def _labels(rows: Sequence[_Row]) -> list[str]:
    """Return the labels of rows: the number, after the names that distinguish the stacks."""
    stacks = list(dict.fromkeys([stack for stack, _ in rows if stack is not None]))
    names = dict(zip(stacks, _distinct_names(stacks), strict=True))
    return [
        _OUTSIDE if stack is None else f"{names[stack]} {_ALL if layer is None else layer}".strip()
        for stack, layer in rows
    ]


def _distinct_names(stacks: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the names of stacks without the first and the last ones that all have."""
    if len(stacks) == 1:
        return [""]
    start = _common(stacks)
    reverse = [stack[start:][::-1] for stack in stacks]
    stop = _common(reverse)
    return ["/".join(stack[stop:][::-1]) for stack in reverse]


def _common(stacks: Sequence[tuple[str, ...]]) -> int:
    """Return the number of leading names that all stacks have."""
    columns = zip(*stacks, strict=False)
    return len(list(takewhile(lambda names: len(set(names)) == 1, columns)))


def _state(cell: Sequence[LeafChange]) -> str | None:
    states = {_STATE_OF.get(change.state, change.state) for change in cell}
    if any(change.broken for change in cell):
        return "nan"
    return next((state for state in _STATES if state in states), None)


class OptimizerFact(NamedTuple):
    """A number of both checkpoints, or of the change.

    Attributes:
        name: the fact, such as "steps" or "second moments (nu)".
        a, b: the number in each checkpoint; None if it is missing or the fact has none.
        change: the relative change, or the difference of counts; None if it is missing.
        text: an explanation.
    """

    name: str
    a: float | None
    b: float | None
    change: float | None
    text: str


def optimizer_facts(
    changes: Sequence[LeafChange],
    counters: Mapping[KeyPath, tuple[int, int]],
    matrices: Sequence[LayerMatrix] = (),
) -> list[OptimizerFact]:
    """Return what can be said about the optimizer; facts that are missing are left out.

    Args:
        changes: the differences of all leaves.
        counters: the values of the leaves that count steps, in a and b.
        matrices: the matrices of the same leaves, for the layer whose update is the largest.
    """
    facts = _steps(counters)
    groups: dict[str, list[LeafChange]] = {}
    for change in changes:
        group = group_of(change.key_path) if change.is_weight else None
        groups.setdefault(group or "", []).append(change)
    for name, moments in (("first", FIRST_MOMENTS), ("second", SECOND_MOMENTS)):
        for group, members in groups.items():
            if group in moments:
                facts += _norms(f"{name} moments ({group})", members)
    return facts + _update(groups.get("params", []), _layer_updates(matrices, changes))


def _steps(counters: Mapping[KeyPath, tuple[int, int]]) -> list[OptimizerFact]:
    """Return the counters; those with equal values, as optax has them, are one fact."""
    paths: dict[tuple[int, int], list[KeyPath]] = {}
    for path, values in counters.items():
        paths.setdefault(values, []).append(path)
    facts = []
    for (a, b), (first, *others) in paths.items():
        more = f" and {counted(len(others), 'other counter')}" if others else ""
        facts.append(OptimizerFact("steps", a, b, b - a, format_path(first) + more))
    return facts


def _norms(name: str, changes: Sequence[LeafChange]) -> list[OptimizerFact]:
    """Return the norms of a moment before and after, of the leaves that were read."""
    read = [
        change for change in changes if change.before_l2 is not None and change.after_l2 is not None
    ]
    if not read:
        return []
    text = f"L2 norms of {counted(len(read), 'leaf', 'leaves')}"
    if len(read) < len(changes):
        text = f"L2 norms of {len(read)} of {len(changes)} leaves; the rest was not read"
    before = math.hypot(*[change.before_l2 or 0.0 for change in read])
    after = math.hypot(*[change.after_l2 or 0.0 for change in read])
    return [OptimizerFact(name, before, after, relative_l2(read), text)]


def _update(changes: Sequence[LeafChange], layers: Mapping[str, float]) -> list[OptimizerFact]:
    """Return the size of the change of the parameters relative to the parameters."""
    paired = [change for change in changes if change.state not in ("added", "removed")]
    ratio = relative_l2(paired)
    if ratio is None:
        return []
    text = "L2 norm of b - a of the parameters, relative to a"
    if layers:
        largest = max(layers, key=lambda layer: layers[layer])
        text += f"; largest in layer {largest}: {layers[largest]:.3g}"
    return [OptimizerFact("update to weight", None, None, ratio, text)]


def _layer_updates(
    matrices: Sequence[LayerMatrix], changes: Sequence[LeafChange]
) -> dict[str, float]:
    """Return the relative L2 norm of the change of each layer of the parameters."""
    updates = {}
    for matrix in [matrix for matrix in matrices if matrix.group == "params"]:
        columns = len(matrix.kinds)
        for row, layer in enumerate(matrix.layers):
            cells = matrix.leaves[row * columns : (row + 1) * columns]
            updates[layer] = relative_l2([changes[leaf] for leaves in cells for leaf in leaves])
    return {layer: ratio for layer, ratio in updates.items() if ratio is not None}
