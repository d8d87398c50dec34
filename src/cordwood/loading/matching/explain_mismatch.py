"""The error of a load that does not fit `like`: a line for each problem, then one advice. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from cordwood.errors import MismatchError
from cordwood.keypath import KeyPath, path_label
from cordwood.loading.matching.match_names import SEPARATORS, match_name
from cordwood.loading.matching.match_types import is_abstract
from cordwood.loading.matching.mismatch_hints import (
    NO_COMMON_NAME,
    RENAME_ADVICE,
    counter_hint,
    delta_hint,
    equinox_hint,
    optimizer_hint,
)
from cordwood.loading.matching.mismatch_kinds import AbsentLeaf, Mismatch, NothingInCommon
from cordwood.loading.matching.mismatch_lines import (
    IGNORES,
    KEEPS,
    MAX_LINES,
    Line,
    covering_lines,
    merge_lines,
    mismatch_lines,
)
from cordwood.loading.matching.moved_positions import positions_hint
from cordwood.loading.matching.nestings import (
    Nesting,
    find_move,
    find_nestings,
    find_parts_of_like,
    nesting_hint,
)
from cordwood.message_text import counted, first_lines, first_names
from cordwood.tree.leaves import describe_leaf, is_static_leaf


def explain(mismatch: Mismatch | NothingInCommon, name: str) -> MismatchError:
    """Return the error that names all problems, and what to do.

    Args:
        mismatch: what does not fit.
        name: the checkpoint's name.
    """
    if isinstance(mismatch, NothingInCommon):
        return _nothing_in_common(mismatch, name)
    absent = [each for each in mismatch.problems if isinstance(each, AbsentLeaf)]
    nestings = _nestings_of_like(mismatch, absent)
    lines = merge_lines(mismatch_lines(mismatch, nestings), covering_lines(mismatch))
    first = ""
    if mismatch.is_disjoint and not nestings and not any(each.is_left_out for each in absent):
        first, lines = _first_line(lines)
    hint = delta_hint([leaf.key_path for leaf in mismatch.stored.leaves])
    if not hint and nestings:
        hint = nesting_hint(nestings)
    advice = f"\n{hint}" if hint else _advice(mismatch, absent)
    return mismatch_error([line.text + line.remedy for line in lines], name, advice, first=first)


def mismatch_error(
    problems: Sequence[str], name: str, advice: str = "", *, first: str = ""
) -> MismatchError:
    """Return the error that lists all problems, between the first line and the advice."""
    count = counted(len(problems), "leaf", "leaves")
    verb = "do" if len(problems) > 1 else "does"
    text = first_lines(problems, MAX_LINES)
    error = MismatchError(f"{count} of {name} {verb} not fit `like`:\n{first}{text}{advice}")
    error.problems = tuple(problems)
    return error


def _nestings_of_like(mismatch: Mismatch, absent: Sequence[AbsentLeaf]) -> list[Nesting]:
    """Return the containers around all leaves of `like` on one side, if none of them is stored."""
    naming = mismatch.stored.naming
    is_all = len(absent) + len(mismatch.unread_leaves) == len(mismatch.flat.leaves)
    if not absent or not is_all or naming in SEPARATORS:
        return []
    paths = [each.path for each in absent]
    return find_nestings(paths, mismatch.unmatched, partial(match_name, naming=naming))


def _first_line(lines: list[Line]) -> tuple[str, list[Line]]:
    """Return a first line that says that all names differ, and the problems without other advice.

    The line is empty, and the problems are unchanged, if most names resemble a stored one.
    """
    absent = [line for line in lines if line.remedy != IGNORES]
    plain = [line for line in absent if line.remedy == KEEPS]
    if 2 * len(plain) <= len(absent):
        return "", lines
    return f"  {NO_COMMON_NAME}\n", [line._replace(remedy="") for line in lines]


def _advice(mismatch: Mismatch, absent: Sequence[AbsentLeaf]) -> str:
    """Return the first advice that applies, if `like` is not inside a container of the other."""
    paths = [each.path for each in absent]
    fitting, unmatched, naming = mismatch.fitting, mismatch.unmatched, mismatch.stored.naming
    advice = ""
    if naming not in SEPARATORS:
        advice = _part_advice(mismatch) or _move_advice(mismatch, paths)
    if not advice and any(each.is_python_number for each in absent):
        advice = equinox_hint(mismatch.like)
    if not advice and absent and not unmatched:
        counters = [
            leaf.key_path for leaf in fitting if leaf.shape == () and leaf.dtype.startswith("int")
        ]
        advice = counter_hint(paths, counters, naming)
    if not advice and fitting and not any(each.is_left_out for each in absent):
        advice = optimizer_hint([*paths, *unmatched])
    return advice


def _part_advice(mismatch: Mismatch) -> str:
    """Return how to load all of the checkpoint into a container of `like`."""
    flat, unmatched = mismatch.flat, mismatch.unmatched
    if mismatch.fitting or not unmatched:
        return ""
    if any(is_abstract(leaf) for leaf in flat.leaves if not is_static_leaf(leaf)):
        return ""
    name_of = partial(match_name, naming=mismatch.stored.naming)
    parts = find_parts_of_like(flat.paths, unmatched, name_of)
    return f"\n{nesting_hint(parts, needs_keep=True)}" if parts else ""


def _move_advice(mismatch: Mismatch, absent: Sequence[KeyPath]) -> str:
    """Return how to load a subtree, or elements of a container, that have moved."""
    if not absent:
        return ""
    index, flat, unmatched = mismatch.stored, mismatch.flat, mismatch.unmatched
    name_of = partial(match_name, naming=index.naming)
    fitting = [leaf.key_path for leaf in mismatch.fitting]
    move = find_move(absent, unmatched, fitting, name_of)
    if move is not None:
        return f"\n{move.hint}"
    specs = [
        describe_leaf(path, leaf, abstract=True)
        for path, leaf in zip(flat.paths, flat.leaves, strict=True)
        if name_of(path) not in mismatch.unread_leaves
    ]
    return positions_hint(absent, unmatched, index.leaves, specs)


def _nothing_in_common(problem: NothingInCommon, name: str) -> MismatchError:
    """Return the error of a load that would read nothing and keep all of `like`."""
    paths, stored, naming, is_part = problem
    nestings = []
    if naming not in SEPARATORS:
        nestings = find_nestings(paths, stored, partial(match_name, naming=naming))
    hint = delta_hint(stored)
    if not hint:
        hint = nesting_hint(nestings) if nestings else f"the names differ: {RENAME_ADVICE}"
    selected = " as it is selected" if is_part else ""
    return MismatchError(
        f"no leaf of `like` is in {name}{selected}; {hint}\n"
        f"  in `like`: {first_names([*map(path_label, paths)], 3)}\n"
        f"  in the checkpoint: {first_names([*map(path_label, stored)], 3)}"
    )
