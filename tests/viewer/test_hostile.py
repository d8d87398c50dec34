"""Hostile names, metadata and values arrive in the page as data, whole, and never as markup."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood.viewer.export_page import export_page
from cordwood.viewer.page import embedded, page
from cordwood.viewer.resources import Resources, parse_name, resource_name
from cordwood.viewer.sources import OpenArguments, open_sources
from tests.viewer.exported import exported_resources
from tests.viewer.served import Viewer, serving

SCRIPT = "</script><script>alert(1)</script><!--"
NAMES = (
    SCRIPT,
    "<img src=x onerror=alert(1)>",
    "\"quotes' &amp; {{ 7*7 }} {% raw %}",
    "control\x00\x1b[31m\x7f\x9b",
    "bidi\u202egnp.exe\u2066",
    "line\u2028separator\r\n",
    "surrogate\ud800",
    "slash/percent%2F",
    "x" * 100_000,
    "",
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / SCRIPT.replace("/", "_")
    tree: dict[str, Any] = {name: np.arange(3.0) for name in NAMES}
    tree["values"] = list(NAMES)
    tree["numbers"] = np.array([np.nan, np.inf, -np.inf, 1.0])
    metadata = {name: name for name in NAMES if name.isprintable() or "\u2028" in name}
    cordwood.save(path, tree, metadata=metadata)
    return path


@pytest.fixture(scope="module")
def viewer(path: Path) -> Iterator[Viewer]:
    with serving(path) as viewer:
        yield viewer


def test_names_and_values_arrive_whole(viewer: Viewer, path: Path) -> None:
    checkpoint = viewer.resource("checkpoint/a").result
    with cordwood.open(path) as opened:
        assert checkpoint["leaves"]["path"] == list(opened)
        assert checkpoint["metadata"] == dict(opened.metadata)
    values = dict(zip(checkpoint["leaves"]["path"], checkpoint["leaves"]["value"], strict=True))
    assert values["values/0"] == repr(SCRIPT)
    assert values["values/8"] is None, "a long value is not in the index"
    number = checkpoint["leaves"]["path"].index("values/8")
    assert len(viewer.resource(f"leaf/a/{number}").result["value"]) >= 100_000


def test_every_leaf_has_its_page(viewer: Viewer) -> None:
    leaves = viewer.resource("checkpoint/a").result["leaves"]
    for number, name in enumerate(leaves["path"]):
        leaf = viewer.resource(f"leaf/a/{number}").result
        assert leaf["path"] == name
        assert leaf["keys"] == leaves["keys"][number]


def test_answers_are_ascii_on_one_line_each(viewer: Viewer) -> None:
    for name in ("start", "checkpoint/a", "leaf/a/0"):
        body = viewer.resource(name).body
        assert body.isascii()
        assert len(body.splitlines()) == 1


def test_an_export_has_no_markup_of_the_checkpoint(path: Path) -> None:
    sources = open_sources(str(path), None, OpenArguments())
    html = export_page(Resources(sources), max_bytes=20_000_000).html.decode()
    empty = page([]).html
    assert html.count("<script") == empty.count("<script") + len(exported_resources(html))
    assert html.lower().count("</script") == html.count("<script")
    assert "<img" not in html
    assert "<!--" not in html
    assert "{{ 7*7 }}" in html, "a template in a name is not evaluated"
    resources = exported_resources(html)
    expected = Resources(sources).answer_json("checkpoint/a").decode()
    assert resources["checkpoint/a"] == json.loads(expected)
    sources.close()


def test_embedded_json_has_no_markup() -> None:
    text = embedded(json.dumps(["<!--<script>", "&lt;", "]]>"]).encode())
    assert not set("<>&") & set(text)
    assert json.loads(text) == ["<!--<script>", "&lt;", "]]>"]


def test_numbers_that_are_not_finite_are_counted(viewer: Viewer) -> None:
    paths = viewer.resource("checkpoint/a").result["leaves"]["path"]
    statistics = viewer.resource(f"statistics/a/{paths.index('numbers')}/all").result
    assert [statistics[name] for name in ("nan", "inf", "min", "max")] == [1, 2, 1, 1]
    assert statistics["first"] == ["nan", "inf", "-inf", "1"]


def test_twenty_thousand_children_of_one_container(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "c", {"children": {f"c{i}": np.float32(i) for i in range(20_000)}})
    with serving(tmp_path / "c") as viewer:
        checkpoint = viewer.resource("checkpoint/a").result
        assert checkpoint["leaf_count"] == 20_000
        assert viewer.resource("leaf/a/19999").result["path"] == "children/c19999"


def test_numbers_beyond_json_and_decimal(tmp_path: Path) -> None:
    tree = {"big": 1 << 40_000, "nan": float("nan"), "inf": -float("inf"), "c": 1j}
    cordwood.save(tmp_path / "c", tree)
    with serving(tmp_path / "c") as viewer:
        values = viewer.resource("checkpoint/a").result["leaves"]["value"]
        assert values[0].startswith("0x1000")
        assert values[1:] == ["nan", "-inf", "1j"]


@pytest.mark.parametrize("part", [*NAMES[:6], "a/b", "%2F", "é", "."])
def test_names_of_resources_hold_any_text(part: str) -> None:
    name = resource_name("checkpoint", part)
    assert name.isascii()
    assert not set("<>&\"'") & set(name)
    assert parse_name(name)[1] == {"source": part}
