"""The benchmark of conversions, at a small size: every part works; times do not matter."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp

import cordwood
from benchmarks.bare import copy_direct
from benchmarks.convert import BARE, PAIRS, as_markdown, contenders, prepare, suffix_of


def test_all_conversions_hold_what_was_saved(tmp_path: Path) -> None:
    tree = {"w": jnp.arange(3000.0), "b": jnp.ones(5)}
    calls = contenders(prepare(tree, tmp_path))
    assert len(calls) == 1 + len(PAIRS)
    for number, (name, call) in enumerate(calls.items()):
        path = tmp_path / f"made-{number}{suffix_of(name)}"
        call(path)
        if name == BARE:
            assert path.read_bytes() == (tmp_path / "source-safetensors.safetensors").read_bytes()
        else:
            assert cordwood.diff(path, tree).equal, name


def test_the_bare_copy_of_an_odd_size(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(range(256)) * 40_000 + b"odd")
    copy_direct(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_page_says_what_is_not_met() -> None:
    page = as_markdown({BARE: 1.0, "a to b": 2.0}, {BARE: 0, "a to b": 1 << 20}, 10**9, 3, "ext4")
    assert "\n- ext4\n" in page
    assert "| a to b | 2.00 | 0.50 | 0.50 | 1 |" in page
    assert "Not met by: a to b." in page
    assert "All are met." in as_markdown({BARE: 1.0}, {BARE: 0}, 10**9, 3, "ext4")
    took = {BARE: 1.0, "msgpack.gz to packs": 9.0}
    assert "All are met." in as_markdown(
        took, {BARE: 0, "msgpack.gz to packs": 0}, 10**9, 3, "ext4"
    )
    page = as_markdown(took, {BARE: 0, "msgpack.gz to packs": 257 << 20}, 10**9, 3, "ext4")
    assert "Not met by: msgpack.gz to packs." in page
