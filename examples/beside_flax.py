"""Files that Flax and cordwood can both write and read, with the same bytes."""

from __future__ import annotations

from pathlib import Path

import flax.serialization
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState

import cordwood

params = {"kernel": jnp.ones((4, 2)), "bias": jnp.zeros(2)}
state = TrainState.create(apply_fn=None, params=params, tx=optax.adam(1e-3))

assert cordwood.to_bytes(state) == flax.serialization.to_bytes(state)

cordwood.save("state.msgpack", state)
theirs = flax.serialization.from_bytes(state, Path("state.msgpack").read_bytes())
ours = cordwood.load("state.msgpack", like=state)
assert isinstance(ours, TrainState)
np.testing.assert_array_equal(ours.params["kernel"], theirs.params["kernel"])

# The bytes as views of the arrays, without a copy, for a socket or writev.
buffers = cordwood.msgpack.to_buffers(state)
print(f"{len(buffers)} buffers, {sum(len(buffer) for buffer in buffers)} bytes")
assert b"".join(buffers) == cordwood.to_bytes(state)
