"""The promises about directories, as ratios of medians of the same run."""

from __future__ import annotations

from benchmarks.claims import Claim
from benchmarks.contender_names import (
    ASYNC,
    BARE_READ,
    BARE_WRITE,
    EFORMER,
    ORBAX,
    ORBAX_ASYNC,
    ORBAX_RAW,
    ORBAX_RAW_FILES,
    PACKS,
    ZARR,
)

__all__ = ["ASYNC_CLAIMS", "LOAD_CLAIMS", "MEMORY_BYTES", "MEMORY_SHARE", "SAVE_CLAIMS"]

GPT2 = ("gpt2", "gpt2-8-devices")
BIG = (*GPT2, "one-leaf")

SAVE_CLAIMS = [
    Claim(PACKS, ORBAX, 3.0, BIG),
    Claim(PACKS, ORBAX_RAW, 1.3, BIG),
    Claim(PACKS, ORBAX_RAW_FILES, 1.3, BIG),
    Claim(PACKS, EFORMER, 5.0, BIG),
    Claim(PACKS, BARE_WRITE, 0.8, BIG),
    Claim(ZARR, EFORMER, 2.0, BIG),
    Claim(PACKS, ORBAX, 10.0, ("tiny",)),
]
LOAD_CLAIMS = [
    Claim(PACKS, ORBAX, 4.0, BIG),
    Claim(PACKS, EFORMER, 5.0, BIG),
    Claim(PACKS, BARE_READ, 0.8, BIG),
    Claim(ZARR, EFORMER, 2.0, BIG),
    Claim(PACKS, ORBAX, 10.0, ("tiny",)),
]
ASYNC_CLAIMS = [Claim(ASYNC, ORBAX_ASYNC, 5.0, GPT2)]

# The limit of memory beyond the tree, for packs: this number plus a share of the tree.
MEMORY_BYTES = 128 << 20
MEMORY_SHARE = 0.02
