"""A load straight onto a mesh: every device gets its part, and every byte is read once."""

from __future__ import annotations

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import cordwood

kernel = np.arange(512 * 256, dtype=np.float32).reshape(512, 256)
cordwood.save("model.msgpack", {"dense": {"kernel": kernel, "bias": kernel[0]}, "step": 7})

mesh = jax.make_mesh((4, 2), ("data", "model"))
rules = [("kernel", P("data", "model")), ("bias", P("model"))]

params = cordwood.load("model.msgpack", mesh=mesh, rules=rules)
assert params["dense"]["kernel"].sharding == NamedSharding(mesh, P("data", "model"))
assert params["step"] == 7

# Or give the sharding of single leaves. All other leaves are replicated.
params = cordwood.load("model.msgpack", mesh=mesh, shardings={"dense/kernel": P(None, "data")})
for shard in params["dense"]["kernel"].addressable_shards[:2]:
    print(shard.device, shard.index, shard.data.shape)

# Or use the shardings of a tree of arrays or of jax.ShapeDtypeStructs.
again = cordwood.load("model.msgpack", like=params)
assert again["dense"]["kernel"].sharding == params["dense"]["kernel"].sharding
