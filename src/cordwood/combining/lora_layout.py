"""The layout of LoRA adapters: which factors belong to which leaf of the base. Pure.

An adapter has two factors for each matrix that it changes. W + alpha / rank * first @ second is the
merged matrix. In PEFT's files `lora_B` is the first factor and `lora_A` the second one, because
PyTorch stores matrices as (out, in). In Flax it is the other way round.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from cordwood.combining.low_rank_update import LowRankUpdate
from cordwood.combining.plan_combination import is_added
from cordwood.did_you_mean import nearest_path
from cordwood.errors import MismatchError
from cordwood.index import Index, leaf_text
from cordwood.keypath import path_label
from cordwood.message_text import first_lines
from cordwood.plan.path_patterns import path_name
from cordwood.plan.path_spellings import plain_name

MODULE = "{module}"
_MAX_SHOWN = 10

Shape: TypeAlias = tuple[int, ...]


class LoraNames(NamedTuple):
    """The names of a target and its factors, each with `{module}` in the place of what varies."""

    target: str
    first: str
    second: str
    transposed: bool = False  # the factors are those of the transposed target


class LoraLayout(NamedTuple):
    """The layout of an adapter.

    Attributes:
        names: the names; of several the first that fits counts.
        scale: returns the scale for a module and its rank.
        scalars: a name of leaves that `scale` knows, such as "{module}/alpha"; "" for none.
    """

    names: Sequence[LoraNames]
    scale: Callable[[str, int], float]
    scalars: str = ""


def peft_layout(config: Mapping[str, Any]) -> LoraLayout:
    """Return the layout of an adapter of PEFT by its `adapter_config.json`.

    Raises MismatchError for adapters that are no LoRA, or need more than two factors.
    """
    kind = config.get("peft_type", "LORA")
    if kind != "LORA" or config.get("use_dora"):
        what = "DoRA" if kind == "LORA" else kind
        raise MismatchError(
            f"the adapter is of the kind {what}: expected LoRA, whose update is alpha / r * B @ A; "
            "merge it by PEFT (merge_and_unload)"
        )
    transposed = bool(config.get("fan_in_fan_out"))
    start = f"base_model/model/{MODULE}"
    names = (
        LoraNames(f"{MODULE}/weight", f"{start}/lora_B/weight", f"{start}/lora_A/weight"),
        LoraNames(
            f"{MODULE}/weight", f"{start}/lora_embedding_B", f"{start}/lora_embedding_A", True
        ),
    )
    if transposed:
        names = (names[0]._replace(transposed=True), names[1])

    def scale(module: str, rank: int) -> float:
        alpha = _by_module(config.get("alpha_pattern"), module, config.get("lora_alpha", 8))
        return float(alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank)

    return LoraLayout([_in_order(each) for each in names], scale)


def _in_order(names: LoraNames) -> LoraNames:
    """Return names of a transposed target with the factors swapped: (B A)^T is A^T B^T."""
    if not names.transposed:
        return names
    return names._replace(first=names.second, second=names.first)


def _by_module(patterns: Mapping[str, Any] | None, module: str, default: Any) -> Any:
    """Return the value of the first pattern that is the end of a module's name, as in PEFT."""
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module.replace("/", ".")):
            return value
    return default


def match_lora(
    base: Index, adapter: Index, layout: LoraLayout, *, where: str
) -> dict[int, LowRankUpdate]:
    """Return the update of each leaf of a base that an adapter changes, by its number.

    Args:
        base: the base.
        adapter: the adapter.
        layout: the layout of the adapter.
        where: the adapter, for errors.

    Raises MismatchError that names factors without a target or a partner, leaves of the adapter
    that are no factors, and factors that do not fit; or if there are no factors.
    """

    def label(number: int) -> str:
        return path_label(adapter.leaves[number].key_path)

    targets = _numbers(base)
    factors = _numbers(adapter)
    unused = set(factors)
    if layout.scalars:
        unused -= {name for name in factors if _module(layout.scalars, name) is not None}
    updates: dict[int, LowRankUpdate] = {}
    problems: list[str] = []
    for names in layout.names:
        for name, number in factors.items():
            module = _module(names.first, name)
            if module is None or name not in unused:
                continue
            partner = names.second.replace(MODULE, module)
            target = names.target.replace(MODULE, module)
            if partner not in factors:
                continue  # it stays among those that are not used
            unused -= {name, partner}
            if target not in targets:
                close = nearest_path(target, list(targets))
                hint = "" if close is None else f"; did you mean {close}?"
                problems.append(f"{label(number)}: the base has no {target}{hint}")
                continue
            update = LowRankUpdate(number, factors[partner], names.transposed, 0.0)
            first, second = update.factor_shapes(adapter.leaves)
            leaf = base.leaves[targets[target]]
            if not _fits(first, second, leaf.shape) or not is_added(leaf):
                shapes = f"{list(first)} @ {list(second)}"
                problem = f"{label(number)}: {shapes} for {target}, {leaf_text(leaf)}"
                problems.append(problem + _hint(names, first, second, leaf.shape))
                continue
            scale = layout.scale(module, second[0])
            updates[targets[target]] = update._replace(scale=scale)
    problems += [
        f"{label(number)}: no factor of LoRA with its partner"
        for name, number in factors.items()
        if name in unused
    ]
    if not problems and not updates:
        problems.append("it has no factors")
    if problems:
        pairs = " or ".join([f"{names.first} with {names.second}" for names in layout.names])
        raise MismatchError(
            f"{where} does not fit the base; nothing was merged; expected as factors: {pairs}\n"
            + first_lines(problems, _MAX_SHOWN)
        )
    return updates


def _fits(first: Shape, second: Shape, shape: Shape) -> bool:
    """Return True if the product of factors of these shapes has the shape of the target."""
    has_rank = bool(first) and bool(second) and first[-1] == second[0]
    return has_rank and first[:-1] + second[1:] == shape


def _hint(names: LoraNames, first: Shape, second: Shape, shape: Shape) -> str:
    """Return what to do with factors that do not fit; "" if it is not known."""
    if _fits(second, first, shape):
        return f"; swapped they fit: down={names.second}, up={names.first}"
    if _fits(first[::-1], second[::-1], shape):
        return (
            "; they fit as (in, rank) and (rank, out): convert the adapter with transpose='**' "
            "(--transpose '**') first"
        )
    return ""


def _numbers(index: Index) -> dict[str, int]:
    """Return the numbers of leaves by their names, as `joined_name` returns them."""
    return {
        joined_name(path_name(leaf.key_path, index.naming)): number
        for number, leaf in enumerate(index.leaves)
    }


def joined_name(name: str) -> str:
    """Return a name with slashes between its parts: PyTorch joins them by dots.

    >>> joined_name("model.layers.0.weight"), joined_name("layers/(0)/kernel")
    ('model/layers/0/weight', 'layers/0/kernel')
    """
    return plain_name(name.replace(".", "/"), "exact")


def _module(pattern: str, name: str) -> str | None:
    """Return the part of a name that stands for `{module}`; None if the pattern does not fit."""
    start, _, end = pattern.partition(MODULE)
    fits = name.startswith(start) and name.endswith(end) and len(name) > len(start) + len(end)
    return name[len(start) : len(name) - len(end)] if fits else None
