"""Losses: lines about what a format cannot store of an index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cordwood.errors import UnsupportedLeafError
from cordwood.formats.load_format import loss_finder_of
from cordwood.formats.table import Format
from cordwood.index import ARRAY_KINDS, Index, LeafSpec, Node
from cordwood.keypath import DictKey, Key, KeyPath, format_path, path_label
from cordwood.message_text import counted, first_names

_SHOWN = 3  # leaves of a kind that a format cannot store, named in a message


def losses_in(format: Format, index: Index, metadata: Mapping[str, str]) -> list[str]:
    """Return what a format cannot store of an index, for people; [] for nothing.

    Raises UnsupportedLeafError for a leaf that it cannot store in any form.
    """
    if format.losses:
        return loss_finder_of(format).losses(format, index, metadata)
    refuse_opaque(index, format.name)
    return []


def losses_in_a_state_dict(index: Index, metadata: Mapping[str, str]) -> list[str]:
    """Return a line for each kind of thing that Flax's msgpack cannot store, with key paths.

    That arrays load as numpy arrays, and named tuples as dicts of their fields, is not counted.
    """
    sequences = [path for path, node in _nodes(index) if node.kind in ("list", "tuple")]
    losses = []
    if sequences:
        what = counted(len(sequences), "list or tuple", "lists and tuples")
        becomes = "becomes a dict" if len(sequences) == 1 else "become dicts"
        losses.append(f"{what} ({becomes} with the keys '0', '1' ...): {_listed(sequences)}")
    losses += [*_keys_that_are_no_strings(index), *_weak_types(index), *_prng_keys(index)]
    if metadata:
        losses.append(f"{counted(len(metadata), 'string')} beside the tree: {', '.join(metadata)}")
    return losses


def losses_in_an_orbax_tree(index: Index) -> list[str]:
    """Return a line for each kind of thing that Orbax does not record, with key paths.

    That jax arrays load as numpy arrays, if no target says otherwise, is not counted.
    """
    tuples = [path for path, node in _nodes(index) if node.kind == "tuple" and node.size]
    fields = [path for path, node in _nodes(index) if node.kind in ("namedtuple", "object")]
    scalars = [leaf.key_path for leaf in index.leaves if leaf.kind == "numpy_scalar"]
    losses = []
    for paths, noun, plural, becomes in (
        (tuples, "tuple", "tuples", "a list without a target"),
        (fields, "node with fields", "nodes with fields", "a dict without a target"),
        (scalars, "numpy scalar", "numpy scalars", "an array of shape ()"),
    ):
        if paths:
            losses.append(f"{counted(len(paths), noun, plural)} ({becomes}): {_listed(paths)}")
    return [*losses, *_keys_that_are_no_strings(index), *_weak_types(index)]


def losses_in_tensors(index: Index) -> list[str]:
    """Return a line for each kind of thing that files of named arrays cannot store, with key paths.

    That names take the place of containers is not counted.
    """
    values = [leaf.key_path for leaf in index.leaves if leaf.kind not in ARRAY_KINDS]
    losses = []
    if values:
        what = counted(len(values), "value that is no array", "values that are no arrays")
        losses.append(f"{what}: {_listed(values)}")
    losses += _prng_keys(index)
    return losses


def refuse_opaque(index: Index, format_name: str) -> None:
    """Raise UnsupportedLeafError for values that only the format of the index understands."""
    opaque = [leaf for leaf in index.leaves if leaf.kind == "opaque"]
    if opaque:
        names = ", ".join([format_path(leaf.key_path) for leaf in opaque[:_SHOWN]])
        raise UnsupportedLeafError(
            f"{names}: a value that only {index.format} understands cannot be stored as "
            f"{format_name}; select the other leaves"
        )


def unstorable_error(spec: LeafSpec, max_dims: int, takes: str) -> UnsupportedLeafError:
    """Return the error for an opaque value, or for a leaf of `max_dims` dimensions or more.

    `takes` is the layout with its verb, for the message: "packs take".
    """
    name = format_path(spec.key_path) or "the tree itself"
    problem = "a value that only its own format understands cannot be stored here"
    if spec.kind != "opaque":
        problem = f"{len(spec.shape)} dimensions; {takes} fewer than {max_dims} (MAX_DIMS)"
    return UnsupportedLeafError(f"{name}: {problem}")


def _nodes(index: Index) -> Iterator[tuple[KeyPath, Node]]:
    """Return the nodes of a structure with their key paths."""
    stack: list[KeyPath] = [()]
    for node in index.structure:
        path = stack.pop()
        yield path, node
        keys: Sequence[Key] = node.keys or range(node.size)
        stack.extend([(*path, key) for key in reversed(keys)])


def _keys_that_are_no_strings(index: Index) -> list[str]:
    """Return a line about the dicts with such keys, if there are any."""
    paths = [
        path
        for path, node in _nodes(index)
        if node.kind == "dict" and any(isinstance(key, DictKey) for key in node.keys)
    ]
    if not paths:
        return []
    what = counted(len(paths), "dict")
    return [f"{what} with keys that are not strings (they become strings): {_listed(paths)}"]


def _weak_types(index: Index) -> list[str]:
    """Return a line about the arrays of a weak type, if there are any."""
    paths = [leaf.key_path for leaf in index.leaves if leaf.weak_type]
    return [f"{counted(len(paths), 'weak type')}: {_listed(paths)}"] if paths else []


def _prng_keys(index: Index) -> list[str]:
    """Return a line about the PRNG keys, if there are any."""
    keys = [leaf.key_path for leaf in index.leaves if leaf.kind == "prng_key"]
    if not keys:
        return []
    what = counted(len(keys), "PRNG key array")
    return [f"{what}, of which only the key data stays: {_listed(keys)}"]


def _listed(paths: Sequence[KeyPath]) -> str:
    return first_names([path_label(path) for path in paths], _SHOWN)
