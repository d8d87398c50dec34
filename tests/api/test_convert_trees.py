"""convert of a source with several trees: all go along, or what does not is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood import CheckpointManager
from cordwood.errors import LossError, PrefixError
from cordwood.testing import assert_trees_equal
from tests.api.test_diff_trees import SAVES, UNNAMED, weights
from tests.cli.conftest import Run, run  # noqa: F401  (a fixture)


@pytest.mark.parametrize("kind", SAVES)
@pytest.mark.parametrize("name", ["out.safetensors", "hub"])
def test_one_tree_where_the_destination_holds_one(tmp_path: Path, kind: str, name: str) -> None:
    source, path = tmp_path / "run/1", tmp_path / name
    SAVES[kind](source, {"": weights(), "ema": weights(2)})
    layout: Any = "hugging_face" if name == "hub" else None
    if kind in UNNAMED:  # no tree is the default
        with pytest.raises(PrefixError, match="prefix='default'"):
            cordwood.convert(source, path, format=layout)
    else:
        with pytest.raises(LossError, match=r"and lose the tree 'ema': choose .* prefix="):
            cordwood.convert(source, path, format=layout)
        done = cordwood.convert(source, path, format=layout, lossy=True, metadata={})
        assert done.lost[0] == "the tree 'ema'"
        assert str(done).startswith("lost: the tree 'ema'\n")
    chosen = cordwood.convert(
        source, tmp_path / f"ema-{name}", format=layout, prefix="ema", metadata={}
    )
    assert chosen.lost == chosen.left_out == ()
    loaded = cordwood.load(tmp_path / f"ema-{name}", nest=True)
    assert_trees_equal(loaded["layer"]["w"], weights(2)["layer"]["w"])


@pytest.mark.parametrize("kind", SAVES)
@pytest.mark.parametrize("layout", ["packs", "zarr"])
def test_all_trees_go_along_to_a_directory(tmp_path: Path, kind: str, layout: Any) -> None:
    source, path = tmp_path / "run/1", tmp_path / "out"
    SAVES[kind](source, {"": weights(), "ema": weights(2)})
    done = cordwood.convert(source, path, format=layout)
    assert done.prefixes == (UNNAMED.get(kind, ""), "ema")
    assert cordwood.diff(source, path).equal


OPTIONS: dict[str, dict[str, Any]] = {
    "rename": {"rename": {"layer/w": "w"}},
    "transpose": {"transpose": {"**": None}},
    "cast": {"cast": {"**": "bf16"}},
    "to_prefix": {"to_prefix": "x"},
}


@pytest.mark.parametrize("option", ["rename", "cast", "to_prefix"])
def test_options_of_one_tree(tmp_path: Path, option: str) -> None:
    SAVES["packs"](tmp_path / "a", {"": weights(), "ema": weights(2)})
    with pytest.raises(LossError, match="and lose the tree 'ema'"):
        cordwood.convert(tmp_path / "a", tmp_path / "b", **OPTIONS[option])
    assert not (tmp_path / "b").exists()
    done = cordwood.convert(tmp_path / "a", tmp_path / "b", prefix="ema", **OPTIONS[option])
    assert done.lost == done.left_out == ()


def test_selected_leaves_are_of_one_tree(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    SAVES["packs"](tmp_path / "a", {"": weights(), "ema": weights(2)})
    done = cordwood.convert(tmp_path / "a", tmp_path / "b.safetensors", select="layer")
    assert done.left_out == ("the tree 'ema'",)
    assert "not converted: the tree 'ema'" in str(done)
    assert "not converted: the tree 'ema'" in caplog.text


def test_an_open_tree_is_chosen(tmp_path: Path) -> None:
    SAVES["packs"](tmp_path / "a", {"": weights(), "ema": weights(2)})
    with cordwood.open(tmp_path / "a", prefix="ema") as checkpoint:
        done = cordwood.convert(checkpoint, tmp_path / "b.safetensors")
    assert done.lost == done.left_out == ()


def test_the_command_asks_for_a_prefix_or_lossy(tmp_path: Path, run: Run) -> None:  # noqa: F811
    SAVES["packs"](tmp_path / "a", {"": weights(), "ema": weights(2)})
    ran = run("convert", tmp_path / "a", tmp_path / "b.safetensors")
    assert ran.code == 3
    assert "choose a tree with prefix= (--prefix)" in ran.err
    assert run("convert", tmp_path / "a", tmp_path / "b.safetensors", "--lossy").code == 0
    assert run("convert", tmp_path / "a", tmp_path / "c.safetensors", "--prefix", "").code == 0
    assert run("convert", tmp_path / "a", tmp_path / "d").code == 0  # "a directory"


def test_a_step_whose_items_have_states(tmp_path: Path) -> None:
    class Iterator:
        def get_state(self) -> dict[str, Any]:
            return {"position": np.arange(3)}

        def set_state(self, state: Any) -> None:
            del state

    with CheckpointManager(tmp_path / "run") as manager:
        manager.save(1, weights(), items={"data": Iterator()})
    with pytest.raises(LossError, match="lose the tree 'data'"):
        cordwood.convert(tmp_path / "run/1", tmp_path / "out.safetensors")
