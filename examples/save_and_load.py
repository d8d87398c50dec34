"""A save, an exact load, and the error of a load whose `like` does not match."""

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

# Structure, kinds and dtypes are in the file, so no template is needed.
again = cordwood.load("model.safetensors")
assert type(again["layers"]) is list
assert again["dense"]["kernel"].dtype == jnp.bfloat16
assert again["step"] == 7

# With a template (`like`), the result matches it, or the error names every difference.
wrong = {**tree, "dense": {"kernel": jnp.ones((4, 8)), "bais": jnp.zeros(8)}}
try:
    cordwood.load("model.safetensors", like=wrong)
except cordwood.errors.MismatchError as e:
    print(e)
