"""A small character transformer in Flax and Optax, on Python's help topics, over all devices."""

from __future__ import annotations

from collections.abc import Callable
from pydoc_data.topics import topics
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import cordwood

__all__ = ["Transformer", "held_out_loss", "new_run", "step_on", "text_as_codes"]

CONTEXT = 64
BATCH = 32
CODES = 128  # ASCII
BUCKETS = 1 << 15
# Every leaf is sharded over both axes of a mesh, as far as it has axes: fully sharded, as in ZeRO.
RULES = [("", P("data", "model"))]
TRANSFORM = optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 3e-3, 20, 2000))


class Transformer(nn.Module):
    """A model of logits for each next character, with a frozen table of hashed trigrams."""

    width: int = 128
    layers: int = 2
    heads: int = 4

    @nn.compact
    def __call__(self, codes: jax.Array) -> jax.Array:
        draw = nn.initializers.normal(0.3)
        trigrams = self.variable(
            "frozen", "trigrams", lambda: draw(self.make_rng("params"), (BUCKETS, self.width))
        )
        one, two = (jnp.pad(codes, ((0, 0), (i, 0)))[:, : codes.shape[1]] for i in (1, 2))
        x = nn.Embed(CODES, self.width)(codes) + trigrams.value[_hashed(codes, one, two)]
        x += self.param("positions", nn.initializers.normal(0.02), (CONTEXT, self.width))
        mask = nn.make_causal_mask(codes)
        for _ in range(self.layers):
            x += nn.MultiHeadDotProductAttention(self.heads)(nn.LayerNorm()(x), mask=mask)
            x += nn.Dense(self.width)(nn.gelu(nn.Dense(4 * self.width)(nn.LayerNorm()(x))))
        return nn.Dense(CODES)(nn.LayerNorm()(x))


def text_as_codes() -> jax.Array:
    """Return the text of Python's help topics, as ASCII codes (uint8)."""
    text = "\n\n".join(topics[name] for name in sorted(topics))
    return jnp.asarray(np.frombuffer(text.encode("ascii", "replace"), np.uint8))


def new_run(mesh: Mesh | None = None, *, seed: int = 0) -> dict[str, Any]:
    """Return what a run needs to resume: train state, frozen table, and the key for its batches."""

    def draw() -> dict[str, Any]:
        key, init_key = jax.random.split(jax.random.key(seed))
        model = Transformer()
        variables = model.init(init_key, jnp.zeros((1, CONTEXT), jnp.int32))
        state = TrainState.create(apply_fn=model.apply, params=variables["params"], tx=TRANSFORM)
        # Flax starts with the Python int 0, and has an array after one step. Use an array at once.
        state = state.replace(step=jnp.zeros((), jnp.int32))
        return {"state": state, "frozen": variables["frozen"], "key": key}

    if mesh is None:
        return jax.jit(draw)()
    return jax.jit(draw, out_shardings=_shardings(mesh, jax.eval_shape(draw)))()


def step_on(
    mesh: Mesh, run: dict[str, Any]
) -> Callable[[dict[str, Any], jax.Array], tuple[dict[str, Any], jax.Array]]:
    """Return a function that makes a step on a mesh: the run after it, and the loss before.

    The function donates the run. It gathers the weights, and each device has its part of the batch.
    So sums add the same parts in the same order for every shape of the mesh; only the placement of
    the state differs.
    """
    whole, parts = NamedSharding(mesh, P()), NamedSharding(mesh, P(mesh.axis_names))
    constrain = jax.lax.with_sharding_constraint

    def step(run: dict[str, Any], codes: jax.Array) -> tuple[dict[str, Any], jax.Array]:
        state, frozen = run["state"], run["frozen"]
        key, batch_key = jax.random.split(run["key"])
        trained = codes[: len(codes) * 9 // 10]
        windows = constrain(_windows(trained, batch_key, count=BATCH), parts)
        params, table = constrain((state.params, frozen), whole)
        loss, gradients = jax.value_and_grad(_loss)(params, table, state.apply_fn, windows)
        state = state.apply_gradients(grads=constrain(gradients, whole))
        return {"state": state, "frozen": frozen, "key": key}, loss

    return jax.jit(step, donate_argnums=0, out_shardings=(_shardings(mesh, run), whole))


@jax.jit
def held_out_loss(run: dict[str, Any], codes: jax.Array) -> jax.Array:
    """Return the mean cross-entropy in nats per character, on fixed windows of the last tenth."""
    windows = _windows(codes[len(codes) * 9 // 10 :], jax.random.key(1), count=64)
    return _loss(run["state"].params, run["frozen"], run["state"].apply_fn, windows)


def _hashed(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    return (a * 31 + b * 1009 + c * 30011) % BUCKETS


def _shardings(mesh: Mesh, run: Any) -> Any:
    specs = cordwood.match_partition_rules(RULES, run)
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)


def _windows(codes: jax.Array, key: jax.Array, *, count: int) -> jax.Array:
    starts = jax.random.randint(key, (count,), 0, len(codes) - CONTEXT - 1)
    return codes[starts[:, None] + jnp.arange(CONTEXT + 1)].astype(jnp.int32)


def _loss(params: Any, frozen: Any, apply_fn: Any, windows: jax.Array) -> jax.Array:
    logits = apply_fn({"params": params, "frozen": frozen}, windows[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, windows[:, 1:]).mean()
