"""The benchmark of verify, at a small size: every part works; times do not matter."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import pytest
import xxhash

from benchmarks.bare import read_through
from benchmarks.verify import (
    Measured,
    as_markdown,
    contenders,
    files_of,
    measure,
    prepare,
    take_digests,
)


def test_all_formats_are_verified(tmp_path: Path) -> None:
    tree = {"w": jnp.arange(3000.0), "b": jnp.ones(5)}
    places = prepare(tree, tmp_path)
    assert list(contenders(places)) == [
        f"{what} {name}" for name in places for what in ("bare", "hashed", "verify")
    ]
    measured = measure(places, 1)
    for name, each in measured.items():
        assert each.size_bytes > 12_000, name
        checked = each.verified_bytes > 12_000
        assert checked == (name != ".msgpack"), name
    page = as_markdown(measured, 1, "ext4")
    assert "\n- ext4\n" in page
    for name in places:
        assert page.count(f"| {name} |") == 2


def test_the_bare_read_takes_all_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * ((4 << 20) + 3))
    (tmp_path / "b").write_bytes(b"")
    (tmp_path / "c").write_bytes(b"y")
    assert [path.name for path in files_of(tmp_path)] == ["a", "b", "c"]
    sizes: list[int] = []
    read_through(files_of(tmp_path), lambda data: sizes.append(len(data)))
    assert sorted(sizes) == [1, 3, 4 << 20]


def test_digests_are_taken_of_each_mib(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(xxhash, "xxh3_128_digest", lambda data: sizes.append(len(data)))
    take_digests(memoryview(bytes((2 << 20) + 5)))
    assert sizes == [1 << 20, 1 << 20, 5]


def test_the_page_says_what_is_not_met() -> None:
    bare, hashed = {"warm": 0.5, "cold": 1.0}, {"warm": 0.8, "cold": 1.0}
    slow = Measured(bare, hashed, {"warm": 1.0, "cold": 1.0}, 10**9, 10**9)
    page = as_markdown({"packs": slow}, 3, "ext4")
    assert "| packs | warm | 0.500 | 0.800 | 1.000 | 1.00 | 0.50 | 100% |" in page
    assert "Not met by: packs (warm)." in page
    fast = slow._replace(bare={"warm": 0.9, "cold": 0.9})
    assert "All are met." in as_markdown({"packs": fast}, 3, "ext4")
