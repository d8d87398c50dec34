"""merge_lora: adapters of PEFT and of Flax, against numpy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import cordwood
from cordwood.errors import MismatchError
from cordwood.testing import assert_trees_equal

BF16 = np.dtype(ml_dtypes.bfloat16)
RNG = np.random.default_rng(0)


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.standard_normal(shape, np.float32).astype(dtype)


def rounded_sum(base: Any, update: Any) -> Any:
    """Return the merged matrix: computed in float32, rounded once."""
    return (base.astype(np.float32) + update.astype(np.float32)).astype(base.dtype)


def assert_close(array: Any, expected: Any) -> None:
    """Compare within an error of the last bit: libraries add products up in different orders."""
    assert (array.shape, array.dtype) == (expected.shape, expected.dtype)
    tolerance = 2.0**-7 if array.dtype == BF16 else 1e-5
    np.testing.assert_allclose(
        array.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=tolerance
    )


BASE = {
    "model": {
        "layers": [
            {"q_proj": {"weight": normal(48, 32, dtype=BF16)}, "norm": {"weight": normal(32)}},
            {"q_proj": {"weight": normal(48, 32, dtype=BF16)}, "norm": {"weight": normal(32)}},
        ],
        "embed": {"weight": normal(20, 32)},
    },
    "step": np.int32(3),
}


def save_hub(path: Path, tree: Any) -> Path:
    """Save a base as a file of the hub has it, with names that are joined by dots."""
    cordwood.save(path / "tree", tree)
    cordwood.convert(path / "tree", path / "base", format="hugging_face")
    return path / "base"


def save_peft(folder: Path, tensors: dict[str, Any], **config: Any) -> Path:
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", **config}))
    return folder


def factors(module: str, size_in: int, size_out: int, rank: int) -> dict[str, Any]:
    name = f"base_model.model.{module}"
    return {
        f"{name}.lora_A.weight": normal(rank, size_in),
        f"{name}.lora_B.weight": normal(size_out, rank),
    }


def q_factors(rank: int = 4) -> dict[str, Any]:
    return {
        **factors("model.layers.0.q_proj", 32, 48, rank),
        **factors("model.layers.1.q_proj", 32, 48, rank),
    }


@pytest.mark.parametrize(
    ("config", "scales"),
    [
        ({"lora_alpha": 16, "r": 4}, (4.0, 4.0)),
        ({"lora_alpha": 16, "r": 4, "use_rslora": True}, (8.0, 8.0)),
        ({"lora_alpha": 16, "r": 4, "alpha_pattern": {"layers.1.q_proj": 2}}, (4.0, 0.5)),
    ],
)
def test_an_adapter_of_peft(tmp_path: Path, config: Any, scales: tuple[float, float]) -> None:
    tensors = q_factors()
    base = save_hub(tmp_path, BASE)
    adapter = save_peft(tmp_path / "adapter", tensors, **config)
    done = cordwood.merge_lora(tmp_path / "merged", base, adapter, format="hugging_face")
    assert done.leaves == 6
    merged, original = cordwood.load(tmp_path / "merged"), cordwood.load(base)
    for layer, scale in enumerate(scales):
        name = f"model.layers.{layer}.q_proj"
        a = tensors[f"base_model.model.{name}.lora_A.weight"]
        b = tensors[f"base_model.model.{name}.lora_B.weight"]
        weight = original.pop(f"{name}.weight")
        assert_close(merged.pop(f"{name}.weight"), rounded_sum(weight, scale * (b @ a)))
    assert_trees_equal(merged, original)


def test_matrices_and_embeddings_that_are_stored_transposed(tmp_path: Path) -> None:
    """GPT-2 stores (in, out): `fan_in_fan_out`. Embeddings are (tokens, size)."""
    base = {"h.0.c_attn.weight": normal(32, 48), "wte.weight": normal(20, 32)}
    save_file(base, tmp_path / "base.safetensors")
    name = "base_model.model.wte"
    tensors = {
        **factors("h.0.c_attn", 32, 48, 2),
        f"{name}.lora_embedding_A": normal(2, 20),
        f"{name}.lora_embedding_B": normal(32, 2),
    }
    adapter = save_peft(tmp_path / "adapter", tensors, lora_alpha=2, r=2, fan_in_fan_out=True)
    target = tmp_path / "merged.safetensors"
    cordwood.merge_lora(target, tmp_path / "base.safetensors", adapter)
    merged = cordwood.load(target)
    a, b = (tensors[f"base_model.model.h.0.c_attn.lora_{n}.weight"] for n in "AB")
    assert_close(merged["h.0.c_attn.weight"], base["h.0.c_attn.weight"] + (b @ a).T)
    a, b = (tensors[f"{name}.lora_embedding_{n}"] for n in "AB")
    assert_close(merged["wte.weight"], base["wte.weight"] + (b @ a).T)


def test_an_adapter_of_flax_with_heads_and_stored_alphas(tmp_path: Path) -> None:
    base = {"params": {"attn": {"w": normal(16, 4, 8)}, "mlp": {"w": normal(16, 32)}}, "step": 5}
    adapter = {
        "attn": {"w_lora_a": normal(16, 2), "w_lora_b": normal(2, 4, 8), "alpha": 4.0},
        "mlp": {"w_lora_a": normal(16, 8), "w_lora_b": normal(8, 32), "alpha": np.float32(2)},
    }
    cordwood.save(tmp_path / "base", base)
    cordwood.save(tmp_path / "adapter", adapter)
    cordwood.merge_lora(
        tmp_path / "merged",
        tmp_path / "base",
        tmp_path / "adapter",
        target="params/{module}/w",
        down="{module}/w_lora_a",
        up="{module}/w_lora_b",
        alpha="{module}/alpha",
        cast={"params/mlp/w": "float64"},
    )
    merged = cordwood.load(tmp_path / "merged")
    for name, scale in (("attn", 2.0), ("mlp", 0.25)):
        update = np.tensordot(adapter[name]["w_lora_a"], adapter[name]["w_lora_b"], 1)
        weight = base["params"][name]["w"]  # type: ignore[index]
        expected = weight + np.float32(scale) * update
        assert_close(merged["params"][name]["w"].astype(np.float32), expected)
    assert merged["params"]["mlp"]["w"].dtype == np.float64
    assert merged["step"] == 5


def test_matrices_of_several_tiles(tmp_path: Path) -> None:
    base, a, b = normal(3000, 701), normal(3000, 4), normal(4, 701)
    cordwood.save(tmp_path / "base", {"w": {"kernel": base}})
    cordwood.save(tmp_path / "adapter", {"w": {"a": a, "b": b}})
    names: Any = {"target": "{module}/kernel", "down": "{module}/a", "up": "{module}/b"}
    cordwood.merge_lora(
        tmp_path / "merged", tmp_path / "base", tmp_path / "adapter", **names, alpha=2
    )
    assert_close(cordwood.load(tmp_path / "merged")["w"]["kernel"], base + 0.5 * (a @ b))


def test_everything_that_does_not_fit_is_named(tmp_path: Path) -> None:
    base = save_hub(tmp_path, BASE)
    tensors = {
        **factors("model.layers.0.q_proj", 31, 48, 4),
        **factors("model.layers.7.q_proj", 32, 48, 4),
        "base_model.model.model.layers.1.q_proj.lora_A.weight": normal(4, 32),
        "base_model.model.classifier.weight": normal(3, 3),
    }
    adapter = save_peft(tmp_path / "adapter", tensors, lora_alpha=1, r=4)
    with pytest.raises(MismatchError) as raised:
        cordwood.merge_lora(tmp_path / "merged", base, adapter)
    text = str(raised.value)
    start = "base_model.model"
    for part in (
        f"{start}.model.layers.0.q_proj.lora_B.weight: [48, 4] @ [4, 31] for model/layers/0/",
        f"{start}.model.layers.7.q_proj.lora_B.weight: the base has no model/layers/7/q_proj/",
        f"{start}.model.layers.1.q_proj.lora_A.weight: no factor of LoRA with its partner",
        f"{start}.classifier.weight: no factor of LoRA with its partner",
    ):
        assert part in text
    assert not (tmp_path / "merged").exists()


def test_other_kinds_of_adapters_are_refused(tmp_path: Path) -> None:
    base = save_hub(tmp_path, BASE)
    adapter = save_peft(tmp_path / "dora", q_factors(), use_dora=True)
    with pytest.raises(MismatchError, match=r"of the kind DoRA: .*merge_and_unload"):
        cordwood.merge_lora(tmp_path / "merged", base, adapter)
    (adapter / "adapter_config.json").write_text('{"peft_type": "LOHA"}')
    with pytest.raises(MismatchError, match="of the kind LOHA"):
        cordwood.merge_lora(tmp_path / "merged", base, adapter)


def test_names_that_are_missing_or_wrong_are_refused(tmp_path: Path) -> None:
    base = save_hub(tmp_path, BASE)
    cordwood.save(tmp_path / "adapter", {"a": np.ones((2, 2))})
    paths = (tmp_path / "merged", base, tmp_path / "adapter")
    with pytest.raises(ValueError, match="expected a local directory of PEFT with adapter_config"):
        cordwood.merge_lora(*paths)
    with pytest.raises(ValueError, match=r"expected all of target, .* without a value: up, alpha"):
        cordwood.merge_lora(*paths, target="{module}/w", down="{module}/a")
    names: Any = {"target": "w", "down": "{module}/a", "up": "{module}/b"}
    with pytest.raises(ValueError, match=r"target: expected a name with one \{module\}, found 'w'"):
        cordwood.merge_lora(*paths, **names, alpha=1)
    with pytest.raises(MismatchError, match="a: no factor of LoRA"):
        cordwood.merge_lora(*paths, **{**names, "target": "{module}.w"}, alpha=1)
    adapter = save_peft(tmp_path / "peft", q_factors(), lora_alpha=1)
    with pytest.raises(ValueError, match="the result would replace"):
        cordwood.merge_lora(base, base, adapter, format="hugging_face", overwrite=True)


NAMES: Any = {"target": "{module}/kernel", "down": "{module}/a", "up": "{module}/b"}


def save_small_adapter(tmp_path: Path) -> tuple[Path, Path]:
    """Save a base, and an adapter whose product with alpha 2 is 2 everywhere; return the paths."""
    cordwood.save(tmp_path / "base", {"mlp": {"kernel": np.ones((8, 4), np.float32)}})
    factors = {"a": np.ones((8, 1), np.float32), "b": np.ones((1, 4), np.float32)}
    cordwood.save(tmp_path / "lora", {"mlp": factors})
    return tmp_path / "base", tmp_path / "lora"


def test_factors_that_are_swapped_are_said_to_be(tmp_path: Path) -> None:
    base, adapter = save_small_adapter(tmp_path)
    swapped: Any = {**NAMES, "down": NAMES["up"], "up": NAMES["down"]}
    with pytest.raises(
        MismatchError, match=r"swapped they fit: down=\{module\}/a, up=\{module\}/b"
    ):
        cordwood.merge_lora(tmp_path / "out", base, adapter, **swapped, alpha=2)
    cordwood.merge_lora(tmp_path / "out", base, adapter, **NAMES, alpha=2)  # as the message says
    assert (cordwood.load(tmp_path / "out")["mlp"]["kernel"] == 3).all()


def test_factors_that_are_transposed_are_said_to_be(tmp_path: Path) -> None:
    base, adapter = save_small_adapter(tmp_path)
    cordwood.convert(adapter, tmp_path / "torch", transpose="**")
    with pytest.raises(MismatchError, match=r"convert the adapter with transpose='\*\*'"):
        cordwood.merge_lora(tmp_path / "out", base, tmp_path / "torch", **NAMES, alpha=2)
    cordwood.convert(tmp_path / "torch", tmp_path / "back", transpose="**")
    cordwood.merge_lora(tmp_path / "out", base, tmp_path / "back", **NAMES, alpha=2)
    assert (cordwood.load(tmp_path / "out")["mlp"]["kernel"] == 3).all()


def test_the_result_replaces_neither_the_base_nor_the_adapter(tmp_path: Path) -> None:
    base, adapter = save_small_adapter(tmp_path)
    peft = save_peft(tmp_path / "peft", q_factors(), lora_alpha=1)
    for destination in (base, adapter):
        with pytest.raises(ValueError, match="write to another path"):
            cordwood.merge_lora(destination, base, adapter, **NAMES, alpha=2, overwrite=True)
    with pytest.raises(ValueError, match=r"adapter_model\.safetensors or a part of it: write"):
        cordwood.merge_lora(peft, base, peft, format="hugging_face", overwrite=True)
