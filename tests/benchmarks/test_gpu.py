"""The benchmark on GPUs: a dry run of all parts, its page from given numbers, parts that fail."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
import zipfile
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_charts import files, ticks_to
from benchmarks.gpu_parts.carried_wheels import unpack_missing
from benchmarks.gpu_parts.contenders import (
    CALL,
    COLD,
    DONE,
    FILE,
    ORBAX,
    PACKS,
    SAFETENSORS,
    SAVE,
    WARM,
    WAYS_TO_LOAD,
)
from benchmarks.gpu_parts.part import MIB, PROGRAM, NotPossibleError, Results, Setting
from benchmarks.gpu_parts.run_parts import PARTS, Part, environment_of, run_part, times_of
from benchmarks.gpu_parts.sizes import GIB, Rates, Room, saved_bytes, tree_bytes
from benchmarks.gpu_parts.tree import bytes_of, flat, shapes_of
from benchmarks.gpu_report import as_markdown, growth_mib, targets
from benchmarks.pages import HERE
from benchmarks.pages import environment_of as page_environment

SVG = "{http://www.w3.org/2000/svg}"
COPIES = {
    "device_put to pinned_host, one array": {"first": 10.0, "median": 20.0},
    "device_put of pinned_host arrays, many arrays": {"first": 10.0, "median": 25.0},
}


def run_of(**seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Return the results of a run, with times of the contenders for a tree of 1 GB."""

    def part(values: dict[str, Any]) -> dict[str, Any]:
        return {"values": values, "missing": {}, "errors": {}, "seconds": 1.0}

    memory = [400.0 + min(number, 10) for number in range(300)]
    saves = {
        "tree_bytes": MIB,
        "asked": 300,
        "seconds": 9.0,
        "calls": [0.1],
        "leaves": 2,
        "resident_mib": memory,
        "used_mib": memory,
        "device_peak_bytes": None,
        "staging_bytes": 2 * MIB,
        "staging_after_bytes": 0,
    }
    kinds = {"save": SAVE, "call": CALL, "done": DONE, "warm": WARM, "cold": COLD}
    device = {"platform": "gpu", "kind": "A GPU", "memory_kinds": [], "memory": {}, "runtime": ""}
    disk = {"write with O_DIRECT": {"1": 1.0, "4": 2.0}, "read with O_DIRECT": {"16": 4.0}}
    parts: dict[str, dict[str, Any]] = {
        "machine": {"versions": {"jax": "1"}, "host": {"line": "a host"}, "devices": [device]},
        "correctness": {"dtype int8": "equal", "dtype bool": "equal", "a .msgpack file": "equal"},
        "disk": {"bytes": 8 * MIB, **disk},
        "copies": {"bytes": 8 * MIB, **COPIES},
        "contenders": {
            "tree": {"bytes": 10**9, "leaves": 3},
            "seconds": {kinds[kind]: each for kind, each in seconds.items()},
        },
        "first_loads": {PACKS: {WARM: 0.5}},
        "repeated_saves": {"saves": saves},
    }
    return {
        "seconds": 480.0,
        "gib": None,
        "dry": False,
        "parts": {name: part(values) for name, values in parts.items()},
    }


def setting_of(folder: Path) -> Setting:
    return Setting(folder, True, 0.0, MIB, MIB, 2, MIB, folder)


def test_a_dry_run_does_all_parts(tmp_path: Path) -> None:
    results, output = tmp_path / "gpu.json", tmp_path / "output"
    before = sorted(HERE.rglob("*gpu*.[ms][dv]*"))
    command = [sys.executable, str(PROGRAM), "--dry-run", "--seconds", "1"]
    command += ["--results", str(results), "--output", str(output), "--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    run = json.loads(results.read_text())
    assert list(run["parts"]) == [part.name for part in PARTS]
    for name, part in run["parts"].items():
        assert not part["errors"], (name, part["errors"])
        assert part["values"], name
    seconds = run["parts"]["contenders"]["values"]["seconds"]
    contenders = {PACKS, FILE, ORBAX, SAFETENSORS}
    assert set(seconds[SAVE]) == contenders
    assert set(seconds[COLD]) == contenders.union(title for title, _ in WAYS_TO_LOAD)
    assert set(seconds[CALL]) == {PACKS, FILE, ORBAX}
    assert len(run["parts"]["correctness"]["values"]) > 40
    assert run["parts"]["repeated_saves"]["values"]["saves"]["staging_bytes"] > 0
    text = (output / "gpu.md").read_text()
    assert text.strip() in done.stdout
    assert text.count("\n## ") == 8  # no targets: the numbers say nothing about a GPU
    for path, svg in files(text, output / "charts").items():
        assert path.read_text() == svg
    assert len(list((output / "charts").iterdir())) == 4
    assert sorted(HERE.rglob("*gpu*.[ms][dv]*")) == before


def test_without_a_gpu_the_program_says_how_to_make_a_dry_run() -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 2
    assert "There is no GPU here" in done.stderr
    assert "--dry-run" in done.stderr


def test_targets_are_computed_from_the_medians_of_later_rounds() -> None:
    run = run_of(
        call={PACKS: [9.0, 0.1, 0.1], ORBAX: [9.0, 1.0]},
        save={PACKS: [0.5, 0.6, 0.7], FILE: [2.0]},
        cold={PACKS: [0.3], FILE: [0.5]},
        warm={PACKS: [0.1], FILE: [0.05], SAFETENSORS: [1.0, 0.6]},
    )
    measured = [(round(each.measured or 0, 2), each.verdict) for each in targets(run)]
    assert measured == [
        (0.1, "met"),  # blocking
        (0.77, "**not met**"),  # 1 GB in 0.65 s, of 2 GB/s
        (0.83, "met"),  # 1 GB in 0.3 s, of 4 GB/s
        (0.25, "**not met**"),
        (0.5, "**not met**"),
        (6.0, "**not met**"),
        (12.0, "met"),
        (1.0, "met"),  # growth
    ]
    for _, verdict in measured:
        assert f"| {verdict} |" in as_markdown(run)


def test_what_was_not_measured_is_said() -> None:
    run = run_of(save={PACKS: [1.0]})
    contenders = run["parts"]["contenders"]
    contenders["missing"][ORBAX] = "orbax is not installed"
    contenders["errors"][f"{SAVE}: {SAFETENSORS}"] = "OSError: [Errno 28] No space | left"
    run["parts"]["repeated_saves"]["values"] = {}
    text = as_markdown(run)
    assert f"| {ORBAX}: orbax is not installed |" in text
    assert (
        f"| contenders | {SAVE}: {SAFETENSORS} | failed | OSError: [Errno 28] No space / left |"
        in text
    )
    assert [each.verdict for each in targets(run)].count("not measured") == 7
    del run["parts"]["copies"]
    assert as_markdown(run).count("Nothing was measured.") == 2


def test_ways_to_load_have_a_table_of_their_own() -> None:
    times = {PACKS: [0.2], "another way": [0.1]}
    text = as_markdown(run_of(warm=times, cold=times))
    tables = text.split("Ways to load")[1].split("<picture>")[0]
    assert tables.count("| another way | 10.00 |") == 2
    assert text.count("| another way |") == 2


def test_memory_grows_from_the_tenth_save_on() -> None:
    assert growth_mib([0.0] * 9 + [5.0, 9.0, 7.0]) == 2.0
    assert growth_mib([0.0] * 10) is None


def test_the_charts_show_the_tables_of_the_page(tmp_path: Path) -> None:
    text = as_markdown(run_of(save={PACKS: [0.5], ORBAX: [2.0]}, warm={PACKS: [0.25]}))
    drawn = {path.name: ElementTree.fromstring(svg) for path, svg in files(text, tmp_path).items()}
    assert len(drawn) == 4
    bars = drawn["gpu-speeds-light.svg"].iterfind(f"{SVG}text[@class='number']")
    assert [each.text for each in bars] == ["2.00 GB/s", "0.50 GB/s", "4.00 GB/s"]
    curve = drawn["gpu-memory-dark.svg"].find(f"{SVG}polyline")
    assert curve is not None
    assert len(curve.get("points", "").split()) == 300
    assert page_environment(text) == ["jax 1", "a host"]


@pytest.mark.parametrize("value", [0.003, 0.9, 1.0, 7.0, 433.0, 5000.0])
def test_ticks_reach_the_value(value: float) -> None:
    ticks = ticks_to(value)
    assert ticks[0] == 0
    assert ticks[-2] < value <= ticks[-1]
    assert 2 <= len(ticks) <= 6


def test_the_time_of_all_parts_has_a_bound() -> None:
    remaining = 480.0
    for number in range(len(PARTS)):
        enough, limit = times_of(number, remaining, dry=False)
        assert enough < limit <= remaining
        remaining -= min(enough, limit)
    assert remaining > 0


def test_sizes_fit_the_room_and_the_time() -> None:
    room = Room(device=60 * GIB, host=100 * GIB, disk=60 * GIB, ram_disk=50 * GIB)
    fast = Rates(write=4e9, read=6e9)
    assert tree_bytes(room, fast, 1000) == 4 * GIB
    assert tree_bytes(room._replace(disk=8 * GIB), fast, 1000) == GIB
    assert tree_bytes(room, Rates(write=1e8, read=1e8), 100) < 400 * MIB
    assert saved_bytes(room, fast, 60) == (128 * MIB, True)
    slow, in_ram = saved_bytes(room._replace(ram_disk=64 * MIB), Rates(write=1e8), 60)
    assert (slow, in_ram) == (8 * MIB, False)


@pytest.mark.parametrize("size", [MIB, 100 * MIB, 4 * GIB])
def test_the_tree_has_about_the_size_that_was_asked_for(size: int) -> None:
    shapes = shapes_of(size)
    assert bytes_of(shapes) == pytest.approx(size, rel=0.2, abs=2 * MIB)
    assert len(flat(shapes)) > 30


def test_a_measurement_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError("no\nmore lines")

    def miss() -> None:
        raise ModuleNotFoundError("No module named 'orbax.checkpoint'", name="orbax.checkpoint")

    def refuse() -> None:
        raise NotPossibleError("not here")

    results = Results(tmp_path / "part.json")
    for name, work in {"a": fail, "b": miss, "c": refuse}.items():
        results.measure(name, work)
    results.measure("d", lambda: 7)
    again = Results(tmp_path / "part.json")
    assert again.values == {"d": 7}
    assert again.errors == {"a": "OSError: no"}
    assert again.missing == {"b": "orbax.checkpoint is not installed", "c": "not here"}
    again.measure("d", fail)  # was done before
    assert again.values == {"d": 7}


PROGRAM_THAT_DIES = """
import os, sys, time
sys.path.insert(0, {root!r})
from benchmarks.gpu_parts.part import Results, Setting
setting = Setting.of(sys.argv[sys.argv.index("--setting") + 1])
results = Results(setting.folder / "toy.json")
results.measure("before", lambda: 1)
results.measure("aborts", os.abort)
results.measure("after", lambda: 2)
results.measure("hangs", lambda: time.sleep(600))
"""


def test_a_process_that_dies_or_hangs_is_an_error_of_what_it_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM_THAT_DIES.format(root=str(HERE.parent)))
    environment = environment_of({}, [], dry=True)
    state = run_part(Part("toy", 1), setting_of(tmp_path), 5.0, environment, program=program)
    assert state["values"] == {"before": 1, "after": 2}
    assert state["errors"] == {
        "aborts": "the process ended with SIGABRT",
        "hangs": "stopped after 5 s",
    }
    assert "toy: hangs: stopped after 5 s" in capsys.readouterr().err


def test_a_part_that_cannot_begin_is_an_error(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("raise ImportError('no such library')")
    state = run_part(Part("toy", 1), setting_of(tmp_path), 60.0, {}, program=program)
    assert state["errors"] == {"the whole part": "ImportError: no such library"}


def test_carried_wheels_supply_what_is_missing(tmp_path: Path) -> None:
    for module in ("module_that_is_missing", "json"):
        with zipfile.ZipFile(tmp_path / f"{module}-1-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{module}/__init__.py", "value = 7")
            wheel.writestr(f"{module}-1.dist-info/METADATA", "Name: it")
    into = tmp_path / "unpacked"
    assert unpack_missing(tmp_path, into) == ["module_that_is_missing-1-py3-none-any.whl"]
    assert (into / "module_that_is_missing" / "__init__.py").read_text() == "value = 7"
    assert not (into / "json").exists()
    assert unpack_missing(tmp_path / "nothing", into) == []
