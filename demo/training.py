"""A small character model in Flax and Optax, trained on Python's own documentation."""

from __future__ import annotations

from pydoc_data.topics import topics
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState

__all__ = ["CharacterModel", "held_out_loss", "new_run", "text_as_codes", "train"]

CONTEXT = 24
BATCH = 256
CODES = 128  # ASCII


class CharacterModel(nn.Module):
    """Logits for the next character, from the last CONTEXT ones."""

    width: int = 192

    @nn.compact
    def __call__(self, codes: jax.Array) -> jax.Array:
        hidden = nn.Embed(CODES, 24)(codes).reshape(*codes.shape[:-1], -1)
        for _ in range(2):
            hidden = nn.gelu(nn.LayerNorm()(nn.Dense(self.width)(hidden)))
        return nn.Dense(CODES)(hidden)


def text_as_codes() -> jax.Array:
    """The text of Python's help topics, as ASCII codes (uint8)."""
    text = "\n\n".join(topics[name] for name in sorted(topics))
    return jnp.asarray(np.frombuffer(text.encode("ascii", "replace"), np.uint8))


def new_run(seed: int = 0) -> dict[str, Any]:
    """What a run needs to go on: the train state, and the key that draws its batches."""
    key, init_key = jax.random.split(jax.random.key(seed))
    model = CharacterModel()
    params = model.init(init_key, jnp.zeros((1, CONTEXT), jnp.int32))["params"]
    state = TrainState.create(
        apply_fn=model.apply,
        params=params,
        tx=optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 3e-3, 100, 5000)),
    )
    # Flax starts at the Python int 0 and has an array after one step: an array from the start.
    return {"state": state.replace(step=jnp.zeros((), jnp.int32)), "key": key}


def train(run: dict[str, Any], codes: jax.Array, steps: int) -> dict[str, Any]:
    """The run, some steps further. The last tenth of the text is held out."""
    trained = codes[: len(codes) * 9 // 10]
    state, key = run["state"], run["key"]
    for _ in range(steps):
        state, key = _step(state, key, trained)
    return {"state": state, "key": key}


def held_out_loss(run: dict[str, Any], codes: jax.Array) -> float:
    """Mean cross-entropy in nats a character, on always the same held-out windows."""
    held_out = codes[len(codes) * 9 // 10 :]
    windows = _windows(held_out, jax.random.key(1), count=2048)
    return float(_loss(run["state"].params, run["state"].apply_fn, windows))


def _windows(codes: jax.Array, key: jax.Array, *, count: int) -> jax.Array:
    starts = jax.random.randint(key, (count,), 0, len(codes) - CONTEXT - 1)
    return codes[starts[:, None] + jnp.arange(CONTEXT + 1)].astype(jnp.int32)


def _loss(params: Any, apply_fn: Any, windows: jax.Array) -> jax.Array:
    logits = apply_fn({"params": params}, windows[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, windows[:, -1]).mean()


@jax.jit
def _step(state: TrainState, key: jax.Array, codes: jax.Array) -> tuple[TrainState, jax.Array]:
    key, batch_key = jax.random.split(key)
    windows = _windows(codes, batch_key, count=BATCH)
    gradients = jax.grad(_loss)(state.params, state.apply_fn, windows)
    return state.apply_gradients(grads=gradients), key
