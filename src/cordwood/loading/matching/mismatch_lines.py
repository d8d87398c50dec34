"""The line of a mismatch error about each leaf or container that does not fit `like`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, assert_never

from cordwood.did_you_mean import nearest_path
from cordwood.index import ARRAY_KINDS, Inline, Leaf, LeafSpec, Unreadable, leaf_text
from cordwood.keypath import KeyPath, format_path, path_label
from cordwood.loading.load_options import LoadOptions, Missing
from cordwood.loading.matching.match_containers import (
    DifferentKinds,
    NoneInCheckpoint,
    NoneInLike,
    described,
)
from cordwood.loading.matching.match_names import match_name
from cordwood.loading.matching.match_types import is_number_beside_array
from cordwood.loading.matching.mismatch_hints import (
    cast_hint,
    nnx_variable_hint,
    prng_key_hint,
    python_number_hint,
    transpose_hints,
)
from cordwood.loading.matching.mismatch_kinds import (
    AbsentLeaf,
    ExtraLeaf,
    LeafForContainer,
    LeafInCheckpoint,
    MisfitLeaf,
    Mismatch,
    SharedName,
    StaticLeaf,
)
from cordwood.loading.matching.nestings import Nesting, joined_names

MAX_LINES = 50
KEEPS = ' (missing="keep" keeps the value of `like`)'
IGNORES = ' (extra="ignore" skips it)'


class Line(NamedTuple):
    """One line of an error, with the name of the leaf or container that it is about."""

    name: Any
    text: str
    remedy: str = ""  # KEEPS or IGNORES: the end of the line


def mismatch_lines(mismatch: Mismatch, nestings: Sequence[Nesting]) -> list[Line]:
    """Return a line for each problem.

    Args:
        mismatch: what does not fit.
        nestings: the containers around all leaves of `like`, if it is that which differs.
    """
    options, index = mismatch.options, mismatch.stored
    stored_names = _StoredNames(mismatch.unmatched, nestings)
    misshapen = {
        i: (each.leaf, each.spec)
        for i, each in enumerate(mismatch.problems)
        if isinstance(each, MisfitLeaf)
        and not each.is_transposed
        and each.leaf.shape != each.spec.shape
    }
    hints = transpose_hints(misshapen, mismatch.fitting, index) if misshapen else {}
    lines = []
    for i, problem in enumerate(mismatch.problems):
        remedy = ""
        match problem:
            case StaticLeaf(_, path, leaf_like, leaf):
                text = f"expected nothing for {leaf_like!r:.60} in `like`, found {leaf_text(leaf)}"
            case SharedName(name, path):
                text = f"another leaf of `like` has the name {name!r} too"
            case AbsentLeaf(_, path, is_left_out):
                close = stored_names.near(path, is_late=i >= MAX_LINES)
                text, remedy = _absence(close, options.missing, is_left_out)
            case MisfitLeaf(_, path, leaf, spec, is_transposed):
                text = misfit_text(leaf, spec, options)
                text += " once transposed" if is_transposed else hints.get(i, "")
            case ExtraLeaf(_, leaf):
                path, remedy = leaf.key_path, IGNORES
                text = f"in the checkpoint ({leaf_text(leaf)}), not in `like`"
            case DifferentKinds(_, container, stored_kind):
                path, text = container.path, f"expected {container.kind}, found {stored_kind}"
            case NoneInLike(_, container):
                path, text = container.path, "None in `like`, and nothing in the checkpoint"
            case NoneInCheckpoint(_, container):
                path, text = container.path, "None in the checkpoint, and nothing in `like`"
            case _:
                assert_never(problem)
        lines.append(Line(problem.name, f"{path_label(path)}: {text}", remedy))
    return lines


def covering_lines(mismatch: Mismatch) -> list[Line]:
    """Return a line for each place where one side has a leaf and the other a container."""
    if not mismatch.covering:
        return []
    naming = mismatch.stored.naming
    stored = {match_name(leaf.key_path, naming) for leaf in mismatch.stored.leaves}
    names = {match_name(path, naming) for path in mismatch.flat.paths}
    lines = []
    for problem in mismatch.covering:
        line = _covering_line(problem, mismatch.options.missing)
        hint = nnx_variable_hint(problem.name, stored, names)
        lines.append(Line(line.name, line.text + line.remedy + hint) if hint else line)
    return lines


def _covering_line(problem: LeafForContainer, missing: Missing) -> Line:
    container = problem.container
    if isinstance(problem, LeafInCheckpoint):
        expected, actual, remedy = described(container), leaf_text(problem.leaf), IGNORES
    else:
        expected, actual = leaf_text(problem.spec), described(container)
        remedy = "" if missing == "keep" else KEEPS
    text = f"{path_label(container.path)}: expected {expected}, found {actual}"
    return Line(problem.name, text, remedy if container.empty else "")


def merge_lines(lines: Sequence[Line], covering: Sequence[Line]) -> list[Line]:
    """Return the lines; each covering line replaces those about its subtree."""
    over = {line.name: line for line in covering}
    merged: dict[Any, Line] = {}
    for i, line in enumerate(lines):
        prefixes = [line.name[:stop] for stop in range(len(line.name) + 1)] if over else []
        cover = next((over[prefix] for prefix in prefixes if prefix in over), None)
        if cover is None:
            merged[i] = line
        else:
            merged.setdefault((cover.name,), cover)
    return list(merged.values())


def misfit_text(leaf: Leaf, spec: LeafSpec, options: LoadOptions) -> str:
    """Return how a stored leaf differs from a leaf of `like` that it does not fit."""
    if isinstance(leaf.storage, Inline) and isinstance(leaf.storage.value, Unreadable):
        return (
            f"expected {leaf_text(spec)}, found one not to be read: {leaf.storage.value.reason}; "
            f'to keep that of `like`, pass select="!{format_path(leaf.key_path)}", missing="keep"'
        )
    expected = f"expected {leaf_text(spec)}, found {leaf_text(leaf)}"
    arrays = leaf.kind in ARRAY_KINDS, spec.kind in ARRAY_KINDS
    if not any(arrays):
        return expected
    is_key = "prng_key" in (leaf.kind, spec.kind)
    if is_key and (leaf.kind != spec.kind or leaf.prng_impl != spec.prng_impl):
        return expected + prng_key_hint(leaf, spec)
    if all(arrays) and leaf.shape == spec.shape:
        return f"{expected} ({cast_hint(leaf, spec, options.cast)})"
    if not all(arrays) and is_number_beside_array(leaf, spec):
        return f"{expected} ({python_number_hint(leaf, spec)})"
    return expected


class _StoredNames:
    """The stored leaves that `like` lacks, among which a leaf of `like` may have another name."""

    def __init__(self, unmatched: Sequence[KeyPath], nestings: Sequence[Nesting]) -> None:
        self._nestings = nestings
        self._names = [format_path(path) for path in unmatched]
        self._by_strings: Mapping[Any, str] = {
            match_name(path, "strings"): name
            for path, name in zip(unmatched, self._names, strict=True)
        }

    def near(self, path: KeyPath, *, is_late: bool) -> str | None:
        """Return the stored name for a leaf of `like`; a late line, which is not shown, has none.

        A name whose keys have other types is named even so: callers read all lines.
        """
        same = self._by_strings.get(match_name(path, "strings"))
        if same is not None:
            return f"{same}, whose keys have other types"
        if self._nestings:
            return joined_names([each.stored_path(path) for each in self._nestings], "or")
        return None if is_late else nearest_path(format_path(path), self._names)


def _absence(close: str | None, missing: Missing, is_left_out: bool) -> tuple[str, str]:
    """Return the text about a leaf of `like` that is not stored, or not selected; its remedy."""
    text = "in the checkpoint, but not selected" if is_left_out else "not in the checkpoint"
    if missing == "keep":
        text += ', and `like` has no value for missing="keep" to keep, only a shape and a dtype'
    if close is not None and not is_left_out:
        return f"{text}; did you mean {close}?", ""
    return text, "" if missing == "keep" else KEEPS
