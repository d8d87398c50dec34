"""Shipped recipes on files that lack a tensor or a layer, or have one too many: named, always."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cordwood
from cordwood.errors import MismatchError
from cordwood.keypath import format_path
from cordwood.recipes import Recipe, find_recipe
from cordwood.recipes.map_index import map_index
from cordwood.recipes.shipped_recipes import FAMILIES, read_table
from cordwood.recipes.size_expressions import expression_names
from tests.recipes.families.cases import CASES, Case
from tests.recipes.families.tensors import Shapes
from tests.recipes.families.test_published_sizes import as_stored, write_sparse_file

RECIPES = [(case, to) for case in CASES for to in read_table(case.family)["to"]]
# A number in a name: a layer, or an expert.
NUMBER = re.compile(r"(?<=\.)(layers|layer|h|block|experts)\.(\d+)(?=\.)")
# transformers writes that the output is tied, which it is not in published files.
UNNOTICED = {"t5-1.1": ["lm_head.weight: ", "lm_head.weight: "]}


def numbered(shapes: Shapes) -> dict[str, list[int]]:
    """Return the numbers of layers and of experts, by what precedes them."""
    numbers: dict[str, set[int]] = {}
    for name in shapes:
        for match in NUMBER.finditer(name):
            before = name[: match.start(2)]
            if not re.search(r"block\.\d+\.layer\.$", before):  # T5 numbers the parts of a layer
                numbers.setdefault(before, set()).add(int(match[2]))
    return {before: sorted(some) for before, some in numbers.items()}


def damaged(shapes: Shapes, *, last: bool = True) -> Iterator[tuple[Shapes, str]]:
    """Yield the shapes without something, or with more, and a name that the error should have.

    Args:
        shapes: of the tensors of a model.
        last: True to lack the last layer or expert too, or to have one more.
    """
    kinds: dict[str, list[str]] = {}
    for name in shapes:
        kinds.setdefault(NUMBER.sub(r"\1.0", name), []).append(name)
    for names in kinds.values():
        middle = names[len(names) // 2]
        yield {name: shapes[name] for name in shapes if name != middle}, middle
        if last:
            yield {name: shapes[name] for name in shapes if name not in names}, names[-1]
    for before, some in numbered(shapes).items():
        for number in [some[(len(some) - 1) // 2], *some[-1:]][: 1 + last]:
            part = f"{before}{number}."
            yield {name: shapes[name] for name in shapes if not name.startswith(part)}, part
        if last:
            part, new = f"{before}{some[-1]}.", f"{before}{some[-1] + 1}."
            more = {new + n.removeprefix(part): shapes[n] for n in shapes if n.startswith(part)}
            yield {**shapes, **more}, new


def message(folder: Path, shapes: Shapes, recipe: Recipe) -> str:
    """Return the error of a recipe on tensors of these shapes; "" if there is none."""
    write_sparse_file(folder / "model.safetensors", shapes)
    try:
        cordwood.open(folder / "model.safetensors", recipe=recipe)
    except MismatchError as e:
        return str(e)
    return ""


def is_named(name: str, text: str) -> bool:
    """Return True if an error has a name, or a template of it such as `layers.{i}.w`."""
    parts = [r"(\d+|\{[^}]*\})" if part.isdigit() else part for part in name.split(".")]
    pattern = r"\.".join(parts).replace("vision_tower", r"vision_tower(\.vision_model)?")
    return re.search(pattern, text) is not None


def ids(value: Any) -> str:
    return value.name if isinstance(value, Case) else str(value)


@pytest.mark.parametrize(("case", "to"), RECIPES, ids=ids)
def test_what_is_missing_or_too_many_is_named(case: Case, to: str, tmp_path: Path) -> None:
    recipe = find_recipe(to=to, config=case.config)
    unnamed = [
        f"{name}: {text}"
        for shapes, name in damaged(case.shapes)
        if not is_named(name, text := message(tmp_path, shapes, recipe))
    ]
    assert unnamed == UNNOTICED.get(case.name, [])


@pytest.mark.parametrize(("case", "to"), RECIPES, ids=ids)
def test_an_array_that_the_tree_of_jax_lacks_is_named(case: Case, to: str, tmp_path: Path) -> None:
    recipe = find_recipe(to=to, config=case.config)
    write_sparse_file(tmp_path / "model.safetensors", case.shapes)
    with cordwood.open(tmp_path / "model.safetensors", recipe=recipe) as checkpoint:
        index = as_stored(checkpoint.index)
    assert map_index(index, recipe.inverse(), where="tree")
    kinds: dict[str, list[str]] = {}
    paths = [format_path(leaf.key_path) for leaf in index.leaves]
    for path in paths:
        kinds.setdefault(re.sub(r"\d+", "0", path), []).append(path)
    if case.name in UNNOTICED:
        del kinds["lm_head/kernel"]
    for some in kinds.values():
        path = some[len(some) // 2]
        leaves = [leaf for leaf, each in zip(index.leaves, paths, strict=True) if each != path]
        with pytest.raises(MismatchError) as error:
            map_index(index._replace(leaves=tuple(leaves)), recipe.inverse(), where="tree")
        pattern = re.sub(r"(?<=[/_])\d+", r"(\\d+|\\{[^}]*\\})", re.escape(path))
        assert re.search(pattern, str(error.value)), path


# Other recipes need numbers of the configuration.
WITHOUT_CONFIG = [
    *[(name, "easydel") for name in FAMILIES if name not in ("bert", "gemma3", "t5", "vit")],
    ("whisper", "flax"),
]


@pytest.mark.parametrize(("family", "to"), WITHOUT_CONFIG)
def test_what_is_missing_is_named_without_a_config(family: str, to: str, tmp_path: Path) -> None:
    case = next(case for case in CASES if case.family == family)
    recipe = find_recipe(family, to=to)
    for shapes, name in damaged(case.shapes, last=False):
        assert is_named(name, message(tmp_path, shapes, recipe)), name


VISION_HEADS = ("vision_config", "num_attention_heads")


def numbers_that_count(case: Case) -> Iterator[tuple[str, ...]]:
    """Yield the keys of the numbers in a configuration that tell sizes of axes."""
    table = read_table(case.family)
    texts = [*table["checked"].values(), *map(str, table["sizes"].values())]
    for name in sorted(frozenset().union(*map(expression_names, texts))):
        keys = tuple(name.split("."))
        value: Any = case.config
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        # Without a size of heads, shapes do not tell how many heads there are.
        is_told = not name.endswith(("_heads", "n_head")) or "head_dim" in str(case.config)
        if type(value) is int and value > 1 and is_told and keys != VISION_HEADS:
            yield keys


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_a_file_that_is_not_of_the_config_is_refused(case: Case, tmp_path: Path) -> None:
    for keys in numbers_that_count(case):
        config = json.loads(json.dumps(case.config))
        part = config
        for key in keys[:-1]:
            part = part[key]
        part[keys[-1]] *= 2
        text = message(tmp_path, case.shapes, find_recipe(to="flax", config=config))
        assert "does not fit" in text, keys


@pytest.mark.parametrize("part", ["text", "vision"])
def test_one_part_of_clip_with_its_own_config(part: str, tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "clip")
    config = {
        **case.config[f"{part}_config"],
        "model_type": f"clip_{part}_model",
        "architectures": [f"CLIP{part.capitalize()}Model"],
    }
    shapes = {name: shape for name, shape in case.shapes.items() if name.startswith(f"{part}_m")}
    for to in ("flax", "easydel"):
        recipe = find_recipe(to=to, config=config)
        write_sparse_file(tmp_path / "model.safetensors", shapes)
        with cordwood.open(tmp_path / "model.safetensors", recipe=recipe) as checkpoint:
            if to == "flax":
                query = checkpoint[f"{part}/layers_0/attention/query/kernel"]
                assert query.shape[1] == config["num_attention_heads"]
        for less, name in damaged(shapes):
            assert is_named(name, message(tmp_path, less, recipe)), name
