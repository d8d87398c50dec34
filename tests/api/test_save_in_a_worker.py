"""Saves of the main thread write in another thread: what the caller's thread knows still counts."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cordwood
from cordwood.results import Progress
from cordwood.testing import assert_trees_equal
from tests.alarms import interruptions
from tests.descriptors import open_descriptors

NAMES = ["a.safetensors", "a.msgpack", "a.msgpack.zst", "packs", "zarr"]


def save(path: Path, tree: Any, **options: Any) -> None:
    cordwood.save(path, tree, format="zarr" if path.name == "zarr" else None, **options)


@pytest.mark.parametrize("name", NAMES)
def test_contexts_of_jax_change_nothing(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with jax.default_device(jax.devices()[-1]), jax.enable_x64(True):
        tree = {"wide": jnp.arange(5, dtype=jnp.float64) / 3, "b": jnp.ones(3, jnp.bfloat16)}
        save(path, tree)
        expected = {key: np.asarray(leaf) for key, leaf in tree.items()}
    assert_trees_equal(cordwood.load(path, to="numpy"), expected)


@pytest.mark.parametrize("name", ["a.safetensors", "packs"])
def test_the_error_of_a_callback_comes_through(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    threads = []

    def report(progress: Progress) -> None:
        threads.append(threading.current_thread())
        if progress.done_bytes:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        save(path, {"w": np.ones(1000)}, progress=report)
    assert not path.exists()
    assert threads[-1] is not threading.main_thread()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_interrupts_at_any_moment_leave_nothing(tmp_path: Path, name: str, large: bool) -> None:
    path = tmp_path / name
    tree = {"w": np.ones((4 << 20) if large else 3, np.float32), "step": 1}
    save(path, tree)
    before = open_descriptors()

    def again() -> None:
        save(path, tree)

    cuts = 0
    for cut in interruptions(again, times=10 if large else 40):
        cuts += cut
        assert [each.name for each in tmp_path.iterdir()] == [name]
    assert cuts
    assert open_descriptors() == before
    assert_trees_equal(cordwood.load(path), tree)
