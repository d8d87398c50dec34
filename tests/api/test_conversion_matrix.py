"""Every reader to every writer, from files that the real libraries wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import cordwood
from cordwood.errors import LossError, MismatchError
from tests.golden.orbax_checkpoints import LAYOUTS

FOLDER = Path(__file__).parent.parent / "golden"
SOURCES = [
    "flax-0.12.8.msgpack",
    "flax-0.12.8-chunked.msgpack",
    "eformer-0.0.101.msgpack-records",
    "hugging-face-shards",
    "numpy-2.4.6.npy",
    "numpy-2.4.6.npz",
    "numpy-2.4.6-deflated.npz",
    "jax-0.10.2-step-100",
    "reference-0.8.0.safetensors",
    *[f"orbax/{layout}" for layout in LAYOUTS],
]
TARGETS: dict[str, dict[str, Any]] = {
    "b.safetensors": {},
    "b.msgpack": {},
    "b.msgpack.zst": {},
    "packs": {"format": "packs"},
    "zarr": {"format": "zarr"},
    "zarr-zstd": {"format": "zarr", "compression": "zstd"},
}


@pytest.mark.parametrize("target", list(TARGETS))
@pytest.mark.parametrize("name", SOURCES)
def test_lossless_or_refused_with_the_reason(tmp_path: Path, name: str, target: str) -> None:
    source, path = FOLDER / name, tmp_path / target
    options = TARGETS[target]
    refusal = ""
    try:
        assert cordwood.convert(source, path, **options).lost == ()
    except LossError as e:
        refusal = str(e)
    if refusal:
        assert "msgpack" in target
        assert "would lose something (lossy=True or --lossy accepts the loss" in refusal
        assert not path.exists()
        assert cordwood.convert(source, path, lossy=True, **options).lost
    strict = "msgpack" not in target
    difference = cordwood.diff(source, path, strict=strict)
    assert {leaf.what for leaf in difference.leaves} <= (set() if strict else {"kind"}), str(
        difference
    )
    assert not difference.containers
    assert all("prng" in leaf.a or "key<" in leaf.a for leaf in difference.leaves)


def test_arrays_without_names_are_only_read_with_like(tmp_path: Path) -> None:
    source = FOLDER / "equinox-0.13.8.eqx"
    with pytest.raises(LossError, match=r"holds .* without names or structure: load it with like="):
        cordwood.convert(source, tmp_path / "b")
    with pytest.raises(MismatchError, match="holds arrays without names: load it into a tree"):
        cordwood.diff(source, {})
    with pytest.raises(MismatchError, match="which select, rename and transpose need"):
        cordwood.load(source, select="0")
    with pytest.raises(ValueError, match="holds arrays without names: all have to be there"):
        cordwood.load(source, like={}, missing="keep")
