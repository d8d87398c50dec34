"""Golden files of tools that need environments of their own; `make foreign-files` writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.foreign_files.make.__main__ import FOLDER, GOLDEN
from tests.foreign_files.make.values import SUFFIX, read_values
from tests.foreign_files.reading import assert_equal_values, assert_refused
from tests.tool_environments import requirements_by_name

RUN_SUFFIX = ".run"  # of a root of steps; test_golden_runs.py reads them
MAX_GOLDEN_BYTES = 2_000_000

# Files that are not read, and the words of the refusal: what it is, and what to do.
TORCH = ("a PyTorch file (a pickle", "which cordwood never loads", "safetensors.torch.save_file")
JOBLIB = ("a Python pickle of joblib, which cordwood never loads: load it with joblib.load",)
REFUSED: dict[str, tuple[str, ...]] = {
    "torch-2.13.0/state.pt": TORCH,
    "torch-2.13.0/pytorch_model.bin": TORCH,
    "torch-2.13.0/script.pt": TORCH,
    "torch-2.13.0/old.pth": (*TORCH, "of PyTorch before 1.6"),
    "torch-2.13.0/distributed": ("a distributed checkpoint of PyTorch", "write safetensors"),
    "joblib-1.6.0/params.joblib": JOBLIB,
    "joblib-1.6.0/params.joblib.z": ("a zlib stream that contains", *JOBLIB),
    "joblib-1.6.0/params.joblib.gz": ("a gzip stream that contains", *JOBLIB),
    "keras-3.15.1/model.weights.h5": ("an HDF5 file (as h5py and Keras write it)", "with h5py"),
    "keras-3.15.1/model.keras": ("a model of Keras 3", "keras.saving.load_model"),
}
# Leaves that are listed and cannot be read, beside others.
UNREADABLE = {"zarr-2.18.7/text": ("codes", "names", "steps")}


def cases() -> list[str]:
    """Return the path of each golden file or directory in GOLDEN: TOOL-VERSION/CASE."""
    paths = [path for folder in GOLDEN.iterdir() for path in folder.iterdir()]
    names = [path.relative_to(GOLDEN).as_posix() for path in paths]
    return sorted(
        name for name in names if not name.endswith(SUFFIX) and Path(name).name != "versions.txt"
    )


@pytest.mark.parametrize("name", [name for name in cases() if not name.endswith(RUN_SUFFIX)])
def test_a_file_is_read_as_its_tool_reads_it_or_refused_in_words(name: str) -> None:
    if name in REFUSED:
        assert_refused(GOLDEN / name, REFUSED[name])
    else:
        values = read_values(GOLDEN / name)
        assert_equal_values(GOLDEN / name, values, unreadable=UNREADABLE.get(name, ()))


def test_each_environment_has_golden_files_and_the_refused_ones_exist() -> None:
    environments = requirements_by_name(FOLDER / "environments.txt")
    assert sorted(environments) == sorted(path.name for path in GOLDEN.iterdir())
    assert REFUSED.keys() <= set(cases())
    for name in environments:
        assert (GOLDEN / name / "versions.txt").is_file()


def test_the_golden_files_are_small() -> None:
    files = [path for path in GOLDEN.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MAX_GOLDEN_BYTES
