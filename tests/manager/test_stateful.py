"""Iterators over data go on where a step was saved, each process's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cordwood import CheckpointManager, MismatchError
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


@pytest.mark.parametrize("state", [(1, 2), {1: 2}, object(), np.ones(2)])
def test_states_that_cannot_be_kept(tmp_path: Path, state: Any) -> None:
    class Odd(Counter):
        def get_state(self) -> Any:
            return state

    manager = CheckpointManager(tmp_path)
    with pytest.raises(TypeError, match="items: data: get_state: expected values that JSON"):
        manager.save(1, TREE, items={"data": Odd()})
    assert manager.steps() == []
