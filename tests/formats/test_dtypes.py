"""The dtype table of docs/format.md: every dtype, shape and memory layout, in both formats."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import cordwood
from cordwood.testing.strategies import DTYPE_NAMES

FORMATS = (".safetensors", ".msgpack")
TABLE = [name for name in DTYPE_NAMES if "64[" not in name]  # without times
NAMES = [*TABLE, "datetime64[ns]", "timedelta64[25s]"]
SHAPES = ((), (0,), (0, 3), (1,), (4, 6))
BITS = {"int1": 1, "int2": 2, "int4": 4, "uint1": 1, "uint2": 2, "uint4": 4}
BITS |= {"bool": 1, "float4_e2m1fn": 4, "float6_e2m3fn": 6, "float6_e3m2fn": 6}


def dtype_of(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, name))


def elements(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Random bits, NaNs among them, of those that the dtype uses."""
    dtype = dtype_of(name)
    rng = np.random.default_rng(len(name))
    high = 1 << BITS.get(name, 8)
    raw = rng.integers(0, high, math.prod(shape) * dtype.itemsize, np.uint8)
    return raw.view(dtype).reshape(shape)


def fortran(array: np.ndarray) -> np.ndarray:
    return np.array(array, order="F")  # asfortranarray would add an axis to ()


def strided(array: np.ndarray) -> np.ndarray:
    wide = np.repeat(array, 3, axis=-1) if array.ndim else np.repeat(array, 3)
    return wide[..., 1::3] if array.ndim else wide[1:2].reshape(())


def reversed_(array: np.ndarray) -> np.ndarray:
    return array[..., ::-1] if array.ndim else array


def read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


def big_endian(array: np.ndarray) -> np.ndarray:
    return array.astype(array.dtype.newbyteorder(">"))


LAYOUTS: tuple[Callable[[np.ndarray], np.ndarray], ...] = (
    fortran,
    strided,
    reversed_,
    read_only,
    big_endian,
)


def as_stored(array: np.ndarray) -> bytes:
    """Its bytes, with zeros in the padding of long doubles, as every format has them."""
    if array.dtype not in (np.longdouble, np.clongdouble):
        return array.tobytes()
    native = array.astype(array.dtype.newbyteorder("="))
    numbers = np.frombuffer(native.tobytes(), np.uint8).reshape(-1, 16).copy()
    numbers[:, 10:] = 0
    return numbers.tobytes()


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_every_dtype_and_shape(
    tmp_path: Path, name: str, shape: tuple[int, ...], suffix: str
) -> None:
    array = elements(name, shape)
    path = tmp_path / f"x{suffix}"
    cordwood.save(path, {"array": array})
    for mmap in (False, True):
        loaded = cordwood.load(path, to="numpy", mmap=mmap)["array"]
        assert type(loaded) is np.ndarray
        assert (loaded.dtype, loaded.shape) == (array.dtype, shape)
        assert loaded.tobytes() == as_stored(array)
    (leaf,) = cordwood.load(path, like={"array": array}).values()
    assert leaf.tobytes() == as_stored(array)


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__.strip("_"))
@pytest.mark.parametrize("name", NAMES)
def test_arrays_in_every_memory_layout_come_back(
    tmp_path: Path, name: str, layout: Callable[[np.ndarray], np.ndarray], suffix: str
) -> None:
    plain = [elements(name, shape) for shape in SHAPES]
    path = tmp_path / f"x{suffix}"
    arrays = {str(i): layout(array) for i, array in enumerate(plain)}
    expected = {
        key: array[..., ::-1] if layout is reversed_ and array.ndim else array
        for key, array in zip(arrays, plain, strict=True)
    }
    before = {key: array.tobytes() for key, array in arrays.items()}
    cordwood.save(path, arrays)
    assert {key: array.tobytes() for key, array in arrays.items()} == before
    loaded = cordwood.load(path, to="numpy")
    for key, array in expected.items():
        assert loaded[key].dtype == array.dtype
        assert loaded[key].dtype.isnative
        assert loaded[key].shape == array.shape
        assert loaded[key].tobytes() == as_stored(array)
        assert loaded[key].flags.writeable


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("name", NAMES)
def test_numpy_scalars_keep_type_and_bits(tmp_path: Path, name: str, suffix: str) -> None:
    scalar = elements(name, ())[()]
    if name in ("float128", "complex256"):  # numpy copies a scalar without its padding bytes
        scalar = dtype_of(name).type(1) / 3
    path = tmp_path / f"x{suffix}"
    cordwood.save(path, {"scalar": scalar})
    loaded = cordwood.load(path)["scalar"]
    assert type(loaded) is type(scalar)
    if name in ("float128", "complex256"):
        assert loaded == scalar
    else:
        assert loaded.tobytes() == scalar.tobytes()


# float6 and the 1-bit integers exist in ml_dtypes, but no jax.Array of jax 0.10 can have them.
NOT_IN_JAX = {"int1", "uint1", "float6_e2m3fn", "float6_e3m2fn", "float128", "complex256"}
IN_JAX = [name for name in TABLE if name not in NOT_IN_JAX]


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("name", IN_JAX)
def test_every_dtype_of_jax(tmp_path: Path, name: str, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    with jax.enable_x64(True):
        tree = {str(shape): jnp.asarray(elements(name, shape)) for shape in SHAPES}
        cordwood.save(path, tree)
        loaded = cordwood.load(path, to="jax")
        for key, array in tree.items():
            assert isinstance(loaded[key], jax.Array)
            assert (loaded[key].dtype, loaded[key].shape) == (dtype_of(name), array.shape)
            assert np.asarray(loaded[key]).tobytes() == np.asarray(array).tobytes()
