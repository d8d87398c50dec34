"""HTML reprs: short, escaped, without scripts, and with the colours of the notebook."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood.io.progress_bar import bar_html
from cordwood.notebook.html_parts import OutlineLimits, outline
from cordwood.results import Diff, LeafDiff, Restored

HOSTILE = "<script>alert('1')</script>\" onload=\x9b31m\u202e\u2066&amp;"
TAGS = {"div", "details", "summary", "b", "span", "table", "tr", "td", "progress"}


class Page(HTMLParser):
    """The tags and the text of HTML; fails for a tag or attribute that is not expected."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS
        assert {name for name, _ in attributes} <= {"style", "open", "value", "max"}
        for name, value in attributes:
            if name == "style":
                assert value is not None
                assert not re.search(r"(^|[^-])color|url|background", value)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def html_of(value: Any) -> str:
    html = value._repr_html_()
    assert isinstance(html, str)
    return html


def tree(count: int = 2) -> dict[str, Any]:
    layers = {f"layer{i}": {"kernel": np.zeros((4, 8), np.float32)} for i in range(count)}
    return {"params": layers, "step": 7}


def test_a_checkpoint_shows_its_tree_with_sizes(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "a.safetensors", tree(), metadata={"run": "seven"})
    with cordwood.open(tmp_path / "a.safetensors") as checkpoint:
        html = html_of(checkpoint)
    text = Page(html).text
    assert "safetensors checkpoint" in text
    assert f"{tmp_path}/a.safetensors: 3 leaves, 256 B" in text
    assert "params/ 2 leaves, 256 B" in text
    assert "layer0/kernel float32[4,8]  128 B" in text
    assert "step int" in text
    assert "runseven" in text
    assert html.count("<details open>") == 2  # a small tree is shown unfolded, metadata is not
    assert html.count("<details>") == 1


@pytest.mark.parametrize("shape", ["flat", "nested", "deep"])
def test_a_large_checkpoint_has_short_html(tmp_path: Path, shape: str) -> None:
    leaf = np.zeros(1, np.float32)
    trees: dict[str, Any] = {
        "flat": {"w" * 60 + f"{i}": leaf for i in range(20_000)},
        "nested": {
            f"layer{i}": {f"k{j}": {f"w{k}": leaf for k in range(10)} for j in range(20)}
            for i in range(100)
        },
        "deep": {},
    }
    node = trees["deep"]
    for _ in range(400):
        node.update({"a": leaf, "b": leaf, "c": {}})
        node = node["c"]
    cordwood.save(tmp_path / "a", trees[shape])
    with cordwood.open(tmp_path / "a") as checkpoint:
        html = html_of(checkpoint)
        count = len(checkpoint)
    assert len(html) < 100_000
    assert html.count("<div>") + html.count("<details") < 350
    assert f"{count:,} leaves" in Page(html).text
    if shape == "flat":
        assert "... and 19,950 more" in html


def test_hostile_names_and_values_are_shown_and_not_run(tmp_path: Path) -> None:
    hostile = {HOSTILE: {"w": np.zeros(3), "v": HOSTILE}, "long" * 25_000: 1}
    cordwood.save(tmp_path / "a", hostile, metadata={HOSTILE: HOSTILE})
    with cordwood.open(tmp_path / "a") as checkpoint:
        pages = [html_of(checkpoint), *[html_of(leaf) for leaf in checkpoint.values()]]
    pages.append(html_of(cordwood.diff(hostile, {**hostile, HOSTILE: 3})))
    pages.append(html_of(Restored(1, hostile, {HOSTILE: 1.0}, HOSTILE, {HOSTILE: hostile})))
    pages.append(html_of(cordwood.verify(tmp_path / "a")._replace(path=HOSTILE)))
    pages.append(bar_html("saving", 0, 0, HOSTILE, 0.0, "running"))
    for html in pages:
        assert "<script" not in html
        assert not set("\x9b\u202e\u2066") & set(html)
        assert len(html) < 20_000
        Page(html)
    assert "\\u202e" in pages[0]


def test_a_leaf_shows_its_type_and_its_place(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "a.safetensors", tree())
    with cordwood.open(tmp_path / "a.safetensors") as checkpoint:
        array = Page(html_of(checkpoint["params/layer0/kernel"])).text
        value = Page(html_of(checkpoint["step"])).text
    assert array.startswith("params/layer0/kernel float32[4,8]")
    assert f"stored as128 B in 1 piece: {tmp_path}/a.safetensors" in array
    assert "kindint" in value
    assert "value7" in value


def test_a_difference_shows_key_paths_in_bold(tmp_path: Path) -> None:
    other = {**tree(), "step": 8}
    html = html_of(cordwood.diff(tree(), other))
    assert "<b>step</b>: 7 | 8" in html
    assert "<b>1 difference</b>" in html
    leaf = LeafDiff("a", "renamed", b="float32[9]", renamed_from="ab")
    assert "<div>ab -&gt; a: renamed" in html_of(Diff("x", "y", (leaf,), (), 0, 0, 0))
    assert "<b>equal</b>" in html_of(cordwood.diff(other, other))
    many = {f"w{i}": i for i in range(80)}
    assert "... and 30 more" in html_of(cordwood.diff(many, dict.fromkeys(many, -1)))


def test_results_are_shown_as_tables(tmp_path: Path) -> None:
    source = tmp_path / "a.safetensors"
    cordwood.save(source, {"w": [np.zeros(4, np.float32)]})
    verified = Page(html_of(cordwood.verify(source))).text
    assert verified.startswith(f"no damage {source}")
    assert "formatsafetensorsleaves1verified" in verified
    converted = Page(html_of(cordwood.convert(source, tmp_path / "b.msgpack", lossy=True))).text
    assert "lost1 list or tuple" in converted
    assert "size1 leaf, 16 B" in converted


def test_a_plan_and_a_restored_step(tmp_path: Path) -> None:
    with cordwood.CheckpointManager(tmp_path, keep=1, background=False) as manager:
        assert Page(html_of(manager.plan())).text == "steps 0 to keep, 0 to delete"
        manager.save(9, tree(), metrics={"loss": 0.25}, extras={"a": 1}, items={"ema": tree(1)})
        plan = Page(html_of(manager.plan())).text
        restored = Page(html_of(manager.restore(items={"ema": None}))).text
    assert "9keepthe newest; of the last 1" in plan
    assert restored.startswith("step 9 restoredloss0.25extras{'a': 1}tree 3 leaves, ")
    assert "ema 2 leaves, 128 B" in restored


def test_a_restored_step_shows_what_is_no_tree_by_its_type() -> None:
    assert "tree dict" in Page(html_of(Restored(1, {object(): 1}, {}, None))).text


def test_a_bar_has_a_value_once_the_total_is_known() -> None:
    assert "<progress></progress> saving: 5 B<" in bar_html("saving", 5, 0, "", 0.0, "running")
    half = bar_html("saving", 5, 10, "w", 1.0, "running")
    assert '<progress value="5" max="10"></progress> saving: 5 B of 10 B, 5 B/s, w<' in half
    assert "progress>" not in bar_html("saving", 10, 10, "w", 1.0, "failed")


def test_an_outline_opens_rows_near_the_root_first() -> None:
    paths = [(layer, kind) for layer in "abc" for kind in ("x", "y", "z")]
    root = outline(paths, [1] * 9, OutlineLimits(rows=5, children=2, depth=9))
    assert [row.keys for row in root.children] == [("a",), ("b",)]
    assert (root.hidden, root.leaf_count, root.size_bytes) == (1, 9, 9)
    first, second = root.children
    assert [row.leaf for row in first.children] == [0, 1]
    assert (first.hidden, second.hidden) == (1, 2)
    assert [row.leaf for row in second.children] == [3]


def test_an_outline_does_not_open_what_is_too_deep() -> None:
    paths = [("a", "b", "c"), ("a", "b", "d"), ("a", "e"), ("f",)]
    root = outline(paths, [1] * 4, OutlineLimits(rows=9, children=9, depth=1))
    assert [len(row.children) for row in root.children] == [0, 0]
    assert (root.children[0].leaf_count, root.children[0].hidden) == (3, 2)


def test_an_outline_joins_containers_of_one_child() -> None:
    root = outline(
        [("a", "b", 0, "c"), ("a", "b", 0, "d")], [1, 2], OutlineLimits(rows=9, children=9, depth=9)
    )
    (row,) = root.children
    assert (row.keys, row.leaf, row.size_bytes) == (("a", "b", 0), None, 3)
    alone = outline([()], [4], OutlineLimits(rows=9, children=9, depth=9))
    assert (alone.leaf, alone.size_bytes, alone.children) == (0, 4, [])
