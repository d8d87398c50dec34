"""The command diff: the table of statistics, digests alone, JSON and exit codes."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordwood
from cordwood.cli.diff_command import _percent
from demo.terminal import COLUMNS, run_in_terminal
from tests.cli.conftest import Run


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path]:
    a: dict[str, Any] = {
        "bias": np.ones(4, np.float32),
        "frozen": np.arange(6.0),
        "head": np.arange(40.0),
        "kernel": np.ones((2, 8), np.float32),
        "n": np.arange(1, 5),
        "shape": np.ones(3),
        "step": 7,
    }
    b = {**a, "out": a["head"], "shape": np.ones(4), "step": 8, "n": a["n"].astype(np.int32) * 2}
    del b["head"]
    b["bias"] = np.array([1, math.nan, 1, 1], np.float32)
    b["kernel"] = a["kernel"] * np.float32(1.5)
    one, two = tmp_path / "a.safetensors", tmp_path / "b"
    cordwood.save(one, a)
    cordwood.save(two, b)
    return one, two


def test_diff_prints_a_line_for_each_difference(run: Run, paths: tuple[Path, Path]) -> None:
    code, out, err = run("diff", *paths)
    assert (code, err) == (1, "")
    differ = "elements differ, max abs"
    assert out.splitlines() == [
        f"6 differences between a = {paths[0]} and b = {paths[1]}; 1 leaf equal:",
        f"  bias: float32[4]: 1 of 4 {differ} inf, max rel inf, 1 new NaN",
        "  head -> out: renamed (float64[40])",
        f"  kernel: float32[2,8]: 16 of 16 {differ} 0.5, max rel 0.333, relative L2 0.5",
        f"  n: dtype: int64[4] | int32[4]: 4 of 4 {differ} 4, max rel 0.5, relative L2 1",
        "  shape: shape: float64[3] | float64[4]",
        "  step: 7 | 8",
    ]


def test_a_table_of_statistics(run: Run, paths: tuple[Path, Path]) -> None:
    code, out, _ = run("diff", *paths, "--stats")
    assert code == 1
    lines = out.splitlines()
    assert lines[0].startswith("6 differences between a = ")
    rows = [line.split() for line in lines[1:5]]
    assert lines[1].split() == [
        *("leaf", "type", "changed", "relative", "L2", "max", "abs", "cosine"),
        *("sign", "flips", "new", "NaN", "new", "Inf"),
    ]
    assert rows[1:] == [  # new NaN first, then by relative L2
        ["bias", "float32[4]", "25%", "0", "inf", "1.000000", "0", "1", "0"],
        ["n", "int64[4]", "|", "int32[4]", "100%", "1", "4", "1.000000", "0", "0", "0"],
        ["kernel", "float32[2,8]", "100%", "0.5", "0.5", "1.000000", "0", "0", "0"],
    ]
    assert lines[5:] == [
        "  head -> out: renamed (float64[40])",
        "  shape: shape: float64[3] | float64[4]",
        "  step: 7 | 8",
    ]
    code, out, _ = run("diff", paths[0], paths[0], "--stats")
    assert code == 0
    assert out == f"{paths[0]} and {paths[0]} are equal: 7 leaves (6 by digest)\n"


def test_the_table_in_a_terminal(paths: tuple[Path, Path]) -> None:
    command = [sys.executable, "-m", "cordwood", "diff", "a.safetensors", "b", "--stats"]
    screen, code = run_in_terminal(command, paths[0].parent, os.environ | {"NO_COLOR": "1"})
    assert code == 1
    assert "relative L2" in screen
    assert max(map(len, screen.splitlines())) <= COLUMNS
    assert "  head -> out: renamed (float64[40])\n" in screen


def test_diff_as_json_has_the_statistics(run: Run, paths: tuple[Path, Path]) -> None:
    code, out, err = run("diff", *paths, "--stats", "--json")
    assert (code, err) == (1, "")
    leaves = {leaf["key_path"]: leaf for leaf in json.loads(out)["leaves"]}
    assert leaves["kernel"]["relative_l2"] == 0.5
    assert (leaves["kernel"]["share"], leaves["kernel"]["cosine"]) == (1.0, 1.0)
    assert leaves["bias"]["new_nan"] == 1
    assert (leaves["out"]["what"], leaves["out"]["renamed_from"]) == ("renamed", "head")


def test_diff_by_digests_excludes_statistics(run: Run, tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    tree = {"u": np.zeros(1 << 18, np.float32), "v": np.ones(1 << 18, np.float32)}
    cordwood.save(a, tree)
    cordwood.save(b, {**tree, "v": tree["v"] * 2})
    code, out, _ = run("diff", a, b, "--digests")
    assert code == 1
    assert out.splitlines()[1:] == ["  v: float32[262144]: the stored bytes differ"]
    assert run("diff", a, a, "--digests").code == 0
    for option in ("--stats", "--no-values"):
        code, _, err = run("diff", a, b, "--digests", option)
        assert code == 2
        assert "--digests reads no elements: it excludes --stats and --no-values" in err
    code, _, err = run("diff", a, b, "--no-values", "--stats")
    assert code == 2
    assert "--no-values reads no elements: it excludes --stats" in err


def test_shares_that_round_to_nothing_or_all() -> None:
    shares = [0.0, 1e-9, 0.25, 0.99995, 1.0]
    assert [_percent(share) for share in shares] == ["0%", "<0.01%", "25%", ">99.99%", "100%"]
