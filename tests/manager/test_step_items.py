"""Several named trees in a step: committed together, loaded alone or together."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cordwood
from cordwood import CheckpointManager, StepReader
from cordwood.errors import CorruptionError, MismatchError, PrefixError, UnsupportedLeafError
from cordwood.loading.load_tree import load_checkpoint
from cordwood.manager.items.items_to_restore import load_item
from cordwood.results import SaveReport
from cordwood.storage.locations import LocalPath, Location
from tests.manager.counters import Counter


def tree_of(step: int) -> dict[str, Any]:
    return {"w": np.full((64, 64), step, np.float32), "b": {"x": np.arange(3) + step}}


def ema_of(step: int) -> dict[str, Any]:
    return {"w": jnp.full((64, 64), step / 2)}


def save(root: Path, *steps: int, **named: Any) -> None:
    with CheckpointManager(root, **named) as manager:
        for step in steps:
            data = Counter(step)
            items = {"ema": ema_of(step), "data": data, "probe": np.arange(step + 1)}
            manager.save(step, tree_of(step), items=items, metrics={"loss": 1.0})


def test_items_come_back_with_the_tree(tmp_path: Path) -> None:
    save(tmp_path, 3, 4)
    data = Counter()
    like = {"ema": ema_of(0), "data": data, "probe": np.zeros(5, int)}
    restored = StepReader(tmp_path).restore(like=tree_of(0), items=like, required=True)
    assert restored.step == 4
    assert (restored.tree["w"] == 4).all()
    assert set(restored.items) == {"ema", "probe"}
    assert isinstance(restored.items["ema"]["w"], jnp.ndarray)
    assert (restored.items["ema"]["w"] == 2).all()
    assert list(restored.items["probe"]) == [0, 1, 2, 3, 4]
    assert next(data) == 4
    assert "items['ema']: " in repr(restored)


def test_items_load_on_their_own(tmp_path: Path) -> None:
    save(tmp_path, 3)
    reader = StepReader(tmp_path)
    restored = reader.restore(3, items={"ema": None})
    assert set(restored.items) == {"ema"}
    assert (restored.items["ema"]["w"] == 1.5).all()
    assert (reader.restore(3, like=ema_of(0), prefix="ema").tree["w"] == 1.5).all()
    assert reader.restore(3, items={"data": None}).items["data"] == {"next": 3, "stride": 1}
    assert dict(reader.restore(3).items) == {}
    path = tmp_path / "3"
    assert (cordwood.load(path, prefix="ema")["w"] == 1.5).all()
    assert (cordwood.load(path)["w"] == 3).all()
    part = cordwood.load(path, {"w": jnp.zeros((64, 64), jnp.bfloat16)}, prefix="ema", cast=True)
    assert part["w"].dtype == jnp.bfloat16
    with cordwood.open(path, prefix="ema") as checkpoint:
        assert checkpoint["w"].shape == (64, 64)
    assert cordwood.verify(path).leaves == 2 + 1 + 1
    assert not cordwood.gc(path)


def test_one_commit_for_all(tmp_path: Path) -> None:
    """A step never counts with a part of its items."""
    save(tmp_path, 1)

    save(tmp_path, 2)
    index = (tmp_path / "2" / "cordwood.json").read_bytes()
    assert index.count(b'"cordwood-step"') == 1
    assert all(name in index for name in (b'"ema"', b'"probe"'))


def test_an_item_that_has_not_changed_is_linked(tmp_path: Path) -> None:
    reports: list[SaveReport] = []
    big = {"w": np.random.default_rng(0).random((1 << 20,), np.float32)}
    with CheckpointManager(tmp_path, on_save=reports.append) as manager:
        for step in (1, 2):
            tree = {"w": np.full(1 << 18, step, np.float32)}
            manager.save(step, tree, items={"frozen": big})
    assert [report.linked_bytes for report in reports] == [0, 4 << 20]
    assert reports[1].written_bytes == 1 << 20
    for step in (1, 2):
        assert (cordwood.load(tmp_path / str(step), prefix="frozen")["w"] == big["w"]).all()
        assert cordwood.verify(tmp_path / str(step)).verified_bytes
    manager.delete(1)
    restored = manager.restore(2, items={"frozen": big})
    assert (restored.items["frozen"]["w"] == big["w"]).all()


def test_items_that_are_missing_or_of_another_kind(tmp_path: Path) -> None:
    save(tmp_path, 3)
    reader = StepReader(tmp_path)
    with pytest.raises(
        MismatchError,
        match=r"has no item 'emma'; it has: ema \(a tree\), data \(a state\), probe \(a tree\)",
    ):
        reader.restore(items={"emma": None})
    with pytest.raises(
        MismatchError,
        match=r"'data' was saved as a state: expected what has set_state or .*, found",
    ):
        reader.restore(items={"data": ema_of(0)})
    with pytest.raises(
        MismatchError, match=r"'ema' was saved as a tree: expected a tree like it, or None .* found"
    ):
        reader.restore(items={"ema": Counter()})
    with pytest.raises(MismatchError, match=r"the item 'ema': .*\n.*w: expected float32\[3,3\]"):
        reader.restore(items={"ema": {"w": jnp.zeros((3, 3))}})


def test_things_that_are_no_items(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path)
    with pytest.raises(
        UnsupportedLeafError,
        match=r"items: data: .*object.* An item is a tree of arrays, or has get_state",
    ):
        manager.save(1, tree_of(1), items={"data": object()})
    with pytest.raises(ValueError, match="items: expected names that are not empty"):
        manager.save(1, tree_of(1), items={"": ema_of(1)})
    no_dict: Any = ["ema"]
    with pytest.raises(TypeError, match=r"items: expected a dict .*, found \['ema'\]"):
        manager.save(1, tree_of(1), items=no_dict)
    with pytest.raises(TypeError, match=r"items: expected a dict .*, found \['ema'\]"):
        manager.restore(items=no_dict)
    assert manager.steps() == []
    with manager:
        manager.save(1, tree_of(1), items={"a/b c": ema_of(1)})
    assert (cordwood.load(tmp_path / "1", prefix="a/b c")["w"] == 0.5).all()


def test_damage_of_an_item_is_passed_over(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    index = cordwood.open(tmp_path / "2", prefix="ema").index
    path = tmp_path / "2" / index.sources[0].name
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptionError):
        cordwood.verify(tmp_path / "2")
    reader = StepReader(tmp_path)
    data_iterator = Counter()
    with pytest.warns(RuntimeWarning, match="step 2 is passed over"):
        restored = reader.restore(items={"ema": None, "data": data_iterator}, required=True)
    assert restored.step == 1
    assert next(data_iterator) == 1  # what was set is that of the step that was restored
    assert StepReader(tmp_path).restore(required=True).step == 2  # the tree itself is whole


def test_a_step_that_is_saved_anew_has_no_items_of_before(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    for each in (tmp_path / "2").glob("data-*"):
        each.write_bytes(b"")
    manager = CheckpointManager(tmp_path)
    with pytest.warns(RuntimeWarning, match="step 2 is passed over"):
        manager.restore()
    with manager:
        manager.save(2, tree_of(2))
    assert cordwood.verify(tmp_path / "2").leaves == 2
    with pytest.raises(MismatchError, match="has no item 'ema'; it has: none"):
        manager.restore(2, items={"ema": None})


def test_a_job_restarts_with_the_same_script(tmp_path: Path) -> None:
    for start in range(3):
        with CheckpointManager(tmp_path, keep=2) as manager:
            data = Counter()
            like = {"ema": ema_of(0), "data": data}
            restored = manager.restore(like=tree_of(0), items=like) if start else None
            if restored is not None:
                assert next(data) == restored.step == start - 1
            manager.save(
                start, tree_of(start), items={"ema": ema_of(start), "data": Counter(start)}
            )


def test_a_prefix_that_no_tree_has_is_an_error(tmp_path: Path) -> None:
    save(tmp_path, 1)
    with pytest.raises(PrefixError, match=r"'eam'; its items that are trees: ema, probe"):
        StepReader(tmp_path).restore(like=tree_of(0), prefix="eam")


def test_a_prefix_is_warned_of_where_a_step_has_one_tree_only(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, tree_of(1))
    with pytest.warns(RuntimeWarning, match="'state'; its only tree is restored") as caught:
        restored = StepReader(tmp_path).restore(like=tree_of(0), prefix="state", required=True)
    assert caught[0].filename == __file__
    assert (restored.tree["w"] == tree_of(1)["w"]).all()


def test_a_job_that_begins_anew_with_a_prefix_restarts_with_it(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        with CheckpointManager(tmp_path) as manager:
            restored = manager.restore(like=tree_of(0), prefix="state", items=None)
            assert step == 1 or (restored is not None and restored.step == step - 1)
            if restored is not None:  # another tree of the step, to look at it
                manager.restore(step - 1, like=ema_of(0), prefix="ema")
            manager.save(step, tree_of(step), items={"ema": ema_of(step)})
    with pytest.raises(PrefixError):
        StepReader(tmp_path).restore(prefix="params")


def test_a_step_that_goes_between_its_tree_and_its_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that only reads goes back to the step before, as for any step that is deleted."""
    save(tmp_path, 1, 2)

    def load(location: Location, *arguments: Any, prefix: str | None = None) -> Any:
        if prefix == "ema" and location.name == "2":
            shutil.rmtree(str(location))
        return load_checkpoint(location, *arguments, prefix=prefix)

    monkeypatch.setattr("cordwood.manager.items.items_to_restore.load_checkpoint", load)
    restored = StepReader(tmp_path).restore(items={"ema": None})
    assert restored is not None
    assert restored.step == 1


def test_there_is_nothing_to_take_a_prefix_of(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        cordwood.load(tmp_path / "1", prefix="ema")


def test_an_item_that_a_step_lacks_is_kept_on_demand(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 1)
    caplog.set_level("INFO", "cordwood")
    new, data = {"w": np.arange(3)}, Counter(7)
    restored = StepReader(tmp_path).restore(
        like=tree_of(0), items={"new": new, "other": data}, missing="keep", required=True
    )
    assert restored.items["new"] is new
    assert set(restored.items) == {"new"}
    assert next(data) == 7
    assert "1 has no item 'new': what was given is kept" in caplog.text
    for nothing in (None, {"w": jax.ShapeDtypeStruct((3,), "float32")}):
        with pytest.raises(MismatchError, match="has no item 'new'"):
            StepReader(tmp_path).restore(items={"new": nothing}, missing="keep")


@pytest.mark.parametrize("deep", [False, True])
def test_equal_states_of_other_processes_are_one_state(deep: bool) -> None:
    one: Any = {"a": 1, "b": 2}
    other: Any = {"b": 2, "a": 1}
    for _ in range(480 * deep):
        one, other = [one], [other]
    alone: Any = SimpleNamespace(index=0, count=1)
    states = [{"json": one}, {"json": other}]
    assert load_item(LocalPath("run/1"), "data", states, Counter(), {}, alone) == one


def test_states_of_another_number_of_processes_come_as_a_list() -> None:
    states = [{"json": 1}, {"json": 2}, {"json": 3}]
    alone: Any = SimpleNamespace(index=0, count=1)
    assert load_item(LocalPath("run/1"), "data", states, None, {}, alone) == [1, 2, 3]
    with pytest.raises(MismatchError, match="saved by 3 processes"):
        load_item(LocalPath("run/1"), "data", states, Counter(), {}, alone)
