"""The promises about cordwood's speed, as ratios of medians of the same run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from benchmarks.contenders import BARE_READ, BARE_WRITE, FROM_BYTES

__all__ = [
    "ALIASED_SHARE_MIN",
    "CLAIMS",
    "MAPPED_SECONDS_MAX",
    "Claim",
    "ratio_of",
]

SAVE = "cordwood.save .safetensors, durable"
LOAD = "cordwood.load .safetensors to jax, verified"
FLAX_SAVE = "flax.to_bytes + write + fsync"
FLAX_LOAD = "flax read + from_bytes (numpy leaves)"
BIG = ("gpt2", "one-leaf")
SMALL = ("small",)


class Claim(NamedTuple):
    """`other` takes at least `target` times as long as `ours`."""

    ours: str
    other: str
    target: float
    trees: tuple[str, ...]


CLAIMS = [
    Claim("cordwood.save_to_file, durable", FLAX_SAVE, 6.0, BIG),
    Claim("cordwood.save .msgpack, durable", FLAX_SAVE, 6.0, BIG),
    Claim(SAVE, "safetensors.flax.save_file + fsync", 1.0, BIG),
    Claim(SAVE, "safetensors.flax.save_file, no fsync", 1.0, BIG),
    Claim(SAVE, BARE_WRITE, 0.8, BIG),
    Claim(LOAD, FLAX_LOAD, 8.0, BIG),
    Claim("cordwood.load .msgpack to jax", FLAX_LOAD, 8.0, BIG),
    Claim(LOAD, "safetensors.flax.load_file", 3.0, BIG),
    Claim(LOAD, BARE_READ, 0.7, BIG),
    Claim("cordwood.to_bytes", "flax.to_bytes", 3.0, BIG),
    Claim(FROM_BYTES, "flax.from_bytes", 20.0, BIG),
    Claim(
        "cordwood.save .safetensors of numpy, durable",
        "safetensors.numpy.save_file, no fsync",
        1.0,
        SMALL,
    ),
    Claim(
        "cordwood.load .safetensors to numpy, verified", "safetensors.numpy.load_file", 1.0, SMALL
    ),
    Claim(LOAD, "safetensors.flax.load_file", 0.5, SMALL),
]

# For the 1.49 GB tree only.
MAPPED_SECONDS_MAX = 0.020
ALIASED_SHARE_MIN = 0.99


def ratio_of(claim: Claim, medians: Mapping[str, float]) -> float:
    return medians[claim.other] / medians[claim.ours]
