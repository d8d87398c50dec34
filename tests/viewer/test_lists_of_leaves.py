"""The list of the leaves of a large tree: little memory, and few at the same time."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import cordwood
from cordwood.viewer import json_columns
from cordwood.viewer.resources import RESOURCES, Resources
from cordwood.viewer.server import _RequestHandler
from cordwood.viewer.sources import OpenArguments, Sources, open_sources
from tests.memory import traced_memory
from tests.viewer.served import serving

LEAVES = 20_000


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sources]:
    path = tmp_path_factory.mktemp("many") / "c"
    leaf = np.zeros(2, np.float32)
    names = ("attn/kernel", "mlp/up/kernel", "mlp/down/bias", "count")
    cordwood.save(
        path,
        {f"layer_{i}": {n: 7 if n == "count" else leaf for n in names} for i in range(LEAVES // 4)},
    )
    sources = open_sources(str(path), None, OpenArguments())
    yield sources
    sources.close()


def test_the_list_is_never_in_memory_as_python_values(sources: Sources) -> None:
    resources = Resources(sources)
    resources.answer_json("start")
    with traced_memory() as traced:
        encoded = resources.answer_json("checkpoint/a")
    assert len(json.loads(encoded)["leaves"]["path"]) == LEAVES
    assert traced.peak_bytes < 2 * len(encoded) + (4 << 20), "the parts, their sum, and some rows"


def test_rows_are_encoded_in_parts(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Resources(sources).answer_json("checkpoint/a")
    encode = json_columns.encode_columns
    monkeypatch.setattr(
        "cordwood.viewer.checkpoint_view.encode_columns",
        lambda columns_of, count: encode(columns_of, count, rows=3000),
    )
    assert Resources(sources).answer_json("checkpoint/a") == whole
    leaves = json.loads(whole)["leaves"]
    assert {len(column) for column in leaves.values()} == {LEAVES}
    assert leaves["value"][3] == "7"
    assert leaves["path"][-1] == f"layer_{LEAVES // 4 - 1}/count"


def test_a_tree_without_leaves_has_empty_columns(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "c", {})
    with serving(tmp_path / "c") as viewer:
        leaves = viewer.resource("checkpoint/a").result["leaves"]
    assert leaves["path"] == leaves["sharding"] == []


def test_two_lists_are_made_at_the_same_time_and_others_wait(sources: Sources) -> None:
    answer = Resources.answer_json
    lock = threading.Lock()
    running, most = [0], [0]
    third_waits = threading.Event()

    def counted(self: Resources, name: str, report: Any = None) -> bytes:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        assert third_waits.wait(60)
        with lock:
            running[0] -= 1
        return answer(self, name, report)

    with (
        mock.patch.object(Resources, "answer_json", counted),
        serving(str(sources.path("a"))) as viewer,
        ThreadPoolExecutor(6) as threads,
    ):
        report = _RequestHandler._report

        def noted(self: Any, progress: Any) -> None:
            report(self, progress)
            if progress.doing == "waiting for another list":
                third_waits.set()

        with mock.patch.object(_RequestHandler, "_report", noted):
            answers = list(threads.map(viewer.resource, ["checkpoint/a"] * 6))
    assert all(each.result["leaf_count"] == LEAVES for each in answers)
    assert most == [2]


def test_resources_that_grow_with_the_leaves_are_limited() -> None:
    free = {each.pattern for each in RESOURCES if not (each.reads_data or each.lists_leaves)}
    assert free == {"start", "leaf/{source}/{number}", "run"}
