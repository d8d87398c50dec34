"""The mistakes with damaged or incomplete checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from demo.mistakes.mistake import Mistake

__all__ = ["DAMAGE"]

_NO_INDEX = "has no separate index"
_NO_VERSION = "writes no version"


def _largest_file(path: Path) -> Path:
    if path.is_file():
        return path
    files = [each for each in path.rglob("*") if each.is_file()]
    return max(files, key=lambda each: (each.stat().st_size, each))


def _truncate(path: Path) -> None:
    file = _largest_file(path)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _flip(path: Path) -> None:
    file = _largest_file(path)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def _remove_data(path: Path) -> None:
    _largest_file(path).unlink()


def _halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _interrupt_orbax(path: Path) -> None:
    path.rename(path.with_name("ckpt.orbax-checkpoint-tmp"))


def _from_the_future(path: Path) -> None:
    index = path / "cordwood.json"
    index.write_text(index.read_text().replace('"version":1,', '"version":99,'))


DAMAGE: Sequence[Mistake] = (
    Mistake("A truncated file", "the largest file was cut in half", change=_truncate),
    Mistake("A flipped bit", "one bit in the middle of the largest file was changed", change=_flip),
    Mistake(
        "A damaged index",
        "the index (`cordwood.json`, `_METADATA`) was cut in half",
        change={
            "cordwood": lambda path: _halve(path / "cordwood.json"),
            "orbax": lambda path: _halve(path / "_METADATA"),
        },
        acts={"flax": _NO_INDEX, "equinox": _NO_INDEX},
    ),
    Mistake(
        "A missing file",
        "the largest file of the directory was deleted",
        change=_remove_data,
        acts={"flax": "has one file", "equinox": "has one file"},
    ),
    Mistake(
        "The save was killed",
        "the save was killed before it finished; for a library that writes its file in place, the "
        "first half of the file is loaded",
        change={
            "cordwood": lambda path: path.rename(
                path.with_name(".ckpt.cordwood-0123456789abcdef.stage")
            ),
            "orbax": _interrupt_orbax,
            "flax": _truncate,
            "equinox": _truncate,
        },
    ),
    Mistake(
        "Files without their index",
        "the data was copied without `cordwood.json`, `_METADATA`",
        change={
            "cordwood": lambda path: (path / "cordwood.json").unlink(),
            "orbax": lambda path: (path / "_METADATA").unlink(),
        },
        acts={"flax": _NO_INDEX, "equinox": _NO_INDEX},
    ),
    Mistake(
        "A newer format version",
        "the file has a format version that the library does not know yet",
        change={"cordwood": _from_the_future},
        acts={"orbax": _NO_VERSION, "flax": _NO_VERSION, "equinox": _NO_VERSION},
    ),
)
