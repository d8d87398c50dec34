"""The targets of a load without `like`: the stored tree itself, or its names nested."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from cordwood.errors import FormatError, MismatchError
from cordwood.index import Index
from cordwood.keypath import KeyPath, format_path
from cordwood.loading.load_options import LoadOptions
from cordwood.loading.load_target import default_targets
from cordwood.loading.matching.match_names import SEPARATORS
from cordwood.loading.matching.match_result import Matching
from cordwood.message_text import counted
from cordwood.tree.flatten import build_tree


def match_without_like(index: Index, options: LoadOptions, *, name: str) -> Matching:
    """Return targets for all leaves of the index, of the kinds that were saved.

    Args:
        index: the stored leaves.
        options: `to` and `nest` are used.
        name: the checkpoint's name in errors.

    Raises:
        MismatchError: leaves have no names, so only a `like` could give the structure.
        ValueError: `nest` is true and the names to split are in containers, or `rename` has
            turned them into paths.
    """
    if index.naming == "positions":
        raise MismatchError(
            f"{name} holds {counted(len(index.leaves), 'array')} without names or structure: pass "
            "like=, a tree like the one that was saved (equinox.filter_eval_shape makes one that "
            "takes no memory)"
        )
    paths = [leaf.key_path for leaf in index.leaves]
    targets = default_targets(index.leaves, options.to)
    separator = SEPARATORS.get(index.naming)
    if options.nest and separator is None:
        separator = _separator_of(paths, name)
    if not options.nest or separator is None:
        return Matching(targets, paths, partial(build_tree, index.structure))
    if any(len(path) > 1 for path in paths):
        raise ValueError("nest=True is for names as they are; rename has made paths of some")
    paths = [tuple(separator.join(map(str, path)).split(separator)) for path in paths]

    def rebuild(values: Sequence[Any]) -> Any:
        return nest_names(build_tree(index.structure, values), separator, name)

    return Matching(targets, paths, rebuild)


def _separator_of(paths: Sequence[KeyPath], name: str) -> str | None:
    """Return the separator of the joined keys of a flat dict; None if no keys are joined.

    Raises ValueError if keys are joined by '.' and the dict is not flat.
    """
    joined = [path for path in paths if any(isinstance(key, str) and "." in key for key in path)]
    if not all(len(path) == 1 and isinstance(path[0], str) for path in paths):
        if joined:
            raise ValueError(
                f"nest=True: {name} holds containers already, and {format_path(joined[0])} has a "
                "key that is joined by '.': only the keys of one flat dict are split; load "
                "it without nest=True, or with rename="
            )
        return None
    if joined:
        return "."
    return "/" if any("/" in str(path[0]) for path in paths) else None


def nest_names(flat: dict[str, Any], separator: str, file_name: str) -> dict[str, Any]:
    """Return nested dicts: {'a.b': x} becomes {'a': {'b': x}} if the separator is '.'.

    Raises:
        FormatError: one name is both a leaf and a prefix of another.
    """
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *parents, last = name.split(separator)
        node, prefix = tree, ""
        for parent in parents:
            prefix = f"{prefix}{separator}{parent}" if node is not tree else parent
            if prefix in flat:
                raise FormatError(
                    f"{file_name}: {name!r} cannot be nested: {prefix!r} is a leaf too; "
                    "load it without nest=True"
                )
            node = node.setdefault(parent, {})
        node[last] = value
    return tree
