"""Encoders, with those of images, in plain jax.numpy, on the tree that recipes to "flax" make."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from tests.recipes.with_transformers.text_decoders import (
    Config,
    Tree,
    attention,
    dense,
    layer_norm,
)

_exact_gelu = partial(jax.nn.gelu, approximate=False)


def bert_logits(params: Tree, config: Config, tokens: np.ndarray) -> jax.Array:
    """Return the logits of masked tokens, of shape (tokens, vocabulary)."""
    epsilon = config["layer_norm_eps"]
    embed = params["embed"]
    x = embed["word"]["embedding"][tokens] + embed["token_type"]["embedding"][0]
    x = layer_norm(x + embed["position"]["embedding"][: len(tokens)], embed["norm"], epsilon)
    for i in range(config["num_hidden_layers"]):
        layer = params[f"layers_{i}"]
        x = layer_norm(x + attention(layer["attention"], x, x), layer["attention_norm"], epsilon)
        x = layer_norm(x + _mlp(layer["mlp"], x, _exact_gelu), layer["mlp_norm"], epsilon)
    head = params["masked_tokens"]
    x = layer_norm(_exact_gelu(dense(head["dense"], x)), head["norm"], epsilon)
    return x @ embed["word"]["embedding"].T + head["bias"]


def vit_logits(params: Tree, config: Config, image: np.ndarray) -> jax.Array:
    """Return the logits of an image of shape (channels, height, width)."""
    epsilon = config["layer_norm_eps"]
    embed = params["embed"]
    patches = _patches(image, embed["patches"]["kernel"]) + embed["patches"]["bias"]
    x = jnp.concatenate([embed["class_token"][0], patches]) + embed["position"][0]
    x = _pre_norm_layers(params, x, epsilon, _exact_gelu)
    return dense(params["classifier"], layer_norm(x, params["norm"], epsilon)[0])


def t5_logits(
    params: Tree, config: Config, tokens: np.ndarray, decoder_tokens: np.ndarray
) -> jax.Array:
    """Return the logits of shape (decoder tokens, vocabulary)."""
    embedding = params["embed"]["embedding"]
    encoded = _t5_stack(params["encoder"], config, embedding[tokens])
    x = _t5_stack(params["decoder"], config, embedding[decoder_tokens], encoded)
    if config["scale_decoder_outputs"]:
        x = x * config["d_model"] ** -0.5
    return dense(params["lm_head"], x) if "lm_head" in params else x @ embedding.T


def _t5_stack(
    params: Tree, config: Config, x: jax.Array, encoded: jax.Array | None = None
) -> jax.Array:
    norm = partial(_t5_norm, epsilon=config["layer_norm_epsilon"])
    is_decoder = encoded is not None
    positions = np.arange(len(x))
    buckets = _t5_buckets(positions - positions[:, None], config, two_sided=not is_decoder)
    bias = jnp.moveaxis(params["relative_attention_bias"]["embedding"][buckets], -1, 0)
    mask = positions <= positions[:, None] if is_decoder else None
    for i in range(sum(name.startswith("layers_") for name in params)):
        layer = params[f"layers_{i}"]
        normed = norm(x, layer["attention_norm"])
        x = x + attention(layer["attention"], normed, normed, mask=mask, scale=1, bias=bias)
        if encoded is not None:
            normed = norm(x, layer["cross_attention_norm"])
            x = x + attention(layer["cross_attention"], normed, encoded, scale=1)
        normed = norm(x, layer["mlp_norm"])
        if "gate" in layer["mlp"]:
            gate = jax.nn.gelu(dense(layer["mlp"]["gate"], normed))
            inner = gate * dense(layer["mlp"]["linear"], normed)
        else:
            inner = jax.nn.relu(dense(layer["mlp"]["up"], normed))
        x = x + dense(layer["mlp"]["down"], inner)
    return norm(x, params["norm"])


def _t5_norm(x: jax.Array, params: Tree, epsilon: float) -> jax.Array:
    return x * jax.lax.rsqrt((x * x).mean(axis=-1, keepdims=True) + epsilon) * params["scale"]


def _t5_buckets(distance: np.ndarray, config: Config, *, two_sided: bool) -> np.ndarray:
    """Return the bucket of each distance from a query to a key: exact ones, then logarithmic."""
    count = config["relative_attention_num_buckets"]
    first = np.zeros_like(distance)
    if two_sided:
        count //= 2
        first = np.where(distance > 0, count, 0)
        distance = np.abs(distance)
    else:
        distance = np.maximum(-distance, 0)
    exact = count // 2
    share = np.log(np.maximum(distance, 1) / exact) / np.log(
        config["relative_attention_max_distance"] / exact
    )
    far = np.minimum(exact + (share * (count - exact)).astype(int), count - 1)
    return first + np.where(distance < exact, distance, far)


def whisper_logits(
    params: Tree, config: Config, features: np.ndarray, tokens: np.ndarray
) -> jax.Array:
    """Return the logits of shape (tokens, vocabulary), of features of shape (mels, frames)."""
    encoder, decoder = params["encoder"], params["decoder"]
    x = _exact_gelu(_convolve(features.T, encoder["conv1"], stride=1))
    x = _exact_gelu(_convolve(x, encoder["conv2"], stride=2)) + encoder["position"]["embedding"]
    encoded = _whisper_stack(encoder, x)
    x = params["embed"]["embedding"][tokens] + decoder["position"]["embedding"][: len(tokens)]
    return _whisper_stack(decoder, x, encoded) @ params["embed"]["embedding"].T


def _whisper_stack(params: Tree, x: jax.Array, encoded: jax.Array | None = None) -> jax.Array:
    mask = None if encoded is None else np.tril(np.ones((len(x), len(x)), bool))
    for i in range(sum(name.startswith("layers_") for name in params)):
        layer = params[f"layers_{i}"]
        normed = layer_norm(x, layer["attention_norm"], 1e-5)
        x = x + attention(layer["attention"], normed, normed, mask=mask)
        if encoded is not None:
            normed = layer_norm(x, layer["cross_attention_norm"], 1e-5)
            x = x + attention(layer["cross_attention"], normed, encoded)
        x = x + _mlp(layer["mlp"], layer_norm(x, layer["mlp_norm"], 1e-5), _exact_gelu)
    return layer_norm(x, params["norm"], 1e-5)


def clip_logits(params: Tree, config: Config, tokens: np.ndarray, image: np.ndarray) -> jax.Array:
    """Return the logit of one text, which ends with the last token, and one image."""
    text, vision = params["text"], params["vision"]
    x = text["embed"]["embedding"][tokens] + text["position"]["embedding"][: len(tokens)]
    mask = np.tril(np.ones((len(x), len(x)), bool))
    x = _pre_norm_layers(text, x, config["text_config"]["layer_norm_eps"], _quick_gelu, mask)
    x = layer_norm(x, text["norm"], config["text_config"]["layer_norm_eps"])[-1]
    text_vector = dense(text["projection"], x)
    epsilon = config["vision_config"]["layer_norm_eps"]
    x = jnp.concatenate([vision["class_token"][None], _patches(image, vision["patches"]["kernel"])])
    x = layer_norm(x + vision["position"]["embedding"], vision["pre_norm"], epsilon)
    x = _pre_norm_layers(vision, x, epsilon, _quick_gelu)
    image_vector = dense(vision["projection"], layer_norm(x[0], vision["norm"], epsilon))
    cosine = text_vector @ image_vector
    cosine = cosine / jnp.linalg.norm(text_vector) / jnp.linalg.norm(image_vector)
    return cosine * jnp.exp(params["logit_scale"])


def gemma3_image_features(params: Tree, config: Config, image: np.ndarray) -> jax.Array:
    """Return the features of an image that take the place of tokens, as the projector makes them.

    The patches are averaged in squares, so that `mm_tokens_per_image` are left.
    """
    vision, projector = params["vision"], params["projector"]
    epsilon = config["vision_config"]["layer_norm_eps"]
    x = _patches(image, vision["patches"]["kernel"]) + vision["patches"]["bias"]
    x = _pre_norm_layers(vision, x + vision["position"]["embedding"], epsilon, jax.nn.gelu)
    x = layer_norm(x, vision["norm"], epsilon)
    side, tokens = round(len(x) ** 0.5), round(config["mm_tokens_per_image"] ** 0.5)
    x = x.reshape(tokens, side // tokens, tokens, side // tokens, -1).mean(axis=(1, 3))
    x = x.reshape(tokens * tokens, -1)
    x = x * jax.lax.rsqrt((x * x).mean(axis=-1, keepdims=True) + epsilon)
    return (x * (1 + projector["norm"]["scale"])) @ projector["kernel"]


def _quick_gelu(x: jax.Array) -> jax.Array:
    return x * jax.nn.sigmoid(1.702 * x)


def _pre_norm_layers(
    params: Tree,
    x: jax.Array,
    epsilon: float,
    activation: Callable[[jax.Array], jax.Array],
    mask: np.ndarray | None = None,
) -> jax.Array:
    for i in range(sum(name.startswith("layers_") for name in params)):
        layer = params[f"layers_{i}"]
        normed = layer_norm(x, layer["pre_attention_norm"], epsilon)
        x = x + attention(layer["attention"], normed, normed, mask=mask)
        x = x + _mlp(layer["mlp"], layer_norm(x, layer["pre_mlp_norm"], epsilon), activation)
    return x


def _mlp(params: Tree, x: jax.Array, activation: Callable[[jax.Array], jax.Array]) -> jax.Array:
    return dense(params["down"], activation(dense(params["up"], x)))


def _patches(image: np.ndarray, kernel: jax.Array) -> jax.Array:
    """Return a vector for each patch, of an image of shape (channels, height, width)."""
    side = kernel.shape[0]
    channels, height, width = image.shape
    parts = image.reshape(channels, height // side, side, width // side, side)
    vectors = jnp.einsum("cayxb,ybcd->axd", parts.transpose(0, 1, 2, 3, 4), kernel)
    return vectors.reshape(-1, kernel.shape[-1])


def _convolve(x: jax.Array | np.ndarray, params: Tree, *, stride: int) -> jax.Array:
    """Return a convolution along the first axis, of width 3, with one zero at each end."""
    padded = jnp.pad(jnp.asarray(x), ((1, 1), (0, 0)))
    windows = jnp.stack([padded[k : k + len(x)] for k in range(3)])[:, ::stride]
    return jnp.einsum("kti,kio->to", windows, params["kernel"]) + params["bias"]
