"""diff: the differences of two checkpoints, or of a checkpoint and a tree."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from functools import partial
from typing import Any

from cordwood import dtypes
from cordwood.bulk.bulk_arguments import bulk_options
from cordwood.bulk.call_text import call_text
from cordwood.bulk.run_bulk import BulkRun, bulk_run
from cordwood.comparing.compare_checkpoints import ValuesOption, compare_checkpoints, open_operand
from cordwood.comparing.compare_in_tasks import ComparisonWork
from cordwood.comparing.compare_parts_task import TreesToCompare
from cordwood.comparing.differences import Diff
from cordwood.comparing.leaf_diff import in_tree
from cordwood.comparing.pair_trees import TreePairs, pair_trees
from cordwood.formats.stored_trees import stored_trees, tree_text
from cordwood.io.progress import ProgressOption
from cordwood.io.progress_bar import progress_display
from cordwood.io.progress_of_parts import ProgressOfParts
from cordwood.loading.checkpoint import Checkpoint
from cordwood.loading.locate_step import locate_checkpoint
from cordwood.loading.tree_reference import refer_to_tree
from cordwood.plan.path_patterns import Select
from cordwood.plan.rename_paths import Rename
from cordwood.recipes.recipe import Recipe
from cordwood.storage.locations import Location, is_path, parse_location
from cordwood.storage.paths import absolute_location


def diff(
    a: Any,
    b: Any,
    *,
    select: Select | None = None,
    rename: Rename | None = None,
    recipe: Recipe | None = None,
    prefix: str | None = None,
    strict: bool = False,
    values: ValuesOption = True,
    progress: ProgressOption = None,
    executor: Executor | None = None,
    part: tuple[int, int] | None = None,
    journal: str | os.PathLike[str] | None = None,
) -> Diff:
    """Compare two checkpoints, a checkpoint and a tree, or two trees, leaf by leaf.

    Of two directories that hold several trees (trees of prefixes, the items of a step, an Orbax
    composite), all are compared: those with the same prefix, and each tree of one side only is a
    difference. One tree of a directory is compared if `prefix` names it, if the other side is one
    tree (in memory, or an open checkpoint), or with `select` and `rename`. Then it is the tree
    without a prefix, or the only one, and the result says what was not compared. Strings beside the
    trees (metadata, metrics, extras, states of iterators) are not compared.

    Leaves are paired by key path, in any two formats: where one format stores keys as strings, or
    joined, the keys of the other are compared in that form. Leaves with equal digests over blocks
    of equal size are equal and are not read. All others are read and compared a few MiB at a
    time, in several threads: memory stays below about 300 MiB for checkpoints of any size. A leaf
    of a tree in memory that is sharded over devices is copied to the host whole. The result does
    not depend on the threads: each call returns the same numbers.

    An array that only `a` has, and one of the same type and elements that only `b` has, count as
    one renamed leaf. They are recognised by their digests; where these do not show it, and in
    trees in memory, by the digest of their elements, of which at first only 64 KiB are read. Of
    several arrays with the same elements, such as biases that are all zero, those are paired whose
    key paths have the longest end in common, and the others in order if each side has equally
    many. Arrays of fewer than 16 elements are paired only if the last key is the same name; empty
    arrays and Python values never are. Nothing is renamed with `values=False`.

    Args:
        a: a path, an open checkpoint (`cordwood.open` takes a prefix or a format), or a tree.
        b: the same for the other side.
        select: patterns of key paths, as in `load`: compare only those leaves.
        rename: new key paths for leaves of `a`, as in `load`, by which they are paired with `b`.
        recipe: rules that make other names, shapes and axes of those of `a`, as in `load`.
        prefix: the tree to compare, of each path that is a directory of several.
        strict: True also reports an array that is numpy's on one side and jax's on the other, and
            weak types that differ.
        values: False compares structure, shapes and dtypes only, and reads no elements. "digests"
            compares the digests too, and still reads no elements: an array whose stored bytes
            differ is listed as "bytes", without statistics, and one that has no digests of its own
            to compare as "unread". Its values may be equal, but `.equal` is then False.
        progress: True for a bar in a terminal or a notebook; or a function that is called from
            time to time with a `cordwood.results.Progress`, whose exception ends the call.
        executor: any executor of `concurrent.futures`, whose workers read and compare the elements
            of two paths, as for `cordwood.verify`; the result is the same. A task is 256 MiB of
            each side, and its worker opens both checkpoints. None: this process does all.
        part: (i, n) compares structure and digests, and the elements of part i of n, counted from
            0. The result is of what was compared, and counts the leaves of other parts; renamed
            leaves are recognised by their digests only.
        journal: a directory that lists the tasks that are done, as for `cordwood.verify`, with
            their results. After all parts, the call without `part` adds these up.

    Returns:
        The differences; `str()` shows them, and `.equal` and `.to_json()` are for programs. NaN
        equals NaN. Elements that are equal in value but not in bits (-0.0 and 0.0) are counted
        separately.

    Raises:
        MismatchError: a pattern matches nothing, or one side has arrays without names.
        PrefixError: a side has no tree of that prefix; or several trees, of which none is in both.
        CorruptionError: stored bytes that were read do not match their digest.
        ValueError: `executor`, `part` or `journal` is given, and a side is no path.
        ProcessError: the executor lost all its workers; or a side was replaced meanwhile, or
            workers see other files there.
        StorageError: another call works with the same journal; names its process.
        Exception: all errors of `cordwood.open`.

    >>> from cordwood import save
    >>> import numpy as np
    >>> save("example.safetensors", {"w": np.zeros(4, np.float32), "step": 7})
    >>> print(diff("example.safetensors", {"w": np.float32([0, 0, 1, 0]), "step": 7}))
    1 difference between a = example.safetensors and b = the tree; 1 leaf equal:
      w: float32[4]: 1 of 4 elements differ, max abs 1, max rel 1
    """
    bulk = bulk_options(executor, part, journal)
    a, b = [_located(each) for each in (a, b)]
    if bulk.divides and not (isinstance(a, Location) and isinstance(b, Location)):
        raise ValueError(
            "executor=, part= and journal= are for two paths, which workers open: save a tree that "
            "is in memory, and compare its path"
        )
    every = [stored_trees(each) if isinstance(each, Location) else None for each in (a, b)]
    all_trees = select is None and rename is None and recipe is None
    pairs = pair_trees(every[0], every[1], prefix=prefix, all_trees=all_trees)
    diffs = []
    with ExitStack() as opened:
        report = opened.enter_context(progress_display(progress, "comparing"))
        run: BulkRun | None = None
        if bulk.divides:
            call = call_text(
                f"diff {absolute_location(a)} {absolute_location(b)}",
                select=select,
                rename=rename,
                recipe=recipe,
                prefix=prefix,
                strict=strict or None,
                values=None if values is True else values,
            )
            run = opened.enter_context(bulk_run(bulk, work=call))
        operands = {
            name: tuple(map(partial(open_operand, opened), (a, b), prefixes))
            for name, *prefixes in pairs.both
        }
        parts = None
        if report is not None:
            sizes = {name: sum(map(_size_to_read, sides)) for name, sides in operands.items()}
            parts = ProgressOfParts(report, sizes)
        for (name, *prefixes), operand in zip(pairs.both, operands.values(), strict=True):
            one, other = operand
            work: ComparisonWork | None = None
            if run is not None and isinstance(one, Checkpoint) and isinstance(other, Checkpoint):
                first, second = map(refer_to_tree, (one, other), (a, b), prefixes)
                trees = TreesToCompare(first, second, rename, recipe)
                work = ComparisonWork(run, trees, bulk.task_bytes)
            comparison = compare_checkpoints(
                one,
                other,
                select=select,
                rename=rename,
                recipe=recipe,
                strict=strict,
                values=values,
                progress=None if parts is None else parts.begin(name),
                work=work,
            )
            if work is not None:
                work.trees.one.require_current()
                work.trees.other.require_current()
            diffs.append((name, comparison.diff))
        if run is not None and bulk.part is None:
            run.forget()
    return _joined(diffs, pairs)


def _located(value: object) -> object:
    """Return an operand, a path as the location of the checkpoint that it means."""
    return locate_checkpoint(parse_location(value)) if is_path(value) else value


def _size_to_read(value: object) -> int:
    """Return the size of all elements of one tree of several, in bytes."""
    if not isinstance(value, Checkpoint):
        return 0
    arrays = [leaf for leaf in value.index.leaves if leaf.dtype]
    return sum([math.prod(leaf.shape) * dtypes.itemsize(leaf.dtype) for leaf in arrays])


def _joined(diffs: Sequence[tuple[str, Diff]], pairs: TreePairs) -> Diff:
    """Return the differences of several trees as one result."""
    _, first = diffs[0]
    return Diff(
        first.a,
        first.b,
        tuple([leaf._replace(prefix=name) for name, diff in diffs for leaf in diff.leaves]),
        tuple([in_tree(name, line) for name, diff in diffs for line in diff.containers]),
        sum([diff.equal_leaves for _, diff in diffs]),
        sum([diff.equal_by_digest for _, diff in diffs]),
        sum([diff.read_bytes for _, diff in diffs]),
        first.with_values,
        (
            *[f"{tree_text(name)}: only in a" for name in pairs.only_a],
            *[f"{tree_text(name)}: only in b" for name in pairs.only_b],
        ),
        tuple([name for name, _ in diffs]),
        (*pairs.skipped, *[line for _, diff in diffs for line in diff.skipped]),
    )
