"""Shipped recipes on the names and shapes of published models; no element is read."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import cordwood
from cordwood.index import Index, Inline
from cordwood.keypath import format_path
from cordwood.recipes import find_recipe
from cordwood.recipes.map_index import map_index
from cordwood.recipes.shipped_recipes import read_table
from tests.recipes.families.cases import CASES
from tests.recipes.families.tensors import Shapes
from tests.recipes.families.test_shipped_recipes import published_name

SIZES = {name: (case.family, size) for case in CASES for name, size in case.sizes.items()}

# Of MaxText's configurations of these models.
MAXTEXT_SHAPES: Mapping[str, Shapes] = {
    "Meta-Llama-3-8B": {"layers/self_attention/query/kernel": (4096, 32, 32, 128)},
    "Meta-Llama-3-70B": {"layers/self_attention/key/kernel": (8192, 80, 8, 128)},
    "Mistral-7B-v0.1": {"layers/mlp/wi_0/kernel": (4096, 32, 14336)},
    "Mixtral-8x7B-v0.1": {"layers/MoeBlock_0/wo": (8, 32, 14336, 4096)},
    "Qwen2.5-7B": {"layers/self_attention/query/bias": (28, 28, 128)},
    "Qwen3-8B": {"layers/self_attention/query_norm/scale": (128, 36)},
    "Qwen3-30B-A3B": {"layers/moe_block/wi_0": (128, 48, 2048, 768)},
    "gemma-2-9b": {"layers/mlp_local/wo/kernel": (14336, 21, 3584)},
    "gemma-3-4b-text": {
        "layers/layers_5/self_attention/out/kernel": (8, 5, 256, 2560),
        "layers_remainder/layers_3/mlp/wi_1/kernel": (2560, 10240),
    },
}


def as_stored(index: Index) -> Index:
    """Return an index as of a checkpoint that has its leaves, and does not make them of others."""
    leaves = [leaf._replace(storage=Inline(None)) for leaf in index.leaves]
    return index._replace(leaves=tuple(leaves))


def write_sparse_file(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Write a safetensors file of bfloat16 tensors, whose elements take no space on the disk."""
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    data = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(data)) + data)
        file.truncate(8 + len(data) + end)


def shapes_of(index: Index) -> Shapes:
    return {format_path(leaf.key_path): leaf.shape for leaf in index.leaves}


@pytest.mark.parametrize("name", SIZES)
def test_names_and_shapes_of_a_published_model(name: str, tmp_path: Path) -> None:
    family, size = SIZES[name]
    write_sparse_file(tmp_path / "model.safetensors", size.shapes)
    index = cordwood.open(tmp_path / "model.safetensors").index
    shapes = {published_name(name): shape for name, shape in size.shapes.items()}
    for to in read_table(family)["to"]:
        recipe = find_recipe(to=to, config=size.config)
        mapped = map_index(index, recipe, where=name).stored
        back = map_index(as_stored(mapped), recipe.inverse(), where=name).stored
        assert shapes_of(back) == shapes, to
        if to == "maxtext":
            found = shapes_of(mapped)
            for path, shape in MAXTEXT_SHAPES.get(name, {}).items():
                assert found[f"params/params/decoder/{path}"] == shape
    if name == "gemma-2-9b":
        assert found["params/params/token_embedder/embedding"] == (256128, 3584)


# The config.json of google/gemma-3-4b-pt, which leaves out what is a default of transformers.
GEMMA_3_4B = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
    },
    "vision_config": {
        "hidden_size": 1152,
        "image_size": 896,
        "intermediate_size": 4304,
        "model_type": "siglip_vision_model",
        "num_attention_heads": 16,
        "num_hidden_layers": 27,
        "patch_size": 14,
        "vision_use_head": False,
    },
}


def test_a_config_that_leaves_out_the_defaults(tmp_path: Path) -> None:
    _, size = SIZES["gemma-3-4b-pt"]
    shapes = {published_name(name): shape for name, shape in size.shapes.items()}
    write_sparse_file(tmp_path / "model.safetensors", shapes)
    for to in read_table("gemma3")["to"]:
        paths = []
        for config in (GEMMA_3_4B, size.config):
            recipe = find_recipe(to=to, config=config)
            with cordwood.open(tmp_path / "model.safetensors", recipe=recipe) as checkpoint:
                paths.append({path: checkpoint[path].shape for path in checkpoint})
        assert paths[0] == paths[1]
    assert len(paths[0]) == len(shapes)


def test_every_family_has_a_published_model() -> None:
    assert {family for family, _ in SIZES.values()} == {case.family for case in CASES}
    assert len(SIZES) >= 15
