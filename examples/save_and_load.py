"""Save a tree, load it exactly, and see what a wrong expectation is told."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import cordwood

tree = {
    "dense": {"kernel": jnp.ones((4, 8), jnp.bfloat16), "bias": jnp.zeros(8)},
    "layers": [jnp.arange(3), jnp.arange(5)],
    "key": jax.random.key(0),
    "step": 7,
}
cordwood.save("model.safetensors", tree)

# Structure, kinds and dtypes are in the file: no template is needed.
again = cordwood.load("model.safetensors")
assert type(again["layers"]) is list
assert again["dense"]["kernel"].dtype == jnp.bfloat16
assert again["step"] == 7

# With a template, the result fits it, or every difference is named.
wrong = {**tree, "dense": {"kernel": jnp.ones((4, 8)), "bais": jnp.zeros(8)}}
try:
    cordwood.load("model.safetensors", like=wrong)
except cordwood.MismatchError as e:
    print(e)
