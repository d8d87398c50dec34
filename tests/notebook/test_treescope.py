"""treescope draws checkpoints and stored leaves, by its protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood

treescope = pytest.importorskip("treescope")


def test_a_checkpoint_is_a_tree_with_copy_buttons(tmp_path: Path) -> None:
    state = {"params": {"w": np.zeros((4, 8), np.float32), "b": np.zeros(8)}, "n": "<script>"}
    cordwood.save(tmp_path / "a", state)
    with cordwood.open(tmp_path / "a") as checkpoint:
        text = treescope.render_to_text({"run": checkpoint})
        html = treescope.render_to_html({"run": checkpoint}, compressed=False)
        leaf = treescope.render_to_text(checkpoint["params/w"])
    assert f"packs checkpoint {tmp_path}/a: 3 leaves, 192 B" in text
    assert "params/ 2 leaves, 192 B {" in text
    assert "w: float32[4,8]  128 B," in text
    assert leaf.startswith("params/w: float32[4,8]  128 B")
    for name in ("params/w", "params/b", "n"):
        assert f"['run']['{name}']" in html.replace("\\u0027", "'").replace("&#x27;", "'")


def test_deep_trees_are_cut(tmp_path: Path) -> None:
    leaf = np.zeros(1, np.float32)
    tree: dict[str, Any] = {}
    node = tree
    for _ in range(200):
        node.update(a=leaf, b={})
        node = node["b"]
    cordwood.save(tmp_path / "a", tree)
    with cordwood.open(tmp_path / "a") as checkpoint:
        assert "200 leaves" in treescope.render_to_text(checkpoint)


def test_names_are_escaped_and_large_trees_are_cut(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "a", {f"\u202e<script>{i}": i for i in range(3000)})
    with cordwood.open(tmp_path / "a") as checkpoint:
        text = treescope.render_to_text(checkpoint)
    assert "\\u202e<script>0: int" in text
    assert "... and 2,500 more" in text
    assert "\u202e" not in text
