"""merge_lora: write a checkpoint with the updates of a LoRA adapter."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial

from cordwood.api.convert import convert
from cordwood.combining.addends import WeightedTree
from cordwood.combining.combined_checkpoint import open_combination
from cordwood.combining.lora_layout import (
    MODULE,
    LoraLayout,
    LoraNames,
    joined_name,
    match_lora,
    peft_layout,
)
from cordwood.combining.low_rank_update import LowRankUpdates
from cordwood.combining.match_leaves import require_names
from cordwood.combining.plan_combination import plan_combination
from cordwood.combining.weighted_sum import Accumulate
from cordwood.converting.conversion import Conversion
from cordwood.encoding.strict_json import parse_json
from cordwood.io.open_files import LocalFile, read_whole
from cordwood.io.progress import ProgressOption
from cordwood.loading.checkpoint import Checkpoint, open_at
from cordwood.loading.load_options import Cast
from cordwood.storage.locations import LocalPath, Location, parse_location
from cordwood.storage.paths import is_folder, kind_at, refuse_to_replace
from cordwood.threads.run_in_worker import in_worker

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"  # of PEFT
_MAX_CONFIG_BYTES = 1 << 20
_OURS = "cordwood-"  # the metadata that cordwood writes about one step or version


@in_worker
def merge_lora(
    destination: str | os.PathLike[str],
    base: str | os.PathLike[str],
    adapter: str | os.PathLike[str],
    *,
    target: str | None = None,
    down: str | None = None,
    up: str | None = None,
    alpha: float | str | None = None,
    cast: Cast | None = None,
    accumulate: Accumulate = "float32",
    prefix: str | None = None,
    format: str | None = None,
    max_shard_bytes: int | None = None,
    overwrite: bool = False,
    progress: ProgressOption = None,
) -> Conversion:
    """Write the base with the updates of a LoRA adapter, in any format that `save` writes.

    Each matrix W that the adapter changes becomes W + alpha / rank * down @ up, computed in
    float32 and rounded once. All other leaves are copied. Base and result are read and written a
    few MiB at a time.

    A directory that PEFT has saved needs no names: its `adapter_config.json` has alpha, also for
    single modules, `use_rslora` and `fan_in_fan_out`. For other adapters, `target`, `down`, `up`
    and `alpha` say it; in each name `{module}` stands for the part that varies.

    Args:
        destination: the path to write, as in `save`.
        base: the path of the checkpoint to change, in any format.
        adapter: the path of the adapter: a directory of PEFT, or a checkpoint of any format.
        target: the name of the leaves to change, such as "params/{module}/kernel".
        down: the name of the down factors, such as "{module}/lora_a", of shape (in, rank). More
            axes than two are possible, as in (rank, heads, size) of the up one.
        up: the name of the up factors, such as "{module}/lora_b", of shape (rank, out).
        alpha: the number by which updates are multiplied, besides 1 / rank; or the name of leaves
            that have it.
        cast: the dtypes of the result, as in `load`. None: those of the base.
        accumulate: the dtype of the computation, "float32" or "float64", as in `combine`.
        prefix: the tree of `base`, if it holds several, as in `load`.
        format: the name of the format to write, as in `convert`.
        max_shard_bytes: the number of bytes of arrays in one file, as in `convert`.
        overwrite: replace an existing checkpoint at `destination`.
        progress: True for a bar in a terminal or a notebook; or a function that is called from
            time to time with a `cordwood.results.Progress`. None: neither.

    Returns:
        The paths, formats and sizes, as of `convert`.

    Raises:
        MismatchError: the base has no leaf for a factor, a shape does not fit, or the adapter has
            leaves that are no factors; names each.
        ValueError: some of the names are missing, or `destination` is one of the
            checkpoints, or a part of one.
        Exception: all errors of `open` and `convert`.

    >>> import cordwood, numpy as np
    >>> cordwood.save("base.safetensors", {"mlp": {"kernel": np.ones((2, 3), np.float32)}})
    >>> lora = {"a": np.ones((2, 1), np.float32), "b": np.ones((1, 3), np.float32)}
    >>> cordwood.save("lora.safetensors", {"mlp": lora})
    >>> _ = merge_lora(
    ...     "merged.safetensors",
    ...     "base.safetensors",
    ...     "lora.safetensors",
    ...     target="{module}/kernel",
    ...     down="{module}/a",
    ...     up="{module}/b",
    ...     alpha=2,
    ... )
    >>> cordwood.load("merged.safetensors")["mlp"]["kernel"]
    array([[3., 3., 3.],
           [3., 3., 3.]], dtype=float32)
    """
    to = parse_location(destination)
    names = {"target": target, "down": down, "up": up}
    location = parse_location(adapter)
    with ExitStack() as stack:
        opened = stack.enter_context(open_at(parse_location(base), prefix=prefix))
        require_names(opened.path, opened.index)
        if all(name is None for name in (*names.values(), alpha)):
            layout, location = _of_peft(location)
            factors = stack.enter_context(open_at(location))
        else:
            factors = stack.enter_context(open_at(location))
            layout = _named_layout(names, alpha, factors)
        refuse_to_replace(str(to), (opened.path, factors.path), result="result")
        updates = match_lora(opened.index, factors.index, layout, where=factors.path)
        reader = opened._reader
        tree = WeightedTree(reader, 1.0, reader.index.leaves)
        name = f"{opened.path} with {factors.path}"
        plan = plan_combination(
            reader.index, [tree.leaves], cast=cast, accumulate=accumulate, where=name
        )
        strings = reader.index.metadata.items()
        merged = open_combination(
            name,
            [tree],
            [tree, LowRankUpdates(factors._reader, updates)],
            plan,
            copied_from=tree,
            metadata={key: text for key, text in strings if not key.startswith(_OURS)},
        )
        return convert(
            Checkpoint(merged),
            destination,
            format=format,
            max_shard_bytes=max_shard_bytes,
            overwrite=overwrite,
            progress=progress,
        )


def _of_peft(location: Location) -> tuple[LoraLayout, Location]:
    """Return the layout of an adapter of PEFT, and the location of its weights."""
    is_peft = isinstance(location, LocalPath) and is_folder(location)
    if not is_peft or kind_at(f"{location}/{_CONFIG}") != "a file":
        raise ValueError(
            f"{location}: expected a local directory of PEFT with {_CONFIG} and {_WEIGHTS}; for "
            "other adapters pass target=, down=, up= and alpha= "
            "(--target, --down, --up, --alpha)"
        )
    assert isinstance(location, LocalPath)
    with LocalFile(f"{location}/{_CONFIG}") as file:
        config = parse_json(read_whole(file, limit_bytes=_MAX_CONFIG_BYTES), file.name)
    return peft_layout(config if isinstance(config, dict) else {}), location.child(_WEIGHTS)


def _named_layout(
    names: Mapping[str, str | None], alpha: float | str | None, factors: Checkpoint
) -> LoraLayout:
    """Return the layout that a caller describes. Raises ValueError."""
    missing = [name for name, value in {**names, "alpha": alpha}.items() if value is None]
    if missing:
        raise ValueError(
            f"expected all of target, down, up and alpha; without a value: {', '.join(missing)}"
        )
    templates = {name: value for name, value in names.items() if value is not None}
    if isinstance(alpha, str):
        templates["alpha"] = alpha
    for name, value in templates.items():
        if value.count(MODULE) != 1:
            number = "a number, or " if name == "alpha" else ""
            raise ValueError(f"{name}: expected {number}a name with one {MODULE}, found {value!r}")
    target, down, up = (joined_name(templates[name]) for name in names)
    rule = LoraNames(target, down, up)
    if isinstance(alpha, str):
        return LoraLayout([rule], partial(_stored_scale, factors, alpha), joined_name(alpha))
    assert alpha is not None
    return LoraLayout([rule], partial(_same_scale, float(alpha)))


def _same_scale(alpha: float, module: str, rank: int) -> float:  # noqa: ARG001
    return alpha / rank


def _stored_scale(factors: Checkpoint, template: str, module: str, rank: int) -> float:
    """Return the scale of a module by the leaf with its alpha. Raises KeyError if there is none."""
    return float(factors[template.replace(MODULE, module)].load(to="numpy")) / rank
