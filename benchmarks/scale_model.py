"""The state of a 405-billion-parameter training run, on simulated devices."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

__all__ = ["DEVICES_PER_PROCESS", "StateLeaf", "mesh_of", "parameter_count", "state"]

LAYERS, WIDTH, FFN, HEADS, KV_HEADS, VOCABULARY = 126, 16384, 53248, 128, 8, 128256
KV_WIDTH = WIDTH // HEADS * KV_HEADS
DEVICES_PER_PROCESS = 8


class StateLeaf(NamedTuple):
    """One array of the state."""

    path: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    sharding: NamedSharding


class _Device:
    """The part of a device's interface that a mesh needs."""

    platform = "cpu"
    device_kind = "none"

    def __init__(self, number: int, client: Any) -> None:
        self.id = number
        self.process_index = number // DEVICES_PER_PROCESS
        self.client = client

    def __repr__(self) -> str:
        return f"device {self.id} of process {self.process_index}"


def mesh_of(processes: int, *, tensor: int) -> Mesh:
    """Return a mesh of all devices: fully sharded data parallel x tensor parallel."""
    client = jax.devices()[0].client
    devices = [_Device(number, client) for number in range(processes * DEVICES_PER_PROCESS)]
    return Mesh(np.array(devices, dtype=object).reshape(-1, tensor), ("data", "tensor"))


def state(mesh: Mesh) -> list[StateLeaf]:
    """Return Llama 3's 405B parameters in bfloat16, and Adam's two moments in float32.

    The parameters are stored once, in the dtype of the computation: ten bytes per parameter.
    Matrices are cut along both of their axes. Every device holds the complete scales of the
    norms.
    """
    leaves = []
    for item, dtype in (("params", "bfloat16"), ("mu", "float32"), ("nu", "float32")):
        for path, shape, axes in _parameters():
            sharding = NamedSharding(mesh, PartitionSpec(*axes))
            leaves.append(StateLeaf((item, *path), shape, dtype, sharding))
    return leaves


def parameter_count() -> int:
    return sum(math.prod(shape) for _, shape, _ in _parameters())


def _parameters() -> list[tuple[tuple[str, ...], tuple[int, ...], tuple[str, ...]]]:
    into, out = ("data", "tensor"), ("tensor", "data")  # of matrices into and out of the cut width
    parameters: list[tuple[tuple[str, ...], tuple[int, ...], tuple[str, ...]]] = []
    parameters.append((("embedding",), (VOCABULARY, WIDTH), out))
    for layer in range(LAYERS):
        for name, shape, axes in (
            ("q", (WIDTH, WIDTH), into),
            ("k", (WIDTH, KV_WIDTH), into),
            ("v", (WIDTH, KV_WIDTH), into),
            ("o", (WIDTH, WIDTH), out),
            ("gate", (WIDTH, FFN), into),
            ("up", (WIDTH, FFN), into),
            ("down", (FFN, WIDTH), out),
            ("attention_norm", (WIDTH,), ()),
            ("mlp_norm", (WIDTH,), ()),
        ):
            parameters.append((("layers", str(layer), name), shape, axes))
    parameters.append((("norm",), (WIDTH,), ()))
    parameters.append((("head",), (WIDTH, VOCABULARY), into))
    return parameters
