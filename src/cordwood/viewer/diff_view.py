"""The resources `diff` and `diff-leaf`: what changed between two checkpoints, and in one leaf."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from cordwood.comparing.compare_checkpoints import (
    ComparedPair,
    TreeComparison,
    ValuesOption,
    compare_checkpoints,
)
from cordwood.comparing.compare_leaves import compare_leaves
from cordwood.comparing.leaf_diff import LeafDiff
from cordwood.comparing.pair_trees import pair_trees
from cordwood.comparing.scaled_sums import root_of_scaled
from cordwood.formats.stored_trees import stored_trees
from cordwood.index import Leaf, Naming, leaf_text, size_in_memory
from cordwood.io.progress import Report
from cordwood.keypath import KeyPath, format_path, format_paths
from cordwood.loading.checkpoint import Checkpoint
from cordwood.loading.stored_leaf import StoredLeaf
from cordwood.message_text import counted, first_names
from cordwood.threads.garbage_collector import gc_paused
from cordwood.viewer.layer_matrices import layer_matrices
from cordwood.viewer.leaf_change import LeafChange
from cordwood.viewer.leaf_kinds import is_counter, is_weight
from cordwood.viewer.leaf_view import leaf_at
from cordwood.viewer.optimizer_facts import optimizer_facts
from cordwood.viewer.sources import Sources
from cordwood.viewer.value_text import split_path, value_text

_MAX_VALUE = 80  # characters of a Python value in a row
_MAX_STRUCTURE_LINES = 1000
_DIFFERENT = ("changed", "recast", "reshaped", "renamed", "added", "removed")  # states
_NO_DIFFERENCE = LeafDiff("", "value")

_MAX_SKIPPED = 3


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
        values: ValuesOption = "digests" if read == "digests" else True
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
    return int(StoredLeaf(leaf, checkpoint._reader).load(to="numpy"))


def _skipped(sources: Sources, a: str, b: str) -> Sequence[str]:
    """Return what the two sources also hold and is not compared, in words."""
    if sources.arguments.prefix is not None:
        return ()
    trees = [stored_trees(sources.path(name), format=sources.arguments.format) for name in (a, b)]
    return pair_trees(*trees, prefix=None, all_trees=False).skipped


def _summary(
    comparison: TreeComparison, first: Checkpoint, second: Checkpoint, skipped: Sequence[str]
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
