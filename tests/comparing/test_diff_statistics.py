"""The statistics of diff, compared with exact arithmetic in Python."""

from __future__ import annotations

import decimal
import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cordwood
from cordwood import dtypes
from cordwood.comparing import operands
from cordwood.comparing.array_change import (
    NO_CHANGE,
    VALUE_CHANGE,
    combine_changes,
    compare_arrays,
    measure_change,
)
from cordwood.comparing.scaled_sums import ScaledSum, add_scaled, cosine_of, root_of_quotient
from cordwood.results import LeafDiff
from cordwood.testing.strategies import DTYPE_NAMES, elements

NUMBERS = [name for name in DTYPE_NAMES if not name.startswith(("datetime", "timedelta"))]
SIZE = 500


def only(a: Any, b: Any) -> LeafDiff:
    """Return the only difference of two arrays in trees."""
    (leaf,) = cordwood.diff({"w": a}, {"w": b}).leaves
    return leaf


def parts_of(array: Any) -> list[tuple[Any, Any]]:
    """Return the real and imaginary parts of each element as Python numbers."""
    array = np.asarray(array).reshape(-1)
    if array.dtype.type.__module__ != "numpy":
        array = array.astype(np.float32)
    if array.dtype.kind == "c":
        return [(x.real, x.imag) for x in array]
    return [(x if array.dtype.kind == "f" else int(x), 0) for x in array]


def is_finite(element: tuple[Any, Any]) -> bool:
    return all(np.isfinite(part) for part in element)


def exact(part: Any) -> Fraction:
    return Fraction(*part.as_integer_ratio())


def root(number: Fraction) -> float:
    with decimal.localcontext() as context:
        context.prec, context.Emax, context.Emin = 40, 10**6, -(10**6)
        return float(
            (decimal.Decimal(number.numerator) / decimal.Decimal(number.denominator)).sqrt()
        )


def expected(a: Any, b: Any) -> dict[str, Any]:
    """Return the statistics of the change from a to b, in exact arithmetic."""
    ours, theirs = parts_of(a), parts_of(b)
    both = [(x, y) for x, y in zip(ours, theirs, strict=True) if is_finite(x) and is_finite(y)]
    flat = [(exact(p), exact(q)) for x, y in both for p, q in zip(x, y, strict=True)]
    squares, other = sum(x * x for x, _ in flat), sum(y * y for _, y in flat)
    products, change = sum(x * y for x, y in flat), sum((y - x) ** 2 for x, y in flat)
    cosine = None
    if squares and other:
        cosine = root(Fraction(products) ** 2 / (squares * other)) * (-1 if products < 0 else 1)
    relative = root(Fraction(change) / squares) if squares else math.inf if change else 0.0
    return {
        "l2": root(Fraction(change)),
        "relative_l2": relative,
        "cosine": cosine,
        "sign_flips": sum(
            any(p < 0 < q or q < 0 < p for p, q in zip(x, y, strict=True)) for x, y in both
        ),
        "new_nan": sum(
            any(map(math.isnan, y)) and not any(map(math.isnan, x))
            for x, y in zip(ours, theirs, strict=True)
        ),
        "new_inf": sum(
            any(map(math.isinf, y)) and not any(map(math.isinf, x))
            for x, y in zip(ours, theirs, strict=True)
        ),
    }


def check(leaf: LeafDiff, a: Any, b: Any) -> None:
    for name, value in expected(a, b).items():
        found = getattr(leaf, name)
        if isinstance(value, float):
            rounding = 1e-15 if name == "cosine" else 1e-323
            assert found == pytest.approx(value, rel=1e-12, abs=rounding), name
        else:
            assert found == value, name
    assert leaf.share == leaf.differing / leaf.size
    assert leaf.read_size == leaf.size == np.size(a)


@pytest.mark.parametrize("name", NUMBERS)
def test_random_bits_of_every_dtype(name: str) -> None:
    a, b = elements(name, (SIZE,), 1), elements(name, (SIZE,), 2)
    check(only(a, b), a, b)
    zeros = elements(name, (SIZE,), 0)
    if name != "float8_e8m0fnu":  # which has no zero
        assert only(zeros, b).relative_l2 == math.inf
        assert only(zeros, b).cosine is None


@pytest.mark.parametrize("name", NUMBERS)
def test_a_small_change_of_every_dtype(name: str) -> None:
    values = np.random.default_rng(0).uniform(0, 1, SIZE)
    a = values.astype(dtypes.to_numpy(name))
    b = (values + (values > 0.9)).astype(dtypes.to_numpy(name))
    if a.tobytes() == b.tobytes():
        pytest.skip("the dtype holds no such change")
    check(only(a, b), a, b)


def test_arrays_of_several_blocks() -> None:
    a = np.random.default_rng(0).standard_normal((300, 301))
    b = a + np.random.default_rng(1).standard_normal(a.shape) * (a > 1)
    a[5, 5] = b[7, 7] = b[200, 0] = math.nan
    finite = np.isfinite(a) & np.isfinite(b)
    x, y = a[finite], b[finite]
    leaf = only(a, b)
    assert leaf.l2 == pytest.approx(np.linalg.norm(y - x), rel=1e-12)
    assert leaf.relative_l2 == pytest.approx(np.linalg.norm(y - x) / np.linalg.norm(x), rel=1e-12)
    cosine = np.dot(x, y) / np.linalg.norm(x) / np.linalg.norm(y)
    assert leaf.cosine == pytest.approx(cosine, rel=1e-12)
    assert leaf.sign_flips == np.count_nonzero(x * y < 0) > 0
    assert leaf.new_nan == 2
    assert leaf.share == np.count_nonzero(~((a == b) | (np.isnan(a) & np.isnan(b)))) / a.size


PAIRS = [
    ([2**64 - 1, 2**63, 0], [2**64 - 2, 2**63 + 1, 2**64 - 1], "uint64"),
    ([2**63 - 1, -(2**63), 2**53], [-(2**63), 2**63 - 1, 2**53 + 1], "int64"),
    ([-128, 127], [127, -128], "int8"),
    ([True, False, True], [False, False, True], "bool"),
    ([1e300, -1e300, 1.0], [-1e300, 1e300, 2.0], "float64"),
    ([1.7e308, 1.7e308], [-1.7e308, 1.7e308], "float64"),
    ([1e-310, 5e-324], [5e-324, -5e-324], "float64"),
    ([1e-200, 0.0], [3e-200, 1e-200], "float64"),
    ([1e300, 1.0], [1e300, 1.0 + 1e-9], "float64"),
    ([3e38, -3e38], [-3e38, 3e38], "float32"),
    ([1e-45, 0.0], [0.0, 1e-45], "float32"),
    ([65504.0, 6e-8], [-65504.0, 1e-7], "float16"),
    ([1e4000, 1.0], [-1e4000, 1.0], "float128"),
    ([1e200 + 1e200j, 1j], [1e200 - 1e200j, -1j], "complex128"),
    ([1 + 1j, math.nan + 1j, 1.0], [1 - 1j, 1.0, complex(1, math.inf)], "complex64"),
    ([math.nan, math.inf, 1.0, 1.0, 2.0], [1.0, 1.0, math.nan, -math.inf, 3.0], "float32"),
    ([math.nan, math.inf], [math.inf, math.nan], "float64"),
    ([math.nan, -math.inf, 1.0, 1e300], [math.nan, math.inf, 2.0, 1e299], "float64"),
]


@pytest.mark.parametrize(("a", "b", "name"), PAIRS)
def test_extreme_values_have_exact_statistics(a: list[Any], b: list[Any], name: str) -> None:
    x, y = np.array(a, name), np.array(b, name)
    if name == "float128":
        x[0], y[0] = np.longdouble("1e4000"), np.longdouble("-1e4000")
    check(only(x, y), x, y)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("float32", "bfloat16"),
        ("float64", "float32"),
        ("int64", "float32"),
        ("int64", "uint64"),
        ("int4", "int32"),
        ("bool", "uint8"),
        ("complex64", "float64"),
        ("float8_e4m3fn", "float16"),
        ("float128", "float64"),
    ],
)
def test_values_of_two_dtypes_are_compared(one: str, other: str) -> None:
    values = np.random.default_rng(0).integers(0, 7, SIZE)
    a = values.astype(dtypes.to_numpy(one))
    b = values[::-1].astype(dtypes.to_numpy(other))
    leaf = only(a, b)
    assert leaf.what == "dtype"
    check(leaf, a, b)
    equal = only(a, values.astype(dtypes.to_numpy(other)))
    if one != "bool":
        assert (equal.share, equal.relative_l2, equal.differing) == (0.0, 0.0, 0)
        assert equal.cosine == pytest.approx(1)


def test_integers_that_are_equal_as_float64() -> None:
    leaf = only(np.array([2**64 - 1], np.uint64), np.array([2**64 - 2], np.uint64))
    assert (leaf.l2, leaf.max_abs, leaf.differing) == (1.0, 1.0, 1)
    leaf = only(np.array([2**63 - 1]), np.array([2**63 + 1], np.uint64))
    assert (leaf.l2, leaf.differing) == (2.0, 1)


def test_no_norms_for_times_and_keys() -> None:
    times = only(np.array(["2020", "2021"], "M8[D]"), np.array(["2020", "NaT"], "M8[D]"))
    assert (times.share, times.new_nan, times.relative_l2, times.cosine) == (0.5, 1, None, None)
    keys = only(jax.random.key(1), jax.random.key(2))
    assert (keys.share, keys.relative_l2, keys.cosine, keys.sign_flips) == (0.5, None, None, 0)
    value = only(1.0, 2.0)
    assert (value.size, value.share, value.relative_l2) == (0, None, None)


def test_scalars_and_empty_arrays() -> None:
    leaf = only(np.float32(2), np.float32(-1))
    assert (leaf.size, leaf.share, leaf.relative_l2, leaf.cosine) == (1, 1.0, 1.5, -1.0)
    assert leaf.sign_flips == 1
    assert only(np.ones((), np.int8), np.zeros((), np.int8)).relative_l2 == 1.0
    empty = np.ones((0, 3))
    assert cordwood.diff({"w": empty}, {"w": empty}).equal
    recast = only(empty, empty.astype(np.float32))
    assert (recast.what, recast.size, recast.share, recast.relative_l2) == ("dtype", 0, None, None)


def test_a_change_of_sign_of_zero_is_a_change_of_bits_only() -> None:
    leaf = only(np.array([0.0, 1.0]), np.array([-0.0, 1.0]))
    assert (leaf.differing, leaf.bits, leaf.share, leaf.relative_l2) == (0, 1, 0.0, 0.0)
    assert (leaf.cosine, leaf.sign_flips) == (1.0, 0)


def test_text_says_what_is_new() -> None:
    a = np.ones(4, np.float32)
    b = np.array([1, 1.5, math.nan, math.inf], np.float32)
    assert str(only(a, b)).endswith(
        "3 of 4 elements differ, max abs inf, max rel inf, relative L2 0.354, 1 new NaN, 1 new Inf"
    )
    plain = json.loads(json.dumps(cordwood.diff({"w": a}, {"w": b}).to_json()))["leaves"][0]
    assert (plain["new_nan"], plain["new_inf"], plain["max_abs"]) == (1, 1, "inf")
    assert plain["relative_l2"] == pytest.approx(0.5 / math.sqrt(2))


@st.composite
def cut_arrays(draw: st.DrawFn) -> tuple[Any, Any, list[int]]:
    name = draw(st.sampled_from(NUMBERS))
    size = draw(st.integers(1, 60))
    seeds = draw(st.tuples(st.integers(0, 9), st.integers(0, 9)))
    cuts = draw(st.lists(st.integers(0, size), max_size=6).map(sorted))
    return elements(name, (size,), seeds[0]), elements(name, (size,), seeds[1]), cuts


@given(cut_arrays())
@settings(max_examples=300)
def test_any_cut_gives_the_same(arrays: tuple[Any, Any, list[int]]) -> None:
    a, b, cuts = arrays
    whole = measure_change(a, b)
    total = NO_CHANGE
    for start, stop in zip([0, *cuts], [*cuts, len(a)], strict=True):
        total = combine_changes(total, measure_change(a[start:stop], b[start:stop]))
    assert (total[:8], total[12:]) == (whole[:8], whole[12:])
    for one, other in zip(total[8:12], whole[8:12], strict=True):
        assert (
            math.isclose(
                one.value, math.ldexp(other.value, other.exponent - one.exponent), rel_tol=1e-13
            )
            or one.value == other.value == 0
            or products_cancel(a, b, one, other)
        )


def products_cancel(a: Any, b: Any, one: ScaledSum, other: ScaledSum) -> bool:
    """Return True if two sums are equal but for the rounding of terms that cancel out."""
    change = measure_change(a, b)
    return all(
        abs(cosine_of(sum_, change.a_squares, change.b_squares) or 0.0) < 1e-13
        for sum_ in (one, other)
    )


def test_scaled_sums_hold_numbers_beyond_float64() -> None:
    huge, tiny = ScaledSum(1.0, 4001), ScaledSum(1.0, -4000)
    assert add_scaled(huge, tiny) == (0.5, 4002)
    assert root_of_quotient(huge, tiny) == math.inf
    assert root_of_quotient(tiny, huge) == 0.0
    assert root_of_quotient(huge, ScaledSum(2.0, 3998)) == 2.0
    assert cosine_of(ScaledSum(-1.0, 4000), huge, ScaledSum(1.0, 3999)) == -1.0


def test_a_python_value_has_no_statistics() -> None:
    assert VALUE_CHANGE.differs
    assert not NO_CHANGE.differs


TREE = {f"w{i}": np.random.default_rng(i).standard_normal(3 << 18) for i in range(6)}  # 36 MiB


def changed(tree: Any) -> Any:
    return {name: array * (1 + 1e-3 * (i + 1)) for i, (name, array) in enumerate(tree.items())}


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_same_output_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    monkeypatch.setattr("cordwood.threads.thread_pool.default_threads", lambda: threads)
    a, b = tmp_path / "a.safetensors", tmp_path / "b"
    cordwood.save(a, TREE)
    cordwood.save(b, changed(TREE))
    monkeypatch.setattr(operands, "_GROUP_BYTES", 16 << 20)
    first = cordwood.diff(a, b).to_json()
    assert all(cordwood.diff(a, b).to_json() == first for _ in range(3))
    in_memory = cordwood.diff(TREE, changed(TREE)).to_json()
    assert in_memory["leaves"] == first["leaves"]
    for i, leaf in enumerate(first["leaves"]):
        assert leaf["relative_l2"] == pytest.approx(1e-3 * (i + 1), rel=1e-9)
        assert leaf["cosine"] == pytest.approx(1)


def test_jax_arrays_and_formats(tmp_path: Path) -> None:
    tree = {"w": jnp.arange(64, dtype=jnp.bfloat16).reshape(8, 8), "n": jnp.arange(5)}
    other = {"w": tree["w"].at[0, 1].set(-4), "n": tree["n"]}
    results = set()
    for name in ("a.safetensors", "a.msgpack", "packs", "zarr"):
        layout: Any = {} if "." in name else {"format": name}
        cordwood.save(tmp_path / name, other, **layout)
        (leaf,) = cordwood.diff(tree, tmp_path / name).leaves
        results.add(leaf)
    assert len(results) == 1
    check(leaf, np.asarray(tree["w"]), np.asarray(other["w"]))


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (np.array([1, 2], np.float32), np.array([1, 2.5], np.float32), (1, 0, 0.5, 0.2)),
        (np.array([math.nan, 1], np.float32), np.array([math.nan, 1], np.float32), (0, 0, 0, 0)),
        (np.array([0.0], np.float32), np.array([-0.0], np.float32), (0, 1, 0, 0)),
        (
            np.array([math.inf, 1], np.float32),
            np.array([1, 1], np.float32),
            (1, 0, math.inf, math.inf),
        ),
        (np.array([math.nan], np.float64), np.array([1], np.float64), (1, 0, math.inf, math.inf)),
        (np.array([-128], np.int8), np.array([127], np.int8), (1, 0, 255, 255 / 128)),
        (np.array([2**63 - 1]), np.array([-(2**63)]), (1, 0, 2.0**64, 2.0)),
        (np.array([True, False]), np.array([True, True]), (1, 0, 1, 1)),
        (np.array([1 + 1j]), np.array([1 + 2j]), (1, 0, 1, 1 / math.sqrt(5))),
        (np.array([1, 2], jnp.bfloat16), np.array([1, 3], jnp.bfloat16), (1, 0, 1, 1 / 3)),
        (np.array([-8]).astype(jnp.int4), np.array([7]).astype(jnp.int4), (1, 0, 15, 15 / 8)),
        (np.array([1], ">i8"), np.array([1 << 40], ">i8"), (1, 0, (1 << 40) - 1, 1)),
        (np.array([1.5], np.float32), np.array([1.25], np.float64), (1, 0, 0.25, 1 / 6)),
        (np.array(["2020", "NaT"], "M8[Y]"), np.array(["2021", "NaT"], "M8[Y]"), (1, 0, 1, 1 / 51)),
    ],
)
def test_changes_of_single_elements_are_counted_and_measured(
    a: Any, b: Any, expected: tuple[float, ...]
) -> None:
    assert tuple(compare_arrays(a, b))[1:5] == pytest.approx(expected)
