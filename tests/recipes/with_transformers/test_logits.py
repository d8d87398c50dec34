"""Logits of transformers, and of a model in plain JAX on the tree that a recipe makes: equal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import cordwood
from cordwood.recipes import find_recipe
from tests.recipes.families.cases import CASES, Case
from tests.recipes.with_transformers import encoders, text_decoders
from tests.recipes.with_transformers.write_model import load_model, write_model

TOKENS = (np.arange(14) * 37 + 5) % 93 + 3
IMAGE = np.sin(np.arange(3 * 16 * 16, dtype=np.float32)).reshape(3, 16, 16)
FEATURES = np.cos(np.arange(8 * 32, dtype=np.float32)).reshape(8, 32)

Inputs = dict[str, Any]
JaxModel = Callable[..., Any]


def _inputs(case: Case) -> tuple[JaxModel, list[Any], Inputs]:
    """Return the JAX model of a case, its inputs, and the inputs of transformers."""
    tokens = torch.from_numpy(TOKENS)[None]
    if case.family == "gpt2":
        return text_decoders.gpt2_logits, [TOKENS], {"input_ids": tokens}
    if case.family == "bert":
        return encoders.bert_logits, [TOKENS], {"input_ids": tokens}
    if case.family == "vit":
        pixels = torch.from_numpy(IMAGE)[None]
        return encoders.vit_logits, [IMAGE], {"pixel_values": pixels}
    if case.family == "t5":
        inputs = {"input_ids": tokens, "decoder_input_ids": tokens[:, :9]}
        return encoders.t5_logits, [TOKENS, TOKENS[:9]], inputs
    if case.family == "whisper":
        features = torch.from_numpy(FEATURES)[None]
        inputs = {"input_features": features, "decoder_input_ids": tokens}
        return encoders.whisper_logits, [FEATURES, TOKENS], inputs
    if case.family == "clip":
        text = np.append(TOKENS[:9], 95)  # transformers takes the place of the greatest
        inputs = {
            "input_ids": torch.from_numpy(text)[None],
            "pixel_values": torch.from_numpy(IMAGE)[None],
        }
        return encoders.clip_logits, [text, IMAGE], inputs
    return text_decoders.decoder_logits, [TOKENS], {"input_ids": tokens}


def _logits(output: Any) -> np.ndarray:
    names = ("logits", "prediction_logits", "logits_per_text")
    value = next(getattr(output, name) for name in names if hasattr(output, name))
    return value[0].squeeze().numpy()


# Encoders have no logits.
WITH_LOGITS = [case for case in CASES if case.name not in ("bert-encoder", "vit-encoder")]


@pytest.mark.parametrize("case", WITH_LOGITS, ids=lambda case: case.name)
def test_logits(case: Case, tmp_path: Path) -> None:
    write_model(tmp_path, case)
    jax_model, arguments, inputs = _inputs(case)
    with torch.no_grad():
        expected = _logits(load_model(tmp_path, case)(**inputs))
    recipe = find_recipe(to="flax", config=case.config)
    params = cordwood.load(tmp_path, recipe=recipe, to="jax", nest=True)
    config = case.config.get("text_config", case.config) if case.family == "gemma3" else case.config
    logits = np.asarray(jax_model(params, config, *arguments))
    assert logits.shape == expected.shape
    assert np.std(expected) > 1e-3 or expected.size == 1  # it says something
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5 * max(1, np.abs(expected).max()))
    assert jnp.asarray(logits).dtype == jnp.float32


def test_image_features_of_gemma_3(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "gemma3-images")
    write_model(tmp_path, case)
    with torch.no_grad():
        output = load_model(tmp_path, case).get_image_features(torch.from_numpy(IMAGE)[None])
    expected = output.pooler_output[0].numpy()
    recipe = find_recipe(to="flax", config=case.config)
    params = cordwood.load(tmp_path, recipe=recipe, to="jax", nest=True)
    features = np.asarray(encoders.gemma3_image_features(params, case.config, IMAGE))
    assert features.shape == expected.shape == (4, 24)
    assert np.std(expected) > 1e-3
    np.testing.assert_allclose(features, expected, rtol=0, atol=1e-5)
