"""Random trees by seed, fast enough for thousands of them, and their comparison."""

from __future__ import annotations

import random
import struct
from collections import namedtuple
from typing import Any, ClassVar

import jax
import ml_dtypes
import numpy as np

Pair = namedtuple("Pair", "first second")
Triple = namedtuple("Triple", "mu nu count")

_NUMPY = """
    bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64
    complex128 datetime64[ns] timedelta64[s]
""".split()  # noqa: SIM905
_SMALL = """
    bfloat16 int1 int2 int4 uint1 uint2 uint4 float4_e2m1fn float6_e2m3fn float6_e3m2fn
    float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2
    float8_e5m2fnuz float8_e8m0fnu
""".split()  # noqa: SIM905
DTYPES = [np.dtype(name) for name in _NUMPY] + [np.dtype(getattr(ml_dtypes, n)) for n in _SMALL]

_SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (3,), (2, 3), (0, 3), (1, 1), (4, 1, 2), (17,)]
_TEXTS = ["", "w", "kernel", "日本", "a/b", "x" * 40, "é" * 200, "0", "__msgpack__"]
_INTS = [0, 1, -1, 127, 128, 255, 256, -32, -33, -128, -129, 65535, 65536, 2**31, 2**32, -(2**15)]
_INTS += [-(2**15) - 1, -(2**31), -(2**31) - 1, 2**63, 2**64 - 1, -(2**63)]
_FLOATS = [0.0, -0.0, 1.5, float("inf"), float("-inf"), float("nan"), 1e-320]


def _jax_pool() -> list[jax.Array]:
    rng = np.random.default_rng(0)
    shapes = [(), (3,), (2, 3), (0, 2), (16, 4)]
    dtypes = ["float32", "int32", "bfloat16", "bool", "uint8", "complex64", "float8_e4m3fn"]
    return [
        jax.numpy.asarray(rng.integers(0, 2, shape)).astype(dtype)
        for shape in shapes
        for dtype in dtypes
    ]


class Trees:
    """Random trees; the same seed gives the same trees."""

    jax_arrays: ClassVar[list[jax.Array]] = []

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        if not Trees.jax_arrays:
            Trees.jax_arrays = _jax_pool()

    def array(self) -> np.ndarray[Any, Any]:
        dtype = self.random.choice(DTYPES)
        shape = self.random.choice(_SHAPES)
        values = self.numbers.integers(0, 2, shape)
        array = np.asarray(values).astype(dtype)
        if dtype.kind in "iufc" and dtype.itemsize > 1:
            array = np.frombuffer(self.numbers.bytes(array.nbytes), dtype).reshape(shape)
        form = self.random.randrange(6)
        if form == 0:
            return np.asfortranarray(array)
        if form == 1:
            return array[::-1] if array.ndim else array
        if form == 2:
            array = array.copy()
            array.flags.writeable = False
        return array

    def leaf(self) -> Any:
        pick = self.random.randrange(14)
        if pick < 5:
            return self.array()
        if pick < 7:
            return self.random.choice(self.jax_arrays)
        if pick < 8:
            return self.scalar()
        if pick < 9:
            return self.random.choice(_INTS)
        if pick < 10:
            return self.random.choice(_FLOATS)
        if pick < 11:
            return complex(self.random.choice(_FLOATS), self.random.choice(_FLOATS))
        if pick < 12:
            return self.random.choice(_TEXTS)
        if pick < 13:
            return self.random.choice([True, False, None])
        return self.random.randbytes(self.random.choice([0, 1, 31, 300, 5000]))

    def scalar(self) -> np.generic:
        dtype = self.random.choice(DTYPES)
        scalar: np.generic = np.ones(1, np.int8).astype(dtype)[0]
        return scalar

    def tree(self, depth: int = 3) -> Any:
        """Return a tree of dicts, lists, tuples and named tuples."""
        pick = self.random.randrange(10) if depth else 9
        size = self.random.choice([0, 1, 1, 2, 2, 3, 3, 17])
        if pick < 4:
            keys = self.random.sample(_TEXTS, min(size, len(_TEXTS)))
            if self.random.random() < 0.2:
                keys = [key for key in keys if key != "0"] + [0, 2.5]  # type: ignore[list-item]
            return {key: self.tree(depth - 1) for key in keys}
        if pick < 5:
            return [self.tree(depth - 1) for _ in range(min(size, 3))]
        if pick < 6:
            return tuple(self.tree(depth - 1) for _ in range(min(size, 3)))
        if pick < 7:
            return Pair(self.tree(depth - 1), self.tree(depth - 1))
        if pick < 8:
            return Triple(self.tree(depth - 1), self.leaf(), self.leaf())
        return self.leaf()

    def plain(self, depth: int = 3, *, other_keys: bool = True) -> Any:
        """Return a tree of dicts and lists, for the raw msgpack calls."""
        pick = self.random.randrange(10) if depth else 9
        size = self.random.choice([0, 1, 1, 2, 2, 3, 3, 16, 17])
        if pick < 5:
            keys: list[Any] = self.random.sample(_TEXTS, min(size, len(_TEXTS)))
            if other_keys and self.random.random() < 0.3:
                keys = self.random.sample([0, -7, 2**40, 2.5, True, np.int64(9)], min(size, 6))
            return {key: self.plain(depth - 1, other_keys=other_keys) for key in keys}
        if pick < 7:
            return [self.plain(depth - 1, other_keys=other_keys) for _ in range(size)]
        return self.leaf()


def assert_same(first: Any, second: Any, path: str = "") -> None:
    """Equal in types, keys and their order, shapes, dtypes, and every bit."""
    assert type(first) is type(second), f"{path}: {type(first)} {type(second)}"
    if isinstance(first, dict):
        assert list(first) == list(second), f"{path}: {list(first)} {list(second)}"
        assert list(map(type, first)) == list(map(type, second)), path
        for key in first:
            assert_same(first[key], second[key], f"{path}/{key}")
    elif isinstance(first, (list, tuple)):
        assert len(first) == len(second), path
        for i, (one, other) in enumerate(zip(first, second, strict=True)):
            assert_same(one, other, f"{path}/{i}")
    elif isinstance(first, (np.ndarray, np.generic)):
        assert first.dtype == second.dtype, f"{path}: {first.dtype} {second.dtype}"
        assert first.shape == second.shape, f"{path}: {first.shape} {second.shape}"
        assert first.tobytes() == second.tobytes(), path
    elif isinstance(first, float):
        assert struct.pack("<d", first) == struct.pack("<d", second), path
    elif isinstance(first, complex):
        parts = (first.real, first.imag), (second.real, second.imag)
        assert struct.pack("<2d", *parts[0]) == struct.pack("<2d", *parts[1]), path
    else:
        assert first == second, f"{path}: {first!r} {second!r}"


def fresh(tree: Any) -> Any:
    """Return the same leaves in new dicts and lists, for calls that change their arguments."""
    if type(tree) is dict:
        return {key: fresh(value) for key, value in tree.items()}
    if type(tree) is list:
        return [fresh(value) for value in tree]
    return tree
