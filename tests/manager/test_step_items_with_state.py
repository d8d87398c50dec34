"""Iterators over data go on where a step was saved, each process's own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

import cordwood
from cordwood import CheckpointManager
from cordwood.errors import FormatError, MismatchError
from cordwood.manager.items.items_to_restore import load_item
from cordwood.manager.items.items_to_save import collect_states, join_items, states_tree
from cordwood.manager.items.recorded_items import saved_states
from cordwood.storage.locations import LocalPath
from tests.manager.counters import ByteCounter, Counter

TREE = {"w": np.zeros(3)}


@pytest.mark.parametrize("kind", [Counter, ByteCounter])
def test_an_iterator_goes_on(tmp_path: Path, kind: type[Counter]) -> None:
    data = kind()
    with CheckpointManager(tmp_path) as manager:
        for step in range(5):
            next(data)
            manager.save(step, TREE, items={"data": data})
    again = kind(100)
    other = CheckpointManager(tmp_path)
    restored = other.restore(like=TREE, items={"data": again})
    assert restored is not None
    assert next(again) == 5
    assert other.restore(2, like=TREE, items={"data": again}).step == 2
    assert next(again) == 3
    assert other.restore(2).tree["w"].shape == (3,)  # they need not be asked for


def test_items_that_are_not_there(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, TREE, items={"data": Counter()})
        manager.save(2, TREE)
    with pytest.raises(MismatchError, match=r"/1 has no item 'date'; it has: data"):
        manager.restore(1, items={"date": Counter()})
    with pytest.raises(MismatchError, match=r"/2 has no item 'data'; it has: none"):
        manager.restore(items={"data": Counter()})


@pytest.mark.parametrize("state", [object(), {"f": len}, [np.array(["text"])]])
def test_states_that_cannot_be_kept(tmp_path: Path, state: Any) -> None:
    class Odd(Counter):
        def get_state(self) -> Any:
            return state

    manager = CheckpointManager(tmp_path)
    with pytest.raises(TypeError, match=r"items: data: get_state.*: expected bytes, values that"):
        manager.save(1, TREE, items={"data": Odd()})
    assert manager.steps() == []


class Loader:
    """A loader like those of PyTorch: `state_dict` with arrays in it."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


STATES: dict[str, Any] = {
    "numpy": np.random.RandomState(7).get_state(),
    "nested": {"order": np.arange(6, dtype=np.int16), "next": [np.int64(3), (1.5, None)]},
    "numbers": {1: "one", "scalar": np.float32(2.5), "raw": b"\0\1", "flag": True},
    "array": np.ones((2, 3), np.float16),
    "tuple": (1, 2),
    "empty": {"none": {}, "array": np.zeros((0, 3))},
}


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray | np.generic):
        equal = np.array_equal(a, b) and a.dtype == b.dtype and a.shape == b.shape
        return type(a) is type(b) and equal
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(a == b)


@pytest.mark.parametrize("kind", STATES)
def test_states_with_arrays_come_back_as_they_were(tmp_path: Path, kind: str) -> None:
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, TREE, items={"data": Loader(STATES[kind])})
    again = Loader(None)
    restored = CheckpointManager(tmp_path).restore(required=True, items={"data": again})
    assert same(again.state, STATES[kind])
    assert dict(restored.items) == {}
    raw = CheckpointManager(tmp_path).restore(required=True, items={"data": None})
    assert same(raw.items["data"], STATES[kind])
    assert cordwood.verify(tmp_path / "1").verified_bytes


@pytest.mark.parametrize("kind", STATES)
def test_states_of_several_processes_are_sent_around(kind: str) -> None:
    """Process 0 saves the states that the other processes send."""
    entries = [
        collect_states({"data": Loader(state)}, process_count=2) for state in (STATES[kind], [kind])
    ]
    answer = join_items([message for message, _ in entries])
    record, trees = states_tree(answer, entries[0][1])
    if kind == "tuple":
        (first, second) = answer["data"]
        assert "arrays" in first
        assert second == {"json": ["tuple"]}
    assert record == {"data": {"tree": "states", "processes": 2}}
    assert same(trees["data"], [STATES[kind], [kind]])
    assert same(saved_states(record["data"], trees["data"], ""), [STATES[kind], [kind]])


@pytest.mark.parametrize("kind", STATES)
def test_states_of_another_number_of_processes(tmp_path: Path, kind: str) -> None:
    cordwood.save(tmp_path / "1", [STATES[kind], [kind]], prefix="data")
    saved = {"tree": "states", "processes": 2}
    options = {"progress": None}

    def load(process: int, count: int, item: Any = None) -> Any:
        processes: Any = SimpleNamespace(index=process, count=count)
        return load_item(LocalPath(str(tmp_path / "1")), "data", saved, item, options, processes)

    for process, state in enumerate((STATES[kind], [kind])):
        assert same(load(process, 2), state)
    assert same(load(0, 3), [STATES[kind], [kind]])
    with pytest.raises(MismatchError, match="saved by 2 processes, each with a state of its own"):
        load(0, 3, Loader(None))
    cordwood.save(tmp_path / "1", [STATES[kind], STATES[kind]], prefix="data")
    assert same(load(2, 3, Loader(None)), STATES[kind])


def test_processes_must_save_the_same_items() -> None:
    one = collect_states({"data": Counter()}, process_count=2)[0]
    other = collect_states({"data": {"w": np.zeros(2)}}, process_count=2)[0]
    with pytest.raises(ValueError, match=r"0 saves \['data'\], process 1 \['data \(a tree\)'\]"):
        join_items([one, other])


def test_a_state_with_a_random_key_says_where_it_is(tmp_path: Path) -> None:
    class Random(Counter):
        def get_state(self) -> Any:
            return {"rng": jax.random.key(0)}

    with pytest.raises(TypeError, match=r"items: data: get_state\['rng'\]: .*key_data"):
        CheckpointManager(tmp_path).save(1, {}, items={"data": Random()})


def test_a_state_that_holds_itself(tmp_path: Path) -> None:
    class Round(Counter):
        def get_state(self) -> Any:
            state: list[Any] = []
            state.append(state)
            return state

    with pytest.raises(TypeError, match=r"items: data: get_state: it holds itself"):
        CheckpointManager(tmp_path).save(1, {}, items={"data": Round()})


@pytest.mark.parametrize("text", ["@", "\u00e9", 3])
def test_a_state_that_is_no_base64(text: Any) -> None:
    with pytest.raises(FormatError, match="run/1: items: data: no base64"):
        saved_states([{"bytes": text}], None, "run/1: items: data")
