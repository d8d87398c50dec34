"""A safetensors file of anyone, and one of ours that anyone reads; damage is found."""

from __future__ import annotations

import numpy as np
from safetensors.numpy import load_file, save_file

import cordwood

# Theirs: a flat dict of names, or nested at the dots.
weights: dict[str, np.ndarray] = {
    "encoder.0.weight": np.ones((2, 3), np.float32),
    "encoder.0.bias": np.zeros(2),
}
save_file(weights, "theirs.safetensors", metadata={"format": "pt"})
assert set(cordwood.load("theirs.safetensors")) == set(weights)
nested = cordwood.load("theirs.safetensors", nest=True)
np.testing.assert_array_equal(nested["encoder"]["0"]["weight"], weights["encoder.0.weight"])

# Ours: any reader sees the dotted names.
cordwood.save("ours.safetensors", nested, metadata={"trained_on": "nothing"})
assert set(load_file("ours.safetensors")) == set(weights)
print(cordwood.verify("ours.safetensors"))

# One flipped bit is found.
with open("ours.safetensors", "r+b") as file:
    file.seek(-1, 2)
    last = file.read(1)[0]
    file.seek(-1, 2)
    file.write(bytes([last ^ 1]))
try:
    cordwood.load("ours.safetensors")
except cordwood.CorruptionError as e:
    print(e)
else:
    raise SystemExit("a flipped bit went unseen")
