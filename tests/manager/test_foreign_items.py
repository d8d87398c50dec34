"""Jobs that move over with several trees, JSON, random keys and iterators beside the tree."""

from __future__ import annotations

import datetime
import json
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

import cordwood
from cordwood import CheckpointManager, StepReader
from cordwood.errors import CorruptionError, FormatError, MismatchError, PrefixError
from cordwood.formats.stored_trees import stored_trees
from cordwood.manager.items.foreign_items import load_foreign_item
from cordwood.storage.locations import LocalPath
from tests.manager.counters import ByteCounter, Counter, SharedByteCounter, SharedCounter

META = {"lr": 0.5, "names": ["a", "b"]}


def state_of(step: int) -> dict[str, Any]:
    return {"w": jnp.arange(8.0) + step}


def params_of(step: int) -> dict[str, Any]:
    return {"p": jnp.arange(4.0) * step}


@pytest.fixture
def composite(tmp_path: Path) -> Path:
    """Return a root of Orbax with one step, 20, and files of Grain as Grain writes them."""
    root = tmp_path / "comp"
    options = ocp.CheckpointManagerOptions(best_fn=lambda metrics: metrics["loss"])
    with ocp.CheckpointManager(root, options=options) as manager:
        manager.save(
            20,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(state_of(20)),
                params=ocp.args.StandardSave(params_of(20)),
                meta=ocp.args.JsonSave(META),
                rng=ocp.args.JaxRandomKeySave(jax.random.key(7)),
                raw=ocp.args.JaxRandomKeySave(jax.random.PRNGKey(7)),
                numpy=ocp.args.NumpyRandomKeySave(np.random.RandomState(3).get_state()),
            ),
            metrics={"loss": 0.5},
        )
        manager.wait_until_finished()
    for name, item in (("data", Counter(5)), ("loader", ByteCounter(6))):
        (root / "20" / name).mkdir()
        state = item.get_state()
        text = state.decode() if isinstance(state, bytes) else json.dumps(state, indent=4)
        (root / "20" / name / "process_0-of-1.json").write_text(text)
    return root


def test_a_job_with_a_composite_restarts_any_number_of_times(composite: Path) -> None:
    for expected in (20, 30, 40, 50):
        with CheckpointManager(composite, save=1, keep=2) as manager:
            data = Counter()
            restored = manager.restore(
                like=state_of(0),
                prefix="state",
                items={"params": params_of(0), "data": data},
                required=True,
            )
            assert restored.step == expected
            assert (restored.tree["w"] == state_of(expected)["w"]).all()
            assert (restored.items["params"]["p"] == params_of(expected)["p"]).all()
            assert next(data) == (5 if expected == 20 else expected)
            step = expected + 10
            items = {"params": params_of(step), "data": Counter(step)}
            manager.save(step, state_of(step), items=items)
    only = StepReader(composite).restore(like=params_of(0), prefix="params", required=True)
    assert (only.tree["p"] == params_of(60)["p"]).all()


def test_a_job_with_one_tree_of_a_composite(composite: Path) -> None:
    for expected in (20, 30, 40):
        with CheckpointManager(composite, save=1) as manager:
            restored = manager.restore(like=state_of(0), prefix="state", required=True)
            assert (restored.tree["w"] == state_of(expected)["w"]).all()
            manager.save(expected + 10, state_of(expected + 10))


def test_a_job_of_eformer_restarts_any_number_of_times(tmp_path: Path) -> None:
    from eformer.serialization import Checkpointer

    root = tmp_path / "run"
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("x",))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tool's own
        theirs = Checkpointer(str(root), datetime.timedelta(hours=1), [])
        theirs.save_pytree(params_of(10), prefix="model", mesh=mesh, step=10)
        theirs.save_pytree(state_of(10), prefix="tx", mesh=mesh, step=10)
    for expected in (10, 20, 30):
        with CheckpointManager(root, save=1) as manager:
            restored = manager.restore(
                like=params_of(0), prefix="model", items={"tx": state_of(0)}, required=True
            )
            assert restored.step == expected
            assert (restored.tree["p"] == params_of(expected)["p"]).all()
            assert (restored.items["tx"]["w"] == state_of(expected)["w"]).all()
            step = expected + 10
            manager.save(step, params_of(step), items={"tx": state_of(step)})


def test_what_lies_beside_the_trees(composite: Path) -> None:
    reader = StepReader(composite)
    names = ("meta", "rng", "raw", "numpy", "data", "params")
    restored = reader.restore(20, prefix="state", items=dict.fromkeys(names))
    assert restored.extras == {"meta": META}
    assert restored.metrics == {"loss": 0.5}
    items = restored.items
    assert items["meta"] == META
    assert jax.random.key_impl(items["rng"]) == jax.random.key_impl(jax.random.key(7))
    assert (jax.random.bits(items["rng"], (3,)) == jax.random.bits(jax.random.key(7), (3,))).all()
    assert items["raw"].dtype == jnp.uint32
    assert (items["raw"] == jax.random.PRNGKey(7)).all()
    again = np.random.RandomState(0)
    again.set_state(items["numpy"])
    assert again.randint(1000) == np.random.RandomState(3).randint(1000)
    assert items["data"] == {"next": 5, "stride": 1}
    assert (items["params"]["p"] == params_of(20)["p"]).all()


def test_a_key_is_of_the_implementation_asked_for(tmp_path: Path) -> None:
    key = jax.random.key(3, impl="rbg")
    with jax.default_prng_impl("rbg"), ocp.CheckpointManager(tmp_path / "run") as manager:
        args = ocp.args.Composite(
            state=ocp.args.StandardSave(state_of(1)), rng=ocp.args.JaxRandomKeySave(key)
        )
        manager.save(1, args=args)
        manager.wait_until_finished()
    restored = StepReader(tmp_path / "run").restore(1, prefix="state", items={"rng": key})
    assert restored.items["rng"].dtype == key.dtype
    assert (jax.random.key_data(restored.items["rng"]) == jax.random.key_data(key)).all()


@pytest.mark.parametrize(
    ("name", "kind", "first"), [("data", Counter, 5), ("loader", ByteCounter, 6)]
)
def test_iterators_of_grain_go_on(composite: Path, name: str, kind: Any, first: int) -> None:
    iterator = kind()
    restored = StepReader(composite).restore(20, prefix="state", items={name: iterator})
    assert next(iterator) == first
    assert dict(restored.items) == {}


@pytest.mark.parametrize("name", ["rng/jax_random_key", "numpy/np_random_key"])
def test_a_key_whose_metadata_is_not_an_object(composite: Path, name: str) -> None:
    (composite / "20" / f"{name}_metadata" / "metadata").write_text("[1]")
    item = name.partition("/")[0]
    with pytest.raises(FormatError, match=rf"{name}_metadata/metadata: expected an object, found"):
        StepReader(composite).restore(20, prefix="state", items={item: None})


def test_messages_say_what_an_item_is(composite: Path) -> None:
    reader = StepReader(composite)
    with pytest.raises(
        MismatchError,
        match=r"/20 has no item 'ema'; it has: .*state \(a tree\), data \(the state of an iter"
        r".*meta \(JSON\), .*rng \(a random key of jax\)",
    ):
        reader.restore(20, prefix="state", items={"ema": None})
    with pytest.raises(MismatchError, match="'data' holds the states of an iterator: give the"):
        reader.restore(20, prefix="state", items={"data": state_of(0)})
    (composite / "20" / "data" / "process_0-of-1.json").rename(
        composite / "20" / "data" / "process_0-of-4.json"
    )
    with pytest.raises(MismatchError, match=r"has process_0-of-4.json, and no process_0-of-1.json"):
        reader.restore(20, prefix="state", items={"data": Counter()})
    advice = (
        rf"the item 'meta' is JSON, not a tree. .* cordwood.StepReader\('{composite}'\)"
        r".restore\(20, prefix='params', items=\{'meta': None\}\).items\['meta'\]"
    )
    with pytest.raises(PrefixError, match=advice):
        cordwood.load(composite / "20", prefix="meta")
    with pytest.raises(PrefixError, match="the item 'rng' is a random key of jax, not a tree"):
        reader.restore(20, prefix="rng")
    with pytest.raises(PrefixError, match=r"name the tree: prefix='params'"):
        reader.restore(20)


def test_the_metrics_of_orbax_as_an_item(composite: Path) -> None:
    restored = StepReader(composite).restore(prefix="state", items={"metrics": None})
    assert restored is not None
    assert restored.items["metrics"] == {"loss": 0.5}


@pytest.mark.parametrize("data", [b"", b'{"a": ', b"\xff", b'{"a": 1, "a": 2}'])
def test_an_item_that_is_no_json_is_no_damage(
    composite: Path, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    """Handlers of Orbax's users write files of that name, too."""
    (composite / "20" / "own").mkdir()
    (composite / "20" / "own" / "metadata").write_bytes(data)
    restored = StepReader(composite).restore(prefix="state")
    assert restored is not None
    assert restored.extras == {"meta": META}
    assert "20: the item 'own' is left out of extras: " in caplog.text


def test_an_item_that_is_no_json_and_was_asked_for(composite: Path) -> None:
    (composite / "20" / "meta" / "metadata").write_bytes(b'{"a": ')
    with (
        pytest.warns(RuntimeWarning, match="step 20 is passed over"),
        pytest.raises(CorruptionError, match="meta/metadata is not JSON"),
    ):
        StepReader(composite).restore(prefix="state", items={"meta": None})


def test_an_array_that_was_saved_as_an_array(tmp_path: Path) -> None:
    names = ("state", "array", "number", "tree")
    with ocp.CheckpointManager(tmp_path / "run", item_names=names) as manager:
        arguments = ocp.args.Composite(
            state=ocp.args.StandardSave({"w": jnp.ones(3)}),
            array=ocp.args.ArraySave(jnp.arange(4.0)),
            number=ocp.args.ArraySave(7),
            tree=ocp.args.StandardSave({"checkpoint": jnp.zeros(2)}),
        )
        manager.save(1, args=arguments)
        manager.wait_until_finished()
    reader = cordwood.StepReader(tmp_path / "run")
    items: dict[str, Any] = {"array": jnp.zeros(4), "number": 0, "tree": None}
    restored = reader.restore(1, prefix="state", items=items)
    assert restored.items["array"].tolist() == [0, 1, 2, 3]
    assert restored.items["number"] == 7
    assert restored.items["tree"]["checkpoint"].tolist() == [0, 0]  # a tree of that name
    assert cordwood.load(tmp_path / "run" / "1", prefix="array").shape == (4,)


@pytest.mark.parametrize(
    ("kind", "plain"), [(SharedCounter, Counter), (SharedByteCounter, ByteCounter)]
)
def test_states_of_grain_for_another_number_of_processes(
    composite: Path, kind: type[Counter], plain: type[Counter]
) -> None:
    step = composite / "20"
    (step / "data" / "process_0-of-1.json").unlink()
    for index in range(2):
        text = json.dumps({"next": 10 + index, "stride": 2})
        (step / "data" / f"process_{index}-of-2.json").write_text(text)

    def load(item: Any, index: int, count: int) -> Any:
        processes: Any = SimpleNamespace(index=index, count=count)
        path, options = LocalPath(str(step)), {"progress": None}
        return load_foreign_item(path, "data", item, options, processes, trees=stored_trees(path))

    counter = kind()
    for index, count in ((0, 1), (0, 2), (1, 2), (2, 3)):
        counter.set_state(load(counter, index, count))
        assert [next(counter), next(counter)] == [10 + index, 10 + index + count]
    with pytest.raises(MismatchError, match=r"no process_0-of-1.json.*give the iterator.*merge_st"):
        load(plain(), 0, 1)
    (step / "data" / "process_0-of-2.json").unlink()
    with pytest.raises(MismatchError, match=r"has process_1-of-2.json, and no process_0-of-1"):
        load(kind(), 0, 1)
