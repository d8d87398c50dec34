"""Advice in errors of load: the argument that would make a leaf fit `like`. Pure functions."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from cordwood import dtypes
from cordwood.index import Index, Leaf, LeafSpec, Naming
from cordwood.keypath import KeyPath, format_path
from cordwood.message_text import text_literal
from cordwood.plan.path_patterns import path_name
from cordwood.plan.transpose_leaves import find_transposition

RENAME_ADVICE = "use rename= (docs/how-to/hugging-face.md)"
NO_COMMON_NAME = f"no leaf has the same name: {RENAME_ADVICE}"
_SHOWN = 3
_COUNTER = "count"  # the field of optax's states
_WILDCARDS = frozenset("*?[")


def transpose_hints(
    misshapen: Mapping[int, tuple[Leaf, LeafSpec]], fitting: Sequence[Leaf], index: Index
) -> dict[int, str]:
    """Return advice for the leaves that would fit if they were transposed.

    The advice proposes a pattern of the last key. Square matrices fit with and without the
    transposition, so patterns that name only the leaves of the message would miss them.

    Args:
        misshapen: leaves whose shapes differ from `like`, by any number.
        fitting: the leaves that fit as they are.
        index: the index of the checkpoint.
    """
    turned = {}
    for number, (leaf, spec) in misshapen.items():
        axes = find_transposition(leaf.shape, spec.shape)
        if axes is not None and not {leaf.kind, spec.kind} - {"jax", "numpy"}:
            turned[number] = leaf, axes
    if not turned:
        return {}
    # A pattern matches every array of its last key. It must not match an array that fits already
    # (unless it is square), nor a convolution.
    untouchable = {_last(leaf.key_path) for leaf in index.leaves if len(leaf.shape) > 2}
    squares: Counter[str] = Counter()
    for leaf in fitting:
        if len(leaf.shape) == 2 and leaf.shape[0] == leaf.shape[1]:
            squares[_last(leaf.key_path)] += 1
        elif len(leaf.shape) >= 2:
            untouchable.add(_last(leaf.key_path))
    hints = {}
    for number, (leaf, axes) in turned.items():
        last = _last(leaf.key_path)
        name = path_name(leaf.key_path, index.naming)
        more = ""
        if last not in untouchable:
            name = _pattern(leaf.key_path, index.naming)
            if last in squares:
                more = f", which square ones ({squares[last]} here) need as well"
        elif squares:
            more = "; square ones fit either way, and may need it as well"
        option = f"[{name!r}]" if len(axes) == 2 else f"{{{name!r}: {axes}}}"
        hints[number] = (
            f" (that is its transpose, as PyTorch stores it: pass transpose={option}{more})"
        )
    return hints


def _last(path: KeyPath) -> str:
    """Return the last key; of keys joined by dots, the last part."""
    return format_path(path[-1:]).rpartition(".")[2]


def _pattern(path: KeyPath, naming: Naming) -> str:
    """Return a pattern for all leaves of the same last key; the name if there is no pattern."""
    name = path_name(path, naming)
    last = path[-1] if path else None
    if not isinstance(last, str) or _WILDCARDS & set(last):
        return name
    if len(path) > 1:
        return f"**/{path_name((last,), naming)}"
    if naming == "dotted" and "." in last:
        return f"*.{last.rpartition('.')[2]}"
    return name


def equinox_hint(like: Any) -> str:
    """Return how to load into an equinox module whose Python numbers a filter has removed."""
    equinox = sys.modules.get("equinox")
    if equinox is None:
        return ""
    import jax

    def is_module(node: Any) -> bool:
        return isinstance(node, equinox.Module)

    if not any(map(is_module, jax.tree.leaves(like, is_leaf=is_module))):
        return ""
    return (
        "\nequinox.filter(model, equinox.is_array) takes numbers out: load into the first of "
        "equinox.partition(like, equinox.is_array), and combine the two (docs/how-to/equinox.md)"
    )


def delta_hint(paths: Sequence[KeyPath]) -> str:
    """Return how to read the tree of a delta, if stored leaves are those of one."""
    names = [path[:1] for path in paths]
    if names[:2] != [("digests",), ("sizes",)] or {*names[2:]} - {("tree",)}:
        return ""
    return (
        "this is a delta: it holds the changes of a tree, and not the tree. cordwood.apply_delta "
        "(cordwood apply) makes the tree of it and its base; cordwood.load reads what a "
        "WeightPublisher wrote"
    )


def optimizer_hint(paths: Sequence[KeyPath]) -> str:
    """Return how to begin with a fresh optimizer, if the names differ within its state only.

    Args:
        paths: the leaves that only the checkpoint has, or only `like`.
    """
    names = {path[0] for path in paths if path}
    name = next(iter(names), None)
    if len(paths) < 2 or len(names) != 1 or not (isinstance(name, str) and name.startswith("opt")):
        return ""
    state = format_path((name,))
    return (
        f"\nthe names differ only within {state}: to begin with a fresh optimizer, keep its state "
        f'of `like` by select={text_literal(f"!{state}")}, missing="keep" (docs/how-to/optax.md)'
    )


def counter_hint(absent: Sequence[KeyPath], counters: Sequence[KeyPath], naming: Naming) -> str:
    """Return how to continue counters of schedules, which would begin anew in `like`.

    A learning rate that becomes a schedule of optax adds a leaf `count`. The one counter of the
    optimizer that is stored has its value.

    Args:
        absent: the key paths of leaves that only `like` has.
        counters: the key paths of integers without axes that both have.
        naming: the naming of the index.
    """
    sources = [path for path in counters if _last(path) == _COUNTER and path[0] == absent[0][0]]
    names = [path_name(path, naming) for path in absent]
    if len(sources) != 1 or any(
        _last(path) != _COUNTER or path[0] != absent[0][0] for path in absent
    ):
        return ""
    source = path_name(sources[0], naming)
    begins = "begins" if len(names) == 1 else "begin"
    targets = ", ".join(map(text_literal, [source, *names]))
    return (
        f"\n{', '.join(names[:_SHOWN])} {begins} anew with the value of `like`; to "
        f"continue from {source}, pass rename={{{text_literal(source)}: [{targets}]}}"
    )


def cast_hint(leaf: Leaf, spec: LeafSpec, cast: Any) -> str:
    """Return the `cast` that converts an array to the dtype that `like` has.

    >>> from cordwood.index import Inline
    >>> leaf = Leaf(("ids",), "numpy", (3,), "int64", Inline(None))
    >>> cast_hint(leaf, LeafSpec(("ids",), "numpy", (3,), "int32"), "bf16")
    'cast={"ids": "int32", "**": "bfloat16"} converts it'
    """
    if isinstance(cast, bool):
        return "cast=True converts it"
    entries = cast if isinstance(cast, Mapping) else {"**": cast}
    entries = {format_path(leaf.key_path): spec.dtype, **entries}
    shown = ", ".join(
        [f'{text_literal(name)}: "{dtypes.parse(each)}"' for name, each in entries.items()]
    )
    return f"cast={{{shown}}} converts it"


def python_number_hint(leaf: Leaf, spec: LeafSpec) -> str:
    """Return advice where one side has a Python number and the other an array of shape ()."""
    if spec.kind != "int" or not leaf.dtype.startswith(("int", "uint")):
        return "cast=True converts it"
    module = "np" if leaf.dtype.endswith("64") else "jnp"
    return (
        f"a Python int in `like`, and an array of {leaf.dtype} in the checkpoint, as a jitted "
        f"step returns it: put {module}.{leaf.dtype}(0) into `like`, or pass "
        "like=jax.eval_shape(f), where f() creates the state; cast=True converts it"
    )


def nnx_variable_hint(name: Any, stored: Collection[Any], like_names: Collection[Any]) -> str:
    """Return advice where one side has a variable of flax.nnx and the other its value."""
    inside = (*name, "value")
    if inside in stored and name in like_names:
        if any(other[-1:] == ("value",) and other in stored for other in like_names):
            path = format_path(name)
            return (
                " (in no variable of flax.nnx: "
                f'rename={{"{path}": "{path}", "**": "**/value"}} keeps its name)'
            )
        return ' (rename={"**/value$": "**"} loads the values of flax.nnx variables)'
    if inside in like_names and name in stored:
        return ' (rename={"**": "**/value"} loads into the values of flax.nnx variables)'
    return ""


def prng_key_hint(leaf: Leaf, spec: LeafSpec) -> str:
    """Return advice where one side has a typed PRNG key and the other its key data."""
    if spec.kind == "prng_key" and (leaf.dtype, leaf.shape) == ("uint32", spec.shape):
        return (
            " (the raw data of a PRNG key: put jax.random.key_data(key) into `like`, and call "
            "jax.random.wrap_key_data on the loaded array)"
        )
    if leaf.kind == "prng_key" and (spec.dtype, spec.shape) == ("uint32", leaf.shape):
        return (
            " (a typed PRNG key: put jax.random.wrap_key_data(key) into `like`, and call "
            "jax.random.key_data on the loaded key)"
        )
    return ""
