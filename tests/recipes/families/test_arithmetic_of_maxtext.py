"""Scaled queries and norms plus 1 of MaxText: what bfloat16 would lose is counted, and refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import cordwood
from cordwood import dtypes
from cordwood.errors import LossError
from cordwood.recipes import Recipe, find_recipe

BF16 = ml_dtypes.bfloat16
LAYERS, HEADS, MODEL = 2, 2, 256
QUERY = "model.layers.{}.self_attn.q_proj.weight"
NORM = "model.layers.{}.input_layernorm.weight"


class Stored(NamedTuple):
    """Weights of one kind in a file, and the recipe that computes with them."""

    path: Path
    weights: dict[str, np.ndarray]
    recipe: Recipe
    select: str

    def load(self, recipe: Recipe) -> Any:
        """Return the only array that the recipe makes of the weights."""
        tree = cordwood.load(self.path, select=self.select, recipe=recipe, to="numpy")
        while isinstance(tree, dict):
            (tree,) = tree.values()
        return tree


def config(model_type: str, head_dim: int, width: int) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "hidden_size": width,
        "head_dim": head_dim,
        "vocab_size": 8,
        "intermediate_size": 8,
        "query_pre_attn_scalar": head_dim,
    }


def queries(folder: Path, head_dim: int, dtype: Any) -> Stored:
    rng = np.random.default_rng(head_dim)
    weights = {
        QUERY.format(i): (rng.standard_normal((HEADS * head_dim, MODEL)) * 0.02).astype(dtype)
        for i in range(LAYERS)
    }
    cordwood.save(folder / "model.safetensors", weights)
    recipe = find_recipe("llama", to="maxtext", config=config("llama", head_dim, MODEL))
    return Stored(folder / "model.safetensors", weights, recipe, QUERY.format("*"))


def norms(folder: Path, sigma: float, dtype: Any) -> Stored:
    rng = np.random.default_rng(1)
    weights = {NORM.format(0): (rng.standard_normal(100_000) * sigma).astype(dtype)}
    cordwood.save(folder / "model.safetensors", weights)
    recipe = find_recipe("gemma2", to="maxtext", config=config("gemma2", 8, 100_000))
    recipe = recipe.replace(sizes={**recipe.sizes, "num_hidden_layers": 2})
    return Stored(folder / "model.safetensors", weights, recipe, NORM.format("0"))


def lost_elements(
    weights: dict[str, np.ndarray], forth: Callable[[Any], Any], back: Callable[[Any], Any]
) -> tuple[int, int]:
    """Return how many elements do not come back, of how many, computed by numpy alone."""
    every = np.concatenate([array.reshape(-1) for array in weights.values()])
    computed = forth(every.astype(np.float64)).astype(every.dtype)
    again = back(computed.astype(np.float64)).astype(every.dtype)
    return int(np.count_nonzero(again != every)), every.size


def require_refused(stored: Stored, lost: int, count: int, helps: str) -> None:
    """Check the message of the refusal, and that what it proposes works."""
    name = dtypes.name_of(next(iter(stored.weights.values())).dtype)
    text = f"of {count} elements of {name}, {lost} ({100 * lost / count:.1f} %) would not come back"
    with pytest.raises(LossError, match=re.escape(text)) as e:
        stored.load(stored.recipe)
    output = stored.path.parent / "converted"
    with pytest.raises(LossError, match="would not come back"):
        cordwood.convert(stored.path, output, select=stored.select, recipe=stored.recipe)
    assert not output.exists()
    remedies = re.findall(r"recipe\.replace\((\w+)=\"?(\w+)\"?\)", str(e.value))
    assert remedies == [("store_dtype", helps), ("lossy", "True")]
    exact = stored.recipe.replace(store_dtype=helps)
    cordwood.convert(stored.path, output, select=stored.select, recipe=exact)
    back = exact.inverse().replace(store_dtype=name)
    again = cordwood.load(output, recipe=back, select="**", to="numpy")
    assert again.keys() == stored.weights.keys()
    for key, array in stored.weights.items():
        assert again[key].tobytes() == array.tobytes()


@pytest.mark.parametrize(
    ("head_dim", "percent"), [(64, 0), (256, 0), (80, 8.9), (96, 12.8), (128, 14.6)]
)
def test_scaled_queries_in_bfloat16(tmp_path: Path, head_dim: int, percent: float) -> None:
    stored = queries(tmp_path, head_dim, BF16)
    scale = float(np.float32(head_dim**-0.5))
    lost, count = lost_elements(stored.weights, lambda x: x * scale, lambda x: x / scale)
    assert 100 * lost / count == pytest.approx(percent, abs=0.5)
    expected = np.stack([array.astype(np.float64) * scale for array in stored.weights.values()])
    expected = expected.reshape(LAYERS, HEADS, head_dim, MODEL).transpose(3, 0, 1, 2)
    if lost:
        require_refused(stored, lost, count, "float32")
        computed = stored.load(stored.recipe.replace(lossy=True))
    else:
        computed = stored.load(stored.recipe)
    np.testing.assert_array_equal(computed, expected.astype(BF16))


@pytest.mark.parametrize(("head_dim", "percent"), [(64, 0), (80, 8.9), (128, 14.6)])
def test_scaled_queries_in_float32(tmp_path: Path, head_dim: int, percent: float) -> None:
    """The last bit differs as often as in bfloat16."""
    stored = queries(tmp_path, head_dim, np.float32)
    scale = float(np.float32(head_dim**-0.5))
    lost, count = lost_elements(stored.weights, lambda x: x * scale, lambda x: x / scale)
    assert 100 * lost / count == pytest.approx(percent, abs=0.5)
    if lost:
        require_refused(stored, lost, count, "float64")
    computed = stored.load(stored.recipe.replace(lossy=True))
    expected = np.stack([array.astype(np.float64) * scale for array in stored.weights.values()])
    expected = expected.reshape(LAYERS, HEADS, head_dim, MODEL).transpose(3, 0, 1, 2)
    np.testing.assert_array_equal(computed, expected.astype(np.float32))


@pytest.mark.parametrize(
    ("sigma", "dtype", "percent", "helps"),
    [
        (0.02, BF16, 98, "float64"),  # near 0 float32 is not enough, in 0.03 % of elements
        (0.5, BF16, 60, "float64"),
        (3, BF16, 23, "float32"),
        (0.02, np.float32, 98, "float64"),
    ],
)
def test_norms_plus_one(
    tmp_path: Path, sigma: float, dtype: Any, percent: float, helps: str
) -> None:
    stored = norms(tmp_path, sigma, dtype)
    lost, count = lost_elements(stored.weights, lambda x: x + 1, lambda x: x - 1)
    assert 100 * lost / count == pytest.approx(percent, abs=2)
    require_refused(stored, lost, count, helps)
    computed = stored.load(stored.recipe.replace(lossy=True))
    (weight,) = stored.weights.values()
    expected = (weight.astype(np.float64) + 1).astype(dtype)
    np.testing.assert_array_equal(computed.reshape(-1), expected)
