"""Text decoders in plain jax.numpy, on the tree that recipes to "flax" make.

Llama, Mistral, Mixtral, Qwen 2 and 3, their experts, and Gemma 2 and 3 differ by options of the
`config.json`. GPT-2 is a model of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Tree = Mapping[str, Any]
Config = Mapping[str, Any]


def decoder_logits(params: Tree, config: Config, tokens: np.ndarray) -> jax.Array:
    """Return the logits of shape (tokens, vocabulary)."""
    is_gemma = config["model_type"].startswith("gemma")
    x = params["embed"]["embedding"][tokens]
    if is_gemma:
        x = x * jnp.float32(config["hidden_size"] ** 0.5)
    for i in range(config["num_hidden_layers"]):
        layer = params[f"layers_{i}"]
        normed = _rms_norm(x, layer["pre_attention_norm"], config)
        out = _attention(layer["attention"], config, normed, i)
        if is_gemma:
            out = _rms_norm(out, layer["post_attention_norm"], config)
        x = x + out
        normed = _rms_norm(x, layer["pre_mlp_norm"], config)
        out = (
            _experts(layer["moe"], config, normed)
            if "moe" in layer
            else _mlp(layer, config, normed)
        )
        if is_gemma:
            out = _rms_norm(out, layer["post_mlp_norm"], config)
        x = x + out
    x = _rms_norm(x, params["norm"], config)
    head = params["lm_head"]["kernel"] if "lm_head" in params else params["embed"]["embedding"].T
    return _soft_cap(x @ head, config.get("final_logit_softcapping"))


def _rms_norm(x: jax.Array, params: Tree, config: Config) -> jax.Array:
    variance = jnp.mean(x * x, axis=-1, keepdims=True)
    x = x * jax.lax.rsqrt(variance + config["rms_norm_eps"])
    is_gemma = config["model_type"].startswith("gemma")
    return x * (1 + params["scale"] if is_gemma else params["scale"])


def _soft_cap(x: jax.Array, cap: float | None) -> jax.Array:
    return x if not cap else jnp.tanh(x / cap) * cap


def _attention(params: Tree, config: Config, x: jax.Array, layer: int) -> jax.Array:
    kinds = config.get("layer_types") or ["full_attention"] * (layer + 1)
    heads = {name: _project(params[name], x) for name in ("query", "key", "value")}
    for name in ("query", "key"):
        if f"{name}_norm" in params:
            heads[name] = _rms_norm(heads[name], params[f"{name}_norm"], config)
    angles = np.outer(
        np.arange(len(x)), _frequencies(config, kinds[layer], heads["query"].shape[-1])
    )
    query, key = (_rotate(heads[name], angles) for name in ("query", "key"))
    groups = query.shape[1] // key.shape[1]
    key, value = (jnp.repeat(each, groups, axis=1) for each in (key, heads["value"]))
    scale = (config.get("query_pre_attn_scalar") or query.shape[-1]) ** -0.5
    scores = _soft_cap(
        jnp.einsum("tnh,snh->nts", query, key) * scale, config.get("attn_logit_softcapping")
    )
    distance = np.arange(len(x))[:, None] - np.arange(len(x))
    mask = distance >= 0
    if kinds[layer] == "sliding_attention":
        mask &= distance < config["sliding_window"]
    weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), axis=-1)
    return jnp.einsum("nts,snh,nhd->td", weights, value, params["out"]["kernel"])


def _project(params: Tree, x: jax.Array) -> jax.Array:
    return jnp.einsum("td,dnh->tnh", x, params["kernel"]) + params.get("bias", 0)


def _frequencies(config: Config, kind: str, size: int) -> np.ndarray:
    """Return the angle of each pair of a head, for one position."""
    rotary = config["rope_parameters"]
    rotary = rotary.get(kind, rotary)
    frequencies = rotary["rope_theta"] ** (-np.arange(0, size, 2) / size)
    if rotary["rope_type"] == "linear":
        return frequencies / rotary["factor"]
    if rotary["rope_type"] == "llama3":
        turns = rotary["original_max_position_embeddings"] * frequencies / (2 * np.pi)
        low, high = rotary["low_freq_factor"], rotary["high_freq_factor"]
        share = np.clip((turns - low) / (high - low), 0, 1)
        return frequencies * (share + (1 - share) / rotary["factor"])
    return frequencies


def _rotate(x: jax.Array, angles: np.ndarray) -> jax.Array:
    first, second = jnp.split(x, 2, axis=-1)
    cos, sin = (jnp.asarray(f(angles), x.dtype)[:, None] for f in (np.cos, np.sin))
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _activation(config: Config) -> Any:
    name = config.get("hidden_activation") or config["hidden_act"]
    return {"silu": jax.nn.silu, "gelu_pytorch_tanh": jax.nn.gelu}[name]


def _mlp(layer: Tree, config: Config, x: jax.Array) -> jax.Array:
    gate, up, down = (layer["mlp"][name]["kernel"] for name in ("gate", "up", "down"))
    return (_activation(config)(x @ gate) * (x @ up)) @ down


def _experts(params: Tree, config: Config, x: jax.Array) -> jax.Array:
    probabilities = jax.nn.softmax(x @ params["router"]["kernel"], axis=-1)
    weights, chosen = jax.lax.top_k(probabilities, config["num_experts_per_tok"])
    if config.get("norm_topk_prob", True):
        weights = weights / weights.sum(axis=-1, keepdims=True)
    gate, up = (jnp.einsum("td,edf->tef", x, params[name]["kernel"]) for name in ("gate", "up"))
    outputs = jnp.einsum("tef,efd->ted", _activation(config)(gate) * up, params["down"]["kernel"])
    chosen_outputs = jnp.take_along_axis(outputs, chosen[:, :, None], axis=1)
    return (chosen_outputs * weights[:, :, None]).sum(axis=1)


def gpt2_logits(params: Tree, config: Config, tokens: np.ndarray) -> jax.Array:
    """Return the logits of shape (tokens, vocabulary)."""
    epsilon = config["layer_norm_epsilon"]
    x = params["embed"]["embedding"][tokens]
    x = x + params["position"]["embedding"][: len(tokens)]
    for i in range(config["n_layer"]):
        layer = params[f"layers_{i}"]
        normed = layer_norm(x, layer["pre_attention_norm"], epsilon)
        mask = np.tril(np.ones((len(tokens), len(tokens)), bool))
        x = x + attention(layer["attention"], normed, normed, mask=mask)
        normed = layer_norm(x, layer["pre_mlp_norm"], epsilon)
        x = x + dense(layer["mlp"]["down"], jax.nn.gelu(dense(layer["mlp"]["up"], normed)))
    return layer_norm(x, params["norm"], epsilon) @ params["embed"]["embedding"].T


def layer_norm(x: jax.Array, params: Tree, epsilon: float) -> jax.Array:
    """Return x with mean 0 and variance 1 along its last axis, scaled and shifted."""
    x = x - x.mean(axis=-1, keepdims=True)
    x = x * jax.lax.rsqrt((x * x).mean(axis=-1, keepdims=True) + epsilon)
    return x * params["scale"] + params["bias"]


def dense(params: Tree, x: jax.Array) -> jax.Array:
    """Return x times the kernel, plus the bias if there is one."""
    return x @ params["kernel"] + params.get("bias", 0)


def attention(
    params: Tree,
    x: jax.Array,
    source: jax.Array,
    *,
    mask: np.ndarray | None = None,
    scale: float | None = None,
    bias: jax.Array | float = 0,
) -> jax.Array:
    """Return the attention of x to a source, of heads without rotary embeddings."""
    query = _project(params["query"], x)
    key, value = (_project(params[name], source) for name in ("key", "value"))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = jnp.einsum("tnh,snh->nts", query, key) * scale + bias
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=-1)
    out = jnp.einsum("nts,snh,nhd->td", weights, value, params["out"]["kernel"])
    return out + params["out"].get("bias", 0)
