"""Memory of dropped trees: kept for the next load, within a bound, never taken from arrays."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import cordwood
from cordwood.io.memory import memory_for_next_load
from tests.children import run_python
from tests.memory import traced_memory

MIB = 1 << 20


def release_all() -> None:
    gc.collect()
    # jax frees the memory of dropped arrays only when it makes the next one.
    jax.block_until_ready(jax.device_put(np.zeros(1)))
    cordwood.release_memory()


@pytest.fixture(scope="module", autouse=True)
def _older_objects_are_not_collected() -> Iterator[None]:
    gc.collect()
    gc.freeze()  # the collections of these tests traverse what they have made, and nothing older
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    release_all()
    yield
    release_all()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "tree.safetensors"
    cordwood.save(place, tree(1.0))
    return place


def tree(value: float) -> dict[str, np.ndarray]:
    """Return two leaves of 8 and 12 MiB."""
    return {
        "a": np.full(2 * MIB, value, np.float32),
        "b": np.full(3 * MIB, value + 1, np.float32),
    }


def kept_bytes() -> int:
    gc.collect()
    return sum(len(pages) for pages in memory_for_next_load._kept.pages)


def test_the_next_load_reads_into_the_memory_of_the_dropped_tree(path: Path) -> None:
    first = cordwood.load(path)
    places = {name: leaf.ctypes.data for name, leaf in first.items()}
    del first
    assert kept_bytes() == 20 * MIB
    second = cordwood.load(path)
    assert {name: leaf.ctypes.data for name, leaf in second.items()} == places
    assert kept_bytes() == 0
    assert np.array_equal(second["b"], tree(1.0)["b"])


def test_memory_that_any_view_still_uses_is_not_given_to_another_load(
    tmp_path: Path, path: Path
) -> None:
    other = tmp_path / "other.safetensors"
    cordwood.save(other, tree(7.0))
    first = cordwood.load(path)
    row = first["a"][5:10][::2]
    view = memoryview(first["b"])[3:5]
    del first
    assert kept_bytes() == 0
    second = cordwood.load(other)
    assert row.tolist() == [1.0] * 3
    assert view.tolist() == [2.0] * 2
    del row, view
    assert kept_bytes() == 20 * MIB
    del second


def test_memory_that_a_jax_array_aliases_is_not_given_to_another_load(
    tmp_path: Path, path: Path
) -> None:
    other = tmp_path / "other.safetensors"
    cordwood.save(other, tree(7.0))
    first = cordwood.load(path, to="jax")
    a = first.pop("a")
    del first
    second = cordwood.load(other, to="jax")
    third = cordwood.load(other, to="jax")
    assert float(a.min()) == float(a.max()) == 1.0
    assert float(second["b"].min()) == float(third["b"].max()) == 8.0


def test_dropped_jax_arrays_leave_their_memory_to_the_next_load(path: Path) -> None:
    first = cordwood.load(path, to="jax")
    place = first["b"].unsafe_buffer_pointer()
    del first
    second = cordwood.load(path, to="jax")
    assert second["b"].unsafe_buffer_pointer() == place
    jax.block_until_ready(second)


def test_a_load_of_another_tree_gives_back_what_it_cannot_use(tmp_path: Path, path: Path) -> None:
    other = tmp_path / "other.safetensors"
    cordwood.save(other, {"a": np.ones(2 * MIB, np.float32)})
    first = cordwood.load(path)
    del first
    second = cordwood.load(other)
    assert kept_bytes() == 0
    del second
    assert kept_bytes() == 8 * MIB


def release(path: Path) -> None:
    cordwood.release_memory()


def _too_little() -> int:
    return memory_for_next_load._limit_bytes - 1


def save_where_memory_is_short(path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            memory_for_next_load,
            "available_memory_bytes",
            lambda: memory_for_next_load._limit_bytes - 1,
        )
        cordwood.save(path, {"w": np.ones(3)})


def save_async(path: Path) -> None:
    cordwood.save_async(path, {"w": np.ones(3)}).wait()


@pytest.mark.parametrize("give_back", [release, save_where_memory_is_short, save_async])
def test_what_gives_kept_memory_back(
    tmp_path: Path, path: Path, give_back: Callable[[Path], None]
) -> None:
    first = cordwood.load(path)
    del first
    assert kept_bytes() == 20 * MIB
    give_back(tmp_path / "saved.safetensors")
    assert kept_bytes() == 0


def test_a_save_that_the_caller_waits_for_leaves_the_memory_to_the_next_load(
    tmp_path: Path, path: Path
) -> None:
    first = cordwood.load(path)
    place = first["b"].ctypes.data
    del first
    cordwood.save(tmp_path / "saved.safetensors", {"w": np.ones(3)})
    assert kept_bytes() == 20 * MIB
    assert cordwood.load(path)["b"].ctypes.data == place


def test_no_more_is_kept_than_the_bound(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_for_next_load, "_limit_bytes", 12 * MIB)
    first = cordwood.load(path)
    del first["a"], first["b"]  # 8 MiB fit, 12 more do not
    assert kept_bytes() == 8 * MIB


def test_the_bound_is_a_share_of_the_machine() -> None:
    assert 0 < memory_for_next_load.most_kept_bytes() <= 4 << 30


def test_memory_that_is_traced_is_numpys(path: Path) -> None:
    with traced_memory() as traced:
        first = cordwood.load(path)
        del first
    assert traced.peak_bytes >= 20 * MIB
    assert kept_bytes() == 0


PEAKS = """
import json, sys
import numpy as np
import cordwood

def status(field):
    with open("/proc/self/status") as lines:
        for line in lines:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024

def peak_of(path):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    tree = cordwood.load(path)
    return status("VmHWM")

before = status("VmRSS")
peaks = [peak_of(path) - before for path in sys.argv[1:]]
print(json.dumps(peaks))
"""


def test_loads_one_after_another_never_hold_two_trees(tmp_path: Path) -> None:
    paths = []
    for number, sizes in enumerate([(40, 60), (40, 60), (100,), (25, 75)]):
        paths.append(str(tmp_path / f"{number}.safetensors"))
        leaves = {str(i): np.full(mib * MIB, 3, np.uint8) for i, mib in enumerate(sizes)}
        cordwood.save(paths[-1], leaves)
    for peak in json.loads(run_python(PEAKS, *paths)):
        assert peak < 132 * MIB


def test_what_one_load_takes_no_other_load_gets(path: Path) -> None:
    """Between any two steps of a load another thread, or a signal handler, may load."""
    first = cordwood.load(path)
    del first
    sizes = [8 * MIB, 12 * MIB]
    taken_inside: list[dict[int, list[Any]]] = []

    def load_inside(frame: Any, event: str, _: Any) -> Any:
        if event == "line" and not taken_inside:
            sys.settrace(None)
            taken_inside.append(memory_for_next_load.take_kept_pages(sizes))
        return load_inside if frame.f_code.co_filename == memory_for_next_load.__file__ else None

    for number in range(12):  # the other load comes at the n-th step
        steps = 0
        taken_inside.clear()

        def at_step(frame: Any, event: str, argument: Any, number: int = number) -> Any:
            nonlocal steps
            if frame.f_code.co_filename != memory_for_next_load.__file__:
                return None
            steps += event == "line"
            if steps > number:
                return load_inside(frame, event, argument)
            return at_step

        earlier = sys.gettrace()
        sys.settrace(at_step)
        try:
            taken = memory_for_next_load.take_kept_pages(sizes)
        finally:
            sys.settrace(earlier)
        ours = [pages for same in taken.values() for pages in same]
        theirs = [pages for each in taken_inside for same in each.values() for pages in same]
        assert not {id(pages) for pages in ours} & {id(pages) for pages in theirs}
        for pages in [*ours, *theirs]:
            memory_for_next_load.keep_for_next_load(pages)
        assert kept_bytes() == 20 * MIB
