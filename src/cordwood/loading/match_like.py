"""Matching of stored leaves with those of `like`, by key path."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from cordwood.errors import MismatchError
from cordwood.index import (
    ARRAY_KINDS,
    Index,
    Leaf,
    LeafSpec,
    Naming,
    leaf_text,
)
from cordwood.keypath import KeyPath, format_path, path_label
from cordwood.loading.load_request import LoadOptions, Missing, Target
from cordwood.loading.match_containers import (
    Container,
    container_problems,
    containers_by_name,
    described,
    remove_empty,
)
from cordwood.loading.match_hints import (
    NO_COMMON_NAME,
    RENAME_ADVICE,
    Nesting,
    counter_hint,
    equinox_hint,
    find_move,
    find_nestings,
    find_parts_of_like,
    joined_names,
    nesting_hint,
    nnx_variable_hint,
    optimizer_hint,
    transpose_hints,
)
from cordwood.loading.match_names import SEPARATORS, duplicate_name, match_name
from cordwood.loading.match_problems import MAX_LINES, Problem, merge_problems, mismatch_error
from cordwood.loading.match_types import (
    as_cast,
    describe_mismatch,
    dtypes_of_cast,
    is_abstract,
    make_target,
)
from cordwood.loading.matching import Matching, keeping_others
from cordwood.loading.moved_positions import positions_hint
from cordwood.message_text import first_names, nearest_path
from cordwood.tree.flatten import FlatTree, flatten, unflatten
from cordwood.tree.leaves import describe_leaf, is_static_leaf

_KEEPS = ' (missing="keep" keeps the value of `like`)'
_IGNORES = ' (extra="ignore" skips it)'


def match_like(
    index: Index,
    like: Any,
    options: LoadOptions,
    *,
    name: str,
    left_out: Collection[KeyPath] = (),
    transposed: Collection[KeyPath] = (),
    moved: Collection[KeyPath] = (),
) -> Matching:
    """Match the leaves of a checkpoint to those of `like` by key path.

    Args:
        index: the selected leaves of the checkpoint.
        like: the tree to match.
        options: to, strict, cast, missing and extra are used.
        name: the checkpoint's name in errors.
        left_out: key paths of stored leaves that are not selected.
        transposed: key paths of leaves that are transposed; the index has the shapes after it.
        moved: paths in the index of containers whose kind is that of `like`.

    Raises:
        MismatchError: leaves are missing, extra or of another kind, shape or dtype; the
            message names all of them.
    """
    strict, missing = options.strict, options.missing
    flat, rebuild = _flatten_like(like, index.naming)
    stored = {match_name(leaf.key_path, index.naming): leaf for leaf in index.leaves}
    if len(stored) < len(index.leaves):
        raise duplicate_name(index, name)
    unwanted = {match_name(path, index.naming) for path in left_out}
    problems: list[Problem] = []
    absent: list[tuple[int, KeyPath, bool]] = []
    targets: list[Target] = []
    filled: list[int] = []
    misshapen: dict[int, tuple[Leaf, LeafSpec]] = {}  # by the position of the problem
    requested = dtypes_of_cast(index, options, name=name)
    seen = set()
    has_arrays = False
    kept = set()  # names of leaves that stay as they are in `like`
    for i, (path, leaf_like) in enumerate(zip(flat.paths, flat.leaves, strict=True)):
        key = match_name(path, index.naming)
        leaf = stored.get(key)
        if is_static_leaf(leaf_like):
            kept.add(key)
            if leaf is not None:
                seen.add(key)
                text = f"expected nothing for {leaf_like!r:.60} in `like`, found {leaf_text(leaf)}"
                problems.append(Problem(key, f"{path_label(path)}: {text}"))
            continue
        if leaf is None and missing == "keep" and not is_abstract(leaf_like):
            kept.add(key)
            has_arrays = has_arrays or hasattr(leaf_like, "dtype")
            continue
        spec = describe_leaf(path, leaf_like, abstract=True)
        has_arrays = has_arrays or spec.kind in ARRAY_KINDS
        if key in seen:
            text = f"{path_label(path)}: another leaf of `like` has the name {key!r} too"
            problems.append(Problem(key, text))
        seen.add(key)
        if leaf is None:
            absent.append((len(problems), path, key in unwanted))
            # The text is filled in once all unmatched stored leaves are known.
            problems.append(Problem(key, ""))
            continue
        if requested:
            spec = as_cast(spec, leaf, requested.get(key))
        problem = describe_mismatch(leaf, spec, options)
        if problem:
            if leaf.key_path in transposed:
                problem += " once transposed"
            elif leaf.shape != spec.shape:
                misshapen[len(problems)] = leaf, spec
            problems.append(Problem(key, f"{path_label(path)}: {problem}"))
        else:
            targets.append(make_target(leaf, spec, leaf_like, options))
            filled.append(i)
    if misshapen:
        fitting = [target.leaf for target in targets]
        hints = transpose_hints(misshapen, fitting, index)
        for i, hint in hints.items():
            problems[i] = problems[i]._replace(text=problems[i].text + hint)
    unmatched = {key: leaf.key_path for key, leaf in stored.items() if key not in seen}
    nestings: list[Nesting] = []
    if absent and len(absent) + len(kept) == len(flat.leaves) and index.naming not in SEPARATORS:
        paths = [path for _, path, _ in absent]
        name_of = partial(match_name, naming=index.naming)
        nestings = find_nestings(paths, list(unmatched.values()), name_of)
    ignores_extra = options.extra == "ignore" or not strict
    has_none = has_arrays and 0 < len(unmatched) == len(stored)
    if has_none and ignores_extra and not problems:  # all of `like` would be kept
        raise _no_leaf(
            flat.paths, list(unmatched.values()), index.naming, name, is_part=bool(left_out)
        )
    _describe_absent(problems, absent, unmatched.values(), missing, nestings)
    if not ignores_extra:
        for key, path in unmatched.items():
            text = f"in the checkpoint ({leaf_text(stored[key])}), not in `like`"
            problems.append(Problem(key, f"{path_label(path)}: {text}{_IGNORES}"))
    if strict and index.naming not in SEPARATORS and index.structure != flat.structure:
        nodes = containers_by_name(index.structure, index.naming)
        like_nodes = containers_by_name(flat.structure, index.naming)
        if missing == "keep":
            kept |= like_nodes.keys()
        nodes = remove_empty(nodes, kept)
        if ignores_extra:
            like_nodes = remove_empty(like_nodes, unmatched.keys() | nodes.keys())
        keeps = missing == "keep"
        moved_names = {match_name(path, index.naming) for path in moved}
        problems += container_problems(
            nodes, like_nodes, missing=keeps, extra=ignores_extra, moved=moved_names
        )
        if problems:
            leaves = _leaves_for_containers(
                flat, index.naming, stored, nodes, like_nodes, keeps=keeps
            )
            problems = merge_problems(problems, leaves)
    if problems:
        advice = f"\n{nesting_hint(nestings)}" if nestings else ""
        texts = [problem.text for problem in problems]
        first = ""
        if has_none and not nestings and not any(is_unwanted for *_, is_unwanted in absent):
            first, texts = _first_line(texts)
        if not nestings and not targets and index.naming not in SEPARATORS:
            others = [leaf for leaf in flat.leaves if not is_static_leaf(leaf)]
            parts: list[Nesting] = []
            if unmatched and not any(map(is_abstract, others)):
                name_of = partial(match_name, naming=index.naming)
                parts = find_parts_of_like(flat.paths, list(unmatched.values()), name_of)
            advice = f"\n{nesting_hint(parts, needs_keep=True)}" if parts else ""
        if not nestings and not advice and absent and index.naming not in SEPARATORS:
            move = find_move(
                [path for _, path, _ in absent],
                list(unmatched.values()),
                [target.leaf.key_path for target in targets],
                partial(match_name, naming=index.naming),
            )
            advice = f"\n{move.hint}" if move is not None else ""
            if not advice:
                specs = [
                    describe_leaf(path, leaf, abstract=True)
                    for path, leaf in zip(flat.paths, flat.leaves, strict=True)
                    if match_name(path, index.naming) not in kept
                ]
                paths = [path for _, path, _ in absent]
                advice = positions_hint(paths, list(unmatched.values()), index.leaves, specs)
        kinds = dict(zip(flat.paths, map(type, flat.leaves), strict=True))
        if not advice and any(kinds[path] in (bool, int, float) for _, path, _ in absent):
            advice = equinox_hint(like)
        if not advice and absent and not unmatched:
            counters = [
                target.leaf.key_path
                for target in targets
                if target.leaf.shape == () and target.leaf.dtype.startswith("int")
            ]
            advice = counter_hint([path for _, path, _ in absent], counters, index.naming)
        if not advice and targets and not any(is_unwanted for *_, is_unwanted in absent):
            advice = optimizer_hint([*(path for _, path, _ in absent), *unmatched.values()])
        raise mismatch_error(texts, name, advice, first=first)
    if len(filled) == len(flat.leaves):
        return Matching(targets, flat.paths, rebuild)
    return keeping_others(flat, filled, targets, rebuild)


def _describe_absent(
    problems: list[Problem],
    absent: Sequence[tuple[int, KeyPath, bool]],
    unmatched: Collection[KeyPath],
    missing: Missing,
    nestings: Sequence[Nesting],
) -> None:
    """Fill in the texts of leaves that are not stored, with the nearest unmatched stored name."""
    names = [format_path(path) for path in unmatched]
    of_strings = {match_name(path, "strings"): format_path(path) for path in unmatched}
    for i, path, is_unwanted in absent:
        close = None
        if nestings:
            close = joined_names([nesting.stored_path(path) for nesting in nestings], "or")
        elif i < MAX_LINES:
            close = nearest_path(format_path(path), names)
        same = of_strings.get(match_name(path, "strings"))
        hint = f"{same}, whose keys have other types" if same is not None else close
        text = f"{path_label(path)}: {_absence(hint, missing, is_unwanted)}"
        problems[i] = problems[i]._replace(text=text)


def _first_line(texts: list[str]) -> tuple[str, list[str]]:
    """Return a first line that says that all names differ, and the problems without other advice.

    The line is empty, and the problems are unchanged, if most names resemble a stored one.
    """
    absent = [text for text in texts if not text.endswith(_IGNORES)]
    plain = [text for text in absent if text.endswith(_KEEPS)]
    if 2 * len(plain) <= len(absent):
        return "", texts
    return f"  {NO_COMMON_NAME}\n", [t.removesuffix(_KEEPS).removesuffix(_IGNORES) for t in texts]


def _no_leaf(
    paths: Sequence[KeyPath],
    stored: Sequence[KeyPath],
    naming: Naming,
    name: str,
    *,
    is_part: bool,
) -> MismatchError:
    """Return the error of a load that would read nothing and keep all of `like`."""
    nestings = []
    if naming not in SEPARATORS:
        nestings = find_nestings(paths, stored, partial(match_name, naming=naming))
    hint = nesting_hint(nestings) if nestings else f"the names differ: {RENAME_ADVICE}"
    selected = " as it is selected" if is_part else ""
    return MismatchError(
        f"no leaf of `like` is in {name}{selected}; {hint}\n"
        f"  in `like`: {first_names([*map(path_label, paths)], 3)}\n"
        f"  in the checkpoint: {first_names([*map(path_label, stored)], 3)}"
    )


def _leaves_for_containers(
    flat: FlatTree,
    naming: Naming,
    stored: Mapping[Any, Leaf],
    nodes: Mapping[Any, Container],
    like_nodes: Mapping[Any, Container],
    *,
    keeps: bool,
) -> list[Problem]:
    """Return a problem for each place where one side has a leaf and the other a container."""
    names = [match_name(path, naming) for path in flat.paths]
    found = [
        (key, like_nodes[key], described(like_nodes[key]), leaf_text(leaf), _IGNORES)
        for key, leaf in stored.items()
        if key in like_nodes
    ]
    for key, path, leaf in zip(names, flat.paths, flat.leaves, strict=True):
        if key in nodes and not is_static_leaf(leaf):
            expected = leaf_text(describe_leaf(path, leaf, abstract=True))
            hint = "" if keeps else _KEEPS
            found.append((key, nodes[key], expected, described(nodes[key]), hint))
    problems = []
    for key, container, expected, actual, hint in found:
        text = f"{path_label(container.path)}: expected {expected}, found {actual}"
        text += hint if container.empty else ""
        problems.append(Problem(key, text + nnx_variable_hint(key, stored, set(names))))
    return problems


def _absence(close: str | None, missing: Missing, unwanted: bool) -> str:
    """Return the text about a leaf of `like` that is not stored, or not selected."""
    what = "in the checkpoint, but not selected" if unwanted else "not in the checkpoint"
    if missing == "keep":
        what += ', and `like` has no value for missing="keep" to keep, only a shape and a dtype'
    if close is not None and not unwanted:
        return f"{what}; did you mean {close}?"
    return what if missing == "keep" else f"{what}{_KEEPS}"


def _flatten_like(like: Any, naming: Naming) -> tuple[FlatTree, Callable[[Sequence[Any]], Any]]:
    """Return the flattened `like`, and the function that builds such a tree from values."""
    if naming == "strings":
        from cordwood.state_dict.state_dicts import from_state_dict, to_state_dict

        flat = flatten(to_state_dict(like))
        return flat, lambda values: from_state_dict(like, unflatten(flat, values))
    flat = flatten(like)
    return flat, partial(unflatten, flat)
