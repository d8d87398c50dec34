"""The mistakes with paths that hold something else."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import cordwood
from demo.mistakes.libraries import LIBRARIES
from demo.mistakes.mistake import Act, Mistake, state

__all__ = ["PLACES"]

_ANY_NAME = "accepts any name: the suffix has no meaning"


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def _empty_directory(path: Path) -> None:
    _remove(path)
    path.mkdir()


def _steps(path: Path) -> None:
    moved = path.rename(path.with_name("100"))
    path.mkdir()
    moved.rename(path / "100")
    copy: Callable[..., Any] = shutil.copytree if (path / "100").is_dir() else shutil.copy
    copy(path / "100", path / "200")


def _notes_in_a_directory(path: Path) -> None:
    path.mkdir()
    (path / "notes.txt").write_text("what I had for lunch")


def _notes(path: Path) -> None:
    path.write_text("what I had for lunch")


def _numpy_archive(path: Path) -> None:
    _remove(path)
    with path.open("wb") as file:
        np.savez(file, kernel=np.zeros(3, np.float32))


def _pickle(path: Path) -> None:
    _remove(path)
    path.write_bytes(pickle.dumps({"kernel": [1.0, 2.0]}))


def _empty_file(path: Path) -> None:
    _remove(path)
    path.touch()


def _saving(name: str) -> Act:
    save = LIBRARIES[name].save
    return lambda path: save(path, {"old": np.zeros(3, np.float32)})


def _relative(name: str) -> Act:
    load = LIBRARIES[name].load
    return lambda path: load(Path(path.name), state())


PLACES: Sequence[Mistake] = (
    Mistake("Nothing at the path", "the path is misspelled", change=_remove),
    Mistake(
        "An empty directory", "a directory with nothing in it is loaded", change=_empty_directory
    ),
    Mistake("A directory of steps", "`ckpt` holds the steps 100 and 200", change=_steps),
    Mistake(
        "A relative path",
        "`ckpt` is loaded instead of `/home/me/ckpt`",
        acts={name: _relative(name) for name in LIBRARIES},
    ),
    Mistake(
        "Another format",
        "a file that numpy's `savez` wrote has the name of the checkpoint",
        change=_numpy_archive,
        acts={"cordwood": lambda path: cordwood.load(path, like=state(), format="msgpack")},
    ),
    Mistake("A pickle", "a file that Python's `pickle.dump` wrote is loaded", change=_pickle),
    Mistake("An empty file", "a file of 0 bytes is loaded", change=_empty_file),
    Mistake(
        "An extra suffix",
        "`ckpt.h5` is loaded, and the checkpoint is called `ckpt`",
        acts={
            "cordwood": lambda path: cordwood.load(path.with_suffix(".h5"), like=state()),
            **{name: _ANY_NAME for name in LIBRARIES if name != "cordwood"},
        },
    ),
    Mistake(
        "A misspelled suffix",
        "a tree is saved to `ckpt.safetensor`",
        saves=True,
        acts={
            "cordwood": lambda path: cordwood.save(path.with_suffix(".safetensor"), state()),
            **{name: _ANY_NAME for name in LIBRARIES if name != "cordwood"},
        },
    ),
    Mistake(
        "Saving over a directory of something else",
        "the path is a directory with `notes.txt` in it",
        saves=True,
        change=_notes_in_a_directory,
    ),
    Mistake(
        "Saving over a file of something else",
        "the path is a text file; cordwood is asked to save a `.safetensors` file",
        saves=True,
        change={
            "cordwood": lambda path: _notes(path.with_suffix(".safetensors")),
            **{name: _notes for name in LIBRARIES if name != "cordwood"},
        },
        acts={"cordwood": lambda path: cordwood.save(path.with_suffix(".safetensors"), state())},
    ),
    Mistake(
        "Saving over an older checkpoint",
        "the path already has a checkpoint of the same library",
        saves=True,
        change={name: _saving(name) for name in LIBRARIES},
    ),
)
