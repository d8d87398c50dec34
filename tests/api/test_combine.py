"""combine and open_combined: linear combinations, against numpy in the documented order."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import cordwood
from cordwood.combining.plan_combination import plan_combination
from cordwood.errors import CorruptionError, LossError, MismatchError
from cordwood.loading import locate_step
from cordwood.loading.checkpoint import open_at
from cordwood.storage.locations import parse_location
from cordwood.testing import assert_trees_equal
from tests.memory import traced_memory
from tests.shardings import mesh_of

FLOATS = [
    np.dtype(each)
    for each in (
        *(np.float16, np.float32, np.float64, np.complex64, np.complex128),
        *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
    )
]
FORMATS = ["packs", "zarr", "safetensors", "msgpack", "msgpack.zst"]


def expected_sum(
    arrays: Sequence[Any], weights: Sequence[float], dtype: Any, accumulate: str = "float32"
) -> Any:
    """Return a combination by the documented order of operations, in plain numpy."""
    wide = [array.dtype for array in arrays if array.dtype.itemsize > 4]
    total_dtype = np.result_type(np.dtype(accumulate), *wide)
    real = np.zeros((), total_dtype).real.dtype

    def numbers(array: Any) -> Any:
        wide = np.ascontiguousarray(array.astype(total_dtype)).reshape(-1)
        return wide.view(real)

    total = np.full_like(numbers(arrays[0]), -0.0)
    with np.errstate(all="ignore"):
        for array, weight in zip(arrays, weights, strict=True):
            total = total + numbers(array) * real.type(weight)
        return total.view(total_dtype).reshape(arrays[0].shape).astype(dtype)


def random_array(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    values = rng.standard_normal(shape) * rng.choice([1e-3, 1.0, 100.0])
    if dtype.kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    return np.asarray(values).astype(dtype)


def random_trees(
    rng: np.random.Generator, count: int, names: Sequence[str]
) -> list[dict[str, Any]]:
    """Return trees of one structure, with arrays of several shapes and dtypes."""
    shapes = [(), (0,), (1,), (7,), (24, 16), (8, 3, 2), (48, 8), (2, 40)]
    types = {
        name: (shapes[rng.integers(len(shapes))], FLOATS[rng.integers(len(FLOATS))])
        for name in names
    }
    return [
        {"params": {name: random_array(rng, *each) for name, each in types.items()}}
        for _ in range(count)
    ]


def save(path: Path, tree: Any, format: str) -> Path:
    if format in ("packs", "zarr"):
        cordwood.save(path, tree, format=format)
        return path
    path = path.with_suffix(f".{format}")
    cordwood.save(path, tree)
    return path


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("seed", range(3))
def test_a_combination_is_that_of_numpy_bit_for_bit(tmp_path: Path, format: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    trees = random_trees(rng, count=int(rng.integers(1, 5)), names=[*"abcdefgh"])
    weights = [float(weight) for weight in rng.normal(size=len(trees))]
    paths = [save(tmp_path / f"in{n}", tree, format) for n, tree in enumerate(trees)]
    target = tmp_path / ("out" if format in ("packs", "zarr") else f"out.{format}")
    done = cordwood.combine(
        target,
        dict(zip(paths, weights, strict=True)),
        format=format if format in ("packs", "zarr") else None,
    )
    assert done.leaves == 8
    result = cordwood.load(target)["params"]
    for name, array in result.items():
        arrays = [tree["params"][name] for tree in trees]
        assert_trees_equal(array, expected_sum(arrays, weights, arrays[0].dtype))


@pytest.mark.parametrize(
    "spec", [P("x"), P(None, "x"), P("x", "y"), P("y", "x"), P(), P(("x", "y"))]
)
def test_a_combination_is_loaded_with_any_sharding(tmp_path: Path, spec: P) -> None:
    rng = np.random.default_rng(7)
    trees = [
        {
            "w": random_array(rng, (48, 40), np.dtype(np.float32)),
            "b": random_array(rng, (16, 24), np.dtype(ml_dtypes.bfloat16)),
        }
        for _ in range(3)
    ]
    stored = [NamedSharding(mesh_of(4, 2), each) for each in (P("x"), P(None, "y"), P("y", "x"))]
    for n, (tree, sharding) in enumerate(zip(trees, stored, strict=True)):
        cordwood.save(tmp_path / f"{n}", jax.device_put(tree, sharding))
    weights = [1.0, 1.0, -1.0]
    sharding = NamedSharding(mesh_of(4, 2), spec)
    like = {
        name: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)
        for name, array in trees[0].items()
    }
    paths = [tmp_path / f"{n}" for n in range(3)]
    with cordwood.open_combined(dict(zip(paths, weights, strict=True))) as combination:
        loaded = combination.load(like)
    for name, array in loaded.items():
        assert array.sharding == sharding
        arrays = [tree[name] for tree in trees]
        assert_trees_equal(np.asarray(array), expected_sum(arrays, weights, arrays[0].dtype))


def test_arrays_of_several_tiles_and_chunks(tmp_path: Path) -> None:
    """Tiles follow the chunks of a source; parts of other sources are read where they are."""
    rng = np.random.default_rng(3)
    trees = [{"w": random_array(rng, (3000, 701), np.dtype(np.float32))} for _ in range(3)]
    cordwood.save(tmp_path / "a.safetensors", trees[0])
    cordwood.save(tmp_path / "b", trees[1], format="zarr", compression="zstd")
    cordwood.save(tmp_path / "c", trees[2])
    weights = [0.2, 0.3, 0.5]
    paths = [tmp_path / name for name in ("a.safetensors", "b", "c")]
    pairs = dict(zip(paths, weights, strict=True))
    cordwood.combine(tmp_path / "sum.safetensors", pairs)
    expected = expected_sum([tree["w"] for tree in trees], weights, np.float32)
    assert_trees_equal(cordwood.load(tmp_path / "sum.safetensors")["w"], expected)
    with cordwood.open_combined(pairs) as combination:
        assert_trees_equal(combination["w"][1000:1003, 5:9], expected[1000:1003, 5:9])
        assert cordwood.diff(combination, {"w": expected}).equal


def test_float64_accumulation_and_casts_round_once(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    trees = [{"w": random_array(rng, (50,), np.dtype(ml_dtypes.bfloat16))} for _ in range(3)]
    for n, tree in enumerate(trees):
        cordwood.save(tmp_path / f"{n}", tree)
    weights = [1 / 3] * 3
    pairs = dict(zip([tmp_path / f"{n}" for n in range(3)], weights, strict=True))
    arrays = [tree["w"] for tree in trees]
    for accumulate in ("float32", "float64"):
        for dtype in ("bf16", "float32", "float64"):
            with cordwood.open_combined(pairs, accumulate=accumulate, cast=dtype) as combination:
                result = combination.load()["w"]
            least = "float64" if dtype == "float64" else accumulate
            to = ml_dtypes.bfloat16 if dtype == "bf16" else dtype
            assert_trees_equal(result, expected_sum(arrays, weights, to, least))


def test_dtypes_that_differ_need_a_cast(tmp_path: Path) -> None:
    a, b = np.ones(3, np.float32), np.full(3, 2, ml_dtypes.bfloat16)
    cordwood.save(tmp_path / "a", {"w": a, "n": np.arange(2)})
    cordwood.save(tmp_path / "b", {"w": b, "n": np.arange(2)})
    pairs = {tmp_path / "a": 1, tmp_path / "b": 2}
    with pytest.raises(MismatchError, match=r"cast= .*\n  w: float32, bfloat16"):
        cordwood.combine(tmp_path / "out", pairs)
    assert not (tmp_path / "out").exists()
    cordwood.combine(tmp_path / "out", pairs, cast="f32")
    assert_trees_equal(cordwood.load(tmp_path / "out")["w"], np.full(3, 5, np.float32))


def test_every_difference_of_structure_is_named_before_anything_is_written(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "a", {"w": np.ones((2, 3)), "only_a": np.ones(1), "t": "x"})
    cordwood.save(tmp_path / "b", {"w": np.ones((3, 2)), "only_b": np.ones(1), "t": 1})
    with pytest.raises(MismatchError) as raised:
        cordwood.combine(tmp_path / "out", {tmp_path / "a": 1, tmp_path / "b": 1})
    text = str(raised.value)
    for part in (
        f"only_a: not in {tmp_path / 'b'}",
        f"only_b: only in {tmp_path / 'b'}",
        "w: float64[2,3] and, in",
        "t: str and, in",
    ):
        assert part in text
    assert not (tmp_path / "out").exists()


def test_leaves_of_other_formats_are_paired_by_name(tmp_path: Path) -> None:
    tree = {"layers": [{"w": np.ones(3, np.float32)}, {"w": np.zeros(3, np.float32)}]}
    cordwood.save(tmp_path / "a", tree)
    cordwood.convert(tmp_path / "a", tmp_path / "hub", format="hugging_face")
    cordwood.combine(tmp_path / "out", {tmp_path / "a": 1, tmp_path / "hub": 1})
    result = cordwood.load(tmp_path / "out")
    assert_trees_equal(result["layers"][0]["w"], np.full(3, 2, np.float32))


STATE = {
    "w": np.ones(3, np.float32),
    "step": np.int32(1),
    "key": np.arange(2, dtype=np.uint32),
    "rate": 0.5,
    "name": "a",
    "nan": float("nan"),
}


def _states(tmp_path: Path, **changes: Any) -> dict[Path, float]:
    cordwood.save(tmp_path / "1", STATE)
    cordwood.save(tmp_path / "2", {**STATE, **changes})
    return {tmp_path / "1": 0.5, tmp_path / "2": 0.5}


def test_other_leaves_are_those_of_all(tmp_path: Path) -> None:
    cordwood.combine(tmp_path / "out", _states(tmp_path))
    assert_trees_equal(cordwood.load(tmp_path / "out"), STATE)


def test_other_leaves_that_differ_are_an_error_with_its_remedies(tmp_path: Path) -> None:
    newer = {"step": np.int32(2), "key": np.arange(1, 3, dtype=np.uint32), "name": "b"}
    pairs = _states(tmp_path, **newer)
    with pytest.raises(
        MismatchError, match=r"these differ: step, key, name\. others=\"last\""
    ) as e:
        cordwood.combine(tmp_path / "out", pairs)
    assert "select= (--select)" in str(e.value)
    for others, tree in (("last", {**STATE, **newer}), ("first", STATE)):
        cordwood.combine(tmp_path / "out", pairs, others=others, overwrite=True)  # type: ignore[arg-type]
        assert_trees_equal(cordwood.load(tmp_path / "out"), tree)
    cordwood.combine(tmp_path / "w", pairs, select="w")
    assert list(cordwood.load(tmp_path / "w")) == ["w"]


def test_random_keys_are_no_numbers_to_add(tmp_path: Path) -> None:
    for seed in (0, 1):
        tree = {"w": jax.numpy.ones(2), "key": jax.random.key(seed)}
        cordwood.save(tmp_path / f"{seed}", tree)
    pairs = {tmp_path / "0": 0.5, tmp_path / "1": 0.5}
    with pytest.raises(MismatchError, match="these differ: key"):
        cordwood.open_combined(pairs)
    with cordwood.open_combined(pairs, others="last") as combination:
        result = combination.load()
    assert jax.random.key_data(result["key"]).tolist() == [0, 1]


def test_a_part_under_other_names(tmp_path: Path) -> None:
    for n in (1, 2):
        state = {"params": {"w": np.full(2, n, np.float32)}, "step": n}
        cordwood.save(tmp_path / f"{n}", state)
    cordwood.combine(
        tmp_path / "out",
        {tmp_path / "1": 0.5, tmp_path / "2": 0.5},
        select="params",
        rename={"params": ""},
    )
    assert_trees_equal(cordwood.load(tmp_path / "out"), {"w": np.full(2, 1.5, np.float32)})


def test_strings_that_are_the_same_in_all_stay(tmp_path: Path) -> None:
    tree = {"w": np.ones(2)}
    with cordwood.CheckpointManager(tmp_path / "run") as manager:
        manager.save(1, tree, metrics={"loss": 1.0})
    cordwood.save(tmp_path / "a", tree, metadata={"model": "m", "seed": "1"})
    cordwood.save(tmp_path / "b", tree, metadata={"model": "m", "seed": "2"})
    with cordwood.open_combined({tmp_path / "a": 1, tmp_path / "b": 1}) as combination:
        assert combination.metadata == {"model": "m"}
    with cordwood.open_combined({tmp_path / "run" / "1": 2}) as combination:
        assert combination.metadata == {}  # the metrics were those of another tree


def test_files_beside_weights_are_those_of_the_first(tmp_path: Path) -> None:
    for name in ("a", "b"):
        cordwood.save(tmp_path / f"{name}.safetensors", {"w": np.ones(2, np.float32)})
        cordwood.convert(tmp_path / f"{name}.safetensors", tmp_path / name, format="hugging_face")
        (tmp_path / name / "config.json").write_text(json.dumps({"name": name}))
    done = cordwood.combine(
        tmp_path / "out", {tmp_path / "a": 0.5, tmp_path / "b": 0.5}, format="hugging_face"
    )
    assert done.files == ("config.json",)
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == {"name": "a"}


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        ({}, ValueError, "at least one checkpoint"),
        ({"a": float("nan")}, ValueError, "a: expected a finite weight in float32, found nan"),
        ({"a": 1e39}, ValueError, "a: expected a finite weight in float32"),
        ({"a": "1"}, TypeError, "a: expected a number as its weight, found '1'"),
        ({"a": True}, TypeError, "a: expected a number as its weight, found True"),
        ([("a", 1)], TypeError, "expected a mapping of paths to weights"),
    ],
)
def test_wrong_weights_are_refused(
    tmp_path: Path, weights: Mapping[str, float], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        cordwood.combine(tmp_path / "out", weights)


def test_wrong_options_are_refused(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "a", STATE)
    with pytest.raises(ValueError, match='accumulate: expected "float32" or "float64"'):
        cordwood.open_combined({tmp_path / "a": 1}, accumulate="bf16")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='accumulate: expected "float32" or "float64"'):
        cordwood.combine(tmp_path / "b", {tmp_path / "a": 1}, accumulate="f32")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='others: expected "equal", "first" or "last"'):
        cordwood.open_combined({tmp_path / "a": 1}, others="all")  # type: ignore[arg-type]


def test_the_result_never_replaces_an_operand(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "a", STATE)
    (tmp_path / "link").symlink_to("a")
    (pack,) = (tmp_path / "a").glob("data-*.safetensors")
    calls = {"a": "a", "link": "a", "a/": "a", "./a": str(pack)}
    for destination, operand in calls.items():
        with pytest.raises(ValueError, match=r"would replace .*a.*: write to another path"):
            cordwood.combine(f"{tmp_path}/{destination}", {tmp_path / operand: 1}, overwrite=True)
    with pytest.raises(ValueError, match="would be converted into itself"):
        cordwood.convert(pack, tmp_path / "a", overwrite=True)
    assert_trees_equal(cordwood.load(tmp_path / "a"), STATE)
    cordwood.combine(tmp_path / "b", {pack: 1})  # as the messages say
    assert cordwood.detect(tmp_path / "b").format == "packs"


def test_each_checkpoint_is_located_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with cordwood.CheckpointManager(tmp_path / "run", save=1, keep=3) as manager:
        for step in range(3):
            manager.save(step, {"w": np.full(2, step, np.float32)}, metrics={"loss": step})
    located = []
    real = locate_step._step

    def choose(nickname: Any) -> Any:
        located.append(nickname.name)
        return real(nickname)

    monkeypatch.setattr(locate_step, "_step", choose)
    weights = {tmp_path / "run" / name: 0.5 for name in ("latest", "best", "1")}
    cordwood.combine(tmp_path / "out", weights)
    assert located == ["latest", "best"]
    assert cordwood.load(tmp_path / "out")["w"].tolist() == [1.5, 1.5]


def test_arrays_without_names_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones(3))
    cordwood.save(tmp_path / "b", {"w": np.ones(3)})
    with cordwood.open(tmp_path / "a.npy") as opened:
        if opened.index.naming != "positions":
            pytest.skip("the array has a name")
    with pytest.raises(LossError, match="without names"):
        cordwood.open_combined({tmp_path / "a.npy": 1, tmp_path / "b": 1})


def test_damage_of_a_source_is_an_error_that_names_it(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "a.safetensors", {"w": np.ones(1000, np.float32)})
    cordwood.save(tmp_path / "b.safetensors", {"w": np.ones(1000, np.float32)})
    data = bytearray((tmp_path / "b.safetensors").read_bytes())
    data[-8] ^= 1
    (tmp_path / "b.safetensors").write_bytes(data)
    with pytest.raises(CorruptionError, match=r"b\.safetensors"):
        cordwood.combine(
            tmp_path / "out", {tmp_path / "a.safetensors": 1, tmp_path / "b.safetensors": 1}
        )
    assert not (tmp_path / "out").exists()


def test_progress_counts_each_byte_of_the_result_once(tmp_path: Path) -> None:
    for n in (1, 2):
        cordwood.save(tmp_path / f"{n}", {"w": np.ones(1 << 20, np.float32)})
    reports: list[Any] = []
    pairs = {tmp_path / "1": 0.5, tmp_path / "2": 0.5}
    cordwood.combine(tmp_path / "out", pairs, progress=reports.append)
    assert reports[-1][:2] == (4 << 20, 4 << 20)
    with cordwood.open_combined(pairs) as combination:
        reports.clear()
        combination.load(progress=reports.append)
    assert reports[-1][:2] == (4 << 20, 4 << 20)


def test_memory_is_a_few_tiles_for_any_number_of_checkpoints(tmp_path: Path) -> None:
    tree = {"w": np.ones((8192, 4096), np.float32)}  # 128 MiB
    for n in range(4):
        cordwood.save(tmp_path / f"{n}", tree)
    pairs = {tmp_path / f"{n}": 0.25 for n in range(4)}
    cordwood.combine(tmp_path / "warm", dict.fromkeys([tmp_path / "0"], 1), select="w")
    with traced_memory() as traced:
        cordwood.combine(tmp_path / "out", pairs)
    assert traced.peak_bytes < 100 << 20  # 32 of the writer, 36 of tiles that are kept
    assert_trees_equal(cordwood.load(tmp_path / "out"), tree)


def test_small_leaves_share_tiles(tmp_path: Path) -> None:
    tree = {str(n): np.full(10, n, np.float32) for n in range(300)}
    cordwood.save(tmp_path / "a", tree)
    with open_at(parse_location(tmp_path / "a")) as opened:
        leaves = opened.index.leaves
        plan = plan_combination(opened.index, [leaves], cast=None, accumulate="float32", where="a")
    assert [len(tile) for tile in plan.tiles] == [300]
    cordwood.combine(tmp_path / "b", {tmp_path / "a": 2})
    result = cordwood.load(tmp_path / "b")
    assert all((result[str(n)] == 2 * n).all() for n in range(300))


def test_a_checkpoint_at_the_destination_is_replaced_only_if_asked_for(tmp_path: Path) -> None:
    for name in ("a", "out"):
        cordwood.save(tmp_path / name, STATE)
    with pytest.raises(FileExistsError, match="pass overwrite=True") as raised:
        cordwood.combine(tmp_path / "out", {tmp_path / "a": 1}, others="first")
    assert "to_prefix" not in str(raised.value)  # combine has none
    cordwood.combine(tmp_path / "out", {tmp_path / "a": 1}, others="first", overwrite=True)
