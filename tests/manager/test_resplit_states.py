"""Iterators go on where another number of processes saved them, if they merge and split states."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood.errors import MismatchError
from cordwood.manager.items.items_to_restore import load_item
from cordwood.manager.items.items_to_save import collect_states, join_items, states_tree
from cordwood.results import Resplittable
from cordwood.storage.locations import LocalPath
from tests.manager.counters import Counter, SharedByteCounter, SharedCounter

OPTIONS = {"progress": None}


class ArrayCounter(SharedCounter):
    """One whose state holds an array and has the names of PyTorch."""

    get_state = set_state = None  # type: ignore[assignment]

    def state_dict(self) -> Any:
        return {"next": np.int64(self.next), "stride": self.stride}

    def load_state_dict(self, state: Any) -> None:
        self.next, self.stride = int(state["next"]), state["stride"]


def saved_by(count: int) -> list[dict[str, Any]]:
    """Return the item of a record: each of `count` processes has read 5 numbers."""
    return [{"json": SharedCounter(count * 5 + i, count).get_state()} for i in range(count)]


def processes(index: int, count: int) -> Any:
    return SimpleNamespace(index=index, count=count)


def load(saved: Any, item: Any, index: int, count: int, path: str = "run/1") -> Any:
    return load_item(LocalPath(path), "data", saved, item, OPTIONS, processes(index, count))


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 3), (3, 2), (4, 8)])
def test_all_numbers_are_read_once(before: int, after: int) -> None:
    every = []
    for index in range(after):
        counter = SharedCounter()
        counter.set_state(load(saved_by(before), counter, index, after))
        every += [next(counter) for _ in range(4)]
    start = before * 5
    assert sorted(every) == list(range(start, start + 4 * after))


def test_the_states_come_in_the_order_of_the_processes() -> None:
    class Listed(SharedCounter):
        def merge_states(self, states: list[Any]) -> Any:
            return states

        def split_state(self, state: Any, process_index: int, process_count: int) -> Any:
            return [state, process_index, process_count]

    expected = [each["json"] for each in saved_by(3)]
    assert load(saved_by(3), Listed(), 1, 2) == [expected, 1, 2]


class Refusing(SharedCounter):
    def merge_states(self, states: list[Any]) -> Any:
        raise AssertionError("merge_states was called")


def test_the_same_number_of_processes_merges_nothing() -> None:
    for index in range(2):
        state = load(saved_by(2), Refusing(), index, 2)
        assert state == {"next": 10 + index, "stride": 2}


def test_equal_states_are_merged_and_split_too() -> None:
    class Positions(SharedCounter):
        def merge_states(self, states: list[Any]) -> Any:
            return sum(state["position"] for state in states)

        def split_state(self, state: Any, process_index: int, process_count: int) -> Any:
            return {"position": state // process_count}

    saved = [{"json": {"position": 6}}] * 2
    assert load(saved, Positions(), 0, 3) == {"position": 4}
    assert load(saved, Counter(), 0, 3) == {"position": 6}


@pytest.mark.parametrize(("before", "after"), [(2, 3), (2, 1), (1, 3)])
def test_one_state_for_another_number_of_processes_is_set_with_a_warning(
    before: int, after: int, caplog: pytest.LogCaptureFixture
) -> None:
    saved = [{"json": {"next": 6, "stride": 1}}] * before
    for index in range(after):
        assert load(saved, Counter(), index, after) == {"next": 6, "stride": 1}
    (message,) = caplog.messages  # of process 0 alone
    who = "1 process" if before == 1 else f"{before} processes"
    assert f"run/1: the item 'data' was saved by {who} in one state, and {after} rest" in message
    assert "give it the methods merge_states(states) and split_state(state, process_in" in message
    caplog.clear()
    load(saved, SharedCounter(), 0, after)  # as the warning says
    load(saved, None, 0, after)
    load(saved, Counter(), 0, before)
    assert caplog.messages == []


def test_states_of_bytes_and_arrays_are_split_again(tmp_path: Path) -> None:
    for kind in (SharedByteCounter, ArrayCounter):
        path = tmp_path / kind.__name__
        items = [{"data": kind(10 + index, 2)} for index in range(2)]
        entries = [collect_states(each, process_count=2) for each in items]
        record, trees = states_tree(join_items([each for each, _ in entries]), entries[0][1])
        if trees:
            cordwood.save(path, trees["data"], prefix="data")
        assert bool(trees) == (kind is ArrayCounter)
        state = load(record["data"], kind(), 2, 3, str(path))
        again = kind()
        set_state = again.load_state_dict if isinstance(again, ArrayCounter) else again.set_state
        set_state(state)
        assert [next(again), next(again)] == [12, 15]


@pytest.mark.parametrize("methods", [(), ("merge_states",), ("split_state",)])
def test_without_both_methods_the_error_names_them(methods: tuple[str, ...]) -> None:
    item = Counter()
    for name in methods:
        setattr(item, name, getattr(SharedCounter(), name))
    advice = r"give it the methods merge_states\(states\) and split_state\(state, process_index, p"
    with pytest.raises(MismatchError, match=rf"was saved by 2 processes.* 1 restore it: {advice}"):
        load(saved_by(2), item, 0, 1)
    assert load(saved_by(2), None, 0, 1) == [each["json"] for each in saved_by(2)]
    advised: Resplittable = SharedCounter()
    assert load(saved_by(2), advised, 0, 1) == {"next": 10, "stride": 1}
