"""Each script of `benchmarks/` at its smallest size: all contenders work, no page is written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks.contender_names import ORBAX
from benchmarks.directory_claims import ASYNC_CLAIMS, LOAD_CLAIMS, SAVE_CLAIMS
from benchmarks.gpu_parts import contenders
from benchmarks.manager_names import NAMES

ROOT = Path(__file__).resolve().parent.parent.parent
BENCHMARKS = ROOT / "benchmarks"


class Script(NamedTuple):
    """A script, its options, and parts of what it prints."""

    name: str
    options: str  # FOLDER: an empty folder, which stays empty; OUTPUT: one for what is written
    output: tuple[str, ...]

    def __str__(self) -> str:
        return self.name


CONTENDERS_OF_DIRECTORIES = [
    f"| {name} |"
    for claim in (*SAVE_CLAIMS, *LOAD_CLAIMS, *ASYNC_CLAIMS)
    for name in (claim.ours, claim.other)
]
GPU_CONTENDERS = [
    contenders.PACKS,
    contenders.FILE,
    contenders.ORBAX,
    contenders.SAFETENSORS,
    *(title for title, _ in contenders.WAYS_TO_LOAD),
]
SCRIPTS = [
    Script(
        "bulk.py",
        "--smoke --folder FOLDER",
        ("| 8 |", "| 2 processes |", "| 400 | 0.107377 | 100 |"),
    ),
    Script("archives.py", "--steps 2 --folder FOLDER", ("| a training state, bfloat16 |",)),
    Script("combine.py", "--mib 2 --rounds 1 --folder FOLDER", ("| float32 |", "| bfloat16 |")),
    Script("convert.py", "--tree smoke --rounds 1 --folder FOLDER", ("| msgpack.gz to packs |",)),
    Script(
        "directory.py",
        "--tree smoke --rounds 1 --folder FOLDER",
        tuple(CONTENDERS_OF_DIRECTORIES),
    ),
    Script(
        "gpu.py",
        "--dry-run --seconds 1 --folder FOLDER --results OUTPUT/gpu.json --output OUTPUT",
        tuple(f"| {name} |" for name in GPU_CONTENDERS),
    ),
    Script("manager.py", "--case smoke --json --folder FOLDER", NAMES),
    Script(
        "manager_replicas.py",
        "--mib 4 --rounds 1 --steps 6 --folder FOLDER",
        ("| shared=False, replicas=1 |",),
    ),
    Script("object_clients.py", "--size 5 --rounds 1", ("| small writes, TensorStore |",)),
    Script("object_store.py", "--mib 2 --rounds 1", ("| load cordwood |", "| load obstore |")),
    Script("orbax_index.py", "--tree smoke --rounds 1 --folder FOLDER", (f"| {ORBAX} |",)),
    Script(  # ranges and MiB that a load reads, which depend on no machine
        "parts.py",
        "--mib 16",
        (
            "| 16 | 2 | 1 | 16 |",
            "| 4,096 | 2 | 4 | 2 |",
            "| 4,096 | 2 | 4 | 4 |",
            "| 16 | 2 | 1 | 2 | 1 | 2 |",
        ),
    ),
    Script("peer_plans.py", "--processes 32", ("| both holders of a file |", "| met |")),
    Script(
        "publish.py", "--mib 1 --rounds 1 --folder FOLDER", ("| float32 masters |", "| a store")
    ),
    Script("recipes.py", "--mib 4 --rounds 1 --folder FOLDER", ("| numpy, transposed |",)),
    Script(
        "recover.py",
        "--mib 4 --rounds 1 --processes 2 --folder FOLDER",
        ("| the same, one root lost: from a replica |",),
    ),
    Script("resume.py", "--in-turns --tree smoke --inside FOLDER", (ORBAX,)),
    Script("scale.py", "--most 4", ("| 5% | met |", "| files per process | 15 | 16 | met |")),
    Script("single_file.py", "--tree smoke --rounds 1 --folder FOLDER", ("| cordwood",)),
    Script("training.py", "--case smoke --folder FOLDER", ("| cordwood |", "| orbax |")),
    Script("verify.py", "--tree smoke --rounds 1 --folder FOLDER", ("| packs | warm |",)),
]


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_it_runs_at_its_smallest_size(script: Script, tmp_path: Path) -> None:
    folder, output_folder = tmp_path / "folder", tmp_path / "output"
    folder.mkdir()
    output_folder.mkdir()
    pages = {path: path.read_bytes() for path in BENCHMARKS.rglob("*.[ms][dv]*")}
    options = script.options.replace("FOLDER", str(folder)).replace("OUTPUT", str(output_folder))
    output = output_of(script.name, *options.split())
    for part in script.output:
        assert part in output
    assert "| failed |" not in output  # a part of the benchmark on GPUs
    assert list(folder.iterdir()) == []
    assert pages == {path: path.read_bytes() for path in BENCHMARKS.rglob("*.[ms][dv]*")}


def output_of(name: str, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / name), *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
