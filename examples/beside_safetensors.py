"""Safetensors files of other tools and of cordwood, and the detection of damage."""

from __future__ import annotations

import numpy as np
from safetensors.numpy import load_file, save_file

import cordwood

# A file of another tool loads as a flat dict of names, or as dicts nested at the dots.
weights: dict[str, np.ndarray] = {
    "encoder.0.weight": np.ones((2, 3), np.float32),
    "encoder.0.bias": np.zeros(2),
}
save_file(weights, "theirs.safetensors", metadata={"format": "pt"})
assert set(cordwood.load("theirs.safetensors")) == set(weights)
nested = cordwood.load("theirs.safetensors", nest=True)
np.testing.assert_array_equal(nested["encoder"]["0"]["weight"], weights["encoder.0.weight"])

# A file of cordwood: other readers see the dotted names.
cordwood.save("ours.safetensors", nested, metadata={"trained_on": "nothing"})
assert set(load_file("ours.safetensors")) == set(weights)
print(cordwood.verify("ours.safetensors"))

# A load detects one flipped bit.
with open("ours.safetensors", "r+b") as file:
    file.seek(-1, 2)
    last = file.read(1)[0]
    file.seek(-1, 2)
    file.write(bytes([last ^ 1]))
try:
    cordwood.load("ours.safetensors")
except cordwood.errors.CorruptionError as e:
    print(e)
else:
    raise SystemExit("a flipped bit was not detected")
