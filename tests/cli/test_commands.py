"""The commands: their text output, JSON and exit codes."""

from __future__ import annotations

import datetime
import errno
import itertools
import json
import math
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import cordwood
from cordwood.cli.main import COMMANDS
from cordwood.index import Digests
from cordwood.io.verify_sample import VerifySample
from cordwood.message_text import printable
from cordwood.storage.verify_record import VerifyRecord
from demo.terminal import COLUMNS, LINES, run_in_terminal
from tests.children import run_python
from tests.cli.conftest import Run

GOLDEN = Path(__file__).resolve().parent.parent / "golden"


def tree() -> dict[str, Any]:
    return {
        "params": {
            "dense": {"kernel": np.arange(24.0).reshape(4, 6), "bias": np.zeros(6, np.float32)},
            "layers": [{"w": jnp.ones((8, 4), jnp.bfloat16)} for _ in range(3)],
        },
        "step": 7,
        "name": "first",
    }


@pytest.fixture(params=["a.safetensors", "a.msgpack", "packs", "zarr"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    target = tmp_path / request.param
    options: Any = {"format": request.param} if "." not in request.param else {}
    cordwood.save(target, tree(), **options)
    return target


def test_ls_lists_the_leaves_with_types_and_sizes(run: Run, path: Path) -> None:
    code, out, err = run("ls", path)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["params/dense/kernel", "float64[4,6]", "192", "B"]
    assert "step" in lines[-3]
    assert lines[-1].startswith("7 leaves, 408 B, ")
    document = json.loads(run("ls", path, "--json").out)
    assert document["size_bytes"] == 408
    assert document["leaves"][0]["key_path"] == "params/dense/kernel"
    assert document["leaves"][0]["what"] == "float64[4,6]"


def test_ls_selects_folds_and_sorts(run: Run, path: Path) -> None:
    assert run("ls", path, "**/bias").out.splitlines()[:-1] == [
        "params/dense/bias  float32[6]  24 B"
    ]
    rows = run("ls", path, "--depth", "2").out.splitlines()
    assert [row.split()[0] for row in rows] == [
        "params/dense",
        "params/layers",
        "step",
        "name",
        "7",
    ]
    assert rows[1].split()[1:] == ["3", "leaves", "192", "B"]
    assert run("ls", path, "--sort", "size").out.split()[0] == "params/dense/kernel"
    assert run("ls", path, "--sort", "name").out.split()[0] == "name"
    code, out, err = run("ls", path, "parms/*")
    assert (code, out) == (3, "")
    assert "did you mean 'params/*'?" in err


def test_info_describes_the_checkpoint(run: Run, path: Path) -> None:
    code, out, _ = run("info", path)
    assert code == 0
    assert "float64" in out
    assert json.loads(run("info", path, "--json").out)["leaves"] == 7


def test_info_shows_the_record_of_a_step_in_rows(run: Run, tmp_path: Path) -> None:
    with cordwood.CheckpointManager(tmp_path) as manager:
        metrics, items = {"loss": 0.25, "acc": float("nan")}, {"ema": {"w": np.ones(2)}}
        manager.save(3, {"w": np.ones(2)}, metrics=metrics, extras={"seed": 4}, items=items)
    rows = [line.split(maxsplit=1) for line in run("info", tmp_path / "3").out.splitlines()[1:]]
    shown = {row[0]: row[1] for row in rows}
    assert shown["step"] == "3"
    assert shown["metrics"] == "loss=0.25, acc=nan"
    assert shown["extras"] == '{"seed": 4}'
    assert shown["items"] == "ema"
    assert shown["saved"].startswith("20")
    assert "metadata" not in shown
    assert "cordwood-step" in json.loads(run("info", tmp_path / "3", "--json").out)["metadata"]


def test_info_shows_a_record_that_cannot_be_read_as_it_is(run: Run, tmp_path: Path) -> None:
    for text in ("{", '{"version": 99}'):
        cordwood.save(tmp_path / "a", {"w": 1}, metadata={"cordwood-step": text, "by": "me"})
        out = run("info", tmp_path / "a").out
        assert f"metadata cordwood-step  {text}" in out
        assert "metadata by             me" in out


def test_a_directory_of_steps_names_the_command_that_lists_them(run: Run, tmp_path: Path) -> None:
    for step in (1, 2):
        cordwood.save(tmp_path / "my run" / str(step), {"w": 1})
    for command in (["ls"], ["info"], ["show"], ["cat"]):
        leaf = ["w"] * (command[0] in ("show", "cat"))
        code, _, err = run(*command, tmp_path / "my run", *leaf)
        assert code == 3
        proposed = re.search(r"`(cordwood steps .*)` lists all", err)
        assert proposed is not None
        ran = run(*shlex.split(proposed[1])[1:])
        assert ran.code == 0
        assert len(ran.out.splitlines()) == 2


@pytest.mark.parametrize("layout", ["packs", "zarr"])
def test_info_lists_the_trees_of_a_directory_of_several(
    run: Run, tmp_path: Path, layout: Any
) -> None:
    path = tmp_path / "composite"
    cordwood.save(path, {"w": np.zeros(4, np.float32)}, prefix="state", format=layout)
    cordwood.save(path, {"w": np.zeros(8, np.float32), "n": 1}, prefix="ema", format=layout)
    code, out, _ = run("info", path)
    assert code == 0
    assert "\ntree ema    2 leaves, 32 B\n" in out
    assert "\ntree state  1 leaf, 16 B\n" in out
    document = json.loads(run("info", path, "--json").out)
    assert sorted(tree["prefix"] for tree in document["trees"]) == ["ema", "state"]
    assert run("info", path, "--prefix", "ema").out.splitlines()[2].split() == ["leaves", "2"]
    command = out.splitlines()[-1].partition(": ")[2].split()
    assert run(*command[1:]).code == 0
    for verb in (["ls"], ["show", "w"], ["cat", "w"]):
        code, _, err = run(verb[0], path, *verb[1:])
        assert code == 3
        assert "--prefix '" in err
    cordwood.save(path, {"m": np.zeros(2, np.float32)}, format=layout)
    document = json.loads(run("info", path, "--json").out)
    assert document["leaves"] == 1
    assert len(document["trees"]) == 2


def test_info_lists_the_items_of_an_orbax_checkpoint(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "composite"
    for item in ("params", "ema"):
        shutil.copytree(GOLDEN / "orbax" / "v1" / "state", path / item)
    shutil.copy(GOLDEN / "orbax" / "v1" / "_CHECKPOINT_METADATA", path)
    (path / "meta").mkdir()
    (path / "meta" / "metadata").write_text('{"a": 1}')
    code, out, _ = run("info", path)
    assert code == 0
    assert out.splitlines()[1].split() == ["format", "orbax"]
    assert "\ntree ema     14 leaves, 12.1 KiB\ntree params  14 leaves, 12.1 KiB\n" in out
    assert "\nitem meta    JSON\n" in out
    assert json.loads(run("info", path, "--json").out)["items"] == {"meta": "JSON"}
    code, _, err = run("ls", path)
    assert code == 3
    assert "--prefix '" in err


def test_info_of_a_url_sums_up_its_objects(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "memory://info/of/a/url"
    cordwood.save(url, {"w": np.zeros(4, np.float32)})
    assert "\non disk    4.0 KiB\n" in run("info", url).out
    assert json.loads(run("info", url, "--json").out)["disk_bytes"] > 0


def test_a_long_key_does_not_widen_other_rows(run: Run, tmp_path: Path) -> None:
    cordwood.save(tmp_path / "c", {"a": 1, "w" * 600: np.zeros(3, np.float32), "b": 2})
    lines = run("ls", tmp_path / "c").out.splitlines()
    assert lines[1].startswith(
        "w" * 600 + "  float32[3]"
    )  # not shortened: the output is no terminal
    assert max(len(lines[0]), len(lines[2])) < 120


def test_a_long_key_is_cut_to_the_width_of_a_terminal(tmp_path: Path) -> None:
    name = "start" + "w" * 600 + "end"
    for count in (1, LINES):  # a table, and plain rows
        leaves = {**{f"k{i}": i for i in range(count)}, name: np.zeros(3, np.float32)}
        cordwood.save(tmp_path / str(count), leaves)
        command = [sys.executable, "-m", "cordwood", "ls", str(tmp_path / str(count))]
        environment = {**os.environ, "TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path)}
        shown = run_in_terminal(command, tmp_path, environment).text
        (line,) = [line for line in shown.splitlines() if "start" in line]
        assert max(map(len, shown.splitlines())) <= COLUMNS
        assert "..." in line
        assert line.split()[1] == "float32[3]"
        assert line.split()[0].endswith("wwend")


def test_show_prints_the_statistics_of_a_leaf(run: Run, path: Path) -> None:
    code, out, _ = run("show", path, "params/dense/kernel")
    assert code == 0
    rows = dict(line.split(None, 1) for line in out.splitlines()[1:])
    assert (rows["zero"], rows["min"], rows["max"], rows["mean"]) == ("1", "0", "23", "11.5")
    assert rows["std"] == f"{np.arange(24).std():.6g}"
    assert rows["histogram"] == "█" * 24
    assert rows["first"] == "0 1 2 3 4 5 6 7"
    assert json.loads(run("show", path, "step", "--json").out)["value"] == 7
    code, _, err = run("show", path, "params/dense/kernl")
    assert code == 3
    assert "did you mean 'params/dense/kernel'?" in err


def test_show_of_a_container_lists_its_leaves(run: Run, path: Path) -> None:
    code, out, err = run("show", path, "params/dense")
    assert (code, out) == (3, "")
    assert err == (
        f"KeyError: {path}: 'params/dense' is a container of 2 leaves: 'params/dense/kernel', "
        "'params/dense/bias'; load(select='params/dense') returns them, "
        f"`cordwood ls {path} params/dense` in a shell lists them\n"
    )
    assert "is a container of 3 leaves" in run("cat", path, "params/layers/").err
    assert run("ls", path, "params/layers").code == 0


def test_show_of_a_missing_leaf_suggests_names(run: Run, path: Path) -> None:
    code, _, err = run("show", path, "nope")
    assert code == 3
    assert "has no leaf 'nope'; it has 'params/dense/kernel', 'params/dense/bias', " in err
    assert f"...; list(checkpoint), or `cordwood ls {path}` in a shell, lists all" in err


def test_show_counts_elements_that_are_not_numbers(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    array = np.array([np.nan, np.inf, -np.inf, 0, 2, 4], np.float32)
    cordwood.save(path, {"x": array, "e": np.zeros((0, 3)), "b": np.array([True, False])})
    document = json.loads(run("show", path, "x", "--json").out)
    assert (document["nan"], document["inf"], document["zero"]) == (1, 2, 1)
    assert (document["min"], document["max"], document["mean"]) == (0, 4, 2)
    assert sum(document["histogram"]) == 3
    assert json.loads(run("show", path, "e", "--json").out)["min"] is None
    assert json.loads(run("show", path, "b", "--json").out)["mean"] == 0.5


def test_show_computes_extreme_values_without_overflow(run: Run, tmp_path: Path) -> None:
    drawn = np.random.default_rng(0).normal(size=5000)
    leaves = {
        "far": np.array([1e308, -1e308]),
        "near": np.array([1.0, np.nextafter(1.0, 2.0)]),
        "least": np.array([0.0, 5e-324]),
        "single": np.array([3e38, -3e38], np.float32),
        "complex": np.array([1e308 + 1e308j]),
        "long": np.array([10], np.longdouble) ** 400,
        "drawn": drawn * 2e150,
    }
    cordwood.save(tmp_path / "c", leaves)
    documents = {
        name: json.loads(run("show", tmp_path / "c", name, "--json").out) for name in leaves
    }
    for name in ("far", "near", "least", "single"):
        low, high = sorted(leaves[name].tolist())
        assert (documents[name]["min"], documents[name]["max"]) == (low, high)
        assert documents[name]["histogram"] == [1, *[0] * 22, 1]
    assert documents["far"]["mean"] == 0
    assert documents["far"]["std"] == pytest.approx(1e308)
    assert documents["single"]["std"] == pytest.approx(3e38)
    assert documents["complex"]["max"] == pytest.approx(2**0.5 * 1e308)
    assert (documents["long"]["inf"], documents["long"]["max"]) == (1, None)
    assert documents["drawn"]["std"] == pytest.approx(drawn.std() * 2e150)
    assert documents["drawn"]["histogram"] == np.histogram(drawn, 24)[0].tolist()


def test_unusual_names_and_values(run: Run, tmp_path: Path) -> None:
    said = {"note": "\x1b[31mred", "k\n": "v", "plain": "naïve \u2014 42"}
    cordwood.save(tmp_path / "c", {"sur": "a\ud800", "big": 10**5000}, metadata=said)
    out = run("info", tmp_path / "c").out
    assert "\x1b" not in out
    assert [line.split("  ", 1)[1].strip() for line in out.splitlines()[-3:]] == [
        "\\x1b[31mred",
        "v",
        "naïve \u2014 42",
    ]
    assert run("cat", tmp_path / "c", "sur").out == "a\\ud800\n"
    assert json.loads(run("cat", tmp_path / "c", "sur", "--json").out)["value"] == "a\ud800"
    cordwood.save(tmp_path / "d", {"big": 2**2000, "date": np.array(["2020-01-01"], "M8[ns]")})
    for command in ("cat", "show"):
        document = json.loads(run(command, tmp_path / "d", "big", "--json").out)
        assert document["value"] == hex(2**2000)
        document = json.loads(run(command, tmp_path / "d", "date", "--json").out)
        assert document["value"] == ["2020-01-01T00:00:00.000000000"]
        assert hex(10**5000) in run(command, tmp_path / "c", "big").out
        document = json.loads(run(command, tmp_path / "c", "big", "--json").out)
        assert int(document["value"], 16) == 10**5000


HOSTILE = "a\x9b31m\u202eb\u2066"  # C1's CSI, and two bidirectional controls


@pytest.mark.parametrize("name", ["a.safetensors", "packs", "zarr"])
def test_no_command_prints_control_characters(run: Run, tmp_path: Path, name: str) -> None:
    path, other, absent = tmp_path / name, tmp_path / f"o{name}", tmp_path / f"{HOSTILE}/b"
    options: Any = {"format": name} if "." not in name else {}
    saved = {HOSTILE: np.zeros(2, np.float32), "s": HOSTILE}
    cordwood.save(path, saved, metadata={HOSTILE: HOSTILE}, **options)
    cordwood.save(other, {HOSTILE: np.ones(2, np.float32), "s": "x" + HOSTILE}, **options)
    (tmp_path / "run" / f"step_3{HOSTILE}").mkdir(parents=True)
    commands: list[tuple[object, ...]] = [
        ("ls", path),
        ("ls", path, HOSTILE),
        ("ls", path, f"{HOSTILE}c"),
        ("info", path),
        ("show", path, HOSTILE),
        ("show", path, "s"),
        ("show", path, f"{HOSTILE}c"),
        ("cat", path, HOSTILE),
        ("diff", path, other),
        ("verify", absent),
        ("convert", path, absent.parent / "c.msgpack", "--cast", f"{HOSTILE}=f16"),
        ("convert", absent, other),
        ("convert", path, f"{HOSTILE}.pt"),
        ("convert", path, other, "--rename", HOSTILE),
        ("ls", tmp_path / "run"),
        (HOSTILE,),
    ]
    for command in commands:
        for flags in ([], ["--json"]):
            _, out, err = run(*command, *flags)
            for text in (out, err):
                assert printable(text) == text, command
            if flags:
                json.loads(out)
    assert json.loads(run("cat", path, "s", "--json").out)["value"] == HOSTILE


def test_cat_of_a_string_is_exact_in_a_pipe_and_escaped_on_a_terminal(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "c"
    cordwood.save(path, {"s": f"a\n{HOSTILE}"})
    assert run("cat", path, "s").out == f"a\n{HOSTILE}\n"
    command = [sys.executable, "-m", "cordwood", "cat", str(path), "s"]
    environment = {**os.environ, "TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path)}
    shown = run_in_terminal(command, tmp_path, environment)
    assert shown.text == "a\na\\x9b31m\\u202eb\\u2066\n"


@pytest.mark.parametrize("arguments", [["ls"], ["ls", "--json"]])
def test_a_closed_output_is_no_error_and_a_full_one_is(
    tmp_path: Path, arguments: list[str]
) -> None:
    cordwood.save(tmp_path / "c", {"a": 1})
    command = [sys.executable, "-m", "cordwood", *arguments, str(tmp_path / "c")]
    closed = subprocess.run(
        ["sh", "-c", f"{shlex.join(command)} >&-"], capture_output=True, text=True, check=False
    )
    assert (closed.returncode, closed.stderr) == (0, "")
    with open("/dev/full", "w") as full:
        failed = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert failed.returncode == 3
    assert failed.stderr.startswith("OSError: [Errno 28]")
    assert "Traceback" not in failed.stderr


def test_streams_whose_encoding_lacks_characters(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "c", {"é": np.arange(4)})
    for arguments in (["show", str(tmp_path / "c"), "é"], ["ls", str(tmp_path / "c"), "--json"]):
        ran = subprocess.run(
            [sys.executable, "-m", "cordwood", *arguments],
            capture_output=True,
            check=True,
            env={**os.environ, "PYTHONIOENCODING": "ascii"},
        )
        assert rb"\u" in ran.stdout or rb"\xe9" in ran.stdout
        if "--json" in arguments:
            assert json.loads(ran.stdout)["leaves"][0]["key_path"] == "é"


def test_cat_prints_a_value_or_a_slice(run: Run, path: Path) -> None:
    assert run("cat", path, "step").out == "7\n"
    assert run("cat", path, "name").out == "first\n"
    assert run("cat", path, "params/dense/kernel[1:3, -1]").out == "[11. 17.]\n"
    document = json.loads(run("cat", path, "params/dense/kernel[...,0:2]", "--json").out)
    assert document["value"] == tree()["params"]["dense"]["kernel"][:, :2].tolist()
    code, _, err = run("cat", path, "params/dense/kernel[__import__('os')]")
    assert code == 2
    assert "expected integers, slices and ..." in err
    for index in ("9", "0,0,0", "...,..."):
        code, _, err = run("cat", path, f"params/dense/kernel[{index}]")
        assert (code, err.count("\n")) == (2, 4)
        assert f"KEY: params/dense/kernel[{index}]: " in err
    code, out, _ = run("cat", path, "step[0]", "--json")
    assert code == 2
    assert "step[0]: expected an array, found int" in json.loads(out)["error"]["message"]


def test_diff_ends_with_1_where_trees_differ(run: Run, path: Path, tmp_path: Path) -> None:
    same = tmp_path / "same"
    cordwood.save(same, tree())
    assert run("diff", path, same).code == 0
    other = tmp_path / "other.safetensors"
    cordwood.save(other, {**tree(), "step": 8})
    code, out, _ = run("diff", path, other)
    assert code == 1
    assert out.endswith("  step: 7 | 8\n")
    code, out, _ = run("diff", path, other, "--json")
    assert code == 1
    assert json.loads(out)["leaves"][0]["key_path"] == "step"
    assert run("diff", path, other, "--select", "params").code == 0


def test_verify_says_what_was_checked(run: Run, path: Path) -> None:
    code, out, _ = run("verify", path)
    assert code == 0
    has_digests = path.name != "a.msgpack"
    verdict = "no damage" if has_digests else "no damage to the structure, and no digests"
    assert f": {verdict}: 7 leaves, " in out
    document = json.loads(run("verify", path, "--json").out)
    assert (document["leaves"], document["damaged"]) == (7, False)


def test_verify_reads_a_share_of_the_bytes(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    cordwood.save(path, {"x": np.ones(20 << 17)})  # five units of 4 MiB
    document = json.loads(run("verify", path, "--sample", "20%", "--seed", "1", "--json").out)
    assert document["verified_bytes"] == 4 << 20
    assert run("verify", path, "--sample", "0.5").code == 0
    code, _, err = run("verify", path, "--sample", "500%")
    assert code == 2
    assert "expected a share such as 5% or 0.05, found '500%'" in err


def test_verify_reports_damage(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    cordwood.save(path, {"x": np.ones(1 << 18)})
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    code, out, _ = run("verify", path)
    assert code == 1
    assert out.startswith("damaged: 1 damaged range")
    assert json.loads(run("verify", path, "--json").out)["damaged"]


def test_verify_resumes_after_an_interrupt(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, record = tmp_path / "z", tmp_path / "record"
    arrays = {f"x{i}": np.full(1000, i) for i in range(8)}
    cordwood.save(path, arrays, format="zarr")
    from cordwood.io import check_digests, check_files

    calls: list[str] = []
    bad_blocks = check_digests.bad_blocks

    def stop_at_x2(start: int, parts: Any, digests: Any) -> Any:
        calls.append("")
        if len(calls) == 5:
            raise KeyboardInterrupt
        return bad_blocks(start, parts, digests)

    monkeypatch.setattr(check_files, "bad_blocks", stop_at_x2)
    assert run("verify", path, "--resume", record).code == 130
    head, *verified = record.read_text().splitlines()
    assert head == "cordwood verify: found whole"
    assert 3 <= len(verified) <= 5  # another thread may be verifying one
    before = len(calls)
    with cordwood.open(path) as checkpoint:
        sources = len(checkpoint.index.sources)
    assert run("verify", path, "--resume", record).code == 0
    assert len(calls) == before + sources - len(verified)  # only the remaining sources
    assert not record.exists()


@pytest.mark.parametrize(
    "content",
    ["hello", "{}", "\n", "42", "c", "0" * 32 + "\n", "0" * 31 + "\n", "0" * 33, "\xff\x00"],
)
def test_verify_refuses_to_overwrite_other_files_with_its_record(
    run: Run, path: Path, tmp_path: Path, content: str
) -> None:
    other = tmp_path / "notes"
    other.write_text(content)
    code, _, err = run("verify", path, "--resume", other)
    assert code == 2
    assert f"resume={str(other)!r}: expected a new file" in err
    assert other.read_text() == content


def test_a_record_that_was_cut_off(tmp_path: Path) -> None:
    """The call ends in the middle of a line of the record; the next call begins a new line."""
    record = tmp_path / "record"
    digests = Digests(0, 1 << 20, b"0" * 16)
    for count in (1, 2, 3):
        chosen = VerifySample(1, None, VerifyRecord(str(record)))
        assert [chosen.was_verified("x", size, digests) for size in (1, 2, 3)].count(
            True
        ) == count - 1
        chosen.record_verified("x", count, digests)
        _, *lines = record.read_text().splitlines()
        assert list(map(len, lines)) == [32] * count
        with record.open("a") as file:
            file.write("1" * 7)


def test_verify_accepts_an_empty_record(run: Run, path: Path, tmp_path: Path) -> None:
    (tmp_path / "record").touch()
    assert run("verify", path, "--resume", tmp_path / "record").code == 0


def test_convert_selects_renames_casts_and_transposes(run: Run, path: Path, tmp_path: Path) -> None:
    target = tmp_path / "b.safetensors"
    code, out, _ = run("convert", path, target, "--select", "params", "--cast", "bf16")
    assert code == 0
    assert out.startswith(f"{target}: 5 leaves, ")
    with cordwood.open(target) as checkpoint:
        assert {leaf.dtype for leaf in checkpoint.values()} == {"bfloat16"}
    renamed = tmp_path / "c"
    run("convert", path, renamed, "--rename", "params/dense=d", "--cast", "d/*=f16", "--json")
    assert cordwood.load(renamed)["d"]["bias"].dtype == np.float16
    turned = tmp_path / "turned"
    assert run("convert", path, turned, "--transpose", "**/kernel").code == 0
    kernel = cordwood.load(path, select="params/dense/kernel")["params"]["dense"]["kernel"]
    transposed = cordwood.load(turned, select="params/dense/kernel")["params"]["dense"]["kernel"]
    np.testing.assert_array_equal(transposed, kernel.T)
    code, _, err = run("convert", path, tmp_path / "d", "--rename", "nonsense")
    assert code == 2
    assert "expected OLD=NEW, found 'nonsense'" in err


def test_convert_does_not_replace_a_checkpoint(run: Run, path: Path, tmp_path: Path) -> None:
    target = tmp_path / "b.safetensors"
    cordwood.save(target, {"old": 1})
    code, _, err = run("convert", path, target)
    assert code == 3
    assert "--force" in err
    assert cordwood.load(target) == {"old": 1}
    assert run("convert", path, target, "--force").code == 0
    assert "old" not in cordwood.load(target)


def test_convert_writes_all_trees(run: Run, tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    cordwood.save(source, {"w": 1.5}, prefix="params")
    cordwood.save(source, {"mu": 0.5}, prefix="opt")
    code, out, _ = run("convert", source, target)
    assert (code, out) == (0, f"{target}: 2 trees, 2 leaves, 0 B, from packs to packs\n")
    code, out, _ = run("convert", source, target, "--prefix", "opt", "--to-prefix", "old/opt")
    assert code == 0
    assert cordwood.load(target, prefix="old/opt") == {"mu": 0.5}
    code, _, err = run("convert", source, tmp_path / "c.safetensors")
    assert code == 3
    assert "--prefix 'opt'" in err
    code, out, _ = run("convert", source, target, "--prefix", "opt", "--force", "--json")
    assert json.loads(out)["error"]["type"] == "FileExistsError"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--cast", "float33"], "float33"),
        (["--cast", "opt/**"], "expected DTYPE or PATTERN=DTYPE, found 'opt/**'"),
        (["--cast", "int8"], "a dtype by itself"),
        (["--cast", "w=float33"], "float33"),
    ],
)
def test_wrong_arguments_of_convert(
    run: Run, path: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    code, _, err = run("convert", path, tmp_path / "b", *options)
    assert code == 2
    assert message in err
    assert not (tmp_path / "b").exists()
    code, _, err = run("convert", path, path)
    assert code == 2
    assert "converted into itself" in err


def test_convert_names_what_would_be_lost(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    cordwood.save(path, {"l": [1, 2]})
    code, out, err = run("convert", path, tmp_path / "b.msgpack")
    assert (code, out) == (3, "")
    assert err.startswith("LossError: converting ")
    code, out, _ = run("convert", path, tmp_path / "b.msgpack", "--lossy")
    assert code == 0
    assert out.startswith("lost: 1 list or tuple (becomes a dict")


def test_convert_writes_for_orbax(run: Run, tmp_path: Path) -> None:
    cordwood.save(tmp_path / "a.safetensors", {"w": np.arange(4)})
    code, _, _ = run("convert", tmp_path / "a.safetensors", tmp_path / "b", "--format", "orbax")
    assert code == 0
    assert cordwood.detect(tmp_path / "b").format == "orbax"
    assert np.array_equal(cordwood.load(tmp_path / "b")["w"], np.arange(4))


def test_steps_lists_each_step_with_its_state(run: Run, tmp_path: Path) -> None:
    root = tmp_path / "run"
    for step in (5, 20, 100):
        cordwood.save(root / str(step), {"x": np.ones(step)})
    code, out, _ = run("steps", root)
    assert code == 0
    rows = [line.split() for line in out.splitlines()]
    assert [row[:2] for row in rows] == [["5", "packs"], ["20", "packs"], ["100", "packs"]]
    year = str(datetime.datetime.now().year)
    assert all(row[4].startswith(f"{year}-") for row in rows)
    assert out.count("saved by cordwood.save: no policy deletes it") == 3
    (root / "100" / "cordwood.json").unlink()
    (root / "100" / "model.safetensors.index.json").unlink()
    code, out, _ = run("steps", root)
    assert code == 1
    assert "no save to it has finished" in out.splitlines()[-1]
    document = json.loads(run("steps", root, "--json").out)
    assert [step["step"] for step in document["steps"]] == [5, 20, 100]
    assert [step["name"] for step in document["steps"]] == ["5", "20", "100"]
    code, _, err = run("steps", root / "20")
    assert code == 2
    assert "not a directory of steps" in err


def test_steps_shows_metrics_dates_and_pins(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 1_764_000_000.0)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    root = tmp_path / "run"
    with cordwood.CheckpointManager(root, background=False) as manager:
        for step, loss in ((10, 0.5), (20, math.nan)):
            manager.save(step, {"w": np.ones(3)}, metrics={"loss": loss, "accuracy": 1 / 3})
        cordwood.save(root / "step_30", {"w": np.ones(3)})
        with manager.pin(10):
            code, out, _ = run("steps", root)
            steps = json.loads(run("steps", root, "--json").out)["steps"]
    assert code == 0
    first, second, third = out.splitlines()
    assert "2025-11-24 16:00  loss=0.5, accuracy=0.333333  pinned" in first
    assert "loss=nan" in second
    assert "pinned" not in second
    assert "CheckpointManager does not restore it" in third
    assert [step["step"] for step in steps] == [10, 20, 30]
    assert [step["pinned"] for step in steps] == [True, False, False]
    assert steps[0]["metrics"] == {"loss": 0.5, "accuracy": 1 / 3}
    assert steps[0]["time"] == "2025-11-24T16:00:00Z"
    assert steps[1]["metrics"]["loss"] == "nan"


def test_steps_of_a_url_have_sizes_and_metrics(run: Run) -> None:
    url = "memory://steps/of/a/url"
    with cordwood.CheckpointManager(url, background=False) as manager:
        manager.save(10, {"w": np.ones(3)}, metrics={"loss": 0.5})
    code, out, _ = run("steps", url)
    assert code == 0
    size = json.loads(run("info", f"{url}/10", "--json").out)["disk_bytes"]
    assert out.split()[:4] == ["10", "packs", "4.0", "KiB"]
    (step,) = json.loads(run("steps", url, "--json").out)["steps"]
    assert (step["disk_bytes"], step["metrics"]) == (size, {"loss": 0.5})


def test_steps_of_a_file_url_are_those_of_the_path(run: Run, tmp_path: Path) -> None:
    with cordwood.CheckpointManager(tmp_path, background=False) as manager:
        manager.save(10, {"w": np.ones(3)})
    steps = [
        json.loads(run("steps", path, "--json").out)["steps"]
        for path in (str(tmp_path), tmp_path.as_uri())
    ]
    assert steps[0] == steps[1]
    assert steps[0][0]["disk_bytes"] > 0


def test_steps_is_a_table_on_a_terminal(tmp_path: Path) -> None:
    with cordwood.CheckpointManager(tmp_path / "run", background=False) as manager:
        manager.save(10, {"w": np.ones(3)}, metrics={"loss": 0.5})
    command = [sys.executable, "-m", "cordwood", "steps", "run"]
    environment = {**os.environ, "TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path)}
    lines = run_in_terminal(command, tmp_path, environment).text.splitlines()
    assert lines[1].split() == ["step", "format", "size", "saved", "metrics"]
    assert lines[-1] == "1 step"


def damage(path: Path) -> None:
    """Change one byte of the elements of a directory of packs."""
    (data,) = path.glob("data-*")
    whole = bytearray(data.read_bytes())
    whole[-1] ^= 1
    data.write_bytes(bytes(whole))


def test_verify_accepts_a_directory_of_steps(run: Run, tmp_path: Path) -> None:
    root = tmp_path / "run"
    for step in (5, 20, 100):
        cordwood.save(root / str(step), {"x": np.ones(step)})
    code, out, _ = run("verify", root)
    assert code == 0
    *lines, last = out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [str(root / n) for n in ("5", "20", "100")]
    assert last.startswith(f"{root}: 3 steps: 3 without damage; ")
    damage(root / "20")
    (root / "100" / "cordwood.json").unlink()
    (root / "100" / "model.safetensors.index.json").unlink()
    code, out, _ = run("verify", root)
    assert code == 1
    assert f"damaged: {root}/20: " in out
    assert f"incomplete: {root}/100 is not a checkpoint, or no save" in out
    assert f"{root}: 3 steps: 1 without damage, 1 damaged, 1 incomplete; " in out
    code, out, _ = run("verify", root, "--json")
    assert code == 1
    document = json.loads(out)
    assert document["damaged"]
    assert [step["damaged"] for step in document["steps"]] == [False, True, False]
    code, out, _ = run("verify", root / "5", "--sample", "50%", "--seed", "1")
    assert code == 0


def test_verify_of_a_directory_of_steps_resumes(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cordwood.io import check_digests, check_files

    root, record = tmp_path / "run", tmp_path / "record"
    for step in (5, 20, 100):
        cordwood.save(root / str(step), {"x": np.ones(step)})
    bad_blocks, calls = check_digests.bad_blocks, []

    def stop_in_the_last_step(*arguments: Any) -> Any:
        calls.append("")
        if len(calls) == 3:
            raise KeyboardInterrupt
        return bad_blocks(*arguments)

    monkeypatch.setattr(check_files, "bad_blocks", stop_in_the_last_step)
    assert run("verify", root, "--resume", record).code == 130
    assert record.exists()
    code, out, _ = run("verify", root, "--resume", record)
    assert code == 0
    assert "3 steps: 3 without damage" in out
    assert len(calls) == 4  # two steps are not read again
    assert not record.exists()


def test_verify_of_a_directory_without_steps(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code, _, err = run("verify", tmp_path / "empty")
    assert code == 3
    assert "is an empty directory" in err


def test_gc_of_a_clean_directory_removes_nothing(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "c"
    cordwood.save(path, {"x": 1})
    assert run("gc", path).out == "0 removed\n"
    document = json.loads(run("gc", path, "--dry-run", "--json").out)
    assert document == {
        "path": str(path),
        "dry_run": True,
        "removed": [],
        "rewritten": [],
        "young_files": 0,
        "young_bytes": 0,
        "young_until": None,
    }


def test_doctor_examines_a_directory_and_leaves_nothing(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("doctor", tmp_path / "not" / "yet")
    assert code == 0
    assert out.endswith(": safe to save to\n")
    document = json.loads(run("doctor", tmp_path, "--json").out)
    names = [each["name"] for each in document["findings"]]
    assert {"free space", "durable write", "hard links", "O_DIRECT"} <= set(names)
    assert {"rename of a directory", "inode numbers"} <= set(names)
    assert list(tmp_path.iterdir()) == []


def test_doctor_of_a_path_like_a_url(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "gs:" / "bucket"
    path.mkdir(parents=True)
    assert run("doctor", f"{tmp_path}/gs://bucket").code == 0
    assert run("doctor", path.as_uri()).code == 0


def test_doctor_of_an_empty_path(run: Run) -> None:
    result = run("doctor", "")
    assert (result.code, result.out) == (3, "")
    assert "found ''; '.' is the current directory" in result.err


def test_doctor_reports_a_problem(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr("os.replace", refuse)
    code, out, _ = run("doctor", tmp_path)
    assert code == 1
    assert "PROBLEM  replace by rename" in out
    assert out.endswith(": not safe to save to\n")


def test_doctor_where_nothing_can_be_created(run: Run) -> None:
    result = run("doctor", "/proc")
    assert (result.code, result.out) == (3, "")
    assert "no directory can be made here (No such file or directory)" in result.err
    assert result.err.rstrip().endswith("'/proc'")


def test_doctor_reports_renames_that_lose_the_contents_of_a_directory(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def losing(source: str, target: str) -> None:
        if os.path.isdir(source):
            for name in os.listdir(source):
                os.unlink(f"{source}/{name}")
        replace(source, target)

    monkeypatch.setattr("os.replace", losing)
    code, out, _ = run("doctor", tmp_path)
    assert code == 1
    assert "PROBLEM  rename of a directory" in out
    assert "what a directory holds is lost when it is renamed" in out


def test_doctor_reports_inode_numbers_that_change(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lstat = os.lstat
    numbers = itertools.count(1)

    def renumbered(path: str, **options: Any) -> os.stat_result:
        fields = list(lstat(path, **options))
        fields[stat.ST_INO] = next(numbers)
        return os.stat_result(fields)

    monkeypatch.setattr("os.lstat", renumbered)
    code, out, _ = run("doctor", tmp_path)
    assert code == 1
    assert "PROBLEM  inode numbers" in out


def test_doctor_reports_directories_that_cannot_be_flushed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def refusing(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        fsync(fd)

    monkeypatch.setattr("os.fsync", refusing)
    code, out, _ = run("doctor", tmp_path)
    assert code == 1
    assert "PROBLEM  fsync of a directory" in out


@pytest.mark.parametrize("command", ["ls", "info", "verify"])
def test_every_command_reports_a_missing_path(run: Run, tmp_path: Path, command: str) -> None:
    code, out, err = run(command, tmp_path / "nothing")
    assert (code, out) == (3, "")
    assert err.startswith("FileNotFoundError: ")
    code, out, err = run(command, tmp_path / "nothing", "--json")
    assert (code, err) == (3, "")
    assert json.loads(out)["error"]["type"] == "FileNotFoundError"


def test_a_misspelt_command_gets_a_hint(run: Run) -> None:
    code, _, err = run("lst")
    assert code == 2
    assert "There is no command 'lst'. Did you mean 'ls'?" in err
    assert run("ls").code == 2
    assert json.loads(run("ls", "--json").out)["error"]["type"] == "MissingParameter"


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_has_examples(run: Run, command: str) -> None:
    code, out, _ = run(command, "--help")
    assert code == 0
    assert "Examples:\n" in out
    assert f"  cordwood {command}" in out
    assert "--json" in out


def test_help_lists_the_commands_and_the_exit_codes(run: Run) -> None:
    out = run("--help").out
    for command in COMMANDS:
        assert f"\n  {command} " in out
    assert (
        "..." not in out.partition("Commands:")[2].partition("Exit codes:")[0]
    )  # no help text is cut
    assert "  3    the checkpoint or leaf does not exist" in out
    assert run("--version").out == f"cordwood, version {cordwood.__version__}\n"


def test_help_is_a_command_too(run: Run) -> None:
    assert run("help") == run("--help")
    assert run("help", "ls") == run("ls", "--help")
    assert run("help", "ls").code == 0
    code, _, err = run("help", "lss")
    assert code == 2
    assert "There is no command 'lss'. Did you mean 'ls'?" in err


def test_verify_accepts_a_sample_or_a_record_but_not_both(run: Run, path: Path) -> None:
    code, out, err = run("verify", path, "--sample", "5%", "--resume", "record")
    assert (code, out) == (2, "")
    assert "--resume needs a full check" in err


IMPORTS = """
import sys
import time
from cordwood.cli.main import main
sys.argv = ["cordwood", "ls", *sys.argv[1:]]
try:
    main()
except SystemExit as e:
    assert e.code == 0, e.code
heavy = {"jax", "jaxlib", "numpy", "numcodecs", "obstore", "rich", "ml_dtypes"} & set(sys.modules)
assert not heavy, heavy
"""


@pytest.mark.parametrize("name", ["a.safetensors", "a.msgpack", "packs", "zarr"])
def test_ls_imports_neither_jax_nor_numpy(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    count = 500 if name == "zarr" else 20_000  # each is a directory that is flushed
    leaves = {f"layer{i}": {"w": np.zeros(2, np.float32)} for i in range(count)}
    options: Any = {"format": "zarr"} if name == "zarr" else {}
    cordwood.save(path, {**leaves, "x": jnp.ones(3, jnp.bfloat16)}, **options)
    out = run_python(IMPORTS, str(path))
    assert out.splitlines()[-1].startswith(f"{count + 1} leaves, ")
    assert out.splitlines()[-2].split() == ["x", "bfloat16[3]", "6", "B"]


@pytest.mark.parametrize("layout", ["packs", "zarr"])
def test_ls_by_the_index_is_ls_by_opening(
    tmp_path: Path, layout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cordwood.cli import list_leaves

    path = tmp_path / "c"
    odd: dict[str, Any] = {"key": jax.random.key(0), "i4": jnp.ones(3, jnp.int4), "n": None}
    odd |= {"s": "x" * 5000, "c": np.ones(2, np.complex256), "scalar": np.float64(2), "e": {}}
    for prefix in ("a", "b"):
        cordwood.save(path, {**tree(), **odd}, format=layout, prefix=prefix)
    quick = list_leaves.list_leaves(path, prefix="a")
    monkeypatch.setattr(list_leaves, "quick_look", lambda *_, **__: None)
    assert quick == list_leaves.list_leaves(path, prefix="a")


def test_ls_prints_a_table_where_it_fits_the_screen(tmp_path: Path) -> None:
    cordwood.save(tmp_path / "few", {f"w{i}": i for i in range(LINES - 6)})
    cordwood.save(tmp_path / "many", {f"w{i}": i for i in range(LINES - 5)})
    cordwood.save(tmp_path / "wide", {"w" * COLUMNS: 1})
    for name, is_table in (("few", True), ("many", False), ("wide", True)):
        command = [sys.executable, "-m", "cordwood", "ls", str(tmp_path / name)]
        environment = {**os.environ, "TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path)}
        shown = run_in_terminal(command, tmp_path, environment)
        assert (shown.text.splitlines()[0] == "") == is_table, name
        assert shown.text.splitlines()[-1].endswith(", packs")


def test_ls_of_checkpoints_of_other_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    from cordwood.cli import list_leaves

    golden = GOLDEN / "eformer-0.0.101" / "run" / "run-12"
    quick = list_leaves.list_leaves(golden, prefix="params")
    monkeypatch.setattr(list_leaves, "quick_look", lambda *_, **__: None)
    opened = list_leaves.list_leaves(golden, prefix="params")
    assert {row.cuts for row in opened.rows} == {(), (4, 2)}  # the index does not record them
    plain = [row._replace(parts=1, cuts=()) for row in opened.rows]
    assert quick == opened._replace(rows=plain)


def test_ls_prints_how_arrays_are_partitioned(run: Run, tmp_path: Path) -> None:
    mesh = jax.make_mesh((4, 2), ("x", "y"))
    spread = NamedSharding(mesh, PartitionSpec("x", "y"))
    array = jax.device_put(np.zeros((8, 4), np.float32), spread)
    cordwood.save(tmp_path / "c", {"w": array, "b": 1})
    out = run("ls", tmp_path / "c").out
    assert out.splitlines()[0] == "w  float32[8,4]  128 B  in 8 parts, 4x2"
    leaf = json.loads(run("ls", tmp_path / "c", "--json").out)["leaves"][0]
    assert (leaf["parts"], leaf["cuts"], leaf["sharding"]) == (8, [4, 2], "")


@pytest.mark.parametrize("name", ["v0-zarr2-files", "v0-zarr3-ocdbt"])
def test_ls_prints_the_shardings_that_orbax_recorded(run: Run, name: str) -> None:
    leaves = json.loads(run("ls", GOLDEN / "orbax" / name, "--json").out)["leaves"]
    by_path = {leaf["key_path"]: leaf["sharding"] for leaf in leaves}
    assert by_path["params/kernel"] == "P('x', 'y') on x=4, y=2"
    assert by_path["params/bias"] == "cpu:0"


def test_completion_for_the_shell() -> None:
    code = "from cordwood.cli.main import main; main()"
    script = run_python(code, _CORDWOOD_COMPLETE="zsh_source")
    assert "#compdef" in script
    words = run_python(
        code, _CORDWOOD_COMPLETE="zsh_complete", COMP_WORDS="cordwood co", COMP_CWORD="1"
    )
    assert "convert" in words


def test_latest_is_the_newest_complete_step(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "run"
    for step in (5, 20, 100):
        cordwood.save(root / str(step), {"x": np.ones(step)})
    (root / "100" / "cordwood.json").unlink()
    (root / "100" / "model.safetensors.index.json").unlink()
    assert "float64[20]" in run("ls", root / "latest").out
    assert json.loads(run("info", root / "latest", "--json").out)["path"] == str(root / "20")
    assert run("diff", root / "latest", root / "20").code == 0
    assert run("info", f"{root}/latest/").code == 0
    monkeypatch.chdir(root)
    assert run("show", "latest", "x").code == 0
    cordwood.save(root / "latest", {"x": np.ones(3)})  # a checkpoint of that name is not an alias
    assert "float64[3]" in run("ls", root / "latest").out


def test_latest_of_a_url_is_its_newest_step(run: Run) -> None:
    for step in (1, 2):
        cordwood.save(f"memory://latest/run/{step}", {"x": np.ones(step)})
    assert "float64[2]" in run("ls", "memory://latest/run/latest").out


def test_latest_of_a_directory_without_steps(run: Run, tmp_path: Path) -> None:
    code, _, err = run("ls", tmp_path / "latest")
    assert code == 3
    assert f"there is no checkpoint: '{tmp_path}/latest'" in err


def test_convert_writes_one_leaf_at_several_places(run: Run, tmp_path: Path) -> None:
    cordwood.save(tmp_path / "a", {"embed": np.arange(4)})
    rename = ["--rename", "embed=embed", "--rename", "embed=head/w"]
    assert run("convert", tmp_path / "a", tmp_path / "b", *rename)[0] == 0
    loaded = cordwood.load(tmp_path / "b")
    np.testing.assert_array_equal(loaded["embed"], loaded["head"]["w"])


MANY = 400_000  # more than 1 MiB of each


@pytest.mark.parametrize("suffix", ["", ".msgpack"])
@pytest.mark.parametrize(
    ("value", "beginning"),
    [
        ("aé\n" * MANY, "'aé\\naé"),
        (b"\0a\xff\n" * MANY, r"b'\x00a\xff\n"),
        (np.arange(MANY).astype("M8[s]"), "1970-01-01T00:00:01"),
    ],
)
def test_show_prints_the_beginning_of_a_long_value_and_says_so(
    run: Run, tmp_path: Path, value: Any, beginning: str, suffix: str
) -> None:
    path = tmp_path / f"long{suffix}"
    cordwood.save(path, {"x": value})
    code, out, _ = run("show", path, "x")
    assert code == 0
    assert beginning in out
    assert out.splitlines()[-1].startswith("This is the beginning of ")
    assert len(out) < 101_000
    document = json.loads(run("show", path, "x", "--json").out)
    assert document["complete"] is False
    assert document["size_bytes"] > 1 << 20


def test_show_prints_the_beginning_of_many_keys(run: Run, tmp_path: Path) -> None:
    import jax

    keys = jax.random.split(jax.random.key(0), 1 << 18)
    cordwood.save(tmp_path / "keys", {"x": keys, "one": keys[0]})
    document = json.loads(run("show", tmp_path / "keys", "x", "--json").out)
    assert document["value"] == jax.random.key_data(keys)[: 1 << 17].tolist()
    assert (document["complete"], document["size_bytes"]) == (False, 2 << 20)
    document = json.loads(run("show", tmp_path / "keys", "one", "--json").out)
    assert document == {"key_path": "one", "kind": "prng_key", "value": document["value"]}
    assert document["value"] == jax.random.key_data(keys[0]).tolist()


def test_info_says_where_a_long_text_goes_on(run: Run, tmp_path: Path) -> None:
    cordwood.save(tmp_path / "c", {"x": 1}, metadata={"short": "a" * 200, "long": "b" * 201})
    out = run("info", tmp_path / "c").out
    assert "a" * 200 + "\n" in out + "\n"
    assert "b" * 200 + "..." in out


def test_info_says_what_a_delta_holds(run: Run, tmp_path: Path) -> None:
    publisher = cordwood.WeightPublisher(tmp_path / "weights")
    for version in (1, 2):
        publisher.publish(version, {"w": np.full(1000, version)}).wait()
    rows = [line.split(maxsplit=2) for line in run("info", tmp_path / "weights/2")[1].splitlines()]
    assert ["delta", "of", "version 1"] in rows
    assert ["holds", "the", "changes, not the tree"] in rows
