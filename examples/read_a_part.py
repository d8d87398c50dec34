"""A list of the leaves of a checkpoint, and a read of some rows of one leaf only."""

from __future__ import annotations

import numpy as np

import cordwood

embedding = np.arange(1_000_000, dtype=np.float32).reshape(10_000, 100)
cordwood.save("tables.safetensors", {"tokens": {"embedding": embedding}, "scale": np.ones(100)})

with cordwood.open("tables.safetensors") as checkpoint:
    for key_path, leaf in checkpoint.items():
        print(f"{key_path:20} {leaf.dtype:8} {leaf.shape} {leaf.nbytes:,} bytes")
    rows = checkpoint["tokens/embedding"][5000:5003]
    assert np.array_equal(rows, embedding[5000:5003])

# Or map the whole file. The arrays are views, and pages are read when they are touched.
mapped = cordwood.load("tables.safetensors", mmap=True)
assert not mapped["tokens"]["embedding"].flags.writeable
print(mapped["tokens"]["embedding"][9_999, -3:])
