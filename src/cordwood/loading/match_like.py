"""Matching of stored leaves and containers with those of `like`.

Leaves are matched by key path. Arrays without names are matched by position, with the leaves of
`like` in jax's order. One file, because both ways judge a pair of leaves by the same functions, and
the problems of leaves and of containers make one message.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from cordwood.errors import MismatchError
from cordwood.index import (
    ARRAY_KINDS,
    Index,
    Inline,
    Leaf,
    LeafKind,
    LeafSpec,
    Naming,
    Structure,
    Unreadable,
    jax_order,
    leaf_text,
)
from cordwood.keypath import KeyPath, format_path, path_label
from cordwood.loading.cast import requested_dtypes, same_kind_of_number
from cordwood.loading.load_request import LoadOptions, Missing, Target
from cordwood.loading.match_hints import (
    NO_COMMON_NAME,
    RENAME_ADVICE,
    Nesting,
    cast_hint,
    counter_hint,
    equinox_hint,
    find_move,
    find_nestings,
    find_parts_of_like,
    joined_names,
    nesting_hint,
    nnx_variable_hint,
    optimizer_hint,
    prng_key_hint,
    python_number_hint,
    transpose_hints,
)
from cordwood.loading.moved_positions import positions_hint
from cordwood.message_text import counted, first_lines, first_names, nearest_path
from cordwood.tree.flatten import FlatTree, flatten, unflatten
from cordwood.tree.leaves import describe_leaf, is_static_leaf

SEPARATORS: Mapping[Naming, str] = {"dotted": ".", "slashed": "/"}  # between the joined keys
_MAX_LINES = 50
_KEEPS = ' (missing="keep" keeps the value of `like`)'
_IGNORES = ' (extra="ignore" skips it)'
_NUMBERS = frozenset({"bool", "int", "float", "complex"})
_EMPTY = "an empty container"
_NOTHING = frozenset({"None", _EMPTY})
_MAPPINGS = frozenset({"dict", "namedtuple", "object"})


class Problem(NamedTuple):
    """One line of an error, with the name of the leaf or container that it is about."""

    name: Any
    text: str


class Container(NamedTuple):
    """A container of a tree: a dict, list, tuple, None or another node."""

    path: KeyPath
    kind: str
    empty: bool


class Matching(NamedTuple):
    """A matched load: the targets to read, and the function that builds the tree from them."""

    targets: Sequence[Target]
    paths: Sequence[KeyPath]  # of the targets, in the resulting tree
    rebuild: Callable[[Sequence[Any]], Any]


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
        raise _duplicate_name(index, name)
    unwanted = {match_name(path, index.naming) for path in left_out}
    problems: list[Problem] = []
    absent: list[tuple[int, KeyPath, bool]] = []
    targets: list[Target] = []
    filled: list[int] = []
    misshapen: dict[int, tuple[Leaf, LeafSpec]] = {}  # by the position of the problem
    requested = _dtypes_of_cast(index, options, name=name)
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
            spec = _as_cast(spec, leaf, requested.get(key))
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
    return _keeping_others(flat, filled, targets, rebuild)


def _dtypes_of_cast(index: Index, options: LoadOptions, *, name: str) -> dict[Any, str]:
    """Return the dtypes that `cast` requests, whatever those of `like` are, by match names."""
    if options.cast is None or isinstance(options.cast, bool):
        return {}
    paths = [leaf.key_path for leaf in index.leaves]
    requested = requested_dtypes(index.leaves, paths, options.cast, naming=index.naming, where=name)
    return {
        match_name(path, index.naming): dtype
        for path, dtype in zip(paths, requested, strict=True)
        if dtype is not None
    }


def _as_cast(spec: LeafSpec, leaf: Leaf, requested: str | None) -> LeafSpec:
    """Return the spec with the stored dtype, which the load casts, if `like` allows for that."""
    if requested is None or not spec.dtype:
        return spec
    if requested == spec.dtype or same_kind_of_number(leaf.dtype, spec.dtype):
        return spec._replace(dtype=leaf.dtype)
    return spec


def _keeping_others(
    flat: FlatTree,
    filled: Sequence[int],
    targets: Sequence[Target],
    rebuild: Callable[[Sequence[Any]], Any],
) -> Matching:
    """Return the matching of the leaves of `like` at these positions; its others stay."""

    def rebuild_all(values: Sequence[Any]) -> Any:
        leaves = list(flat.leaves)
        for i, value in zip(filled, values, strict=True):
            leaves[i] = value
        return rebuild(leaves)

    return Matching(targets, [flat.paths[i] for i in filled], rebuild_all)


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
        elif i < _MAX_LINES:
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
        (key, like_nodes[key], _described(like_nodes[key]), leaf_text(leaf), _IGNORES)
        for key, leaf in stored.items()
        if key in like_nodes
    ]
    for key, path, leaf in zip(names, flat.paths, flat.leaves, strict=True):
        if key in nodes and not is_static_leaf(leaf):
            expected = leaf_text(describe_leaf(path, leaf, abstract=True))
            hint = "" if keeps else _KEEPS
            found.append((key, nodes[key], expected, _described(nodes[key]), hint))
    problems = []
    for key, container, expected, actual, hint in found:
        text = f"{path_label(container.path)}: expected {expected}, found {actual}"
        text += hint if container.empty else ""
        problems.append(Problem(key, text + nnx_variable_hint(key, stored, set(names))))
    return problems


def _duplicate_name(index: Index, name: str) -> MismatchError:
    """Return the error of two stored leaves that have one name in the format."""
    seen: dict[Any, KeyPath] = {}
    for leaf in index.leaves:
        key = match_name(leaf.key_path, index.naming)
        if key in seen:
            break
        seen[key] = leaf.key_path
    return MismatchError(
        f"{name}: {format_path(seen[key])} and {format_path(leaf.key_path)} are both called "
        f"{key!r} there, so that `like` cannot say which is which; load without `like`"
    )


def is_abstract(leaf: Any) -> bool:
    """Return True if a leaf of `like` has a shape and a dtype, but no value to keep."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(leaf, jax.ShapeDtypeStruct)


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


def describe_mismatch(leaf: Leaf, spec: LeafSpec, options: LoadOptions) -> str | None:
    """Return why a stored leaf does not match a leaf of `like`; None if it matches."""
    if isinstance(leaf.storage, Inline) and isinstance(leaf.storage.value, Unreadable):
        return (
            f"expected {leaf_text(spec)}, found one not to be read: {leaf.storage.value.reason}; "
            f'to keep that of `like`, pass select="!{format_path(leaf.key_path)}", missing="keep"'
        )
    arrays = leaf.kind in ARRAY_KINDS, spec.kind in ARRAY_KINDS
    keys = "prng_key" in (leaf.kind, spec.kind)
    if arrays == (True, True) and not keys and leaf[2:4] == spec[2:4]:  # shape and dtype
        return None  # most leaves: no text is made for them
    cast = options.casts_to_like
    if arrays == (False, False) and leaf.kind == spec.kind:
        return None
    expected = f"expected {leaf_text(spec)}, found {leaf_text(leaf)}"
    if arrays == (False, False):
        return expected
    if keys and (leaf.kind != spec.kind or leaf.prng_impl != spec.prng_impl):
        return expected + prng_key_hint(leaf, spec)
    if arrays == (True, True):
        if leaf.shape != spec.shape:
            return expected
        if leaf.dtype != spec.dtype and not cast:
            return f"{expected} ({cast_hint(leaf, spec, options.cast)})"
        return None
    if leaf.shape == spec.shape == () and {leaf.kind, spec.kind} & _NUMBERS and not keys:
        return None if cast else f"{expected} ({python_number_hint(leaf, spec)})"
    return expected


def make_target(leaf: Leaf, spec: LeafSpec, like: Any, options: LoadOptions) -> Target:
    """Return the target of a stored leaf that matches the leaf `like`, whose spec is `spec`."""
    kind = spec.kind if leaf.kind in ARRAY_KINDS or spec.kind in ARRAY_KINDS else leaf.kind
    to = options.to
    if to is not None and kind in ("jax", "numpy"):
        kind = to
    if kind == "numpy_scalar" and leaf.shape:
        kind = "numpy"
    sharding = _sharding(like, leaf) if kind in ("jax", "prng_key") else None
    dtype = spec.dtype if spec.dtype and (options.casts_to_like or not leaf.dtype) else leaf.dtype
    return Target(leaf, kind, dtype, spec.weak_type and kind == "jax", sharding)


def _sharding(like: Any, leaf: Leaf) -> Any:
    """Return the sharding that a leaf of `like` is committed to; None if it is not committed.

    For a ShapeDtypeStruct with a layout other than the default one, return its Format.
    """
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(like, jax.Array):
        return like.sharding if like.committed else None
    format = getattr(like, "format", None)
    layout = getattr(format, "layout", None)
    if layout is not None:
        usual = tuple(range(len(leaf.shape)))
        if len(layout.major_to_minor) == len(usual) and layout.major_to_minor != usual:
            return format
    return getattr(like, "sharding", None)


def mismatch_error(
    problems: Sequence[str], name: str, advice: str = "", *, first: str = ""
) -> MismatchError:
    """Return the error that lists all problems, between the first line and the advice."""
    count = counted(len(problems), "leaf", "leaves")
    verb = "do" if len(problems) > 1 else "does"
    text = first_lines(problems, _MAX_LINES)
    error = MismatchError(f"{count} of {name} {verb} not fit `like`:\n{first}{text}{advice}")
    error.problems = tuple(problems)
    return error


# Python numbers are stored as arrays of these dtypes.
_STORED_AS: Mapping[LeafKind, tuple[str, ...]] = {
    "bool": ("bool",),
    "int": ("int", "uint"),
    "float": ("float", "bfloat"),
    "complex": ("complex",),
}


def match_by_position(index: Index, like: Any, options: LoadOptions, *, name: str) -> Matching:
    """Match the leaves of a checkpoint to the arrays and numbers of `like`, one after another.

    Other leaves of `like` (functions, strings) stay as they are, as in equinox. Key data becomes
    PRNG keys where `like` has PRNG keys.

    Raises:
        ValueError: `missing` or `extra` accepts differences that need names.
        MismatchError: the number of arrays differs, or the shape or dtype of an array; the
            message names all of them.
    """
    if options.extra != "error" or (options.missing == "keep" and not _unreadable(index)):
        raise ValueError(f"{name} holds arrays without names: all have to be there")
    flat = flatten(like)
    order = [i for i in jax_order(flat.structure) if _is_stored(flat.leaves[i])]
    problems: list[str] = []
    targets = []
    filled = []
    named = [
        leaf._replace(key_path=flat.paths[i]) for i, leaf in zip(order, index.leaves, strict=False)
    ]
    requested = _dtypes_of_cast(index._replace(leaves=tuple(named)), options, name=name)
    for i, leaf in zip(order, named, strict=False):
        path = flat.paths[i]
        if leaf.kind == "unreadable":
            if options.missing == "error":
                assert isinstance(leaf.storage, Inline)
                problems.append(f"{path_label(path)}: {leaf.storage.value.reason}{_KEEPS_UNREAD}")
            continue
        spec = describe_leaf(path, flat.leaves[i], abstract=True)
        spec = _as_cast(spec, leaf, requested.get(match_name(path, index.naming)))
        if spec.kind == "prng_key" and (leaf.shape, leaf.dtype) == (spec.shape, "uint32"):
            leaf = leaf._replace(kind="prng_key", prng_impl=spec.prng_impl)
        problem = _difference(leaf, spec, options)
        if problem:
            problems.append(f"{path_label(path)}: {problem}")
        else:
            targets.append(make_target(leaf, spec, flat.leaves[i], options))
            filled.append(i)
    if len(order) != len(index.leaves):
        problems.insert(0, _count(index, [path_label(flat.paths[i]) for i in order]))
    if problems:
        raise mismatch_error(problems, name)
    return _keeping_others(flat, filled, targets, partial(unflatten, flat))


_KEEPS_UNREAD = ' (missing="keep" keeps that of `like`)'


def _unreadable(index: Index) -> bool:
    return any(leaf.kind == "unreadable" for leaf in index.leaves)


def _is_stored(leaf: Any) -> bool:
    if isinstance(leaf, np.ndarray | np.generic | bool | int | float | complex):
        return True
    jax = sys.modules.get("jax")
    is_jax = jax is not None and isinstance(leaf, jax.Array | jax.ShapeDtypeStruct)
    return is_jax or hasattr(leaf, "__jax_array__")


def _difference(leaf: Leaf, spec: LeafSpec, options: LoadOptions) -> str | None:
    if leaf.shape == () and leaf.dtype.startswith(_STORED_AS.get(spec.kind, ())):
        return None
    return describe_mismatch(leaf, spec, options)


def _count(index: Index, names: Sequence[str]) -> str:
    count = len(index.leaves)
    first = min(count, len(names))
    text = f"expected {counted(len(names), 'array')} and numbers, found {count} in the file: "
    if first < len(names):
        return f"{text}{names[first]} is the first that is not there"
    return f"{text}array {first}, {leaf_text(index.leaves[first])}, is the first one too many"


# Names and containers


def match_name(path: KeyPath, naming: Naming) -> Any:
    """Return the name that leaves and containers are matched by.

    It is the key path as exactly as the naming of the format keeps it.
    """
    if naming == "exact":
        return path
    keys = tuple(str(key) if isinstance(key, (str, int)) else str(key.value) for key in path)
    separator = SEPARATORS.get(naming)
    return keys if separator is None else separator.join(keys)


def containers_by_name(structure: Structure, naming: Naming) -> dict[Any, Container]:
    """Return the containers by their match names; all nodes with named fields are one kind."""
    result: dict[Any, Container] = {}
    stack: list[KeyPath] = [()]
    for node in structure:
        path = stack.pop()
        if node.kind == "leaf":
            continue
        kind: str = node.kind
        keys: Sequence[Any] = node.keys or range(node.size)
        if kind == "dict" and node.type_name in ("list", "tuple"):  # some selected elements of one
            kind, keys = node.type_name, [getattr(key, "value", key) for key in node.keys]
        if naming == "keys":
            kind = "container" if node.size else _EMPTY
        elif kind == "none":
            kind = "None"
        elif naming == "strings":
            kind = "container"  # in a state dict all containers are dicts
        elif kind in _MAPPINGS:
            kind = "dict or node with fields"
        result[match_name(path, naming)] = Container(path, kind, not node.size)
        stack.extend((*path, key) for key in reversed(keys))
    return result


def remove_empty(by_name: Mapping[Any, Container], names: Collection[Any]) -> dict[Any, Container]:
    """Return the containers without the None nodes and empty containers of those names."""
    return {
        name: each
        for name, each in by_name.items()
        if not (each.kind in _NOTHING and name in names)
    }


def container_problems(
    stored: Mapping[Any, Container],
    expected: Mapping[Any, Container],
    *,
    missing: bool,
    extra: bool,
    moved: Collection[Any] = (),
) -> list[Problem]:
    """Return a problem for each container that differs.

    A container differs if its kind differs, or if it is None and on one side only. Other empty
    containers hold nothing, and may be on one side only.

    Args:
        stored: the containers of the checkpoint.
        expected: the containers of `like`.
        missing: `like` keeps leaves that are not stored; a None of `like` may be missing too.
        extra: stored leaves that `like` lacks are ignored; so is a stored None.
        moved: names of stored containers whose kind may differ, unless one of the two is None.
    """
    problems = []
    for name, container in expected.items():
        other = stored.get(name)
        text = ""
        if other is not None and kinds_differ(other, container, is_moved=name in moved):
            text = f"expected {container.kind}, found {other.kind}"
        elif other is None and container.kind == "None" and not missing:
            text = "None in `like`, and nothing in the checkpoint"
        if text:
            problems.append(Problem(name, f"{path_label(container.path)}: {text}"))
    if not extra:
        problems += [
            Problem(
                name, f"{path_label(other.path)}: None in the checkpoint, and nothing in `like`"
            )
            for name, other in stored.items()
            if other.kind == "None" and name not in expected
        ]
    return problems


def kinds_differ(one: Container, other: Container, *, is_moved: bool) -> bool:
    """Return True if the kinds of two containers differ and, of a moved one, one is None."""
    return one.kind != other.kind and (not is_moved or "None" in (one.kind, other.kind))


def merge_problems(problems: Sequence[Problem], covering: Sequence[Problem]) -> list[Problem]:
    """Return the problems; each covering problem replaces those in its subtree."""
    over = {problem.name: problem for problem in covering}
    kept: dict[Any, Problem] = {}
    for i, problem in enumerate(problems):
        prefixes = [problem.name[:stop] for stop in range(len(problem.name) + 1)]
        cover = next((over[prefix] for prefix in prefixes if prefix in over), None)
        if cover is None:
            kept[i] = problem
        else:
            kept.setdefault((cover.name,), cover)
    return list(kept.values())


def _described(container: Container) -> str:
    if container.kind in _NOTHING:
        return container.kind
    return f"an empty {container.kind}" if container.empty else f"a {container.kind}"
